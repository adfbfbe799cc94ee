"""Answers over two servers of one model, held against each other: texts, verdicts and bills.

Two servers never compute the same digits. Where two answers part, a near tie or a divergence close to the threshold
must excuse it, and that may happen rarely.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from arithmetic import LIKELY, tolerance
from endpoints import PATIENT

import hybrid
from hybrid.prob import Dense, TopK
from hybrid.record.events import Rows
from hybrid.tasks import FAMILIES, distinct

# The thresholds at which a policy asks or hands back where none is chosen: KL, and the entropy of ``doubt``.
THRESHOLDS = {"kl": 0.5, "doubt": 0.02}
ENTROPY, WITHIN_NATS = 0.5, 1e-3
# Every way in which a policy asks, with nothing left to chance: what is drawn is drawn here, with this seed.
DETERMINISTIC: Mapping[str, Mapping[str, Any]] = {
    "kl": {"policy": "kl"},
    "kl, spans of 3": {"policy": "kl", "span": 3, "threshold": 0.2},
    "kl, spans of 16": {"policy": "kl", "span": 16},
    "greedy-exact": {"policy": "greedy-exact"},
    "greedy-exact, spans of 4": {"policy": "greedy-exact", "span": 4},
    "doubt": {"policy": "doubt"},
    "paper": {"policy": "paper", "threshold": 0.2, "span": 4, "lead": 4},
    "certified": {"policy": "certified"},
    "cloud": {"policy": "cloud"},
    "exact": {"policy": "exact", "temperature": 1.0, "seed": 3},
    "exact, top 10 at 0.7": {"policy": "exact", "temperature": 0.7, "top_k": 10, "seed": 4},
    "block": {"policy": "block", "temperature": 1.0, "seed": 3},
    "u-hlm": {"policy": "u-hlm", "temperature": 1.0, "seed": 3},
}
# One of each of eight families.
QUESTIONS = [next(iter(distinct(family, "test", 1, seed=5))).question for family in list(FAMILIES)[:8]]


# Of numbers that came as float32, what is left of one is no information below this (``TopK.tail``).
ROUNDING = 1e-6


def assert_shown(row: TopK, expected: Dense) -> float:
    """A row is the model's own, and hides nothing likelier than its cap; return its largest error where p >= 1e-3."""
    likely = expected.probs[row.ids] >= LIKELY
    error = float(np.abs(row.logprobs - expected.logprobs[row.ids])[likely].max())
    unseen = np.delete(expected.probs, row.ids).max()
    assert unseen <= row.tail_max * np.exp(tolerance().nats) + ROUNDING, (unseen, row.tail_max)
    (best, first), (_, second) = expected.top(2)
    assert row.best == best or first - second <= tolerance().gap
    assert error <= tolerance().nats, error
    return error


def told(url: str, questions: Sequence[str], **choices: Any) -> Iterator[list[Any]]:
    """Yield each question's events."""
    with hybrid.open(local="small", cloud=url, trace_rows=True, **{"max_tokens": 64} | PATIENT | choices) as client:
        for question in questions:
            yield list(client.stream(question))


def verdicts(events: list[Any]) -> list[tuple[int, str, str]]:
    """Which token, from whom, and how it came to stand."""
    answer = events[-1].answer
    assert answer.degraded is None
    return [(token.id, token.source, token.how) for token in answer.tokens]


def first_difference(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Where two lists part."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def excused(events: list[Any], position: int, threshold: float) -> bool:
    """Whether noise may decide at a position, or at one of the two before it, which a hand-back also looks at."""
    ids = tuple(token.id for token in events[-1].answer.tokens)
    for row in (e for e in events if isinstance(e, Rows) and position - 2 <= len(e.at) <= position):
        if row.at != ids[: len(row.at)]:
            continue
        for first, second in (np.sort(-side.logprobs)[:2] for side in (row.local, row.cloud) if side is not None):
            if second - first <= tolerance().gap:
                return True
        if row.local is not None and abs(row.local.entropy() - ENTROPY) <= WITHIN_NATS:
            return True
    near = [token.kl for token in events[-1].answer.tokens[max(0, position - 2) : position + 1]]
    return any(kl is not None and abs(kl.lower - threshold) <= WITHIN_NATS for kl in near)


def assert_alike(
    choices: Mapping[str, Any], questions: Sequence[str], one: Sequence[list[Any]], other: Sequence[list[Any]]
) -> None:
    """Each answer over one server is that over the other, or noise excuses the difference, which is rare."""
    threshold, parted = choices.get("threshold", THRESHOLDS.get(choices["policy"], 0.0)), 0
    for question, ours, theirs in zip(questions, one, other, strict=True):
        if verdicts(ours) == verdicts(theirs):
            ended = [(events[-1].answer.text, events[-1].answer.finish_reason) for events in (ours, theirs)]
            assert ended[0] == ended[1], question
            continue
        parted += 1
        at = first_difference(verdicts(ours), verdicts(theirs))
        assert excused(ours, at, threshold) or excused(theirs, at, threshold), (question, at)
    print(f"{dict(choices)}: noise parts {parted} of {len(questions)}")
    assert parted <= len(questions) // 4, "noise decides rarely; this many mean another fault"
