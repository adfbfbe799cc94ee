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

from msgspec import structs

from hybrid.record import events
from hybrid.record.answer import Token
from hybrid.record.conversation import Prompt
from hybrid.record.rows import Candidates
from hybrid.record.state import Added, AnswerState, Counts, Spending, family
from hybrid.types import CloudUsage, DegradedKind, Divergence, Message

# What ends an answer whose reader left; whatever else ends one is a failure.
LEFT = "left"
# What is shown of a prompt: the last turns, and the end of each. Finished answers stay, and a body may have 8 MiB.
MOST_TURNS, LONGEST_TEXT = 64, 2**15
# Why the cloud was not asked, in words that quote nobody.
REASONS: dict[DegradedKind, str] = {
    "unreachable": "the cloud did not answer",
    "bad reply": "what the cloud replied cannot be believed",
    "refused": "the cloud refused the request",
    "capability": "the endpoint cannot do what the policy needs",
    "context": "the cloud's context is full",
    "budget": "no money is left for it under a cap",
    "charge": "the endpoint charged more than was reserved, and is not asked again",
    "paced": "spending runs ahead of the day's cap, so less is asked",
}
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
    counts: Counts = field(default_factory=Counter)
    """Those of all answers together; of ``answers`` also how many have begun, and how the others ended."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Hand-offs, by their reasons less their numbers."""
    cloud: dict[str, Any] | None = None
    """Whether the cloud ``answers``, by the last that was heard of it, ``why`` not, and when that answer was asked
    (``at``); None: it was not asked yet."""
    cost: Spending = field(default_factory=Spending)
    cloud_only: int | None = 0
    """What the cloud alone would have cost for the finished answers, in nano-dollars; None: of one it is not known."""
    kl_lower: Histogram = field(default_factory=lambda: Histogram(KL_NATS))
    kl_upper: Histogram = field(default_factory=lambda: Histogram(KL_NATS))
    kl_unknown: int = 0
    ttft_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    duration_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))

    def add(self, event: events.Event, added: Added) -> None:
        """Take what happened in an answer, and what that added to its counts."""
        self.version += 1
        for key, count in added.items():
            if key[0] == "handoffs":  # there is no end of reasons, which have numbers in them
                self.count_handoff(key[1])
            else:
                self.counts[key] += count
        match event:
            case events.TokenEmitted(token=Token(kl=None)):
                self.kl_unknown += 1
            case events.TokenEmitted(token=Token(kl=Divergence(lower=lower, upper=upper))):
                self.kl_lower.add(lower)
                self.kl_upper.add(upper)
            case events.Finished(answer):
                alone = answer.bill.cloud_only_nanousd
                self.cloud_only = None if self.cloud_only is None or alone is None else self.cloud_only + alone
                self.duration_s.add(answer.timing.total_ms / 1000)
                if answer.timing.ttft_ms is not None:
                    self.ttft_s.add(answer.timing.ttft_ms / 1000)
            case _:
                self.cost.observe(event)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        counts = self.counts
        return {
            "answers": dict(self.answers),
            "tokens": [[*key, count] for key, count in sorted(family(counts, "tokens").items())],
            "positions": dict(family(counts, "positions")),
            "requests": dict(family(counts, "sent")),
            "cloud_tokens": dict(family(counts, "cloud_tokens")),
            "handoffs": self.reasons.most_common(),
            "degraded": dict(family(counts, "degraded")),
            "cloud": self.cloud,
            "checks": counts["requests", "answered check"],
            "retries": counts["requests", "retried"],
            "spent": self.cost.settled,
            "reserved": self.cost.reserved,
            "cloud_only": self.cloud_only,
            "kl": {"lower": self.kl_lower.to_json(), "upper": self.kl_upper.to_json(), "unknown": self.kl_unknown},
        }

    @property
    def answers(self) -> Counter[str]:
        """How many have ``begun``, were ``relayed``, and how those ended that are over."""
        return family(self.counts, "answers")

    def count_handoff(self, reason: str) -> None:
        """Count a hand-off by its reason, less its numbers."""
        name = reason_class(reason)
        self.reasons[name if name in self.reasons or len(self.reasons) < MOST_REASONS else "other"] += 1


@dataclass(frozen=True)
class AnswerMetadata:
    """An answer that begins. ``model``: as its caller named it.

    ``at``: when it was asked, in seconds since 1970; None: not known. ``prompt`` None: it is not to be shown.
    """

    id: str
    model: str
    at: float | None
    prompt: Prompt | None = None


