"""What every part of the loop shares: how far an answer is, a draft, an emission. See ``loop``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from hybrid.defer import CriticNumbers, DraftSignals, floor_coin
from hybrid.policy.gates import Coin, CoinKey
from hybrid.policy.plan import DraftPlan, JudgedSpan
from hybrid.policy.planning import Planner
from hybrid.policy.requests import (
    AnswerContinues,
    AnswerEnded,
    BudgetDenied,
    Check,
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
from hybrid.prob import Dense, Floats, kl_divergence
from hybrid.types import Divergence, Ids, num_shared

T = TypeVar("T")
Flow: TypeAlias = Generator[Request, Reply, T]


@dataclass
class Progress:
    """Where the answer is. ``at``: the ids shown so far. ``rejections`` keys the coins.

    ``level`` is that of the policy's verifier, one above its stages; ``stage_rejections`` are those of each stage, the
    lowest first. ``end_ids`` end an answer, and so do ``max_tokens``.

    ``next_divergence`` was measured at the next position. ``block``: how many tokens the cloud writes at once where its
    row does not determine its distribution; 0: as many as at first. ``sent``: the answer's part of all
    that the cloud has read or written. ``last_divergence``: the KL in nats that was measured last, with its
    position. ``checked_span``: the drafts from here on are so short, and each is checked. ``decided``: no draft is
    weighed any more. ``opening``: what the question alone decided where pacing has lowered it, until it is told with
    what is first shown or checked. ``paced``: without it the cloud would have written before the first draft.
    ``span``: of how many tokens the next draft is; None: as the
    policy has it. ``expert``: which of several local models a judge has found near enough to write the next draft.
    """

    coin: Coin
    at: Ids = ()
    over: bool = False
    rejections: int = 0
    level: int = 1
    stage_rejections: list[int] = field(default_factory=list)
    end_ids: frozenset[int] = frozenset()
    max_tokens: int = sys.maxsize
    next_divergence: Divergence | None = None
    block: int = 0
    sent: list[Ids] = field(default_factory=list)
    last_divergence: tuple[float, int] | None = None
    checked_span: int | None = None
    decided: bool = False
    opening: DraftPlan | None = None
    paced: bool = False
    span: int | None = None
    expert: int | None = None

    def take_opening(self) -> DraftPlan | None:
        """Return what the question alone decided, where it was not told yet."""
        opening, self.opening = self.opening, None
        return opening

    def toss(self, probs: Floats, offset: int, role: str) -> int:
        """Toss for the token that was drafted so many positions on."""
        return self.toss_at(probs, len(self.at) + offset, role, self.level)

    def toss_at(self, probs: Floats, position: int, role: str, level: int) -> int:
        """Toss for the token at a position, at a level of a chain."""
        return self.coin(probs, CoinKey(position, role, self.rejections_at(level), level))

    def rejections_at(self, level: int) -> int:
        """Return how often a position that a level has drawn at may have come to be drawn at again."""
        return self.rejections + sum(self.stage_rejections[max(0, level - 1) :])

    def reject(self, level: int) -> None:
        """Count a rejection by a stage."""
        self.stage_rejections[level - 1] += 1

    def toss_floor(self, planner: Planner, odds: Floats) -> int:
        """Toss whether what would be kept is checked (0), by the question's own key where the planner has one."""
        if planner.floor_key is None:
            return self.toss(odds, 0, "floor")
        return int(floor_coin(planner.floor_key, len(self.at), self.rejections) >= odds[0])

    def known(self, planner: Planner, span: Span = ()) -> int:
        """Return how many first tokens of prompt, answer and ``span`` the cloud has read or written; 0: none."""
        text = self.at + ids(span)
        return planner.prompt_tokens + max(num_shared(text, each) for each in self.sent) if self.sent else 0

    def has_sent(self, text: Ids) -> None:
        """Note that the cloud has read or written a text of the answer."""
        if self.sent and text[: len(self.sent[-1])] == self.sent[-1]:
            self.sent.pop()
        self.sent.append(text)

    def signals(self, planner: Planner, drafted: Drafted, critic: CriticNumbers | None = None) -> DraftSignals:
        """Return what is known of a draft that begins here. Raises TypeError for a token without its local row."""
        rows: list[Dense] = [token.draft_row for token in drafted.span if token.draft_row is not None]
        if len(rows) < len(drafted.span):
            raise TypeError("a drafted token without a local row")
        measured, last = self.next_divergence, self.last_divergence
        nats, position = (measured.lower, len(self.at) - 1) if measured else last or (None, len(self.at) - 1)
        return DraftSignals.of_rows(
            planner.words,
            planner.prompt_tokens,
            len(self.at),
            ids(drafted.span),
            rows,
            ended=drafted.ended,
            last_divergence=nats,
            divergence_age=len(self.at) - 1 - position,
            critic=critic,
        )


def emit(
    progress: Progress, tokens: Span, plan: DraftPlan | None = None, judged: JudgedSpan | None = None
) -> Flow[None]:
    """Show tokens, with the plan by which they are, and what was said of the span they come from."""
    if not tokens and judged is None:
        return
    if tokens and progress.next_divergence is not None and tokens[0].kl is None:
        tokens = (replace(tokens[0], kl=progress.next_divergence), *tokens[1:])
    progress.next_divergence = None
    for position, token in enumerate(tokens, start=len(progress.at)):
        if token.kl is not None:
            progress.last_divergence = token.kl.lower, position
    reply = yield Emit(tokens, plan, judged)
    if not isinstance(reply, AnswerContinues | AnswerEnded):
        raise protocol_error(reply)
    progress.at += ids(tokens)
    progress.over = isinstance(reply, AnswerEnded)


def protocol_error(reply: Reply) -> TypeError:
    """Return the error of a reply that does not answer its request."""
    return TypeError(f"{type(reply).__name__} does not answer what was asked")


# The cloud has the pen: it writes in blocks until it is due to hand back. A part of ``loop``, whose laws hold here.
#
# A block is read to its end: its tokens are paid for, and only a request that ends by itself reports what it cost.


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
                block += span if rule.num_agreeing else tuple(replace(token, draft_row=None) for token in span)
                limit -= len(span)
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
