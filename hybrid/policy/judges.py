"""What a judge is: it sees a drafted span and both models' rows, and says which tokens are accepted.

A judge sees the whole span at once and answers with a ``Verdict``. It judges no token whose row did not come. It says
itself what it is: whether it is exact, whether it may take a bonus or leave a token to the cloud, what it guarantees.
The judges are in ``rules/``, each with its law; ``tests/policy`` enumerates the whole loop under them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from hybrid.policy.requests import PendingToken, Span, ids
from hybrid.prob import Dense, Floats, FullRow, TopK, favourite_certificate, kl_divergence
from hybrid.types import Divergence, Ids, Sampling

DrawAt: TypeAlias = Callable[[Floats, int, str], int]
"""(probabilities, offset in the span, what for) -> index: a coin, keyed by where it falls."""


@dataclass(frozen=True)
class TailDraw:
    """One token that only the cloud can draw: from its own distribution, outside ``ban``.

    ``determined`` says of another row whether it determines the cloud's distribution, where this one does not.
    """

    ban: frozenset[int] = frozenset()
    why: str | None = None
    determined: Callable[[TopK], bool] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Verdict:
    """What a judge decides: the tokens that stand, and the one that follows them.

    ``accepted`` is shown, then ``next_token``. ``rejected``: the drafted token after ``accepted`` does not stand;
    ``why`` gives the reason. ``next_divergence`` was measured at the position after the span, where both rows are
    known. ``expert``: another of several local models is near enough there, and writes in the cloud's place.
    """

    accepted: Span
    next_token: PendingToken | TailDraw | None = None
    rejected: bool = False
    why: str | None = None
    next_divergence: Divergence | None = None
    expert: int | None = None

    @property
    def num_wording(self) -> int:
        """How many accepted tokens the models part at in their wording alone."""
        return sum(token.is_wording for token in self.accepted)


@dataclass(frozen=True, eq=False)
class DraftedSpan:
    """What a judge sees: drafted tokens, the cloud's rows for the first of them, and perhaps the row after the last.

    ``next_draft_row`` is the local row after the span. ``bonus``: the row after it may give one more token. ``at``: the
    answer's tokens before the span.
    """

    tokens: Span
    target_rows: tuple[TopK, ...]
    next_draft_row: Dense | None
    bonus: bool
    coin: DrawAt
    at: Ids = ()

    @property
    def judged(self) -> list[tuple[PendingToken, TopK]]:
        """The tokens whose rows came, each with its row."""
        return list(zip(self.tokens, self.target_rows, strict=False))

    @property
    def next_target_row(self) -> TopK | None:
        """The cloud's row after the span, if it came."""
        return self.target_rows[len(self.tokens)] if len(self.target_rows) > len(self.tokens) else None

    def before(self, offset: int) -> Ids:
        """Return the answer's tokens before one of the span."""
        return self.at + ids(self.tokens[:offset])

    def accept(
        self,
        num_tokens: int | None = None,
        measured: Mapping[int, Divergence] | None = None,
        wording: Mapping[int, Divergence] | None = None,
    ) -> Span:
        """Return the first tokens (or all that were judged), marked as accepted, with their divergence.

        ``measured`` holds, by offset in the span, what the judge has computed already: at a large vocabulary that is
        most of what a check costs here. ``wording``: KL over concepts, of those that stand for that alone.
        """
        known, concepts = measured or {}, wording or {}
        return tuple(
            _accept(replace(token, concept_kl=concepts.get(i)), row, known.get(i))
            for i, (token, row) in enumerate(self.judged[:num_tokens])
        )

    def next_divergence(self) -> Divergence | None:
        """Measure the position after the span, where both rows are known: it belongs to the next token."""
        row, local = self.next_target_row, self.next_draft_row
        return kl_divergence(row, local) if row is not None and local else None


class Judge(ABC):
    """Says which tokens of a span are accepted, and what it is itself. A judge is a frozen dataclass of its settings.

    The defaults are those of a lossy judge. One that draws the cloud's token is a ``target_sampler.SamplingJudge``.
    """

    takes_bonus: ClassVar[bool] = False
    """Whether the row after an accepted span may give one more token. False: that would break the judge's own law."""
    judges_next_row: ClassVar[bool] = False
    """Whether it can judge the row after a span alone, without a token."""

    @property
    def reads_text(self) -> bool:
        """Whether it can judge by the bytes that come next, and so a cloud that spells in other tokens."""
        return False

    @property
    @abstractmethod
    def guarantee(self) -> str:
        """What is true of an accepted token, in one line: ``an accepted token is ...``."""

    @abstractmethod
    def __call__(self, span: DraftedSpan) -> Verdict:
        """Judge a span."""

    def is_exact(self, sampling: Sampling) -> bool:  # noqa: ARG002  (lossy, whatever the sampling)
        """Whether text that it judges token for token is the cloud model's own under ``sampling``."""
        return False

    @property
    def leaves_tail(self) -> bool:
        """Whether it may leave a token to the cloud (``TailDraw``)."""
        return False

    @property
    def wants_concepts(self) -> bool:
        """Whether it asks which tokens say the same."""
        return False

    @property
    def replaces(self) -> bool:
        """Whether a rejected token is replaced by the cloud's. False: the policy hands over, or it is drawn again."""
        return True


def _accept(token: PendingToken, row: TopK, kl: Divergence | None) -> PendingToken:
    if isinstance(row, FullRow):  # between two local models nobody is told how far they are apart
        return replace(token, how="accepted")
    if kl is None and token.draft_row is not None:
        kl = kl_divergence(row, token.draft_row)
    return replace(token, how="accepted", target_row=row, kl=kl, certificate=favourite_certificate(row))


def take_best(
    row: TopK, local: Dense | None, how: Literal["recovered", "bonus"], why: str | None = None
) -> PendingToken:
    """Take the cloud's most likely token at a row that was already paid for."""
    kl = None if local is None or isinstance(row, FullRow) else kl_divergence(row, local)
    return PendingToken(row.best, "cloud", how, draft_row=local, target_row=row, kl=kl, why=why)


def draft_distribution(token: PendingToken) -> Dense:
    """Return what a token was drawn from: greedy drafting puts all probability on the token itself."""
    if token.drawn_from is not None:
        return token.drawn_from
    if token.draft_row is None:
        msg = "a drafted token without a local row"
        raise TypeError(msg)
    point = np.full(token.draft_row.num_tokens, -np.inf)
    point[token.id] = 0.0
    return Dense(point)
