"""What is known of a draft before anybody is asked: the signals that a score is computed from, and nothing else.

The law (``tests/defer/test_signals.py``): signals are a pure function of text and rows. Whoever has the same text and
rows, a replay among them, has the same signals to the last bit. T is the number of drafted tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hybrid.prob import Dense, Floats
from hybrid.prob.divergence import kl

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


# The names of ``critic_statistics``, in order.
CRITIC_STATISTICS = (
    "highest KL",
    "second highest KL",
    "mean KL",
    "sum of KLs",
    "KLs above 0.1",
    "KLs above 0.7",
    "place of the highest KL",
    "least log-probability to the critic",
    "sum of log-probabilities to the critic",
)


@dataclass(frozen=True, eq=False)
class CriticNumbers:
    """What the critic, a second local model, says of a draft of T tokens that it has read along. Shapes (T,).

    ``kl``: KL(critic || drafter) in nats, at most 50; ``logprob``: log P_critic(token), at least -50. Whether its best
    token is another adds nothing to these two (NOTES.md).
    """

    kl: Floats
    logprob: Floats

    @classmethod
    def of_rows(cls, tokens: Sequence[int], drafter: Sequence[Dense], critic: Sequence[Dense]) -> CriticNumbers:
        """Read the numbers of drafted tokens from both models' rows, one a token. Raises ValueError for other counts.

        Rows of no model's mass in common have a KL of 50.
        """
        rows = list(zip(tokens, drafter, critic, strict=True))
        return cls(
            np.clip(np.array([kl(own, local) for _, local, own in rows], dtype=np.float64), 0.0, MOST_KL),
            np.maximum(np.array([own.logprobs_of(np.array([token]))[0] for token, _, own in rows]), LEAST_LOGPROB),
        )

    def __post_init__(self) -> None:
        """Raise ValueError where the arrays are not of one length."""
        if len(self.kl) != len(self.logprob):
            raise ValueError("a critic says two numbers of each token")

    def __len__(self) -> int:
        """T."""
        return len(self.kl)

    def part(self, place: slice) -> CriticNumbers:
        """Return the numbers of some of the tokens."""
        return CriticNumbers(self.kl[place], self.logprob[place])


@dataclass(frozen=True, eq=False)
class DraftSignals:
    """A draft of T tokens as the local model sees it: its tokens, and numbers of its rows at temperature 1.

    ``words``: the question's (``word_buckets``). ``shown``: tokens of the answer before the draft. Shapes (T,):
    ``tokens``, the end token among them; ``entropy`` in nats; ``top`` and ``second``, the two largest probabilities;
    ``logprob``, log P_local(token). ``ended``: the draft ended by itself. ``last_divergence``: the KL that was measured
    last before the draft, in nats, and ``divergence_age``, the tokens since. ``critic``: what a critic says of the
    tokens; None: none has read them.
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
    critic: CriticNumbers | None = None

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
        critic: CriticNumbers | None = None,
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
            critic,
        )

    def __post_init__(self) -> None:
        """Raise ValueError where the arrays are not of one length."""
        if len({len(each) for each in (self.tokens, *(getattr(self, name) for name in OF_TOKENS))}) > 1:
            raise ValueError("a draft needs one row for each of its tokens")
        if self.critic is not None and len(self.critic) != len(self.tokens):
            raise ValueError("a critic says something of each token of a draft")

    def __len__(self) -> int:
        """T."""
        return len(self.tokens)

    def part(self, place: slice) -> DraftSignals:
        """Return the same with some of the tokens alone; what else is known of the draft stays."""
        arrays = {name: getattr(self, name)[place] for name in ("tokens", *OF_TOKENS)}
        critic = None if self.critic is None else self.critic.part(place)
        return replace(self, **arrays, critic=critic)


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


def critic_statistics(critic: CriticNumbers) -> Floats:
    """Return nine numbers of what a critic says of a draft, shape (9,), in the order of ``CRITIC_STATISTICS``.

    Those of an empty draft are 0.
    """
    num = len(critic)
    if not num:
        return np.zeros(len(CRITIC_STATISTICS))
    nats = critic.kl
    return np.array(
        [
            *np.concatenate([np.sort(nats)[::-1][:2], np.zeros(1)])[:2],
            nats.mean(),
            nats.sum(),
            (nats > 0.1).sum(),
            (nats > 0.7).sum(),
            int(nats.argmax()) / num,
            critic.logprob.min(),
            critic.logprob.sum(),
        ],
        dtype=np.float64,
    )


def mean_surprise(signals: DraftSignals) -> float:
    """Return the mean of -log P_local(favourite) over a draft, in nats: 0 of a sure one, and of an empty one."""
    return float(-np.log(np.maximum(signals.top, LEAST_TOP)).mean()) if len(signals) else 0.0


# The arrays of a draft's rows, by their names.
OF_TOKENS = ("entropy", "top", "second", "logprob")
# A token that the rows give no chance at all (forced by a template, say) must not make a mean infinite.
LEAST_LOGPROB = -50.0
MOST_KL = -LEAST_LOGPROB
# No favourite has less: there are not so many tokens.
LEAST_TOP = 1e-9
