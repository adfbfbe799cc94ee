"""What the monitor and the metrics show: the answers of now and just now, and totals of all since the start.

A fold over events: no clock, no network, no model (``at`` comes from outside). Laws (``tests/serve/test_reducer.py``):
the totals are the sums of the answers'; what is not known is None, never 0; the state is bounded by the answers under
way, ``NUM_FINISHED`` finished ones and ``MOST_REASONS`` reasons; of a text nothing is kept unless texts are shown.
"""

from __future__ import annotations

import bisect
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hybrid.record.answer import Answer, Token
from hybrid.record.events import (
    CheckAnswered,
    CloudRecovered,
    Degraded,
    Event,
    Finished,
    RequestRetried,
    RequestSent,
    RequestSettled,
    SpanDrafted,
    TokenEmitted,
)
from hybrid.serve.answer_log import REASONS, AnswerLog, AskedAnswer, RequestsCost
from hybrid.types import CloudUsage

# So many finished answers are shown; under way are as many as there are contexts and places in the queue.
NUM_FINISHED = 20
# Reasons of hand-offs are told apart without their numbers. Every further one is "other".
MOST_REASONS = 24
# A third of a decade each: thresholds in use lie between 0.02 and 2 nats.
KL_NATS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# Of the OpenTelemetry conventions for generative models, those that an answer of seconds to minutes falls into.
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


@dataclass
class Histogram:
    """Counts of values up to each bound, not cumulated, and of those above; ``total`` adds up what is finite."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        """Begin with nothing."""
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value if math.isfinite(value) else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"bounds": self.bounds, "counts": self.counts, "total": self.total}


@dataclass
class Totals:
    """Everything since the start, over all answers. ``version`` grows with every change."""

    version: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    """By how they ended, and ``begun`` and ``relayed``."""
    tokens: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By who wrote them, and how they came to stand."""
    positions: Counter[str] = field(default_factory=Counter)
    """Drafted tokens: ``drafted``, and those that a check let stand (``accepted``) or turned down (``rejected``)."""
    requests: Counter[str] = field(default_factory=Counter)
    """Those sent, by kind."""
    cloud_tokens: Counter[str] = field(default_factory=Counter)
    """What the endpoint counted: ``prompt`` (``cached`` among it) and ``completion``."""
    handoffs: Counter[str] = field(default_factory=Counter)
    degraded: Counter[str] = field(default_factory=Counter)
    checks: int = 0
    retries: int = 0
    cloud: dict[str, Any] | None = None
    """Whether the cloud ``answers``, by the last that was heard of it, ``why`` not, and when that answer was asked
    (``at``); None: it was not asked yet."""
    cost: RequestsCost = field(default_factory=RequestsCost)
    cloud_only: int | None = 0
    """What the cloud alone would have cost for the finished answers, in nano-dollars; None: of one it is not known."""
    kl_lower: Histogram = field(default_factory=lambda: Histogram(KL_NATS))
    kl_upper: Histogram = field(default_factory=lambda: Histogram(KL_NATS))
    kl_unknown: int = 0
    ttft_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    duration_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))

    def hear(self, event: Event) -> None:
        """Take what happened in an answer, less its hand-offs, which are derived from its tokens."""
        self.version += 1
        match event:
            case TokenEmitted(token=token):
                self._count_token(token)
            case SpanDrafted(ids=ids):
                self.positions["drafted"] += len(ids)
            case RequestSent(request_id, kind, reserved_nanousd=most):
                self.requests[kind] += 1
                self.cost.send(request_id, most)
            case RequestSettled(request_id=request_id, usage=usage, nanousd=cost):
                self.cost.settle(request_id, cost, known=usage is not None)
                if usage is not None:
                    self.cloud_tokens["prompt"] += usage.prompt_tokens
                    self.cloud_tokens["cached"] += usage.cached_tokens
                    self.cloud_tokens["completion"] += usage.completion_tokens
            case Finished(answer):
                self._add_answer(answer)
            case CheckAnswered() | RequestRetried() | Degraded():
                self._count(event)
            case _:
                self.version -= 1

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "answers": dict(self.answers),
            "tokens": [[*key, count] for key, count in sorted(self.tokens.items())],
            "positions": dict(self.positions),
            "requests": dict(self.requests),
            "cloud_tokens": dict(self.cloud_tokens),
            "handoffs": self.handoffs.most_common(),
            "degraded": dict(self.degraded),
            "cloud": self.cloud,
            "checks": self.checks,
            "retries": self.retries,
            "spent": self.cost.spent,
            "reserved": self.cost.reserved,
            "cloud_only": self.cloud_only,
            "kl": {"lower": self.kl_lower.to_json(), "upper": self.kl_upper.to_json(), "unknown": self.kl_unknown},
        }

    def _count(self, event: CheckAnswered | RequestRetried | Degraded) -> None:
        match event:
            case CheckAnswered():
                self.checks += 1
            case RequestRetried():
                self.retries += 1
            case Degraded(kind=kind):
                self.degraded[kind or "unknown"] += 1

    def _count_token(self, token: Token) -> None:
        self.tokens[token.source, token.how] += 1
        if token.kl is None:
            self.kl_unknown += 1
        else:
            self.kl_lower.add(token.kl.lower)
            self.kl_upper.add(token.kl.upper)

    def _add_answer(self, answer: Answer) -> None:
        alone = answer.bill.cloud_only_nanousd
        self.cloud_only = None if self.cloud_only is None or alone is None else self.cloud_only + alone
        self.duration_s.add(answer.timing.total_ms / 1000)
        if answer.timing.ttft_ms is not None:
            self.ttft_s.add(answer.timing.ttft_ms / 1000)

    def count_verdict(self, token: Token) -> None:
        """Count a token of an answer that was checked: it stands, or is the first after one that was turned down."""
        self.positions["accepted"] += token.how == "accepted"
        self.positions["rejected"] += token.source == "cloud" and token.why is not None

    def count_handoff(self, reason: str) -> None:
        """Count a hand-off by its reason, less its numbers."""
        name = reason_class(reason)
        self.handoffs[name if name in self.handoffs or len(self.handoffs) < MOST_REASONS else "other"] += 1


