"""What labels a draft: what the cloud's rows said of it. What was kept unchecked has no label.

A check of a whole draft is one, and so is what the cloud wrote, along which both models' rows are known.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybrid.defer.signals import DraftSignals
from hybrid.prob import Floats


@dataclass(frozen=True, eq=False)
class LabelledDraft:
    """A draft of T tokens and what the cloud's rows said of it.

    ``first_rejection``: the offset of the first token that the judge rejects, None where it accepts all. Shapes (T,):
    ``excess``, each token's excess loss in nats, log P_cloud(best) - log P_cloud(token); ``divergence``, the measured
    KL in nats. ``kept_tokens``: how many tokens the judge accepts, each by itself. None: not known.
    """

    signals: DraftSignals
    first_rejection: int | None
    excess: Floats
    divergence: Floats | None = None
    kept_tokens: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError where the label does not fit the draft."""
        if len(self.excess) != len(self.signals) or not 0 <= (self.first_rejection or 0) < max(1, len(self.signals)):
            raise ValueError("a label of another draft")


@dataclass(frozen=True, eq=False)
class LabelledQuestion:
    """A calibration question: its whole first draft, and how long the cloud's own answer is (end token counted)."""

    draft: LabelledDraft
    cloud_tokens: int
