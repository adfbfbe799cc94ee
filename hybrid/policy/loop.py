"""The loop: every decoding rule is this generator with a few small choices (``Policy``).

It yields requests and is sent replies; it calls no model, opens no connection, reads no clock and tosses no coin but
the one it is given. So a policy can be driven by hand, enumerated and replayed, and cannot spend money behind the
ledger's back.

Laws, each enumerated over the whole loop on a 3-token vocabulary in ``tests/policy/test_loop.py``: ``greedy-exact``
gives the target's text; with a cloud that never answers, or stops answering at any request, every policy finishes with
the local model's text from there on; every answer ends, whatever the cloud says.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar

from hybrid.policy.coins import Coin, CoinKey
from hybrid.policy.gates import ALWAYS, NEVER, Gate
from hybrid.policy.judges import DraftedSpan, Judge, TailDraw, Verdict
from hybrid.policy.requests import (
    Check,
    Continue,
    Draft,
    Drafted,
    Emit,
    Finish,
    NoAnswer,
    PendingToken,
    Refused,
    Reply,
    Request,
    Scored,
    Span,
    Write,
    Wrote,
    ids,
)
from hybrid.prob import Floats, kl_divergence
from hybrid.types import Divergence, Ids

T = TypeVar("T")
Dialogue: TypeAlias = Generator[Request, Reply, T]
Ability: TypeAlias = Literal["score", "write", "open", "ids"]
SAID: Mapping[Ability, str] = {
    "score": "score a draft",
    "write": "continue a partial answer",
    "open": "write an answer",
    "ids": "name tokens by number",
}
Handback: TypeAlias = Callable[[Divergence], bool]
"""Whether a divergence means that the two models agree."""


@dataclass(frozen=True)
class Policy:
    """A decoding rule as data.

    ``span``: tokens drafted before a question. ``gate``: keep, check or write, from local signals. ``scope``: how many
    trailing tokens a check judges (None: all; 0: none, only the row after); those before are shown unchecked, at once.
    ``bonus``: the row after a kept span may give one more token. ``hold``: tokens the cloud writes after a rejection
    before it is asked whether to hand back (0: only the recovered one); doubled while it keeps the pen if there is a
    ``back``, which says which divergences mean agreement, ``patience`` of them in a row. ``lead``: tokens the cloud
    opens with. ``tails``: the judge may leave a token to the cloud. ``writes_on``: where it does so because a row does
    not determine the law, the cloud writes until one does, so many tokens at first (0: that token alone).
    """

    name: str
    span: int
    gate: Gate
    judge: Judge | None = None
    scope: int | None = None
    bonus: bool = False
    hold: int = 0
    back: Handback | None = None
    patience: int = 1
    lead: int = 0
    tails: bool = False
    writes_on: int = 0

    @property
    def needs(self) -> frozenset[Ability]:
        """What the endpoint must be able to do."""
        found: set[Ability] = set()
        found |= {"score"} if self.judge else set()
        found |= {"open"} if self.lead else set()
        found |= {"write"} if self.hold or self.tails else set()
        found |= {"ids"} if self.tails else set()  # whoever draws needs the drafted token's own probability
        return frozenset(found)


WRITES_ON = (
    "the shown tokens do not determine the cloud's law under this sampling, so that drafts cannot stand and the cloud "
    "writes: a lower --top-k or --top-p, or --temperature 1, lets them"
)


@dataclass(frozen=True)
class HandbackRule:
    """What ends a handoff: ``patience`` written tokens in a row that are ``due``, or one of which it is not known.

    ``along``: both models' rows tell, and are to be had. ``note``: what is to be said of a block of more than ``quiet``
    tokens.
    """

    due: Callable[[PendingToken], bool | None]
    patience: int = 1
    along: bool = False
    note: str | None = None
    quiet: int = 0


_AFTER_ITS_TOKENS = HandbackRule(lambda _: None, patience=0)


@dataclass
class _Progress:
    """Where the answer stands. ``rejections`` keys the coins; ``ahead`` is what was measured at the next position.

    ``block``: how much the cloud writes at once where its row does not determine its law; 0: as much as at first.
    """

    coin: Coin
    at: Ids = ()
    over: bool = False
    rejections: int = 0
    ahead: Divergence | None = None
    block: int = 0

    def draw(self, probs: Floats, offset: int, role: str) -> int:
        """Toss for a token that is drafted so many positions on."""
        return self.coin(probs, CoinKey(len(self.at) + offset, role, self.rejections))


def decode(policy: Policy, coin: Coin) -> Dialogue[None]:
    """Write one answer under ``policy``, from its first token to Over. A policy that only compares tosses no coin."""
    here = _Progress(coin=coin)
    if policy.lead:
        yield from _write(_AFTER_ITS_TOKENS, here, policy.lead, "the cloud opens the text")
    mute = False
    while not here.over:
        before = len(here.at)
        if mute:
            # A round that showed nothing is followed by one ungated local token: every answer ends.
            yield from _emit(here, (yield from _draft(Draft(here.at, 1, NEVER, rejections=here.rejections))).span)
        else:
            yield from _round(policy, here)
        mute = len(here.at) == before


def _round(policy: Policy, here: _Progress) -> Dialogue[None]:
    """Draft a span, settle it, and let the cloud write where it was turned down."""
    request = Draft(here.at, policy.span, policy.gate, after=_wants_after(policy), rejections=here.rejections)
    drafted = yield from _draft(request)
    if drafted.call == "check" and not drafted.span and policy.scope != 0 and not policy.bonus:
        # The gate asks about a token that is not drawn yet, and the cloud may not give it: it is drawn, and judged.
        drafted = yield from _draft(replace(request, limit=1, gate=ALWAYS))
    if drafted.call != "check" or policy.judge is None:
        yield from _emit(here, drafted.span)
        if drafted.call == "write" and not here.over:
            yield from _write(_agreement(policy), here, policy.hold, policy.gate.why(drafted.after))
        return
    free = 0 if policy.scope is None else max(0, len(drafted.span) - policy.scope)
    yield from _emit(here, drafted.span[:free])
    if here.over:
        return
    verdict = yield from _check(policy, policy.judge, here, replace(drafted, span=drafted.span[free:]))
    then = verdict.then
    yield from _emit(here, verdict.kept + ((then,) if isinstance(then, PendingToken) else ()))
    if verdict.kept or not isinstance(then, TailDraw):
        here.block = 0
    if isinstance(then, TailDraw) and not here.over:
        yield from _write_on(policy, here, then) if policy.writes_on and then.determined else _tail(here, then)
    here.ahead = None if then else verdict.ahead
    if verdict.rejected:
        here.rejections += 1
        if policy.hold and not here.over:
            # The reason stands where the pen changes hands: at the token already paid for, if there is one.
            yield from _write(_agreement(policy), here, policy.hold, None if verdict.then else verdict.why)


def _write_on(policy: Policy, here: _Progress, tail: TailDraw) -> Dialogue[None]:
    """Let the cloud write until a token could be drawn here again: which row that is, its prefix alone decides.

    So the law is the cloud's own, as it would be token by token. A row that is not told is left to the next check.
    """
    before, determined = len(here.at), tail.determined
    until = HandbackRule(
        lambda held: determined(held.target_row) if determined and held.target_row else None,
        note=WRITES_ON,
        quiet=policy.writes_on,
    )
    here.block = 2 * (yield from _write(until, here, here.block or policy.writes_on, tail.why))
    here.rejections += len(here.at) == before


def _tail(here: _Progress, tail: TailDraw) -> Dialogue[None]:
    """Have the cloud draw one token. Without an answer the position is drafted again: the local model goes on."""
    reply = yield Write(here.at, 1, tail.ban)
    match reply:
        case Wrote(span):
            yield from _emit(here, tuple(replace(held, why=tail.why) for held in span))
        case Refused() | NoAnswer():
            here.rejections += 1
        case _:
            raise _out_of_turn(reply)


def _wants_after(policy: Policy) -> bool:
    return policy.judge is not None and (not policy.bonus or policy.scope == 0)


def _check(policy: Policy, judge: Judge, here: _Progress, drafted: Drafted) -> Dialogue[Verdict]:
    """One question about a span. Without an answer the span stands, unchecked: the local model goes on."""
    reply = yield Check(here.at, drafted.span, after=policy.bonus or drafted.after is not None)
    match reply:
        case Scored(rows):
            return judge(DraftedSpan(drafted.span[: len(rows)], rows, drafted.after, policy.bonus, here.draw))
        case Refused() | NoAnswer():
            return Verdict(drafted.span)
        case _:
            raise _out_of_turn(reply)


def _agreement(policy: Policy) -> HandbackRule:
    """Return when the cloud hands back after a rejection or a doubt: when the two models agree, if that matters."""
    back = policy.back
    if back is None:
        return _AFTER_ITS_TOKENS
    return HandbackRule(lambda held: None if held.kl is None else back(held.kl), policy.patience, along=True)


def _write(until: HandbackRule, here: _Progress, limit: int, why: str | None) -> Dialogue[int]:
    """Let the cloud write in blocks that double until it is due to hand back; return the last one's limit."""
    calm = 0
    while not here.over:
        start = len(here.at)
        reached = yield from _write_block(until, here, limit, why, calm)
        if reached is None or len(here.at) == start or reached >= until.patience:
            break
        calm, why, limit = reached, None, 2 * limit
    return limit


