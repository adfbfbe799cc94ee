"""The loop: every decoding rule is this one generator with a few choices (``Policy``).

Theory of operation. ``decode`` yields requests and is sent replies. There are five pairs:

- ``Draft`` -> ``Drafted``: the local model drafts tokens until the gate, the limit or an end token stops it.
- ``Check`` -> ``Scored``: the cloud gives its rows for a drafted span, in one round trip.
- ``Write`` -> ``Wrote``: the cloud writes tokens itself, chunk by chunk.
- ``Emit`` -> ``AnswerContinues`` or ``AnswerEnded``: tokens are shown, and never taken back.
- ``Check`` or ``Write`` -> ``BudgetDenied`` (no money) or ``NoAnswer`` (no cloud): the local model goes on, unchecked.

A round is one ``Draft``; then, as the gate decided, ``Emit`` (keep), ``Check`` and ``Emit`` (check), or ``Emit`` and
``Write`` (write). The judge turns ``Scored`` into a ``Verdict``: the accepted tokens and the one after them.

Who owns what. The loop owns the order of requests, and how far the answer is (``_Progress``). The driver owns models,
caches, money and retries; it stops a draft at the gate and says when the answer is over. The gate and the judge are
pure. The coin is the only randomness; its key counts the rejections, so that no position meets the same coin twice.

How a rejected token is rewound: it is not emitted, so it is not in the next request's prefix ``at``. The engine takes
it out of its KV cache when it next decodes at that prefix (``engine.cursor``); a stream of the cloud at another prefix
is closed.

What cannot happen: the loop calls no model, opens no connection, reads no clock and spends no money. A token is never
retracted. Every answer ends: a round that showed nothing (``doubt`` while the cloud is away, say) is followed by one
ungated local token.

Laws, each enumerated over the whole loop on a 3-token vocabulary in ``tests/policy/test_loop.py``: ``greedy-exact``
gives the target's text; with a cloud that never answers, or stops answering at any request, every policy finishes with
the local model's text from there on; every answer ends, whatever the cloud says.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from hybrid.policy.coins import Coin, CoinKey
from hybrid.policy.gates import ALWAYS, NEVER
from hybrid.policy.judges import DraftedSpan, Judge, TailDraw, Verdict
from hybrid.policy.policy import AgreementTest, Policy
from hybrid.policy.requests import (
    AnswerContinues,
    AnswerEnded,
    BudgetDenied,
    Check,
    Draft,
    Drafted,
    Emit,
    NoAnswer,
    PendingToken,
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
Flow: TypeAlias = Generator[Request, Reply, T]
WRITES_ON = (
    "the shown tokens do not determine the cloud's distribution under this sampling, so no draft can be accepted and "
    "the cloud writes: a lower --top-k or --top-p, or --temperature 1, changes that"
)


@dataclass(frozen=True)
class HandbackRule:
    """What ends a handoff: ``num_agreeing`` written tokens in a row that agree, or one of which that is not known.

    ``agrees`` says it of a token; None: not known. ``wants_draft_rows``: the local rows are needed
    for it. ``note`` is told to the user for a block of more than ``quiet_tokens``.
    """

    agrees: Callable[[PendingToken], bool | None]
    num_agreeing: int = 1
    wants_draft_rows: bool = False
    note: str | None = None
    quiet_tokens: int = 0


_AFTER_ITS_TOKENS = HandbackRule(lambda _: None, num_agreeing=0)


@dataclass
class _Progress:
    """Where the answer is. ``at``: the ids shown so far. ``rejections`` keys the coins.

    ``next_divergence`` was measured at the next position. ``block``: how many tokens the cloud writes at once where its
    row does not determine its distribution; 0: as many as at first.
    """

    coin: Coin
    at: Ids = ()
    over: bool = False
    rejections: int = 0
    next_divergence: Divergence | None = None
    block: int = 0

    def toss(self, probs: Floats, offset: int, role: str) -> int:
        """Toss for the token that was drafted so many positions on."""
        return self.coin(probs, CoinKey(len(self.at) + offset, role, self.rejections))


def decode(policy: Policy, coin: Coin) -> Flow[None]:
    """Write one answer under ``policy``, from its first token to its last. A policy that compares tosses no coin."""
    progress = _Progress(coin=coin)
    if policy.lead:
        yield from _write(_AFTER_ITS_TOKENS, progress, policy.lead, "the cloud opens the text")
    num_shown = -1
    while not progress.over:
        stalled, num_shown = len(progress.at) == num_shown, len(progress.at)
        if stalled:
            one = Draft(progress.at, 1, NEVER, rejections=progress.rejections)
            yield from _emit(progress, (yield from _draft(one)).span)
        else:
            yield from _round(policy, progress)


def _round(policy: Policy, progress: _Progress) -> Flow[None]:
    """Draft a span and do what the gate decided about it."""
    drafted = yield from _draft_span(policy, progress)
    if drafted.decision == "check" and policy.judge is not None:
        yield from _judge_span(policy, policy.judge, progress, drafted)
        return
    yield from _emit(progress, drafted.span)
    if drafted.decision == "write" and not progress.over:
        yield from _write(_handback_rule(policy), progress, policy.handoff_tokens, policy.gate.why(drafted.next_row))


def _draft_span(policy: Policy, progress: _Progress) -> Flow[Drafted]:
    """Draft up to the policy's span. A check of nothing, to which the cloud may give no token, becomes one token."""
    wants_next_row = policy.judge is not None and (not policy.takes_bonus or policy.judged_tokens == 0)
    request = Draft(
        progress.at, policy.span, policy.gate, wants_next_row=wants_next_row, rejections=progress.rejections
    )
    drafted = yield from _draft(request)
    if drafted.decision == "check" and not drafted.span and policy.judged_tokens != 0 and not policy.takes_bonus:
        drafted = yield from _draft(replace(request, limit=1, gate=ALWAYS))
    return drafted


