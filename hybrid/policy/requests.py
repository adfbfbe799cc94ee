"""What a policy may request, and what it may be answered: all the words of the loop. Frozen values, no behaviour.

Positions are prefixes of the answer (``at``: the ids shown so far), never of the prompt. Rows are raw next-token
distributions at temperature 1: a draft row is the local model's, a target row the cloud's. ``plan`` is why something is
asked or shown, where a planner decided it: at the first request that follows the decision, and only there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from hybrid.defer import CriticNumbers
from hybrid.policy.gates import Gate, GateDecision
from hybrid.policy.plan import DraftPlan, JudgedSpan
from hybrid.prob import Dense, TopK
from hybrid.types import Divergence, Ids, TokenOutcome, TokenSource


@dataclass(frozen=True, eq=False)
class PendingToken:
    """A token that is not shown yet: who wrote it, what it was drawn from, how far the two models were apart.

    ``drawn_from`` is the distribution it was drawn from (None for the cloud's tokens, and in a greedy draft).
    ``draft_row`` and ``target_row`` are the two models' rows at its position, where they are known. ``certificate`` is
    the divergence below which the local favourite is the cloud's own, in nats. ``why`` is the reason of a handoff.
    ``writer``: the level of the local model that wrote it, 0 the smallest. ``below``: the rows of the levels below
    ``draft_row``'s, the lowest first; None where one was not read. ``concept_kl``: the divergence over concepts, where
    that of tokens was above its threshold and concepts are known.
    """

    id: int
    source: TokenSource
    how: TokenOutcome
    drawn_from: Dense | None = None
    draft_row: Dense | None = None
    target_row: TopK | None = None
    kl: Divergence | None = None
    why: str | None = None
    certificate: float | None = None
    writer: int = 0
    below: tuple[Dense | None, ...] = ()
    concept_kl: Divergence | None = None

    @property
    def is_wording(self) -> bool:
        """Whether the local model keeps the pen here because it says the same in other words."""
        return self.source == "local" and self.concept_kl is not None


Span: TypeAlias = tuple[PendingToken, ...]


def ids(span: Span) -> Ids:
    """Return the token ids alone."""
    return tuple(token.id for token in span)


# ---- requests ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draft:
    """Let the local model draft up to ``limit`` tokens after ``at``, while the gate goes on. Answered by Drafted.

    A rejected token is not in ``at``. It leaves the KV cache when the engine next reads a row at another prefix
    (``engine.cursor``). ``wants_next_row``: the local row after the span, too. ``rejections`` so far are part of the
    key of each draw: a position that is drafted again must not repeat the rejected draw. ``expert``: which of several
    local models is to write, where a judge has said so.
    """

    at: Ids
    limit: int
    gate: Gate
    wants_next_row: bool = False
    rejections: int = 0
    expert: int | None = None


@dataclass(frozen=True)
class Check:
    """Have the cloud score a span, in one round trip. Answered by Scored, BudgetDenied or NoAnswer.

    ``wants_next_row``: the row after the span, too; of an empty span that row alone. ``level``: who scores it; up to
    the number of the policy's stages it is a local model, which always answers.
    """

    at: Ids
    span: Span
    wants_next_row: bool = True
    plan: DraftPlan | None = None
    level: int = 1


@dataclass(frozen=True)
class Write:
    """Let the cloud write up to ``limit`` tokens. Answered by Wrote (one chunk), BudgetDenied or NoAnswer.

    ``limit`` goes upstream and is what the bill reserves. A Write at the position that a stream has reached reads on
    from it. ``ban``: the token must not be one of these. ``wants_draft_rows``: the local rows of what is written are
    needed. ``note`` is told to the user. ``wants_target_rows``: the cloud's rows are looked at; without, they may be
    missing.
    """

    at: Ids
    limit: int
    ban: frozenset[int] = frozenset()
    wants_draft_rows: bool = False
    note: str | None = None
    wants_target_rows: bool = False
    plan: DraftPlan | None = None


@dataclass(frozen=True)
class Critique:
    """Have the critic read a drafted span after ``at``. Answered by Critiqued."""

    at: Ids
    span: Span


@dataclass(frozen=True, eq=False)
class Branch:
    """One of several drafts of a whole answer, with the text that it shows. It was drawn in ``draws``, from 0 on.

    The log-probabilities are sums over its tokens in nats at temperature 1; the cloud's is None where it is not known.
    """

    tokens: Span
    text: str
    local_logprob: float
    draws: tuple[int, ...] = ()
    cloud_logprob: float | None = None


@dataclass(frozen=True)
class Emit:
    """Show these tokens. Answered by AnswerContinues or AnswerEnded. What was shown is never taken back.

    ``judged``: what a judge said of the span that they come from, for whoever learns of it; then there may be none.
    ``branches``: those that they were chosen from. ``note`` is told to the user.
    """

    tokens: Span
    plan: DraftPlan | None = None
    judged: JudgedSpan | None = None
    branches: tuple[Branch, ...] = ()
    note: str | None = None


Request: TypeAlias = Draft | Critique | Check | Write | Emit

# ---- replies -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Drafted:
    """What the local model drafted, and the gate's decision where the draft ended.

    ``next_row`` is the local row after the span, where it was wanted, or where the gate ended the draft before it.
    ``ended``: its last token ends the text. ``full``: no room is left after it.
    """

    span: Span
    decision: GateDecision
    next_row: Dense | None = None
    ended: bool = False
    full: bool = False

    @property
    def final(self) -> bool:
        """Whether no token can follow it."""
        return self.ended or self.full


@dataclass(frozen=True, eq=False)
class Critiqued:
    """What the critic says of each token of the span."""

    numbers: CriticNumbers


@dataclass(frozen=True, eq=False)
class Scored:
    """The rows for the first tokens of the span, and the row after it if all were answered and it was asked.

    A local level's are ``FullRow``s. ``draft_rows``: the local rows at the same positions, where models that did not
    write have read along.
    """

    rows: tuple[TopK, ...]
    draft_rows: tuple[Dense, ...] = ()


@dataclass(frozen=True, eq=False)
class Wrote:
    """One chunk of what the cloud wrote; ``ended``: the request has no more to give.

    ``cut``: its last token ends the text, because nobody can go on from there, and not by itself.
    """

    span: Span
    ended: bool = False
    cut: bool = False


@dataclass(frozen=True)
class BudgetDenied:
    """No money for it."""

    why: str


@dataclass(frozen=True)
class NoAnswer:
    """No answer from the cloud that could be believed."""

    why: str


@dataclass(frozen=True)
class AnswerContinues:
    """The answer goes on."""


@dataclass(frozen=True)
class AnswerEnded:
    """The answer ends here: an end token, or no room for more."""

    why: Literal["stop", "length"]


Reply: TypeAlias = Drafted | Critiqued | Scored | Wrote | BudgetDenied | NoAnswer | AnswerContinues | AnswerEnded
