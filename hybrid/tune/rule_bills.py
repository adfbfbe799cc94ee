"""What each rule would have cost on the bought questions, worked out from their labels: nothing is asked again.

How. A rule is followed along the draft: each of its checks and writes is priced where it would have been sent. What
follows a correction is not known, so the rest of the draft stands for it, and the cloud's own answer tells how much the
cloud would have written: an estimate for rules that correct, exact for those that do not. ``left``: the excess loss in
nats that a rule leaves in its text, as a share of what the drafts lose.

The laws (``tests/tune/test_rule_bills.py``): the cloud alone is the price of its own requests; a check of everything
that turns nothing down is ``once`` without its rest; with nothing to correct every rule that checks shows the draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hybrid.prob import Floats
from hybrid.spend import AskPrices, CheckRates
from hybrid.tune.bought import BoughtQuestion, BoughtText

# The handoff of the preset kl: the first block of what the cloud writes, and how many tokens in a row must agree.
HANDOFF, AGREEING = 4, 2


class Followed(NamedTuple):
    """A rule along one draft: its price, requests, tokens that the cloud wrote, and the mean excess left, in nats."""

    price: float
    requests: int
    cloud_tokens: float
    left: float


Rule = Callable[[BoughtQuestion, AskPrices], Followed]


@dataclass(frozen=True)
class RuleBill:
    """A rule over all questions. ``bill``: a question, in the prices' unit; ``of_cloud``: of the cloud's own bill.

    ``requests``: a question. ``cloud_share``: of the tokens. ``left``: share of the drafts' excess loss that stays.
    """

    rule: str
    bill: float
    of_cloud: float
    requests: float
    cloud_share: float
    left: float


def rule_bills(questions: Sequence[BoughtQuestion], prices: AskPrices, rules: dict[str, Rule]) -> list[RuleBill]:
    """Return what each rule takes over the questions, at least one."""
    alone = sum(cloud_alone(each, prices).price for each in questions)
    lost = float(np.mean([_mean(each.judged.excess) for each in questions]))
    found = []
    for name, rule in rules.items():
        each = [rule(question, prices) for question in questions]
        bill, tokens = sum(one.price for one in each), sum(len(question.judged) for question in questions)
        found.append(
            RuleBill(
                name,
                bill / len(each),
                bill / alone if alone else 0.0,
                sum(one.requests for one in each) / len(each),
                min(1.0, sum(one.cloud_tokens for one in each) / max(1, tokens)),
                float(np.mean([one.left for one in each])) / lost if lost else 0.0,
            )
        )
    return found


def cloud_alone(question: BoughtQuestion, prices: AskPrices) -> Followed:
    """Let the cloud write it all."""
    prompt, written = question.written.signals.prompt_tokens, len(question.written.signals)
    return Followed(float(prices.write(prompt, written, 0)), 1, written, 0.0)


def local_alone(question: BoughtQuestion, prices: AskPrices) -> Followed:  # noqa: ARG001  (a rule's shape)
    """Keep the draft."""
    return Followed(0.0, 0, 0, _mean(question.judged.excess))


def once(judge: str) -> Rule:
    """Check the whole draft; from its first rejection on the cloud writes, as long as its own answer."""

    def follow(question: BoughtQuestion, prices: AskPrices) -> Followed:
        text = question.judged
        prompt, num, place = text.signals.prompt_tokens, len(text), text.first_rejection(judge)
        price = float(prices.check(prompt, num, 0))
        if place is None:
            return Followed(price, 1, 0, _mean(text.excess))
        rest = max(1, len(question.written.signals) - place - 1)
        price += float(prices.write(prompt + place + 1, rest, prompt + place))
        return Followed(price, 2, 1 + rest, float(text.excess[:place].sum()) / num)

    return follow


def spans(judge: str, span: int, *, hands_over: bool = False) -> Rule:
    """Check every ``span`` tokens; a rejected one is replaced by the check's own token.

    ``hands_over``: then the cloud writes, in blocks that double, until its last two tokens agree.
    """

    def follow(question: BoughtQuestion, prices: AskPrices) -> Followed:
        return _follow(question.judged, judge, span, prices, hands_over=hands_over)

    return follow


def _follow(text: BoughtText, judge: str, span: int, prices: AskPrices, *, hands_over: bool) -> Followed:
    rejected, prompt, num = text.turned_down(judge), text.signals.prompt_tokens, len(text)
    at = known = requests = cloud_tokens = 0
    price, left = 0.0, 0.0
    while at < num:
        end = min(at + span, num)
        price, requests = price + float(prices.check(prompt + at, end - at, known)), requests + 1
        places = np.flatnonzero(rejected[at:end])
        stands = at + int(places[0]) if places.size else end
        left += float(text.excess[at:stands].sum())
        known = prompt + stands
        if not places.size:
            at = end
            continue
        at, cloud_tokens = stands + 1, cloud_tokens + 1
        limit = HANDOFF if hands_over else 0
        while limit and at < num:
            end = min(at + limit, num)
            price, requests = price + float(prices.write(prompt + at, end - at, known)), requests + 1
            cloud_tokens += end - at
            agree = not rejected[max(at, end - AGREEING) : end].any()
            at, known, limit = end, prompt + end, 0 if agree else 2 * limit
    return Followed(price, requests, cloud_tokens, left / max(1, num))


def check_rates(prices: AskPrices) -> CheckRates:
    """Return what checking takes beside writing at these prices, for break-evens."""
    reread = {"uncached": prices.fresh, "cached": prices.cached, "new": 0.0}[prices.scoring]
    correcting = prices.fresh if prices.scoring == "new" else prices.closing
    longer = tuple((start, check_rates(each)) for start, each in prices.longer)
    rates = CheckRates(reread, prices.fresh, correcting + prices.request, prices.written, longer)
    return rates.by_method(in_one_request=prices.in_one_request)


def tokens_before(questions: Sequence[BoughtQuestion]) -> float:
    """Return the tokens before a span, on average: the prompt and half of the answer."""
    return float(np.mean([each.judged.signals.prompt_tokens + len(each.judged) / 2 for each in questions]))


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else 0.0
