"""One answer as its events tell it: the only fold of an answer's events, without a clock, a network or a model.

``AnswerBuilder`` makes the ``Answer`` of the state after the last event, the monitor shows any state as JSON, totals
add up what each event adds to ``counts``, and a client's spending adds up the money of all answers. The laws
(``tests/serve/test_reducer.py``): every beginning of every stream of events gives a state; its counts are those of
naive programs over the events; what is not known is None, never 0.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from msgspec import structs

from hybrid.record import events
from hybrid.record.answer import Answer, Handoff, Token
from hybrid.record.rows import Candidates
from hybrid.spend.price import NANOUSD_PER_USD
from hybrid.types import Divergence

Added: TypeAlias = dict[tuple[str, Any], int]
Counts: TypeAlias = Counter[tuple[str, Any]]
"""By a family, and what is counted of it: ``tokens`` by (who wrote them, how they came to stand), those ``marked``,
drafted ``positions`` and those that a check let stand or turned down, requests ``sent`` by kind and what came of all
``requests``, ``cloud_tokens`` as charged, ``handoffs`` by reason, ``degraded`` by kind, ``answers`` if relayed."""
# ``policy.Policy.__str__``: nats of KL(cloud || local) above which a token is turned down, or the pen goes back.
_NUMBER = r"[0-9.]+(?:e[+-]?[0-9]+)?"
_KL_LIMIT = re.compile(rf"\b(?:judge|handback)=(?:kl|concept(?::{_NUMBER}:kl)?):({_NUMBER})")
_WRITERS = ("local", "cloud", "accepted", "unchecked", "recovered", "bonus", "written")
_MARKS = ("certified", "thoughts", "wording")


# ---- money -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spent:
    """Nano-dollars (None: not known, which is not zero), requests sent, and answers begun.

    ``reserved_nanousd``: what of it is not charged, but held for requests that are under way, or of unknown charge.
    ``assumed_nanousd``: what of it is charged at most, for requests that are over and whose usage nobody told.
    """

    nanousd: int | None = 0
    requests: int = 0
    answers: int = 0
    reserved_nanousd: int = 0
    assumed_nanousd: int = 0

    @property
    def usd(self) -> float | None:
        """USD, for display and plots; None where it is not known."""
        return None if self.nanousd is None else self.nanousd / NANOUSD_PER_USD


@dataclass
class Spending:
    """Adds up requests as they leave and are settled: of an answer, of a client, of all since a start.

    The law (``tests/run/test_spending.py``): of answers that are over it is the sum of their bills, and an answer that
    was left early or failed counts what its requests cost; a request that is under way, or whose charge never became
    known, counts as the most it can cost; the total is None, never too little, from the first request of unknown price
    on. What is settled never falls.
    """

    settled: int | None = 0
    """Nano-dollars that are charged, or at worst may have been; None: not known."""
    _open: dict[str, int | None] = field(default_factory=dict)
    _unknown: int = 0  # what of it stays reserved
    _assumed: int = 0
    _requests: int = 0
    _answers: int = 0

    @property
    def reserved(self) -> int | None:
        """The most that the requests under way can cost, in nano-dollars; None: not known."""
        costs = tuple(self._open.values())
        return None if None in costs else sum(cost for cost in costs if cost is not None)

    @property
    def spent(self) -> Spent:
        """The total by now. May be read from another thread."""
        costs, settled = tuple(self._open.values()), self.settled
        held = sum(cost for cost in costs if cost is not None)
        known = None if settled is None or None in costs else settled + held
        return Spent(known, self._requests, self._answers, self._unknown + held, self._assumed)

    def observe(self, event: events.Event) -> None:
        """Hear of an answer that begins, and of a request that leaves or is settled."""
        match event:
            case events.Started():
                self._answers += 1
            case events.RequestSent(request_id=request_id, reserved_nanousd=most):
                self._requests += 1
                self._open[request_id] = most
            case events.RequestSettled(request_id=request_id, usage=usage, nanousd=cost):
                most = self._open.pop(request_id, None)
                final = most if usage is None else cost
                self.settled = None if self.settled is None or final is None else self.settled + final
                self._unknown += (most or 0) if usage is None else 0
                assumed = usage is None or usage.assumed_prompt_tokens + usage.assumed_completion_tokens > 0
                self._assumed += (final or 0) if assumed else 0
            case _:
                pass

    def give_up(self, request_ids: Iterable[str] | None = None) -> list[str]:
        """Count requests of which nothing more is heard as the most they can cost; None: all. Return their names."""
        left = sorted(self._open.keys() if request_ids is None else self._open.keys() & request_ids)
        for name in left:
            most = self._open.pop(name)
            self.settled = None if self.settled is None or most is None else self.settled + most
        return left


# ---- the answer ------------------------------------------------------------------------------------------------------


@dataclass
class AnswerState:
    """One answer in progress, or finished. ``version`` grows with every change of ``to_json``."""

    candidates: Candidates | None = None
    """What both models would have written, where that is kept and rows come; None: it is not."""
    version: int = 1
    tokens: list[Token] = field(default_factory=list)
    requests: list[tuple[events.RequestSent, events.RequestSettled | None]] = field(default_factory=list)
    spans: list[dict[str, int | None]] = field(default_factory=list)
    changed: list[tuple[str, int]] = field(default_factory=list)
    """Each change of these three lists, by its name and the place: a reader that keeps its own place in here gets the
    newest state of each place, once, and nothing is queued for one that is slow or away."""
    handoffs: list[Handoff] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counter)
    cost: Spending = field(default_factory=Spending)
    stage: str = "waiting"
    ended: bool = False
    """Whether nothing more comes."""
    why: str | None = None
    """Why it failed; None: it did not, or nobody can say."""
    policy: str | None = None
    """The policy as it is composed; None: not known yet."""
    threshold: float | None = None
    degraded: events.Degraded | None = None
    """Why the cloud did not help, by the last that was heard of it; None: it did."""
    _certified: list[bool] = field(default_factory=list)  # of each token; it takes as long as all else of it
    _away: bool = False
    _ahead: int | None = None
    _prompt_tokens: int | None = None
    _answer: dict[str, Any] | None = None
    _request_places: dict[str, int] = field(default_factory=dict)

    @property
    def relayed(self) -> bool:
        """Whether a request of it went whole to a chat route."""
        return self.counts["answers", "relayed"] > 0

    def apply(self, event: events.Event) -> Added:
        """Take what happened; return what it adds to ``counts``: nothing where it only fills in what is there."""
        added: Added = {}
        match event:
            case events.TokenEmitted(position, token):
                if position == len(self.tokens):  # not so of a damaged trace: an answer's tokens come in order
                    self._emit(token, added)
            case events.RequestSent(request_id, kind):
                self.cost.observe(event)
                self._request_places[request_id] = len(self.requests)
                self.changed.append(("requests", len(self.requests)))
                self.requests.append((event, None))
                added["sent", kind] = 1
                added["answers", "relayed"] = int(kind == "relay" and not self.relayed)
            case events.RequestSettled(request_id, _, usage):
                self.cost.observe(event)
                if (place := self._request_places.get(request_id)) is not None:
                    self.changed.append(("requests", place))
                    self.requests[place] = self.requests[place][0], event
                added["requests", "failed"] = int(event.failure is not None)
                if usage is not None:
                    added["cloud_tokens", "prompt"] = usage.prompt_tokens
                    added["cloud_tokens", "cached"] = usage.cached_tokens
                    added["cloud_tokens", "completion"] = usage.completion_tokens
            case events.CheckAnswered() | events.RequestRetried():
                added["requests", "answered check" if isinstance(event, events.CheckAnswered) else "retried"] = 1
            case events.Started(prompt, policy, composed):
                found = _KL_LIMIT.search(composed)
                self.threshold = float(found[1]) if found else None
                self.stage, self._ahead = "writing", None
                self.policy, self._prompt_tokens = composed or policy, len(prompt)
                self.version += 1
            case _:
                self._course(event, added)
        self.version += bool(added)
        for key, count in added.items():  # as Counter.update does, in a third of its time
            self.counts[key] += count
        return added

    def end(self, stage: str, why: str | None = None) -> list[str]:
        """Take that nothing more comes; return the requests that were not settled by then.

        They may have cost all that they reserved.
        """
        self.ended, self.stage, self._ahead, self.why = True, stage, None, why
        self.version += 1
        unsettled = self.cost.give_up()
        self.changed += [("requests", self._request_places[request_id]) for request_id in unsettled]
        if self.candidates is not None:
            self.candidates.forget()
        return unsettled

    @property
    def writers(self) -> dict[str, int]:
        """How many tokens either side wrote, and how many came to stand in each way."""
        counts = dict.fromkeys(_WRITERS, 0)
        for (source, how), count in family(self.counts, "tokens").items():
            counts[source] += count
            counts[how] += count
        return counts

    def to_json(self) -> dict[str, Any]:
        """Return what is known of the whole answer, as plain data, less its three lists."""
        degraded = self.degraded and {"kind": self.degraded.kind, "why": self.degraded.why}
        return {
            "prompt_tokens": self._prompt_tokens,
            "state": self.stage,
            "ahead": self._ahead,
            "why": self.why,
            "policy": self.policy,
            "threshold": self.threshold,
            "counts": self.writers | {name: self.counts["marked", name] for name in _MARKS},
            "drafted": self.counts["positions", "drafted"],
            "checks": self.counts["requests", "answered check"],
            "retries": self.counts["requests", "retried"],
            "spent": self.cost.settled,
            "reserved": self.cost.reserved,
            "degraded": degraded,
            "away": self._away,
            "notes": list(self.notes),
            "handoffs": [[each.position, each.reason, each.tokens] for each in self.handoffs],
            "answer": self._answer,
        }

    def place_json(self, name: str, place: int) -> dict[str, Any]:
        """Return one place of one of the lists, as plain data; an unbounded end of a divergence is None."""
        if name == "spans":
            return dict(self.spans[place])
        if name == "requests":
            return self._request_json(*self.requests[place])
        token = self.tokens[place]
        return {
            "source": token.source,
            "how": token.how,
            "model": token.model,
            "kl": _interval(token.kl),
            "why": token.why,
            "certified": self._certified[place],
            "concept_kl": _interval(token.concept_kl),
            "thought": token.thought,
            "text": token.text,
            "thoughts": token.thought_text,
            "candidates": self.candidates and self.candidates.listed[place],
        }

    def _request_json(self, sent: events.RequestSent, settled: events.RequestSettled | None) -> dict[str, Any]:
        usage = settled and settled.usage
        return {
            "kind": sent.kind,
            "at": sent.position,
            "tokens": sent.num_tokens,
            "reserved": sent.reserved_nanousd,
            "state": "settled" if usage else "unknown" if settled or self.ended else "sent",
            "cost": settled and settled.nanousd,
            "ms": settled and settled.ms,
            "prompt": usage and usage.prompt_tokens,
            "cached": usage and usage.cached_tokens,
            "completion": usage and usage.completion_tokens,
            "why": settled and settled.failure,
        }

    def _emit(self, token: Token, added: Added) -> None:
        before = self.tokens[-1].how if self.tokens else None
        if self.candidates is not None:
            self.candidates.write(token)
        self.changed.append(("tokens", len(self.tokens)))
        self.tokens.append(token)
        self._certified.append(token.certified)
        added["tokens", (token.source, token.how)] = 1
        if token.thought:
            added["marked", "thoughts"] = 1
        if token.is_wording:
            added["marked", "wording"] = 1
        if token.source == "local" and self._certified[-1]:
            added["marked", "certified"] = 1
        if self.counts["requests", "answered check"]:
            added["positions", "accepted"] = int(token.how == "accepted")
            added["positions", "rejected"] = int(token.source == "cloud" and token.why is not None)
        if token.source == "local" or token.how == "bonus":
            return
        # A recovered token and the block that the cloud writes after it are one hand-off, with one reason.
        goes_on = before == "recovered" or (before == "written" and token.why is None)
        if self.handoffs and token.how == "written" and goes_on:
            self.handoffs[-1] = replace(self.handoffs[-1], tokens=self.handoffs[-1].tokens + 1)
        else:
            self.handoffs.append(Handoff(len(self.tokens) - 1, token.why or "", 1))
            added["handoffs", token.why or ""] = 1

    def _course(self, event: events.Event, added: Added) -> None:
        match event:
            case events.SpanDrafted(position, ids):
                self.changed.append(("spans", len(self.spans)))
                self.spans.append({"at": position, "drafted": len(ids), "judged": None, "accepted": None})
                added["positions", "drafted"] = len(ids)
            case events.Degraded(kind=kind):
                self.degraded, self._away = event, self._away or kind != "paced"
                added["degraded", kind or "unknown"] = 1
            case events.CloudRecovered():
                self._away = False
            case events.NoteAdded(why):
                self.notes.append(why)
            case events.Queued(ahead):
                self.stage, self._ahead = "queued", ahead
            case events.Finished(answer):
                self.stage, self.policy, self._answer = "finished", answer.policy or self.policy, _end_of(answer)
                added["finish", answer.finish_reason] = 1
            case _:
                self._fill(event)
                return
        self.version += 1

    def _fill(self, event: events.Event) -> None:
        """Change places that there are: by text that was held back, by a verdict, by rows that came late."""
        match event:
            case events.Flushed(text, thoughts) if self.tokens:
                text, thoughts = self.tokens[-1].text + text, self.tokens[-1].thought_text + thoughts
                self.tokens[-1] = structs.replace(self.tokens[-1], text=text, thought_text=thoughts)
                self.changed.append(("tokens", len(self.tokens) - 1))
            case events.SpanJudged() if self.spans:
                self.spans[-1] |= {"judged": event.num_judged, "accepted": event.num_accepted}
                self.changed.append(("spans", len(self.spans) - 1))
            case events.RecordingStarted(pieces=pieces) if self.candidates is not None:
                self.candidates.pieces = pieces
            case events.Rows(at, local, cloud) if self.candidates is not None:
                if self.candidates.read(at, local, cloud):
                    self.changed.append(("tokens", len(at)))


def apply_and_publish(state: AnswerState, publish: events.Publish, event: events.Event) -> None:
    """Take what happened in an answer, and publish it."""
    state.apply(event)
    publish(event)


def family(counts: Counts, name: str) -> Counter[Any]:
    """Return the counts of a family, by what is counted of it, in the order in which it was first met."""
    return Counter({key: count for (kind, key), count in counts.items() if kind == name})


def _end_of(answer: Answer) -> dict[str, Any]:
    """Return what only the whole answer tells, and nothing of its text."""
    usage, bill = answer.usage, answer.bill
    return {
        "finish_reason": answer.finish_reason,
        "seed": answer.seed,
        "guarantee": answer.guarantee,
        "ttft_ms": answer.timing.ttft_ms,
        "total_ms": answer.timing.total_ms,
        "requests": usage.cloud_requests,
        "prompt_tokens": usage.cloud_prompt_tokens,
        "cached_tokens": usage.cloud_cached_tokens,
        "completion_tokens": usage.cloud_completion_tokens,
        "bill": bill.nanousd,
        "cloud_only": bill.cloud_only_nanousd,
        "cloud_only_cached": bill.cloud_only_cached_nanousd,
        "price_source": bill.price_source,
    }


def _interval(kl: Divergence | None) -> list[float | None] | None:
    """Return both ends of a divergence and its noise; an end that is not bounded is None, and so is one not known."""
    return None if kl is None else [value if math.isfinite(value) else None for value in (kl.lower, kl.upper, kl.noise)]
