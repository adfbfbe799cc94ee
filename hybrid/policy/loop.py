"""The loop: every decoding rule is this one generator with a few choices (``Policy``).

Theory of operation. ``decode`` yields requests and is sent replies. There are six pairs:

- ``Draft`` -> ``Drafted``: the local model drafts tokens until the gate, the limit or an end token stops it.
- ``Critique`` -> ``Critiqued``: a critic, another local model, reads a draft that a planner is about to decide about.
- ``Check`` -> ``Scored``: the cloud gives its rows for a drafted span, in one round trip.
- ``Write`` -> ``Wrote``: the cloud writes tokens itself, chunk by chunk.
- ``Emit`` -> ``AnswerContinues`` or ``AnswerEnded``: tokens are shown, and never taken back.
- ``Check`` or ``Write`` -> ``BudgetDenied`` (no money) or ``NoAnswer`` (no cloud): the local model goes on, unchecked.

A round is one ``Draft``; then, as the gate decided, ``Emit`` (keep), ``Check`` and ``Emit`` (check), or ``Emit`` and
``Write`` (write). The judge turns ``Scored`` into a ``Verdict``: the accepted tokens and the one after them. Under a
planner it decides in the gate's place, once the whole draft or a block of it is there; it may drop drafted tokens.

Who owns what. The loop owns the order of requests, and how far the answer is (``progress``). The driver owns models,
caches, money and retries; it stops a draft at the gate and says when the answer is over. The gate and the judge are
pure. The coin is the only randomness; its key counts the rejections, so that no position meets the same coin twice.
What is checked at random under a planner falls by the question's key, which the planner keeps.

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

import sys
from dataclasses import replace

from hybrid.defer import CriticNumbers
from hybrid.policy.branches import ReadAnswer, explore
from hybrid.policy.explanation import without_draft
from hybrid.policy.gates import ALWAYS, NEVER, Coin
from hybrid.policy.judges import DraftedSpan, Judge, TailDraw, Verdict
from hybrid.policy.plan import DraftPlan, JudgedSpan
from hybrid.policy.planning import Planner
from hybrid.policy.policy import AgreementTest, Policy
from hybrid.policy.progress import (
    AFTER_ITS_TOKENS,
    WITH_LABELS,
    Flow,
    HandbackRule,
    Progress,
    emit,
    protocol_error,
    write,
)
from hybrid.policy.requests import (
    BudgetDenied,
    Check,
    Critique,
    Critiqued,
    Draft,
    Drafted,
    NoAnswer,
    PendingToken,
    Scored,
    Write,
    Wrote,
    ids,
)
from hybrid.policy.stages import draft
from hybrid.prob import Dense

# As many tokens as there is room for: whoever drives the loop knows how many that are.
TO_THE_END = sys.maxsize
WRITES_ON = (
    "the shown tokens do not determine the cloud's distribution under this sampling, so no draft can be accepted and "
    "the cloud writes: a lower --top-k or --top-p, or --temperature 1, changes that"
)


def decode(
    policy: Policy,
    coin: Coin,
    end_ids: frozenset[int] = frozenset(),
    max_tokens: int = TO_THE_END,
    read: ReadAnswer = lambda _: ("", None),
) -> Flow[None]:
    """Write one answer under ``policy``, from its first token to its last. A policy that compares tosses no coin.

    ``end_ids``: the tokens that end an answer, which has ``max_tokens`` at most; only a policy with stages needs to
    know them. ``read``: what tokens show; only a policy with branches asks.
    """
    num = len(policy.stages)
    progress = Progress(coin, level=num + 1, stage_rejections=[0] * num, end_ids=end_ids, max_tokens=max_tokens)
    if policy.branches is not None:
        yield from explore(policy.branches, policy.stages, progress, read)
        return
    if policy.lead:
        yield from write(AFTER_ITS_TOKENS, progress, policy.lead, "the cloud opens the text")
    if (early := policy.planner) and (early.wait or early.stream == "early") and not progress.over:
        yield from _decide_early(policy, early, progress)
    num_shown = -1
    while not progress.over:
        stalled, num_shown = len(progress.at) == num_shown, len(progress.at)
        if stalled or progress.decided:
            one = Draft(progress.at, 1, NEVER, rejections=progress.rejections_at(0))
            yield from emit(progress, (yield from draft(policy.stages, progress, one)).span, progress.take_opening())
        elif policy.planner is not None:
            yield from _planned_round(policy, policy.planner, progress)
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
        yield from _hand_over(policy, progress, policy.gate.why(drafted.next_row))


# ---- what a planner decides ------------------------------------------------------------------------------------------


def _decide_early(policy: Policy, planner: Planner, progress: Progress) -> Flow[None]:
    """Decide by the question alone: all of it, unweighed; where drafts are weighed, whether there is one."""
    unweighed = planner.stream == "early"
    plan = planner.opening() if unweighed else without_draft(planner)
    if plan is None:
        progress.paced = planner.unpaced is not None and without_draft(planner.unpaced) is not None
        return
    progress.decided = unweighed and plan.action != "check"
    if plan.action == "write":
        yield from write(_handback_rule(policy), progress, TO_THE_END, plan.why, plan)
        return
    progress.opening = plan if plan.paced else None
    if plan.action == "check":
        progress.checked_span = plan.at


def _planned_round(policy: Policy, planner: Planner, progress: Progress) -> Flow[None]:
    """Draft a whole answer, a block of one or a short span, and do what is planned with it."""
    block = planner.block if planner.stream == "blocks" else None
    limit = min(each for each in (policy.span, block, progress.checked_span) if each is not None)
    request = Draft(progress.at, limit, NEVER, rejections=progress.rejections_at(0), expert=progress.expert)
    drafted = yield from draft(policy.stages, progress, request)
    reads = planner.score.critic is not None and progress.checked_span is None
    critic = (yield from _critique(progress, drafted)) if reads else None
    plan = planner.plan(
        progress.signals(planner, drafted, critic),
        final=drafted.final,
        known=progress.known(planner, drafted.span),
        spans=progress.checked_span is not None,
        toss=lambda odds: progress.toss_floor(planner, odds),
    )
    if (opening := progress.take_opening()) is not None:  # this first short span is what it decided
        plan = replace(opening, at=plan.at)
    if progress.paced:  # the cloud would have written before this draft
        plan, progress.paced = replace(plan, paced=True), False
    match plan.action:
        case "keep":
            yield from emit(progress, drafted.span[: plan.at], plan)
        case "check" if policy.judge is not None:
            if plan.limit == 0 and progress.checked_span is None:
                progress.checked_span = max(1, plan.at)
            yield from _judge_span(policy, policy.judge, progress, replace(drafted, span=drafted.span[: plan.at]), plan)
        case _:
            yield from _write_from(policy, progress, drafted, plan)


def _critique(progress: Progress, drafted: Drafted) -> Flow[CriticNumbers]:
    """Have the critic read a draft."""
    reply = yield Critique(progress.at, drafted.span)
    if not isinstance(reply, Critiqued):
        raise protocol_error(reply)
    return reply.numbers


def _write_from(policy: Policy, progress: Progress, drafted: Drafted, plan: DraftPlan) -> Flow[None]:
    """Show the draft up to the planned place, and let the cloud write on; what it does not answer for is shown too."""
    kept, dropped = drafted.span[: plan.at], drafted.span[plan.at :]
    yield from emit(progress, kept, plan)
    if progress.over:
        return
    start = len(progress.at)
    yield from write(_handback_rule(policy), progress, TO_THE_END, plan.why, None if kept else plan)
    if len(progress.at) == start and not progress.over:
        yield from emit(progress, dropped)
    else:
        progress.rejections += 1  # what was dropped was drawn: its coins are used


def _hand_over(policy: Policy, progress: Progress, why: str | None) -> Flow[None]:
    """Give the cloud the pen."""
    yield from write(_handback_rule(policy), progress, policy.handoff_tokens, why)


# ---- a check ---------------------------------------------------------------------------------------------------------


def _draft_span(policy: Policy, progress: Progress) -> Flow[Drafted]:
    """Draft up to the policy's span. A check of nothing, to which the cloud may give no token, becomes one token."""
    wants_next_row = policy.judge is not None and (not policy.takes_bonus or policy.scope == 0)
    span = progress.span or policy.span
    request = Draft(progress.at, span, policy.gate, wants_next_row, progress.rejections_at(0), progress.expert)
    drafted = yield from draft(policy.stages, progress, request)
    if drafted.decision == "check" and not drafted.span and policy.scope != 0 and not policy.takes_bonus:
        drafted = yield from draft(policy.stages, progress, replace(request, limit=1, gate=ALWAYS))
    return drafted


