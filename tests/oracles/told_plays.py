"""What a policy asks and shows, in words: to compare two plays, or to keep the hash of one; and ways to play it.

Of each word only what was there before there were chains: whose text it is, what it says and the rows it stands on. A
level or a writer is left out, so that a chain can be held against its largest local model alone.
"""

from __future__ import annotations

from toy_score import ToyScore

from hybrid.policy import Policy
from hybrid.policy.plan import Worth
from hybrid.policy.planning import Planner
from hybrid.policy.requests import Check, Draft, Emit, Write
from hybrid.spend import AskPrices

# The last digits of a logarithm are a processor's own. Of a thousand numbers one rounds differently in 10^7 runs.
DIGITS = 6
# How a cloud answers, and what is chosen of a policy.
WAYS = ({}, {"told": False}, {}, {"short": 1}, {"fails": lambda n: n == 2}, {}, {"fails": lambda n: n >= 3})
CHOICES = ({}, {"span": 2}, {"lead": 2}, {"hold": 3}, {"bonus": True, "span": 3})
PLANNED = (
    {"worth": Worth(0.0)},
    {"worth": Worth(2.0)},
    {"worth": Worth(1e6)},
    {"worth": Worth(2.0), "block": 4, "stream": "blocks", "floor": 0.5, "floor_key": 0.25},
    {"worth": Worth(2.0), "stream": "early"},
)


def rounded(value) -> str:
    return f"{value:.{DIGITS}g}"


def told(value) -> str:
    """A request, a token or a toss in words: only what was there before chains, each number rounded."""
    match value:
        case Policy():
            return str(value)
        case Draft():
            return f"draft {value.at} {value.limit} {value.gate} {value.wants_next_row} {value.rejections}"
        case Check():
            span = [told(token) for token in value.span]
            return f"check {value.at} {span} {value.wants_next_row} {planned(value.plan)}"
        case Write():
            how = (value.wants_draft_rows, value.wants_target_rows, value.note, planned(value.plan))
            return f"write {value.at} {value.limit} {sorted(value.ban)} {how}"
        case Emit():
            return f"emit {[told(token) for token in value.tokens]} {planned(value.plan)} {judged(value.judged)}"
    nats = None if value.kl is None else rounded(value.kl.lower)
    certificate = None if value.certificate is None else rounded(value.certificate)
    rows = [None if row is None else rounded(row.logprobs[0]) for row in (value.draft_row, value.target_row)]
    law = None if value.drawn_from is None else rounded(value.drawn_from.probs.max())
    return f"{value.id} {value.source} {value.how} {nats} {value.why} {certificate} {rows} {law}"


def judged(said) -> str:
    """As it was told before there were concepts, where nothing is wording."""
    return repr(said).replace(", num_wording=0", "")


def planned(plan) -> object:
    return plan and (plan.action, plan.at, plan.limit, plan.why)


def choices_of(name, max_tokens):
    """Each policy as it stands and otherwise composed; a planner with what it decides by, too."""
    yield from CHOICES
    if name in {"auto", "route"}:
        prices = AskPrices(1.0, 0.5, 2.0, closing=1.0)
        for changed in PLANNED:
            score = ToyScore(hazard=(0.05,) * max_tokens, excess=(0.02,) * max_tokens)
            yield {"planner": Planner(score=score, prices=prices, prompt_tokens=7, **changed)}