class AnswerLog:
    """One answer as a page shows it: what was asked, and its ``state``. ``shows_texts`` False: no text is kept."""

    def __init__(self, metadata: AnswerMetadata, *, shows_texts: bool = False) -> None:
        """Begin."""
        self.id, self.model, self.at = metadata.id, metadata.model, metadata.at
        self.state = AnswerState(Candidates() if shows_texts else None)
        self._turns = _turns(metadata.prompt) if shows_texts else None
        self._hidden = {} if shows_texts else {"text": None, "thoughts": None}

    @property
    def head(self) -> dict[str, Any]:
        """What is known of it beside its places, as plain data."""
        metadata = {"id": self.id, "model": self.model, "at": self.at, "relayed": self.state.relayed}
        return {**metadata, "prompt": self._turns, **self.state.to_json()}

    def places(self, name: str, since: int = 0) -> list[tuple[int, dict[str, Any]]]:
        """Return the places of a list that were among the changes after ``since``, in order, as plain data."""
        places = sorted({place for changed, place in self.state.changed[since:] if changed == name})
        hidden = self._hidden if name == "tokens" else {}
        return [(place, self.state.place_json(name, place) | hidden) for place in places]


def without_texts(event: events.Event) -> events.Event | None:
    """Return an event without what anybody wrote, prompt, answer and an endpoint's words; None: nothing is left."""
    match event:
        case events.TokenEmitted(position, token):
            return events.TokenEmitted(position, structs.replace(token, text="", thought_text=""))
        case events.BranchDrawn():
            return structs.replace(event, text="")
        case events.Degraded(kind=kind):
            return events.Degraded(REASONS[kind] if kind else "", kind)
        case events.RequestSettled(failure=str(), failure_kind=kind):
            return structs.replace(event, failure=REASONS[kind] if kind else None)
        case events.Flushed() | events.RecordingStarted() | events.Rows():
            return None
        case _:
            return event


class MonitorState:
    """All answers and their totals. ``answers``: by their ids, the oldest first."""

    def __init__(self, *, shows_texts: bool = False) -> None:
        """Begin with nothing. ``shows_texts``: prompts, answers and candidates are kept, of the answers shown."""
        self.shows_texts = shows_texts
        self.answers: dict[str, AnswerLog] = {}
        self.totals = Totals()

    def begin(self, metadata: AnswerMetadata) -> AnswerLog:
        """Begin an answer; one of the same id is no longer shown."""
        self.answers.pop(metadata.id, None)
        log = self.answers[metadata.id] = AnswerLog(metadata, shows_texts=self.shows_texts)
        self._count("begun")
        self.totals.counts["answers", "relayed"] += 0
        return log

    def observe(self, log: AnswerLog, event: events.Event) -> None:
        """Take what happened in an answer."""
        kept = event if self.shows_texts else without_texts(event)
        if kept is not None and (added := log.state.apply(kept)):
            self.totals.add(kept, added)
        match kept:  # whether the cloud answered last, by what came of a request; what was not sent says nothing
            case events.CheckAnswered() | events.CloudRecovered():
                self._set_cloud(log, None)
            case events.RequestSettled(usage=CloudUsage(prompt_tokens=prompt, completion_tokens=written)) if (
                prompt + written
            ):
                self._set_cloud(log, None)
            case events.Degraded(why, "unreachable" | "bad reply" | "refused"):
                self._set_cloud(log, why)

    def _set_cloud(self, log: AnswerLog, why: str | None) -> None:
        """Set the cloud's state: ``why`` it did not answer; None: it did."""
        self.totals.cloud = {"answers": why is None, "why": why, "at": log.at}
        self.totals.version += 1

    def _count(self, how: str) -> None:
        """Count an answer that begins, or ends in some way."""
        self.totals.counts["answers", how] += 1
        self.totals.version += 1

    def end(self, log: AnswerLog, why: str | None = None, reason: str | None = None) -> None:
        """Take that of an answer nothing more comes; said again, it changes nothing.

        ``why`` may quote a text; ``reason`` does not, and is shown where no text is.
        """
        if log.state.ended:
            return
        stage = "finished" if why is None else LEFT if why == LEFT else "failed"
        said = (why if self.shows_texts else reason) if stage == "failed" else None
        self.totals.cost.give_up(log.state.end(stage, said))
        if reason == REASONS["unreachable"]:
            self._set_cloud(log, said)
        self._count(stage)
        over = [each for each in self.answers.values() if each.state.ended]
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
    changes: int = 0


class Subscriber:
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
        if seen.version != log.state.version:
            seen.version, part["head"] = log.state.version, log.head
        if seen.changes != len(log.state.changed):
            part |= {name: new for name in _LISTS if (new := log.places(name, seen.changes))}
            seen.changes = len(log.state.changed)
        return {"id": log.id, **part} if part else {}


# ---- prompts ---------------------------------------------------------------------------------------------------------


def _turns(prompt: Prompt | None) -> list[list[str]] | None:
    """Return a prompt as pairs of a role and a text; of a long one the end, after an ellipsis."""
    if prompt is None:
        return None
    if isinstance(prompt, str):
        return [["user", _end_of(prompt)]]
    shown = [each if isinstance(each, Message) else Message(**each) for each in prompt[-MOST_TURNS:]]  # type: ignore[arg-type]
    before = [] if len(prompt) <= MOST_TURNS else [[shown[0].role, "\u2026"]]
    return [*before, *([turn.role, _end_of(turn.content)] for turn in shown)]


def _end_of(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else "\u2026" + text[-LONGEST_TEXT:]
