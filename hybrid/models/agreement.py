"""Measure how far a smaller model's rows are from the large one's, and how well its entropy predicts disagreement.

The laws, tested in ``tests/models/test_evaluation.py``: a model beside itself agrees everywhere, at a KL of 0; along
the small model's own text a position counts as disagreement where the large model, given the same prefix, would have
written another token. Both models' full distributions are needed, which no endpoint gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from hybrid.engine.port import Logits
from hybrid.models.answering import AnsweringModel
from hybrid.models.evaluation import GradedAnswer
from hybrid.prob import Dense, kl
from hybrid.tasks.statistics import auroc


class AgreementSummary(BaseModel):
    """The figures of an agreement, for the card.

    Along the large model's answers (``num_large_tokens``): the share of positions where both would write the same
    token, and the mean KL. Along the small model's (``num_small_tokens``): how often the large one would write another
    token, and the AUROC of the small one's entropy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    agreement: float
    mean_kl: float
    num_large_tokens: int
    auroc: float | None
    num_differing: int
    num_small_tokens: int


@dataclass(frozen=True)
class Agreement:
    """Two models beside each other, position by position.

    Along the large model's texts: KL(P_large || Q_small) in nats, and whether both would write the same; shapes (N,).
    Along the small model's: its entropy in nats, and whether the large one would have written another token; (M,).
    """

    kl: NDArray[np.float64]
    same: NDArray[np.bool_]
    entropy: NDArray[np.float64]
    differs: NDArray[np.bool_]

    @classmethod
    def joined(cls, parts: Iterable[Agreement]) -> Agreement:
        """Concatenate the positions of several agreements."""
        several = list(parts)
        return cls(
            *(np.concatenate([getattr(part, name) for part in several]) for name in cls.__dataclass_fields__),
        )

    @property
    def auroc(self) -> float | None:
        """The chance that entropy is higher where the models differ than where they agree."""
        return auroc(self.entropy, self.differs)

    def summary(self) -> AgreementSummary:
        """Return the figures of a card."""
        ranked = self.auroc
        return AgreementSummary(
            agreement=round(float(self.same.mean()), 4),
            mean_kl=max(0.0, round(float(self.kl.mean()), 4)),
            num_large_tokens=int(self.same.size),
            auroc=None if ranked is None else round(ranked, 4),
            num_differing=int(self.differs.sum()),
            num_small_tokens=int(self.differs.size),
        )


def compare(
    small: AnsweringModel, large: AnsweringModel, by_small: Sequence[GradedAnswer], by_large: Sequence[GradedAnswer]
) -> Agreement:
    """Read each model's answers with the other; their vocabularies must be one."""
    along_large = [(answer.written.rows, small.read(answer.written)) for answer in by_large]
    along_small = [(answer.written.rows, large.read(answer.written)) for answer in by_small]
    return Agreement(
        kl=np.array([kl(p, q) for large_rows, small_rows in along_large for p, q in _paired(large_rows, small_rows)]),
        same=np.concatenate([p.argmax(-1) == q.argmax(-1) for p, q in along_large]),
        entropy=np.array([Dense.from_logits(row).entropy() for rows, _ in along_small for row in rows]),
        differs=np.concatenate([p.argmax(-1) != q.argmax(-1) for q, p in along_small]),
    )


def _paired(first: Logits, second: Logits) -> Iterable[tuple[Dense, Dense]]:
    return zip(map(Dense.from_logits, first), map(Dense.from_logits, second), strict=True)
