"""Streams of events as an answer publishes them, drawn by Hypothesis: the answer at the end is the real builder's."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from hybrid.engine import ThoughtMarks
from hybrid.policy.requests import PendingToken
from hybrid.prob import Dense, TopK
from hybrid.record import events
from hybrid.record.answer import Answer, Handoff, Token
from hybrid.record.answer_builder import AnswerBuilder
from hybrid.spend import Price
from hybrid.types import NO_USAGE, CloudUsage, Divergence

PIECES = (b"a", b" b", b"<i>", b"\xc3", b"\xa9", b"\n", b"secret", b"")
KINDS = (
    ("local", "accepted", None),
    ("local", "unchecked", None),
    ("cloud", "bonus", None),
    ("cloud", "recovered", "KL 3.1 nats, above 0.5"),
    ("cloud", "written", None),
    ("cloud", "written", "the local model is in doubt: entropy 0.9 nats"),
)
PRICE = Price.parse("1/0.1/4")
ROW = Dense.from_probs(np.array([0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.04, 0.01]))


@dataclass(frozen=True)
class Stream:
    """Everything that was published, and the answer."""

    events: list[events.Event]
    answer: Answer


divergences = st.none() | st.builds(
    lambda lower, width: Divergence(lower, lower, lower + width, 0.02),
    st.floats(0, 20),
    st.sampled_from([0.0, 0.001, 1.0, math.inf]),
)
tokens = st.builds(
    lambda token, kind, kl, certificate: PendingToken(
        token, kind[0], kind[1], kl=kl, why=kind[2], certificate=certificate
    ),
    st.integers(0, len(PIECES) - 1),
    st.sampled_from(KINDS),
    divergences,
    st.none() | st.just(0.6),
)
usages = st.none() | st.builds(CloudUsage, st.integers(0, 99), st.integers(0, 9))
parts = st.one_of(
    tokens,
    tokens,
    tokens,
    st.tuples(st.sampled_from(["check", "write"]), st.none() | st.integers(0, 9999), usages, st.booleans()),
    st.sampled_from(["degrade", "recover", "note", "retry", "span", "rows"]),
)


@st.composite
def streams(draw, *, most_parts: int = 25):
    """Draw the events of one answer, from ``Queued`` to ``Finished``."""
    published: list[events.Event] = []
    price = draw(st.sampled_from([PRICE, None]))
    marks = draw(st.sampled_from([None, ThoughtMarks("<i>", "\n", opened=False)]))
    builder = AnswerBuilder(3, PIECES.__getitem__, lambda: price, time.monotonic(), published.append, marks=marks)
    published.extend(events.Queued(ahead) for ahead in reversed(range(draw(st.integers(0, 2)))))
    published.append(events.Started((1, 2, 3), "kl", "kl span=32 gate=always judge=kl:0.5 hold=4 handback=kl:0.2"))
    published.append(events.RecordingStarted(PIECES, (), sampling=None, max_tokens=9))  # type: ignore[arg-type]
    shown: tuple[int, ...] = ()
    for number, part in enumerate(draw(st.lists(parts, max_size=most_parts))):
        if isinstance(part, PendingToken):
            builder.show(part)
            shown += (part.id,)
        elif isinstance(part, tuple):
            _publish_request(builder, f"r{number}", len(shown), part, price)
        else:
            _publish_other(builder, part, shown)
    answer = builder.finish("stop", 7, "kl span=32", "none")
    return Stream(published, answer)


def _publish_request(builder, name, position, part, price):
    kind, most, usage, settled = part
    most = None if price is None else most
    builder.publish(events.RequestSent(name, kind, position, 4, most))
    if kind == "check" and usage is not None:
        builder.publish(events.CheckAnswered(name, 4))
    cost = None if usage is None or price is None else price.cost(usage)
    if settled or usage is None:
        builder.charges.append(usage or NO_USAGE)
        why = ("the secret cloud is away", "unreachable") if usage is None else ()
        builder.publish(events.RequestSettled(name, kind, usage, cost, 12.5, *why))


def _publish_other(builder, part, shown):
    if part == "degrade":
        builder.degrade("the secret cloud is away", "unreachable", again=True)
    elif part == "recover":
        builder.publish(events.CloudRecovered(3.0))
    elif part == "note":
        builder.note("a note")
    elif part == "retry":
        builder.publish(events.RequestRetried("busy", 1.0))
    elif part == "span":
        builder.publish(events.SpanDrafted(len(shown), (1, 2)))
        builder.publish(events.SpanJudged(len(shown), 2, 1, rejected=True))
    else:
        builder.publish(events.Rows(shown, local=ROW, cloud=TopK.from_dense(ROW, 3)))
        builder.publish(events.Rows((*shown, 1), local=ROW))


def handoffs(tokens: tuple[Token, ...]) -> tuple[Handoff, ...]:
    """Derive the hand-offs from all tokens, as a naive program: runs that the cloud wrote, parted at a new reason."""
    found: list[Handoff] = []
    before: Token | None = None
    for position, token in enumerate(tokens):
        if token.source == "cloud" and token.how in {"recovered", "written"}:
            how = before.how if before else None
            if token.how == "written" and (how == "recovered" or (how == "written" and token.why is None)):
                found[-1] = Handoff(found[-1].position, found[-1].reason, found[-1].tokens + 1)
            else:
                found.append(Handoff(position, token.why or "", 1))
        before = token
    return tuple(found)
