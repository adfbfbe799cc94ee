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


def decode(policy: Policy, coin: Coin) -> Flow[None]:
    """Write one answer under ``policy``, from its first token to its last. A policy that compares tosses no coin."""
    progress = Progress(coin=coin)
    if policy.lead:
        yield from write(AFTER_ITS_TOKENS, progress, policy.lead, "the cloud opens the text")
    num_shown = -1
    while not progress.over:
        stalled, num_shown = len(progress.at) == num_shown, len(progress.at)
        if stalled:
            one = Draft(progress.at, 1, NEVER, rejections=progress.rejections)
            yield from emit(progress, (yield from draft(one)).span)
        else:
            yield from _round(policy, progress)


def _round(policy: Policy, progress: Progress) -> Flow[None]:
    """Draft a span and do what the gate decided about it."""
    drafted = yield from _draft_span(policy, progress)
    if drafted.decision == "check" and policy.judge is not None:
        yield from _judge_span(policy, policy.judge, progress, drafted)
        return
    yield from emit(progress, drafted.span)
    if drafted.decision == "write" and not progress.over:
        yield from write(_handback_rule(policy), progress, policy.handoff_tokens, policy.gate.why(drafted.next_row))


def _draft_span(policy: Policy, progress: Progress) -> Flow[Drafted]:
    """Draft up to the policy's span. A check of nothing, to which the cloud may give no token, becomes one token."""
    wants_next_row = policy.judge is not None and (not policy.takes_bonus or policy.judged_tokens == 0)
    request = Draft(
        progress.at, policy.span, policy.gate, wants_next_row=wants_next_row, rejections=progress.rejections
    )
    drafted = yield from draft(request)
    if drafted.decision == "check" and not drafted.span and policy.judged_tokens != 0 and not policy.takes_bonus:
        drafted = yield from draft(replace(request, limit=1, gate=ALWAYS))
    return drafted


def _judge_span(policy: Policy, judge: Judge, progress: Progress, drafted: Drafted) -> Flow[None]:
    """Show what is not judged, check the rest, show what is accepted; the cloud writes where a token was rejected."""
    judged = policy.judged_tokens
    num_unchecked = 0 if judged is None else max(0, len(drafted.span) - judged)
    yield from emit(progress, drafted.span[:num_unchecked])
    if progress.over:
        return
    verdict = yield from _check(policy, judge, progress, replace(drafted, span=drafted.span[num_unchecked:]))
    following = verdict.next_token
    yield from emit(progress, verdict.accepted + ((following,) if isinstance(following, PendingToken) else ()))
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
            yield from write(_handback_rule(policy), progress, policy.handoff_tokens, why)


def _check(policy: Policy, judge: Judge, progress: Progress, drafted: Drafted) -> Flow[Verdict]:
    """Check a span once. Without an answer it is shown, unchecked: the local model goes on."""
    reply = yield Check(progress.at, drafted.span, wants_next_row=policy.takes_bonus or drafted.next_row is not None)
    match reply:
        case Scored(rows):
            answered = drafted.span[: len(rows)]
            return judge(DraftedSpan(answered, rows, drafted.next_row, policy.takes_bonus, progress.toss))
        case BudgetDenied() | NoAnswer():
            return Verdict(drafted.span)
        case _:
            raise protocol_error(reply)


def _write_until_determined(policy: Policy, progress: Progress, tail: TailDraw) -> Flow[None]:
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
    progress.block = 2 * (yield from write(rule, progress, first, tail.why))
    progress.rejections += len(progress.at) == before


def _draw_tail(progress: Progress, tail: TailDraw) -> Flow[None]:
    """Have the cloud draw one token. Without an answer the position is drafted again: the local model goes on."""
    reply = yield Write(progress.at, 1, tail.ban)
    match reply:
        case Wrote(span):
            yield from emit(progress, tuple(replace(token, why=tail.why) for token in span))
        case BudgetDenied() | NoAnswer():
            progress.rejections += 1
        case _:
            raise protocol_error(reply)


def _handback_rule(policy: Policy) -> HandbackRule:
    """Return when the cloud hands back after a rejection or a ``write``: when the models agree, if that matters."""
    handback: AgreementTest | None = policy.handback
    if handback is None:
        return AFTER_ITS_TOKENS
    return HandbackRule(
        lambda token: None if token.kl is None else handback.agrees(token.kl),
        policy.handback_after,
        wants_draft_rows=True,
    )
