"""What has been shown and charged so far in one answer, the text as it becomes readable, and the answer it adds up to.

The law of the text: what is given out, joined, is the text before the stop string that is complete first, however the
text came in pieces; nothing is given out that would have to be taken back (``tests/run/test_stop_strings.py``).
Thoughts are told apart before that. Knows no model and no network.
"""

from __future__ import annotations

import codecs
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hybrid.engine import ThoughtMarks
from hybrid.policy.requests import PendingToken
from hybrid.prob import MixtureRow
from hybrid.record import events
from hybrid.record.answer import Answer, Timing, Token, Usage
from hybrid.record.state import AnswerState, apply_and_publish, family
from hybrid.spend import CapScope, Price, as_usd, bill
from hybrid.types import NO_USAGE, CloudUsage, DegradedKind, FinishReason, Ids

# Divide what a model writes into thoughts and the answer, by its template's own marks.
#
# Thoughts stand before the answer: between two marks, the first of which may stand in the prompt already. Once the
# answer has begun a mark is text, so that an answer may speak of one. The law (``tests/run/test_thoughts.py``): however
# the bytes come in pieces, the division is the same; what is given out is never taken back; marks, and the space around
# thoughts outside of them, are part of neither, but for the marks between gpt-oss's messages (``PAIRS``). Stop strings
# are not known here: they see what comes out as the answer's.


@dataclass(frozen=True)
class DividedText:
    """What became readable: some of the thoughts, and some of the answer."""

    thoughts: str = ""
    answer: str = ""


class ThoughtDecoder:
    """Takes the bytes of tokens, gives out whole characters: nothing that may be part of a mark."""

    def __init__(self, marks: ThoughtMarks | None) -> None:
        """Take the marks; without them all is the answer."""
        self._marks = marks
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held_back = ""
        self._answering = marks is None
        self.thinking = marks is not None and marks.opened
        """Whether thoughts are open."""
        self._had_thoughts = self.thinking

    @property
    def before_answer(self) -> bool:
        """Whether thoughts have begun, and nothing of the answer has."""
        return self._had_thoughts and not self._answering and (self.thinking or not self._decoder.getstate()[0])

    def add(self, piece: bytes) -> DividedText:
        """Return what became readable with these bytes."""
        text = self._decoder.decode(piece)
        if self._answering:
            return DividedText(answer=text)
        self._held_back += text
        thoughts = ""
        while self.thinking or self._held_back:
            before = self.thinking, self._held_back
            if self.thinking:
                thoughts += self._thought()
            else:
                self._opening()
            if self._answering or before == (self.thinking, self._held_back):
                break
        return DividedText(thoughts, self._begun() if self._answering else "")

    def rest(self) -> DividedText:
        """Return what was held back, once nothing follows."""
        if self.thinking:
            found = DividedText(thoughts=self._held_back)
        else:
            found = DividedText(answer=self._held_back.lstrip() if self._had_thoughts else self._held_back)
        self._held_back = ""
        return found

    def _thought(self) -> str:
        """Take the thoughts as far as they are certain, and their end where it is there."""
        assert self._marks is not None
        thoughts, mark, rest = self._held_back.partition(self._marks.close)
        if mark:
            self.thinking, self._held_back = False, rest
            return thoughts
        keep = overlap(self._held_back, (self._marks.close,))
        cut = len(self._held_back) - keep
        thoughts, self._held_back = self._held_back[:cut], self._held_back[cut:]
        return thoughts

    def _opening(self) -> None:
        """Open thoughts at a mark; begin the answer at anything else but space, and what may become a mark."""
        assert self._marks is not None
        text = self._held_back.lstrip()
        if text.startswith(self._marks.open):
            self.thinking = self._had_thoughts = True
            self._held_back = text[len(self._marks.open) :]
        elif text and not self._marks.open.startswith(text):
            self._answering = True

    def _begun(self) -> str:
        text, self._held_back = self._held_back, ""
        return text.lstrip() if self._had_thoughts else text


def overlap(text: str, marks: Sequence[str]) -> int:
    """Return how many last characters of a text begin one of the marks, without being it."""
    longest = min(max((len(mark) - 1 for mark in marks), default=0), len(text))
    return next((n for n in range(longest, 0, -1) if any(len(m) > n and m.startswith(text[-n:]) for m in marks)), 0)


CUT_THOUGHTS = "the answer was cut off inside the model's thoughts: raise --max-tokens, or tell it not to think"
NO_REQUEST = "spending runs ahead of the day's cap: the cloud is not asked, and would be without the cap"
SMALLER_REQUEST = "spending runs ahead of the day's cap: the cloud is asked for less than without the cap"
USED_UP = (
    "the day's cap of {} is used up: the cloud is asked again after 00:00 UTC, or under a higher cap "
    "(hybrid budget set --day X)"
)
ONLY_THOUGHTS = "the model ended inside its thoughts: there is no answer beside them"


