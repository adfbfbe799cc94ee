"""Rules along one question's labels: what each would have paid, and which tokens it would have left to the local model.

How. A rule is followed along the draft: each of its checks and writes is priced where it would have been sent. Once the
cloud has the pen, its own answer stands for the text, if the draft is that answer up to there: greedy, it is what the
cloud would write. Else the rest of the draft stands for it. Where ``doubt`` gives the pen back, the local model leaves
that answer at its first favourite that is another token; the rest of the draft stands for what follows: where nothing
else was written before, it is what the local model would write. So three things are estimates: what
follows in a text that has gone another way before; of a rule that checks, what the local model writes after a handback,
for which the cloud's answer is taken; and along that answer the excess loss of a local favourite that is another token,
for which KL is taken, or ln(best / second) of the cloud's row, as far as its margin tells, where that is more: it is at
least that, and KL is small where the local model is unsure.

The laws (``tests/tune/test_rule_bills.py``): the cloud alone is the price of its own requests; a check of everything
that turns nothing down is ``once`` without its rest; with nothing to correct every rule that checks shows the draft;
``doubt`` at entropy 0 asks at the first token that is unsure at all, at infinity never.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid.defer import DraftSignals
from hybrid.policy.explanation import plan_bill
from hybrid.policy.plan import DraftPlan
from hybrid.prob import margin_certificate
from hybrid.spend import AskPrices
from hybrid.tune.bought import BoughtQuestion, BoughtText

# How many of a drafter's tokens the cloud will accept, greedily: told before a drafter is taken.
#
# Speculative decoding at temperature 0 writes the cloud's own text, so what counts is along that text: the share of its
# tokens that are the drafter's most likely ones. A calibration has bought the cloud's text with the drafter's rows. The
# law (``tests/tune/test_acceptance.py``): the interval holds the share on as many other questions of the same kind in
# about 95 of 100 cases.

RESAMPLES = 1_000
# A token is a row's likeliest where its probability is the largest, but for rounding.
ROUNDING = 1e-9


@dataclass(frozen=True)
class ExpectedAcceptance:
    """The share of accepted tokens, and where it is expected on as many other questions: 95 %."""

    share: float
    low: float
    high: float
    num_tokens: int


def is_favourite(signals: DraftSignals) -> NDArray[np.bool_]:
    """Return which tokens are the drafter's likeliest ones, shape (T,)."""
    return np.asarray(signals.logprob >= np.log(signals.top) - ROUNDING, dtype=np.bool_)


def greedy_acceptance(questions: Sequence[BoughtQuestion]) -> ExpectedAcceptance:
    """Return what to expect of a drafter whose rows along the cloud's texts are known; of at least one token.

    The interval is that of the difference of two samples of as many questions (a seeded bootstrap).
    """
    signals = [each.written.signals for each in questions]
    agreed = np.array([float(is_favourite(each).sum()) for each in signals])
    tokens = np.array([float(len(each)) for each in signals])
    rng, share = np.random.default_rng(0), float(agreed.sum() / tokens.sum())
    drawn = rng.integers(len(signals), size=(2 * RESAMPLES, len(signals)))
    shares = agreed[drawn].sum(axis=1) / np.maximum(1.0, tokens[drawn].sum(axis=1))
    low, high = np.percentile(shares[:RESAMPLES] - shares[RESAMPLES:], [2.5, 97.5])
    return ExpectedAcceptance(share, max(0.0, share + float(low)), min(1.0, share + float(high)), int(tokens.sum()))


# The handoff of the presets kl and doubt: the first block that the cloud writes, and how many tokens in a row agree.
HANDOFF, AGREEING = 4, 2
# The KL within which the preset doubt gives the pen back.
BACK = "kl:0.02"
# The margin between the two best probabilities, by what it certifies; 1 would be infinitely much.
_MARGINS = np.linspace(0.0, 1.0, 1001)[:-1]
_CERTIFIED = np.array([margin_certificate(float(each)) for each in _MARGINS])


class Followed(NamedTuple):
    """A rule along one draft: its price, its requests, and the parts of texts that the local model writes."""

    price: float
    requests: int
    kept: tuple[tuple[BoughtText, slice], ...] = ()

    def shows(self, judge: str) -> bool:
        """Whether a token is shown unmended that a judge turns down."""
        return any(bool(text.turned_down(judge)[part].any()) for text, part in self.kept)

    def excess(self, num: int) -> float:
        """Return the excess loss that is shown, in nats a token of a draft of ``num``."""
        return sum(float(text.excess[part].sum()) for text, part in self.kept) / max(1, num)