def _judge_span(
    policy: Policy, judge: Judge, progress: Progress, drafted: Drafted, plan: DraftPlan | None = None
) -> Flow[None]:
    """Show what is not judged, check the rest, show what is accepted; the cloud writes where a token was rejected."""
    judged = policy.scope
    num_unchecked = 0 if judged is None else max(0, len(drafted.span) - judged)
    yield from emit(progress, drafted.span[:num_unchecked])
    if progress.over:
        return
    span = drafted.span[num_unchecked:]
    verdict, num_judged = yield from _check(policy, judge, progress, replace(drafted, span=span), plan)
    following = verdict.next_token
    shown = verdict.accepted + ((following,) if isinstance(following, PendingToken) else ())
    told = JudgedSpan(num_judged, len(verdict.accepted), verdict.rejected, verdict.num_wording)
    yield from emit(progress, shown, judged=told if plan and num_judged else None)
    if verdict.accepted or not isinstance(following, TailDraw):
        progress.block = 0
    progress.expert = verdict.expert
    kept = 0 < num_judged == len(span) and not verdict.rejected
    progress.span = policy.next_span(progress.span or policy.span, kept=kept)
    near = verdict.expert is not None
    writes = verdict.rejected and not near and policy.handoff_tokens > 0 and (plan is None or plan.limit != 0)
    if isinstance(following, TailDraw) and not progress.over and not (writes and policy.planner is not None):
        if policy.undetermined_tokens and following.determined:
            yield from _write_until_determined(policy, progress, following)
        else:
            yield from _draw_tail(progress, following)
    progress.next_divergence = None if following else verdict.next_divergence
    if verdict.rejected:
        progress.rejections += 1
        if writes and not progress.over:
            # The reason is told once: at the token already paid for, if there is one.
            why = None if isinstance(following, PendingToken) else verdict.why
            yield from _hand_over(policy, progress, why)