class MonitorState:
    """All answers and their totals. ``answers``: by their ids, the oldest first."""

    def __init__(self, *, shows_texts: bool = False) -> None:
        """Begin with nothing. ``shows_texts``: prompts, answers and candidates are kept, of the answers shown."""
        self.shows_texts = shows_texts
        self.answers: dict[str, AnswerLog] = {}
        self.totals = Totals()

    def begin(self, asked: AskedAnswer) -> AnswerLog:
        """Begin an answer; one of the same id is no longer shown."""
        self.answers.pop(asked.id, None)
        log = self.answers[asked.id] = AnswerLog(asked, shows_texts=self.shows_texts)
        self.totals.answers["begun"] += 1
        self.totals.version += 1
        return log

    def hear(self, log: AnswerLog, event: Event) -> None:
        """Take what happened in an answer."""
        num_handoffs, relayed = len(log.head["handoffs"]), log.head["relayed"]
        log.hear(event)
        self.totals.answers["relayed"] += log.head["relayed"] and not relayed
        self.totals.hear(event)
        self._hear_cloud(log, event)
        if isinstance(event, TokenEmitted) and log.head["checks"]:
            self.totals.count_verdict(event.token)
        for _, reason, _ in log.head["handoffs"][num_handoffs:]:
            self.totals.count_handoff(reason)

    def _hear_cloud(self, log: AnswerLog, event: Event) -> None:
        """Take whether the cloud answered last, by what came of a request; what was not sent says nothing."""
        match event:
            case CheckAnswered() | CloudRecovered():
                self._set_cloud(log, None)
            case RequestSettled(usage=CloudUsage(prompt_tokens=prompt, completion_tokens=written)) if prompt + written:
                self._set_cloud(log, None)
            case Degraded(kind="unreachable" | "bad reply" | "refused"):
                self._set_cloud(log, log.head["degraded"]["why"])

    def _set_cloud(self, log: AnswerLog, why: str | None) -> None:
        """Set the cloud's state: ``why`` it did not answer; None: it did."""
        self.totals.cloud = {"answers": why is None, "why": why, "at": log.head["at"]}
        self.totals.version += 1

    def end(self, log: AnswerLog, why: str | None = None, reason: str | None = None) -> None:
        """Take that of an answer nothing more comes; said again, it changes nothing."""
        if log.ended:
            return
        self.totals.cost.give_up(log.end(why, reason))
        if reason == REASONS["unreachable"]:
            self._set_cloud(log, log.head["why"])
        self.totals.answers[log.head["state"]] += 1
        self.totals.version += 1
        over = [each for each in self.answers.values() if each.ended]
        for old in over[:-NUM_FINISHED]:
            if self.answers.get(old.id) is old:
                del self.answers[old.id]


def reason_class(reason: str) -> str:
    """Return a hand-off's reason without its numbers.

    >>> reason_class("KL 7.93 nats, above 0.5")
    'KL # nats, above #'
    """
    return re.sub(r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?", "#", reason) or "no reason"


# What a page is told: first everything, then what changed, each page at its own pace.
#
# A page keeps its place in the state and is sent what is new since, so that nothing piles up for a slow one. The laws
# (``tests/serve/test_feed.py``): whoever applies all changes from the beginning has the state, however many events lie
# between two looks; and gets no place of it twice.

_LISTS = ("tokens", "requests", "spans")


@dataclass
class _Seen:
    """How far a page has seen one answer."""

    log: AnswerLog
    version: int = 0
    changes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_LISTS, 0))


class Follower:
    """One page's place in the state."""

    def __init__(self, state: MonitorState) -> None:
        """Begin with nothing seen."""
        self._state = state
        self._seen: dict[str, _Seen] = {}
        self._totals = -1

    def news(self) -> dict[str, Any]:
        """Return what is new since the last call: ``answers`` in parts, those that are ``gone``, and ``totals``."""
        answers = self._state.answers
        gone = [name for name, seen in self._seen.items() if answers.get(name) is not seen.log]
        for name in gone:
            del self._seen[name]
        found: dict[str, Any] = {"gone": gone} if gone else {}
        parts = [part for log in answers.values() if (part := self._part(log))]
        found |= {"answers": parts} if parts else {}
        if self._totals != self._state.totals.version:
            self._totals = self._state.totals.version
            found["totals"] = self._state.totals.to_json()
        return found

    def _part(self, log: AnswerLog) -> dict[str, Any]:
        seen = self._seen.setdefault(log.id, _Seen(log))
        part: dict[str, Any] = {}
        if seen.version != log.version:
            seen.version, part["head"] = log.version, log.head
        for name in _LISTS:
            new, seen.changes[name] = getattr(log, name).since(seen.changes[name])
            part |= {name: new} if new else {}
        return {"id": log.id, **part} if part else {}
