"""What is known of a draft before anybody is asked: the signals that a score is computed from, and nothing else.

The law (``tests/defer/test_signals.py``): signals are a pure function of text and rows. Whoever has the same text and
rows, a replay among them, has the same signals to the last bit. T is the number of drafted tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybrid.prob import Dense, Floats

# The names of ``statistics``, in order.
STATISTICS = (
    "highest entropy",
    "second highest entropy",
    "third highest entropy",
    "mean entropy",
    "sum of entropies",
    "first entropy",
    "smallest margin",
    "second smallest margin",
    "entropies above 0.1",
    "entropies above 0.5",
    "tokens",
    "place of the highest entropy",
    "sum of log-probabilities",
    "mean log-probability",
    "tokens of the prompt",
)


@dataclass(frozen=True, eq=False)
class DraftSignals:
    """A draft of T tokens as the local model sees it: its tokens, and numbers of its rows at temperature 1.

    ``words``: the question's (``word_buckets``). ``shown``: tokens of the answer before the draft. Shapes (T,):
    ``tokens``, the end token among them; ``entropy`` in nats; ``top`` and ``second``, the two largest probabilities;
    ``logprob``, log P_local(token). ``ended``: the draft ended by itself. ``last_divergence``: the KL that was measured
    last before the draft, in nats, and ``divergence_age``, the tokens since.
    """

    words: tuple[int, ...]
    prompt_tokens: int
    shown: int
    tokens: NDArray[np.int64]
    entropy: Floats
    top: Floats
    second: Floats
    logprob: Floats
    ended: bool
    last_divergence: float | None = None
    divergence_age: int = 0

    @classmethod
    def of_rows(
        cls,
        words: tuple[int, ...],
        prompt_tokens: int,
        shown: int,
        tokens: Sequence[int],
        rows: Sequence[Dense],
        *,
        ended: bool,
        last_divergence: float | None = None,
        divergence_age: int = 0,
    ) -> DraftSignals:
        """Read the signals of drafted tokens and their local rows, one a token. Raises ValueError for other counts."""
        ids = np.array(tokens, dtype=np.int64)
        best = [[logprob for _, logprob in row.top(2)] for row in rows]
        return cls(
            words,
            prompt_tokens,
            shown,
            ids,
            np.array([row.entropy() for row in rows], dtype=np.float64),
            np.exp([two[0] for two in best], dtype=np.float64),
            np.exp([two[1] if len(two) > 1 else -np.inf for two in best], dtype=np.float64),
            np.array([row.logprobs_of(np.array([token]))[0] for token, row in zip(tokens, rows, strict=True)]),
            ended,
            last_divergence,
            divergence_age,
        )

    def __post_init__(self) -> None:
        """Raise ValueError where the arrays are not of one length."""
        if len({len(each) for each in (self.tokens, self.entropy, self.top, self.second, self.logprob)}) > 1:
            raise ValueError("a draft needs one row for each of its tokens")

    def __len__(self) -> int:
        """T."""
        return len(self.tokens)


def statistics(signals: DraftSignals) -> Floats:
    """Return 15 numbers of a draft, shape (15,), in the order of ``STATISTICS``. Those of an empty draft are 0.

    Entropies and log-probabilities in nats, margins as probabilities, the place as a share of the draft (0: the first).
    """
    num = len(signals)
    if not num:
        return np.array([0.0] * 14 + [float(signals.prompt_tokens)])
    entropy = signals.entropy
    highest = np.concatenate([np.sort(entropy)[::-1][:3], np.zeros(2)])[:3]
    margins = np.concatenate([np.sort(signals.top - signals.second)[:2], np.ones(1)])[:2]
    logprob = np.maximum(signals.logprob, LEAST_LOGPROB)
    return np.array(
        [
            *highest,
            entropy.mean(),
            entropy.sum(),
            entropy[0],
            *margins,
            (entropy > 0.1).sum(),
            (entropy > 0.5).sum(),
            num,
            int(entropy.argmax()) / num,
            logprob.sum(),
            logprob.mean(),
            signals.prompt_tokens,
        ],
        dtype=np.float64,
    )


def mean_surprise(signals: DraftSignals) -> float:
    """Return the mean of -log P_local(favourite) over a draft, in nats: 0 of a sure one, and of an empty one."""
    return float(-np.log(np.maximum(signals.top, LEAST_TOP)).mean()) if len(signals) else 0.0


# A token that the rows give no chance at all (forced by a template, say) must not make a mean infinite.
LEAST_LOGPROB = -50.0
# No favourite has less: there are not so many tokens.
LEAST_TOP = 1e-9