Rule = Callable[[BoughtQuestion, AskPrices], Followed]


def cloud_alone(question: BoughtQuestion, prices: AskPrices) -> Followed:
    """Let the cloud write it all."""
    written = question.written.signals
    return Followed(float(prices.write(written.prompt_tokens, len(written), 0)), 1)


def local_alone(question: BoughtQuestion, prices: AskPrices) -> Followed:  # noqa: ARG001  (a rule's shape)
    """Keep the draft."""
    return Followed(0.0, 0, ((question.judged, slice(None)),))


def once(judge: str) -> Rule:
    """Check the whole draft; from its first rejection on the cloud writes, as long as its own answer."""

    def follow(question: BoughtQuestion, prices: AskPrices) -> Followed:
        text, written = question.judged, len(question.written.signals)
        place = text.first_rejection(judge)
        price = plan_bill(DraftPlan("check", len(text)), prices, text.signals.prompt_tokens, written, place)
        return Followed(price, 1 if place is None else 2, ((text, slice(place)),))

    return follow


def spans(judge: str, span: int, *, handoff: int = 0) -> Rule:
    """Check every ``span`` tokens; a rejected one is replaced by the check's own token.

    ``handoff``: then the cloud writes so many, on in blocks that double, until its last two tokens agree.
    """
    back = (judge, handoff) if handoff else None
    return lambda question, prices: _follow(question, prices, lambda text: text.turned_down(judge), span, back)


def doubt(entropy: float) -> Rule:
    """Let the cloud write where the local entropy is above a limit, in blocks that double, until KL stays small."""
    return lambda question, prices: _follow(
        question, prices, lambda text: text.signals.entropy[: len(text)] > entropy, None, (BACK, HANDOFF)
    )


def _follow(
    question: BoughtQuestion,
    prices: AskPrices,
    stops: Callable[[BoughtText], NDArray[np.bool_]],
    span: int | None,
    back: tuple[str, int] | None,
) -> Followed:
    """Go along the draft to each token that ``stops``. ``span``: it is found by checks of so many; None: here.

    ``back``: the judge that lets the cloud give the pen back, and its first block; None: it never takes the pen.
    """
    text, kept = question.judged, []
    prompt, price, stop = text.signals.prompt_tokens, 0.0, stops(text)
    at = known = requests = 0
    while at < len(text):
        end = len(text) if span is None else min(at + span, len(text))
        places = np.flatnonzero(stop[at:end])
        stands = at + int(places[0]) if places.size else end
        leaves = np.flatnonzero(~is_favourite(text.signals)[at:stands]) if span is None else places[:0]
        if leaves.size:
            stands = at + int(leaves[0]) + 1
        own = text if text is question.judged else replace(text, kl=np.minimum(text.kl, text.excess))
        kept.append((own, slice(at, stands)))
        if leaves.size:
            text, at, stop = question.judged, stands, stops(question.judged)
            continue
        if span is not None:
            price, requests = price + float(prices.check(prompt + at, end - at, known)), requests + 1
            known = prompt + stands
        if not places.size:
            at = end
            continue
        if text is question.judged:
            text = _standing(question, stands)
            stop = stops(text)
        at = stands if span is None else stands + 1
        limit = 0 if back is None else back[1]
        while limit and at < len(text):
            end = min(at + limit, len(text))
            price, requests = price + float(prices.write(prompt + at, end - at, known)), requests + 1
            agree = back is not None and not text.turned_down(back[0])[max(at, end - AGREEING) : end].any()
            at, known, limit = end, prompt + end, 0 if agree else 2 * limit
    return Followed(price, requests, tuple(kept))


def _standing(question: BoughtQuestion, at: int) -> BoughtText:
    """Return the text that stands for what follows where the cloud takes the pen at a token of the draft."""
    draft, written = question.judged, question.written
    if not len(written) or not np.array_equal(draft.signals.tokens[:at], written.signals.tokens[:at]):
        return draft
    least = 2.0 * np.arctanh(np.interp(written.certificates["margin"], _CERTIFIED, _MARGINS))
    own = is_favourite(written.signals)[: len(written)]
    return replace(written, excess=np.where(own, 0.0, np.maximum(written.kl, least)))
