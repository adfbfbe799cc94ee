"""The local levels of a chain: a larger local model reads what a smaller one drafts, and accepts or replaces it.

A stage stands below the policy's own judge. To what is above it, it looks like one model that drafts: the tokens of its
``Drafted`` were drawn from its own law, which is kept with them, its rows are what gates and planners are asked about,
and its row follows the span. So a chain is this one function calling itself, and no rule above knows of it.

The laws, enumerated over the whole loop of three levels in ``tests/policy/test_chain.py``:

1. A coin's key has its level; level 1's key is that of a policy without stages.
2. Rejections are counted for each level. A key counts those of its own level and of all above it: whatever makes a
   position be drafted again changes every coin below.
3. A token that leaves level i was drawn from level i's law, and that is what level i + 1 tests. Tested against the
   smallest model's law the text is wrong.
4. A stage that is not exact changes what the level above takes for its law. Under sampling an exact judge above it
   would be wrong, so ``Policy`` refuses it; compared greedily, any draft may be judged.

A local level's rows are known in full (``FullRow``), so nothing is left to a tail and nothing is paid: whatever this
level writes itself is drawn here, from the rows of its checks. An end token that is drafted ends the span.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hybrid.policy.gates import ALWAYS, DraftPosition, GateDecision
from hybrid.policy.judges import DraftedSpan, Judge, Verdict
from hybrid.policy.progress import Flow, Progress, protocol_error
from hybrid.policy.requests import Check, Draft, Drafted, PendingToken, Scored, Span, ids
from hybrid.prob import Dense, FullRow, warp
from hybrid.types import Ids, Sampling


@dataclass(frozen=True)
class ChainLevel:
    """One local model above the smallest.

    ``span``: tokens drafted below before it reads them. ``bonus``: its row after an accepted span gives one more, if
    the judge takes one. ``handoff_tokens``: what it writes itself after a rejection, beyond the recovered token.
    ``sampling``: how it draws.
    """

    span: int
    judge: Judge
    sampling: Sampling
    bonus: bool = True
    handoff_tokens: int = 0

    @property
    def takes_bonus(self) -> bool:
        """Whether the row after an accepted span gives one more token: where it may, and the judge takes one."""
        return self.bonus and self.judge.takes_bonus

    @property
    def is_exact(self) -> bool:
        """Whether what leaves it has its model's own law."""
        return self.judge.is_exact(self.sampling)

    def draw(self, row: Dense, progress: Progress, position: int, level: int) -> int:
        """Return a token of this level's own law."""
        if self.sampling.greedy:
            return row.best
        return progress.toss_at(warp(row, self.sampling).probs, position, "stage", level)


@dataclass
class _Held:
    """What stands at a level so far, and why it ends there. ``next_row``: the level's row after it, if it was read."""

    tokens: Span = ()
    decision: GateDecision | None = None
    next_row: Dense | None = None
    ended: bool = False


def draft(stages: Sequence[ChainLevel], progress: Progress, request: Draft) -> Flow[Drafted]:
    """Have the local models draft: what comes back is a draft of the last stage's model, or of the only model."""
    if not stages:
        reply = yield request
        if not isinstance(reply, Drafted):
            raise protocol_error(reply)
        return reply
    held, room = _Held(), progress.max_tokens - len(request.at)
    request = replace(request, limit=min(request.limit, room))
    while len(held.tokens) < request.limit and not (held.ended or held.decision):
        yield from _round(stages, progress, request, held)
    full = len(held.tokens) >= room
    if request.wants_next_row and held.next_row is None and not (held.ended or full):
        (last,) = yield from _rows(request.at + ids(held.tokens), (), len(stages))
        held.next_row = last.dense
    decision = held.decision or request.gate.when_full
    return Drafted(held.tokens, decision, held.next_row, held.ended, full)