def _write_block(until: HandbackRule, here: _Progress, limit: int, why: str | None, calm: int) -> Dialogue[int | None]:
    """One block, read to its end: its tokens are paid for, and only a request that ends by itself tells its cost.

    A request that ends short (its limit was lowered to fit a cap) is asked on, unless it gave nothing. Returns how
    many tokens in a row speak for handing back at the end; None if the cloud did not answer.
    """
    start, opened = here.at, len(here.at)
    block: Span = ()
    note = until.note if limit > until.quiet else None
    while limit > 0 and not here.over:
        reply = yield Write(here.at, limit, along=until.along, note=note, rows=until is not _AFTER_ITS_TOKENS)
        match reply:
            case Wrote(span, ended):
                span = tuple(_measured(held) for held in span)
                if span and why:
                    span, why = (replace(span[0], why=why), *span[1:]), None
                yield from _emit(here, span)
                block += span
                limit -= len(span)
                if ended and len(here.at) == opened:
                    break
                opened = len(here.at) if ended else opened
            case Refused() | NoAnswer():
                return None
            case _:
                raise _out_of_turn(reply)
    if until.along and block and not here.over and not any(held.target_row for held in block):
        scored = yield from _score(start, block)
        return None if scored is None else _calm(until, scored, calm)
    return _calm(until, block, calm)