def _judge_span(policy: Policy, judge: Judge, progress: _Progress, drafted: Drafted) -> Flow[None]:
    """Show what is not judged, check the rest, show what is accepted; the cloud writes where a token was rejected."""
    judged = policy.judged_tokens
    num_unchecked = 0 if judged is None else max(0, len(drafted.span) - judged)
    yield from _emit(progress, drafted.span[:num_unchecked])
    if progress.over:
        return
    verdict = yield from _check(policy, judge, progress, replace(drafted, span=drafted.span[num_unchecked:]))
    following = verdict.next_token
    yield from _emit(progress, verdict.accepted + ((following,) if isinstance(following, PendingToken) else ()))
    if verdict.accepted or not isinstance(following, TailDraw):
        progress.block = 0
    if isinstance(following, TailDraw) and not progress.over:
        if policy.undetermined_tokens and following.determined:
            yield from _write_until_determined(policy, progress, following)
        else:
            yield from _draw_tail(progress, following)
    progress.next_divergence = None if following else verdict.next_divergence
    if verdict.rejected:
        progress.rejections += 1
        if policy.handoff_tokens and not progress.over:
            # The reason is told once: at the token already paid for, if there is one.
            why = None if following else verdict.why
            yield from _write(_handback_rule(policy), progress, policy.handoff_tokens, why)


def _check(policy: Policy, judge: Judge, progress: _Progress, drafted: Drafted) -> Flow[Verdict]:
    """Check a span once. Without an answer it is shown, unchecked: the local model goes on."""
    reply = yield Check(progress.at, drafted.span, wants_next_row=policy.takes_bonus or drafted.next_row is not None)
    match reply:
        case Scored(rows):
            answered = drafted.span[: len(rows)]
            return judge(DraftedSpan(answered, rows, drafted.next_row, policy.takes_bonus, progress.toss))
        case BudgetDenied() | NoAnswer():
            return Verdict(drafted.span)
        case _:
            raise _protocol_error(reply)


def _write_until_determined(policy: Policy, progress: _Progress, tail: TailDraw) -> Flow[None]:
    """Let the cloud write until a row determines its distribution again: which row that is, its prefix alone decides.

    So the text has the cloud's own distribution, as it would token by token. A row that is missing is left to the next
    check.
    """
    before, determined = len(progress.at), tail.determined
    rule = HandbackRule(
        lambda token: determined(token.target_row) if determined and token.target_row else None,
        note=WRITES_ON,
        quiet_tokens=policy.undetermined_tokens,
    )
    first = progress.block or policy.undetermined_tokens
    progress.block = 2 * (yield from _write(rule, progress, first, tail.why))
    progress.rejections += len(progress.at) == before


def _draw_tail(progress: _Progress, tail: TailDraw) -> Flow[None]:
    """Have the cloud draw one token. Without an answer the position is drafted again: the local model goes on."""
    reply = yield Write(progress.at, 1, tail.ban)
    match reply:
        case Wrote(span):
            yield from _emit(progress, tuple(replace(token, why=tail.why) for token in span))
        case BudgetDenied() | NoAnswer():
            progress.rejections += 1
        case _:
            raise _protocol_error(reply)


