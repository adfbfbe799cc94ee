"""What a score is: a draft's signals in, the chances that the cloud would turn it down out.

A score knows no prices and decides nothing. It is a frozen value that is kept as JSON, exact to the last bit: a trace
that holds one makes every decision again (``tests/defer/test_score.py``). ``PriorScore`` is what is believed of a pair
of which nothing is known; ``learned.py`` has the one that was fitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from hybrid.defer.familiarity import NOTHING_FAMILIAR, Familiarity
from hybrid.defer.packed import read_number
from hybrid.defer.signals import DraftSignals, mean_surprise
from hybrid.prob import Floats


@dataclass(frozen=True, eq=False)
class Forecast:
    """What is expected of a draft of T tokens, if the cloud were asked. Shapes (T,).

    ``hazard``: the chance that the judge's first rejection falls at a token if none fell before it. ``excess``: the
    expected excess loss of each token, log P_cloud(best) - log P_cloud(token), in nats.
    """

    hazard: Floats
    excess: Floats

    @property
    def survival(self) -> Floats:
        """The chance that no rejection falls among the first i tokens, shape (T + 1,). The first is 1."""
        return np.concatenate([[1.0], np.cumprod(1.0 - self.hazard)])

    @property
    def turned_down(self) -> float:
        """The chance that the judge rejects anything in the draft. 0 of an empty one.

        >>> round(Forecast(np.array([0.5, 0.2]), np.zeros(2)).turned_down, 6)
        0.6
        """
        return float(1.0 - self.survival[-1])


@dataclass(frozen=True)
class QuestionForecast:
    """What is expected of a question before anything is drafted.

    ``turned_down``: the chance that the judge rejects anything in the draft. ``tokens``: the draft's length.
    ``excess``: the mean excess loss of its tokens, in nats.
    """

    turned_down: float
    tokens: float
    excess: float


class Score(Protocol):
    """Anything that forecasts a judge's verdict on drafts of one pair of models. A frozen value."""

    @property
    def judge(self) -> str:
        """The judge whose verdict is forecast, as ``--judge`` writes it: ``kl:0.7``."""
        ...

    @property
    def critic(self) -> str | None:
        """The identity of the critic whose numbers it reads; None: it reads none."""
        ...

    @property
    def familiarity(self) -> Familiarity:
        """The words of the questions that it was fitted to."""
        ...

    def forecast(self, signals: DraftSignals) -> Forecast:
        """Forecast a draft, or a block of one: the arrays are as long as it."""
        ...

    def before(self, words: tuple[int, ...], prompt_tokens: int) -> QuestionForecast:
        """Forecast from the question alone: its ``word_buckets`` and the prompt's length."""
        ...


# The judge of a pair of which nothing is known: kl's, at the threshold of the bundled pair's score, which turns down
# hardly any draft that is right (defer/README.md).
DEFAULT_NATS = 0.7
DEFAULT_JUDGE = f"kl:{DEFAULT_NATS:g}"
# Of a pair that nobody measured most drafts count as turned down, so that they are checked. 64 tokens: an answer of a
# paragraph.
PRIOR_CHANCE, PRIOR_TOKENS = 0.8, 64


@dataclass(frozen=True)
class PriorScore:
    """What is believed where nothing was measured: most drafts would be turned down, anywhere in them.

    ``chance`` is that of a draft of any length. The excess of its tokens is the local model's own mean surprise: no
    measured number, but drafts are ranked by it as well as by anything that was tried on real text.
    """

    kind: ClassVar[str] = "prior"
    familiarity: ClassVar[Familiarity] = NOTHING_FAMILIAR
    critic: ClassVar[str | None] = None
    judge: str
    chance: float = PRIOR_CHANCE
    tokens: float = PRIOR_TOKENS

    def forecast(self, signals: DraftSignals) -> Forecast:
        """Spread the chance evenly over the draft."""
        num = len(signals)
        hazard = np.full(num, 1.0 - (1.0 - self.chance) ** (1.0 / max(1, num)))
        return Forecast(hazard, np.full(num, mean_surprise(signals)))

    def before(self, words: tuple[int, ...], prompt_tokens: int) -> QuestionForecast:  # noqa: ARG002  (no question is better known)
        """Say the same of every question."""
        return QuestionForecast(self.chance, self.tokens, 1.0)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``."""
        return asdict(self)

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> PriorScore:
        """Read what ``to_json`` gave. Raises ValueError."""
        return cls(str(kept["judge"]), read_number(kept["chance"], 0.0, 1.0), read_number(kept["tokens"], 1.0))