# What of a usage the answer's own tells.
_CHARGED = (
    *("prompt_tokens", "cached_tokens", "completion_tokens", "cache_write_tokens", "reasoning_tokens"),
    *(f"{source}_{count}_tokens" for source in ("told", "known", "assumed") for count in ("prompt", "completion")),
)


class AnswerBuilder:
    """Grows while an answer is written, and publishes what its reader should know of it."""

    def __init__(
        self,
        num_prompt_tokens: int,
        piece: Callable[[int], bytes],
        price: Callable[[], Price | None],
        asked_at: float,
        publish: events.Publish,
        stops: Sequence[str] = (),
        marks: ThoughtMarks | None = None,
    ) -> None:
        """Start empty. The clock (monotonic, in seconds) began to run when the question was asked.

        ``piece`` returns a token's bytes, ``price`` what is known by now of what a request costs; none of the strings
        in ``stops`` is empty. ``marks`` stand around thoughts; None: there are none.
        """
        self.marks = marks
        self._thoughts = ThoughtDecoder(marks)
        self._num_prompt_tokens = num_prompt_tokens
        self._piece = piece
        self._price = price
        self._asked_at = asked_at
        self.state = AnswerState()
        """What is derived of the events that were published here."""
        self.publish = partial(apply_and_publish, self.state, publish)
        self._stops = stops
        self._text = StopStringDecoder(stops)
        self._first_shown_at: float | None = None
        self.charges: list[CloudUsage] = []
        """What each settled request was charged, or at worst may have been."""
        self.kept = 0
        """How many drafted tokens stand, one that ends the text among them."""
        self.bytes_sent = 0
        """Bytes of the bodies of all HTTP requests that left, or may have: retries and other ways to ask count."""
        self.critic_ms: float | None = None
        self._degraded: str | None = None
        self._degraded_kind: DegradedKind | None = None
        self._degraded_cap: CapScope | None = None
        self.experts: Callable[[], Mapping[str, float]] = dict
        """The weights by now of several local models that write as one, by their names."""
        self.local_models: Sequence[str] = ()
        """The names of those who write locally: by level in a chain, by number of several that write as one."""
        self.cloud_model: Callable[[], str | None] = lambda: None
        self.longest_write = (0, 0.0)
        """The most tokens that one request wrote, and how many a second from when it was opened."""
        self.notes_of: Sequence[Callable[[Answer], str | None]] = ()
        """Each says what the user should know of the whole answer; None: nothing."""

    def __len__(self) -> int:
        """Tokens shown."""
        return len(self.state.tokens)

    @property
    def requests(self) -> int:
        """Requests sent."""
        return family(self.state.counts, "sent").total()

    @property
    def failed(self) -> int:
        """How many of them failed."""
        return self.state.counts["requests", "failed"]

    @property
    def stopped(self) -> bool:
        """Whether a stop string was met."""
        return self._text.stopped

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know, in the order in which it was found."""
        return tuple(self.state.notes)

    def show(self, pending: PendingToken) -> None:
        """Add a token; its text is what became readable with it."""
        if self._first_shown_at is None:
            self._first_shown_at = time.monotonic()
        read = self._thoughts.add(self._piece(pending.id))
        text, thought = self._text.add_text(read.answer), self._thoughts.before_answer
        token = Token(
            pending.id,
            text,
            pending.source,
            pending.how,
            pending.kl,
            pending.why,
            pending.certificate,
            thought,
            read.thoughts,
            self._writer(pending),
            pending.concept_kl,
        )
        self.publish(events.TokenEmitted(len(self), token))

    def read(self, text: Ids) -> tuple[str, int | None]:
        """Return the answer that these tokens would be, and how many of them until a stop string is complete."""
        thoughts, stops, shown = ThoughtDecoder(self.marks), StopStringDecoder(self._stops), ""
        for num, token in enumerate(text, start=1):
            shown += stops.add_text(thoughts.add(self._piece(token)).answer)
            if stops.stopped:
                return shown, num
        return shown + stops.add_text(thoughts.rest().answer) + stops.rest(), None

    def _writer(self, pending: PendingToken) -> str | None:
        if pending.source == "cloud":
            return self.cloud_model()
        row = pending.draft_row
        number = row.chosen or 0 if isinstance(row, MixtureRow) else pending.writer
        return self.local_models[number] if number < len(self.local_models) else None

    def degrade(self, why: str, kind: DegradedKind, *, again: bool = False, cap: CapScope | None = None) -> None:
        """Keep the first reason why the cloud did not help, and publish it; a later one is published if ``again``.

        ``cap``: the one that decided it, if one did.
        An answer that was charged too much lacks nothing by that: its kind is that of what follows from it.
        """
        if self._degraded is None or again:
            self.publish(events.Degraded(why, kind))
        if self._degraded is None:
            self._degraded = why
        if self._degraded_kind in {None, "charge"}:
            self._degraded_kind, self._degraded_cap = kind, cap

    def degrade_by_pacing(self, *, asks: bool, used_up_nanousd: int | None = None) -> None:
        """Record that a day's pacing has lowered what is asked of the cloud; ``asks``: something is.

        ``used_up_nanousd``: the day's cap, where it leaves no request.
        """
        why = SMALLER_REQUEST if asks else NO_REQUEST
        self.degrade(why if used_up_nanousd is None else USED_UP.format(as_usd(used_up_nanousd)), "paced", cap="day")

    def add_overcharge(self, why: str) -> None:
        """Add to any such reason that the endpoint charged more than was reserved, and publish that."""
        self._degraded = why if self._degraded is None else f"{self._degraded}; {why}"
        self._degraded_kind = self._degraded_kind or "charge"
        self.publish(events.Degraded(why, "charge"))

    def note(self, why: str) -> None:
        """Keep and publish, once, what the user should know though the cloud did help."""
        if why not in self.state.notes:
            self.publish(events.NoteAdded(why))

    def finish(self, reason: FinishReason, seed: int, policy: str, guarantee: str) -> Answer:
        """Publish the text that was held back for a stop string that never came, then the whole answer; return it."""
        if self._thoughts.thinking:
            self.note(CUT_THOUGHTS if reason == "length" else ONLY_THOUGHTS)
        read = self._thoughts.rest()
        rest = self._text.add_text(read.answer) + self._text.rest()
        if (rest or read.thoughts) and len(self):
            self.publish(events.Flushed(rest, read.thoughts))
        answer = self._answer(reason, seed, policy, guarantee)
        for why in filter(None, [note_of(answer) for note_of in self.notes_of]):
            self.note(why)
        answer = replace(answer, notes=self.notes)
        self.publish(events.Finished(answer, by_itself=reason == "stop" and not self.stopped))
        return answer

    def _answer(self, reason: FinishReason, seed: int, policy: str, guarantee: str) -> Answer:
        state, tokens = self.state, tuple(self.state.tokens)
        # A text that ends by itself ends with a token that is charged and not shown.
        cloud_only_tokens = len(tokens) + (reason == "stop" and not self.stopped)
        charged, drafted = sum(self.charges, NO_USAGE), state.counts["positions", "drafted"]
        usage = Usage(
            local_tokens=state.writers["local"],
            cloud_tokens=state.writers["cloud"],
            drafted=drafted,
            rejected=drafted - self.kept,
            checks=state.counts["requests", "answered check"],
            cloud_requests=self.requests,
            certified=state.counts["marked", "certified"],
            thought_tokens=state.counts["marked", "thoughts"],
            bytes_sent=self.bytes_sent,
            written_by=dict(Counter(token.model for token in tokens if token.model is not None)),
            wording=state.counts["marked", "wording"],
            **{f"cloud_{name}": getattr(charged, name) for name in _CHARGED},
        )
        ttft_ms = None if self._first_shown_at is None else self._ms(self._first_shown_at)
        return Answer(
            text="".join(token.text for token in tokens),
            thoughts="".join(token.thought_text for token in tokens),
            finish_reason=reason,
            tokens=tokens,
            usage=usage,
            bill=bill(self._price(), self.charges, self._num_prompt_tokens, cloud_only_tokens),
            handoffs=tuple(state.handoffs),
            degraded=self._degraded,
            degraded_kind=self._degraded_kind,
            notes=self.notes,
            timing=Timing(ttft_ms, self._ms(time.monotonic()), self.critic_ms),
            seed=seed,
            policy=policy,
            guarantee=guarantee,
            experts=self.experts(),
            degraded_cap=self._degraded_cap,
        )

    def _ms(self, moment: float) -> float:
        return round((moment - self._asked_at) * 1000, 3)


class StopStringDecoder:
    """Takes the bytes of tokens, gives out text: whole characters only, and nothing that may begin a stop string."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """Take the strings that end the text; none of them is empty."""
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held_back = ""
        self.stopped = False
        """Whether a stop string was met; from there on nothing is readable."""

    def add(self, piece: bytes) -> str:
        """Return what became readable with these bytes."""
        return self.add_text(self._decoder.decode(piece))

    def add_text(self, text: str) -> str:
        """Return what became readable with this text."""
        if self.stopped:
            return ""
        self._held_back += text
        # Where each ends and begins: the first to be complete, and of two that end together the longer one.
        found = [(at + len(stop), at) for stop in self._stops if (at := self._held_back.find(stop)) >= 0]
        if found:
            self.stopped = True
            text, self._held_back = self._held_back[: min(found)[1]], ""
            return text
        cut = len(self._held_back) - overlap(self._held_back, self._stops)
        text, self._held_back = self._held_back[:cut], self._held_back[cut:]
        return text

    def rest(self) -> str:
        """Return what was held back, once nothing follows."""
        text, self._held_back = self._held_back, ""
        return text