def _round(stages: Sequence[ChainLevel], progress: Progress, request: Draft, held: _Held) -> Flow[None]:
    """Have a span drafted below, read it, and hold what stands of it."""
    stage, level = stages[-1], len(stages)
    at, left = request.at + ids(held.tokens), request.limit - len(held.tokens)
    below = Drafted((), "check")
    if limit := min(stage.span, left - stage.takes_bonus):
        wanted = Draft(at, limit, ALWAYS, not stage.takes_bonus, progress.rejections_at(level - 1))
        below = yield from draft(stages[:-1], progress, wanted)
    rows = yield from _rows(at, below.span, level, wants_next_row=not below.final)
    verdict = stage.judge(
        DraftedSpan(
            below.span,
            rows,
            below.next_row,
            stage.takes_bonus and not below.final,
            lambda probs, offset, role: progress.toss_at(probs, len(at) + offset, role, level),
        )
    )
    if verdict.rejected:
        progress.reject(level)
    following = verdict.next_token
    shown = verdict.accepted + ((following,) if isinstance(following, PendingToken) else ())
    new = [_raised(stage, level, token, row.dense) for token, row in zip(shown, rows, strict=False)]
    recovered = isinstance(following, PendingToken)
    num = min(_num_owed(stage, verdict, recovered=recovered), left - len(new))
    # After a recovered token the next row that was read is that after the rejected one.
    known = () if recovered else rows[len(new) :]
    new += yield from _written(stage, level, progress, at + ids(tuple(new)), num, known)
    held.next_row = rows[len(new)].dense if len(new) < len(rows) and not verdict.rejected else None
    if _hold(request, progress, held, new):
        progress.reject(level)


def _rows(at: Ids, span: Span, level: int, *, wants_next_row: bool = True) -> Flow[tuple[FullRow, ...]]:
    """Have a local level read a span; return its rows before each token, and after the last where that is wanted."""
    reply = yield Check(at, span, wants_next_row, level=level)
    if not isinstance(reply, Scored):
        raise protocol_error(reply)
    return tuple(row for row in reply.rows if isinstance(row, FullRow))


def _num_owed(stage: ChainLevel, verdict: Verdict, *, recovered: bool) -> int:
    """Return how many tokens the level writes itself: a rejected one's place is filled, and a round shows something."""
    if verdict.rejected:
        return stage.handoff_tokens + (not recovered)
    return int(not verdict.accepted and not recovered)


def _written(
    stage: ChainLevel, level: int, progress: Progress, at: Ids, num: int, known: Sequence[FullRow]
) -> Flow[list[PendingToken]]:
    """Draw tokens of this level's own, each from its row; the first row is mostly ``known`` from a check."""
    written: list[PendingToken] = []
    text = at
    while len(written) < num and not (text and text[-1] in progress.end_ids):
        row = (known[0] if known and not written else (yield from _rows(text, (), level))[0]).dense
        token = stage.draw(row, progress, len(text), level)
        written.append(_raised(stage, level, PendingToken(token, "local", "written"), row))
        text += (token,)
    return written


def _raised(stage: ChainLevel, level: int, token: PendingToken, row: Dense) -> PendingToken:
    """Return a token as it leaves a level: drawn from that level's law, with a row, or None, of each level below."""
    known = (*token.below, token.draft_row)
    return PendingToken(
        token.id,
        "local",
        "unchecked",
        drawn_from=None if stage.sampling.greedy else warp(row, stage.sampling),
        draft_row=row,
        writer=token.writer if token.how == "accepted" else level,
        below=(*[None] * (level - len(known)), *known),  # what a level wrote itself was not read further below
    )


def _hold(request: Draft, progress: Progress, held: _Held, new: Sequence[PendingToken]) -> bool:
    """Hold new tokens up to where the gate ends the draft; return whether some were dropped.

    The gate ends it as it would end one that is drawn token by token: it looks at rows alone before a token, and what
    it has looked at after one is kept. So it biases nothing; but the coins of what is dropped are used.
    """
    rows = [token.draft_row for token in held.tokens if token.draft_row is not None]
    for number, token in enumerate(new):
        row, place = token.draft_row, DraftPosition(len(request.at) + len(held.tokens), rows)
        if row is None:
            raise TypeError("a token that left a level without its row")
        held.decision = request.gate.before(row, place)
        if held.decision is not None:
            held.next_row = row
            return True
        held.tokens += (token,)
        held.decision = request.gate.after(row, token.id, place)
        held.ended = token.id in progress.end_ids
        rows.append(row)
        if (held.decision is not None or held.ended) and number + 1 < len(new):
            held.next_row = new[number + 1].draft_row
            return True
    return False
