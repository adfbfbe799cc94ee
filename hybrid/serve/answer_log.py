"""One answer as the monitor shows it: a fold over its events, without a clock, a network or a model.

The laws (``tests/serve/test_reducer.py``): every beginning of every stream of events gives a state; its counts are
those of the ``Answer`` at the end; what is not known is None, never 0; without texts no text of the prompt, the answer
or a candidate is in it, in any field. Everything in it is plain data for JSON.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from hybrid.record.answer import Answer, Token
from hybrid.record.conversation import Prompt
from hybrid.record.events import (
    CheckAnswered,
    CloudRecovered,
    Degraded,
    Event,
    Finished,
    Flushed,
    NoteAdded,
    Queued,
    RecordingStarted,
    RequestRetried,
    RequestSent,
    RequestSettled,
    Rows,
    SpanDrafted,
    SpanJudged,
    Started,
    TokenEmitted,
)
from hybrid.serve.candidates import Candidates
from hybrid.serve.journal import Journal
from hybrid.types import DegradedKind, Divergence, Message

# What requests have cost and hold back, as they are heard of. Nano-dollars; what is not known is None, never 0.
#
# The law (``tests/serve/test_reducer.py``): ``spent`` and ``reserved`` together are ``record.Spending``'s total at
# every moment, and ``spent`` never falls.


class RequestsCost:
    """The requests of one answer, or of many."""

    def __init__(self) -> None:
        """Nothing was sent yet."""
        self._open: dict[str, int | None] = {}
        self.spent: int | None = 0
        """What is charged, or at worst may have been."""

    @property
    def reserved(self) -> int | None:
        """The most that the requests under way can cost."""
        known = [cost for cost in self._open.values() if cost is not None]
        return sum(known) if len(known) == len(self._open) else None

    def send(self, request_id: str, most: int | None) -> None:
        """Hear of a request that leaves."""
        self._open[request_id] = most

    def settle(self, request_id: str, cost: int | None, *, known: bool) -> None:
        """Hear what a request cost; not ``known``: nobody ever will, and it counts as the most it can have."""
        most = self._open.pop(request_id, None)
        final = cost if known else most
        self.spent = None if self.spent is None or final is None else self.spent + final

    def give_up(self, request_ids: frozenset[str] | None = None) -> frozenset[str]:
        """Count requests of which nothing more is heard as the most they can cost; None: all. Return their names."""
        left = frozenset(self._open) if request_ids is None else request_ids & self._open.keys()
        for request_id in sorted(left):
            self.settle(request_id, None, known=False)
        return left


# What ends an answer whose reader left; whatever else ends one is a failure.
LEFT = "left"
# What is shown of a prompt: the last turns, and the end of each. Finished answers stay, and a body may have 8 MiB.
MOST_TURNS, LONGEST_TEXT = 64, 2**15
# ``policy.Policy.__str__``: nats of KL(cloud || local) above which a token is turned down, or the pen goes back.
_NUMBER = r"[0-9.]+(?:e[+-]?[0-9]+)?"
_KL_LIMIT = re.compile(rf"\b(?:judge|handback)=(?:kl|concept(?::{_NUMBER}:kl)?):({_NUMBER})")
_COUNTS = (
    "local",
    "cloud",
    "accepted",
    "unchecked",
    "recovered",
    "bonus",
    "written",
    "certified",
    "thoughts",
    "wording",
)


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


@dataclass(frozen=True)
class AskedAnswer:
    """An answer that begins. ``model``: as its caller named it.

    ``at``: when it was asked, in seconds since 1970; None: not known. ``prompt`` None: it is not to be shown.
    """

    id: str
    model: str
    at: float | None
    prompt: Prompt | None = None


class AnswerLog:
    """One answer in progress, or finished. ``version`` grows with every change of ``head``."""

    def __init__(self, asked: AskedAnswer, *, shows_texts: bool = False) -> None:
        """Begin. ``shows_texts`` False: no text is kept."""
        self.id = asked.id
        self.ended = False
        """Whether nothing more comes."""
        self.version = 1
        self.tokens, self.requests, self.spans = Journal(), Journal(), Journal()
        self.cost = RequestsCost()
        self._shows_texts = shows_texts
        self._candidates = Candidates() if shows_texts else None
        self._before: Token | None = None
        self._request_places: dict[str, int] = {}
        self.head: dict[str, Any] = {
            "id": asked.id,
            "model": asked.model,
            "at": asked.at,
            "relayed": False,
            "prompt": _turns(asked.prompt) if shows_texts else None,
            "prompt_tokens": None,
            "state": "waiting",
            "ahead": None,
            "why": None,
            "policy": None,
            "threshold": None,
            "counts": dict.fromkeys(_COUNTS, 0),
            "drafted": 0,
            "checks": 0,
            "retries": 0,
            "spent": 0,
            "reserved": 0,
            "degraded": None,
            "away": False,
            "notes": [],
            "handoffs": [],
            "answer": None,
        }

    def hear(self, event: Event) -> None:
        """Take what happened."""
        match event:
            case TokenEmitted(position, token):
                self._hear_token(position, token)
            case Flushed(text, thoughts):
                self._hear_rest(text, thoughts)
            case SpanDrafted() | SpanJudged():
                self._hear_span(event)
            case RequestSent() | RequestSettled() | RequestRetried() | CheckAnswered():
                self._hear_request(event)
            case Degraded() | CloudRecovered() | NoteAdded():
                self._hear_trouble(event)
            case Queued() | Started() | Finished():
                self._hear_course(event)
            case RecordingStarted(pieces=pieces) if self._candidates is not None:
                self._candidates.pieces = pieces
            case Rows() if self._candidates is not None:
                place = self._candidates.hear(event)
                if place is not None:
                    shown = self._candidates.at(place)
                    self.tokens.put(place, {**self.tokens.items[place], "candidates": shown})
            case _:
                pass

    def end(self, why: str | None = None, reason: str | None = None) -> frozenset[str]:
        """Take that nothing more comes. A request that was not settled by then may have cost all that it reserved.

        ``why`` may quote a text; ``reason`` does not, and is shown where no text is.
        Returns the ids of such requests.
        """
        self.ended = True
        state = "finished" if why is None else LEFT if why == LEFT else "failed"
        self._set(state=state, ahead=None, why=None if state != "failed" else why if self._shows_texts else reason)
        unsettled = self.cost.give_up()
        for request_id in sorted(unsettled):
            self._change_request(request_id, state="unknown")
        self._show_cost()
        if self._candidates is not None:
            self._candidates.clear()
        return unsettled

    def _set(self, **fields: Any) -> None:
        self.head |= fields
        self.version += 1

    def _hear_course(self, event: Queued | Started | Finished) -> None:
        match event:
            case Queued(ahead):
                self._set(state="queued", ahead=ahead)
            case Started(prompt, policy, composed):
                found = _KL_LIMIT.search(composed)
                threshold = float(found[1]) if found else None
                named = composed or policy
                self._set(state="writing", ahead=None, policy=named, threshold=threshold, prompt_tokens=len(prompt))
            case Finished(answer):
                self._hear_answer(answer)

    # ---- tokens ------------------------------------------------------------------------------------------------------

    def _hear_token(self, position: int, token: Token) -> None:
        if position != len(self.tokens.items):
            return  # of a damaged trace: an answer's tokens come in order
        shown: dict[str, Any] = {
            "source": token.source,
            "how": token.how,
            "model": token.model,
            "kl": _interval(token.kl),
            "why": token.why,
            "certified": token.certified,
            "concept_kl": _interval(token.concept_kl),
            "thought": token.thought,
            "text": token.text if self._shows_texts else None,
            "thoughts": token.thought_text if self._shows_texts else None,
            "candidates": None,
        }
        if self._candidates is not None:
            self._candidates.emit(token.id, token.how)
            shown["candidates"] = self._candidates.at(position)
        self.tokens.add(shown)
        counts = self.head["counts"]
        grown = [token.source, token.how, *["thoughts"] * token.thought]
        grown += ["certified"] * (token.source == "local" and token.certified) + ["wording"] * token.is_wording
        self._set(counts={**counts, **{name: counts[name] + 1 for name in grown}}, handoffs=self._handoffs(token))

    def _handoffs(self, token: Token) -> list[list[Any]]:
        """Return the hand-offs with one more token: what ``answer.handoffs`` derives of all of them."""
        handoffs: list[list[Any]] = self.head["handoffs"]
        before = self._before
        self._before = token
        if token.source != "cloud" or token.how not in {"recovered", "written"}:
            return handoffs
        how = before.how if before else None
        if handoffs and token.how == "written" and (how == "recovered" or (how == "written" and token.why is None)):
            position, reason, tokens = handoffs[-1]
            return [*handoffs[:-1], [position, reason, tokens + 1]]
        return [*handoffs, [len(self.tokens.items) - 1, token.why or "", 1]]

    def _hear_rest(self, text: str, thoughts: str) -> None:
        if self.tokens.items and self._shows_texts:
            last = len(self.tokens.items) - 1
            token = self.tokens.items[last]
            self.tokens.put(last, {**token, "text": token["text"] + text, "thoughts": token["thoughts"] + thoughts})

    # ---- spans, requests, trouble ------------------------------------------------------------------------------------

    def _hear_span(self, event: SpanDrafted | SpanJudged) -> None:
        if isinstance(event, SpanDrafted):
            self.spans.add({"at": event.position, "drafted": len(event.ids), "judged": None, "accepted": None})
            self._set(drafted=self.head["drafted"] + len(event.ids))
            return
        last = len(self.spans.items) - 1
        if last >= 0:
            judged = {"judged": event.num_judged, "accepted": event.num_accepted}
            self.spans.put(last, {**self.spans.items[last], **judged})

    def _hear_request(self, event: RequestSent | RequestSettled | RequestRetried | CheckAnswered) -> None:
        match event:
            case RequestSent(request_id, kind, position, num_tokens, most):
                self.cost.send(request_id, most)
                sent = {"kind": kind, "at": position, "tokens": num_tokens, "reserved": most, "state": "sent"}
                unknown = dict.fromkeys(("cost", "ms", "prompt", "cached", "completion", "why"))
                self._request_places[request_id] = self.requests.add({**sent, **unknown})
                self._set(relayed=self.head["relayed"] or kind == "relay")
            case RequestSettled(request_id, _, usage, cost, ms, failure, failure_kind):
                self.cost.settle(request_id, cost, known=usage is not None)
                why = None if failure is None else self._shown(failure, failure_kind)
                if usage is None:
                    self._change_request(request_id, state="unknown", ms=ms, why=why)
                else:
                    used = {"prompt": usage.prompt_tokens, "cached": usage.cached_tokens}
                    done = {"completion": usage.completion_tokens, "cost": cost, "ms": ms, "why": why}
                    self._change_request(request_id, state="settled", **used, **done)
            case RequestRetried():
                self._set(retries=self.head["retries"] + 1)
            case CheckAnswered():
                self._set(checks=self.head["checks"] + 1)
        self._show_cost()

    def _change_request(self, request_id: str, **fields: Any) -> None:
        place = self._request_places.get(request_id)
        if place is not None:
            self.requests.put(place, {**self.requests.items[place], **fields})

    def _shown(self, why: str, kind: DegradedKind | None) -> str | None:
        """Return a sentence that may quote what an endpoint wrote, or where texts are not shown one that does not."""
        return why if self._shows_texts else kind and REASONS[kind]

    def _show_cost(self) -> None:
        self._set(spent=self.cost.spent, reserved=self.cost.reserved)

    def _hear_trouble(self, event: Degraded | CloudRecovered | NoteAdded) -> None:
        match event:
            case Degraded(why, kind):
                self._set(
                    degraded={"kind": kind, "why": self._shown(why, kind)}, away=self.head["away"] or kind != "paced"
                )
            case CloudRecovered():
                self._set(away=False)
            case NoteAdded(why):
                self._set(notes=[*self.head["notes"], why])

    def _hear_answer(self, answer: Answer) -> None:
        usage, bill = answer.usage, answer.bill
        self._set(
            state="finished",
            policy=answer.policy or self.head["policy"],
            checks=usage.checks,
            answer={
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
            },
        )


def _interval(kl: Divergence | None) -> list[float | None] | None:
    """Return both ends of a divergence and its noise; an end that is not bounded is None, and so is one not known."""
    return None if kl is None else [value if math.isfinite(value) else None for value in (kl.lower, kl.upper, kl.noise)]


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