def _handback_rule(policy: Policy) -> HandbackRule:
    """Return when the cloud hands back after a rejection or a ``write``: when the models agree, if that matters."""
    handback: AgreementTest | None = policy.handback
    if handback is None:
        return _AFTER_ITS_TOKENS
    return HandbackRule(
        lambda token: None if token.kl is None else handback.agrees(token.kl),
        policy.handback_after,
        wants_draft_rows=True,
    )


def _write(rule: HandbackRule, progress: _Progress, limit: int, why: str | None) -> Flow[int]:
    """Let the cloud write in blocks that double until it is due to hand back; return the last block's limit."""
    num_agreeing = 0
    while not progress.over:
        start = len(progress.at)
        reached = yield from _write_block(rule, progress, limit, why, num_agreeing)
        if reached is None or len(progress.at) == start or reached >= rule.num_agreeing:
            break
        num_agreeing, why, limit = reached, None, 2 * limit
    return limit


def _write_block(
    rule: HandbackRule, progress: _Progress, limit: int, why: str | None, num_agreeing: int
) -> Flow[int | None]:
    """Write one block; return how many tokens in a row agree at its end, None if the cloud did not answer."""
    start = progress.at
    block = yield from _read_block(rule, progress, limit, why)
    needs_rows = rule.wants_draft_rows and not any(token.target_row for token in block or ())
    if block and needs_rows and not progress.over:
        block = yield from _score(start, block)
    return None if block is None else _count_agreeing(rule, block, num_agreeing)


def _read_block(rule: HandbackRule, progress: _Progress, limit: int, why: str | None) -> Flow[Span | None]:
    """Have a block written, show it, and read it to its end; None if the cloud did not answer.

    Its tokens are paid for, and only a request that ends by itself reports its cost. A request that a cap has shortened
    is followed by another, unless it gave nothing.
    """
    block: Span = ()
    opened = len(progress.at)
    note = rule.note if limit > rule.quiet_tokens else None
    wants_target_rows = rule is not _AFTER_ITS_TOKENS
    while limit > 0 and not progress.over:
        reply = yield Write(progress.at, limit, frozenset(), rule.wants_draft_rows, note, wants_target_rows)
        match reply:
            case Wrote(span, ended):
                span = tuple(_with_divergence(token) for token in span)
                if span and why:
                    span, why = (replace(span[0], why=why), *span[1:]), None
                yield from _emit(progress, span)
                block, limit = block + span, limit - len(span)
                if ended and len(progress.at) == opened:
                    break
                opened = len(progress.at) if ended else opened
            case BudgetDenied() | NoAnswer():
                return None
            case _:
                raise _protocol_error(reply)
    return block


def _score(start: Ids, block: Span) -> Flow[Span | None]:
    """Have a written block scored that came without rows: the divergence decides the handback all the same."""
    reply = yield Check(start, block, wants_next_row=False)
    match reply:
        case Scored(rows):
            pairs = zip(block, rows, strict=False)
            known = tuple(_with_divergence(replace(token, target_row=row)) for token, row in pairs)
            return known + block[len(known) :]
        case BudgetDenied() | NoAnswer():
            return None
        case _:
            raise _protocol_error(reply)


def _with_divergence(token: PendingToken) -> PendingToken:
    if token.target_row is None or token.draft_row is None:
        return token
    return replace(token, kl=kl_divergence(token.target_row, token.draft_row))


def _count_agreeing(rule: HandbackRule, span: Span, num_agreeing: int) -> int:
    """Count the written tokens in a row that agree. A token without a cloud row counts as enough of them."""
    for token in span:
        match rule.agrees(token):
            case None:
                num_agreeing = max(num_agreeing, rule.num_agreeing)
            case agrees:
                num_agreeing = num_agreeing + 1 if agrees else 0
    return num_agreeing


def _draft(request: Draft) -> Flow[Drafted]:
    reply = yield request
    if not isinstance(reply, Drafted):
        raise _protocol_error(reply)
    return reply


def _emit(progress: _Progress, tokens: Span) -> Flow[None]:
    if not tokens:
        return
    if progress.next_divergence is not None and tokens[0].kl is None:
        tokens = (replace(tokens[0], kl=progress.next_divergence), *tokens[1:])
    progress.next_divergence = None
    reply = yield Emit(tokens)
    if not isinstance(reply, AnswerContinues | AnswerEnded):
        raise _protocol_error(reply)
    progress.at += ids(tokens)
    progress.over = isinstance(reply, AnswerEnded)


def _protocol_error(reply: Reply) -> TypeError:
    return TypeError(f"{type(reply).__name__} does not answer what was asked")