def _check(
    policy: Policy, judge: Judge, progress: Progress, drafted: Drafted, plan: DraftPlan | None
) -> Flow[tuple[Verdict, int]]:
    """Check a span once; return also how many tokens were judged.

    Without an answer it is shown, unchecked: the local model goes on.
    """
    read = drafted.next_row is not None and policy.planner is None  # a planner's draft asks for none; a chain has it
    wants_next_row = policy.takes_bonus or read
    reply = yield Check(progress.at, drafted.span, wants_next_row, plan, progress.level)
    match reply:
        case Scored(rows, draft_rows):
            progress.has_sent(progress.at + ids(drafted.span))
            drafted = _with_rows(drafted, draft_rows)
            answered = drafted.span[: len(rows)]
            if policy.stages and len(answered) < len(drafted.span):
                progress.reject(len(policy.stages))  # what is dropped was drawn: its coins are used
            span = DraftedSpan(answered, rows, drafted.next_row, policy.takes_bonus, progress.toss, progress.at)
            return judge(span), len(answered)
        case BudgetDenied() | NoAnswer():
            return Verdict(drafted.span), 0
        case _:
            raise protocol_error(reply)


def _with_rows(drafted: Drafted, rows: tuple[Dense, ...]) -> Drafted:
    """Return a draft with its first tokens' local rows replaced, and the one after it if there are so many."""
    num = len(drafted.span)
    known = tuple(replace(token, draft_row=row) for token, row in zip(drafted.span, rows, strict=False))
    after = rows[num] if len(rows) > num else drafted.next_row
    return replace(drafted, span=known + drafted.span[len(known) :], next_row=after)


def _write_until_determined(policy: Policy, progress: Progress, tail: TailDraw) -> Flow[None]:
    """Let the cloud write until a row determines its distribution again: which row that is, its prefix alone decides.

    So the text has the cloud's own distribution, as it would token by token. A row that is missing is left to the next
    check.
    """
    before, determined = len(progress.at), tail.determined
    rule = HandbackRule(
        lambda _, token: determined(token.target_row) if determined and token.target_row else None,
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
            progress.has_sent(progress.at)
        case BudgetDenied() | NoAnswer():
            progress.rejections += 1
        case _:
            raise protocol_error(reply)


def _handback_rule(policy: Policy) -> HandbackRule:
    """Return when the cloud hands back after a rejection or a ``write``: when the models agree, if that matters.

    Under a planner it writes to the end, perhaps with both models' rows.
    """
    if policy.planner is not None and policy.planner.labels:
        return WITH_LABELS
    handback: AgreementTest | None = policy.handback
    if handback is None:
        return AFTER_ITS_TOKENS
    return HandbackRule(handback.agrees, policy.handback_after, wants_draft_rows=True)
