"""The cloud has the pen: it writes in blocks until it is due to hand back. A part of ``loop``, whose laws hold here.

A block is read to its end: its tokens are paid for, and only a request that ends by itself reports what it cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hybrid.policy.plan import DraftPlan
from hybrid.policy.progress import Flow, Progress, emit, protocol_error
from hybrid.policy.requests import BudgetDenied, Check, NoAnswer, PendingToken, Scored, Span, Write, Wrote, ids
from hybrid.prob import kl_divergence
from hybrid.types import Ids


@dataclass(frozen=True)
class HandbackRule:
    """What ends a handoff: ``num_agreeing`` written tokens in a row that agree, or one of which that is not known.

    ``agrees`` says it of a token after some of the answer; None: not known. ``wants_draft_rows``: the local rows are
    needed for it. ``note`` is told to the user for a block of more than ``quiet_tokens``.
    """

    agrees: Callable[[Ids, PendingToken], bool | None]
    num_agreeing: int = 1
    wants_draft_rows: bool = False
    note: str | None = None
    quiet_tokens: int = 0


AFTER_ITS_TOKENS = HandbackRule(lambda _, __: None, num_agreeing=0)
# The same, and both models' rows of what is written are told: labels for whoever learns from them.
WITH_LABELS = HandbackRule(lambda _, __: None, num_agreeing=0, wants_draft_rows=True)


def write(
    rule: HandbackRule, progress: Progress, limit: int, why: str | None, plan: DraftPlan | None = None
) -> Flow[int]:
    """Let the cloud write in blocks that double until it is due to hand back; return the last block's limit."""
    num_agreeing = 0
    while not progress.over:
        start = len(progress.at)
        reached = yield from _write_block(rule, progress, limit, why, num_agreeing, plan)
        if reached is None or len(progress.at) == start or reached >= rule.num_agreeing:
            break
        num_agreeing, why, limit, plan = reached, None, 2 * limit, None
    return limit


def _write_block(
    rule: HandbackRule, progress: Progress, limit: int, why: str | None, num_agreeing: int, plan: DraftPlan | None
) -> Flow[int | None]:
    """Write one block; return how many tokens in a row agree at its end, None if the cloud did not answer."""
    start = progress.at
    block = yield from _read_block(rule, progress, limit, why, plan)
    # A block that nothing weighs is not scored: its labels are worth no request.
    needs_rows = rule.wants_draft_rows and rule.num_agreeing > 0 and not any(token.target_row for token in block or ())
    if block and needs_rows and not progress.over:
        block = yield from _score(progress, start, block)
    return None if block is None else _count_agreeing(rule, start, block, num_agreeing)


def _read_block(
    rule: HandbackRule, progress: Progress, limit: int, why: str | None, plan: DraftPlan | None
) -> Flow[Span | None]:
    """Have a block written, show it, and read it to its end; None if the cloud did not answer.

    Its tokens are paid for, and only a request that ends by itself reports its cost. A request that a cap has shortened
    is followed by another, unless it gave nothing.
    """
    block: Span = ()
    opened = len(progress.at)
    note = rule.note if limit > rule.quiet_tokens else None
    wants_target_rows = rule is not AFTER_ITS_TOKENS
    while limit > 0 and not progress.over:
        reply = yield Write(progress.at, limit, frozenset(), rule.wants_draft_rows, note, wants_target_rows, plan)
        plan = None
        match reply:
            case Wrote(span, ended):
                span = tuple(_with_divergence(token) for token in span)
                if span and why:
                    span, why = (replace(span[0], why=why), *span[1:]), None
                yield from emit(progress, span)
                progress.has_sent(progress.at)
                block, limit = block + span, limit - len(span)
                if ended and len(progress.at) == opened:
                    break
                opened = len(progress.at) if ended else opened
            case BudgetDenied() | NoAnswer():
                return None
            case _:
                raise protocol_error(reply)
    return block


def _score(progress: Progress, start: Ids, block: Span) -> Flow[Span | None]:
    """Have a written block scored that came without rows: the divergence decides the handback all the same."""
    reply = yield Check(start, block, wants_next_row=False, level=progress.level)
    match reply:
        case Scored(rows):
            pairs = zip(block, rows, strict=False)
            known = tuple(_with_divergence(replace(token, target_row=row)) for token, row in pairs)
            return known + block[len(known) :]
        case BudgetDenied() | NoAnswer():
            return None
        case _:
            raise protocol_error(reply)


def _with_divergence(token: PendingToken) -> PendingToken:
    if token.target_row is None or token.draft_row is None:
        return token
    return replace(token, kl=kl_divergence(token.target_row, token.draft_row))


def _count_agreeing(rule: HandbackRule, at: Ids, span: Span, num_agreeing: int) -> int:
    """Count the written tokens in a row that agree. A token without a cloud row counts as enough of them."""
    for offset, token in enumerate(span):
        match rule.agrees(at + ids(span[:offset]), token):
            case None:
                num_agreeing = max(num_agreeing, rule.num_agreeing)
            case agrees:
                num_agreeing = num_agreeing + 1 if agrees else 0
    return num_agreeing