def _score(start: Ids, block: Span) -> Dialogue[Span | None]:
    """Have a written block scored whose rows did not come with it: the divergence decides the handback all the same."""
    reply = yield Check(start, block, after=False)
    match reply:
        case Scored(rows):
            known = tuple(_measured(replace(held, target_row=row)) for held, row in zip(block, rows, strict=False))
            return known + block[len(known) :]
        case Refused() | NoAnswer():
            return None
        case _:
            raise _out_of_turn(reply)


def _measured(held: PendingToken) -> PendingToken:
    if held.target_row is None or held.draft_row is None:
        return held
    return replace(held, kl=kl_divergence(held.target_row, held.draft_row))


def _calm(until: HandbackRule, span: Span, calm: int) -> int:
    """How many written tokens in a row speak for handing back. Of what is not known, one keeps nobody the pen."""
    for held in span:
        due = until.due(held)
        calm = max(calm, until.patience) if due is None else calm + 1 if due else 0
    return calm


def _draft(request: Draft) -> Dialogue[Drafted]:
    reply = yield request
    if not isinstance(reply, Drafted):
        raise _out_of_turn(reply)
    return reply


def _emit(here: _Progress, tokens: Span) -> Dialogue[None]:
    if not tokens:
        return
    if here.ahead is not None and tokens[0].kl is None:
        tokens = (replace(tokens[0], kl=here.ahead), *tokens[1:])
    here.ahead = None
    reply = yield Emit(tokens)
    if not isinstance(reply, Continue | Finish):
        raise _out_of_turn(reply)
    here.at += ids(tokens)
    here.over = isinstance(reply, Finish)


def _out_of_turn(reply: Reply) -> TypeError:
    return TypeError(f"{type(reply).__name__} does not answer what was asked")
