"""The numbers of a draft and of its tokens that learned scores read.

Linear models read numbers as they are and as logarithms; trees need neither. T is the number of drafted tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.defer.signals import CriticNumbers, DraftSignals, critic_statistics, statistics
from hybrid.defer.words import BUCKETS
from hybrid.prob import Floats

# The features of a token, in order. The last three are ids; -1 where there is no such token.
TOKEN_FEATURES = (
    "entropy",
    "likeliest",
    "margin",
    "highest entropy so far",
    "entropies so far",
    "entropy before",
    "entropy after",
    "surprise",
    "place",
    "share of the draft",
    "tokens of the draft",
    "log-odds of the draft",
    "log-odds of the question",
    "highest entropy of the draft",
    "is the highest",
    "tokens of the prompt",
    "tokens shown",
    "the draft ended",
    "last divergence",
    "age of it",
    "token",
    "token before",
    "token before that",
    "token after",
)
NUM_IDS = 4
# What a critic adds to them, before the ids.
CRITIC_FEATURES = (
    "critic's KL",
    "highest KL so far",
    "KLs so far",
    "KL before",
    "KL after",
    "surprise to the critic",
    "highest KL of the draft",
    "is the highest KL",
)
_LENGTH = "tokens of the draft"
# Where no divergence was measured; a measured one is not negative.
NO_DIVERGENCE = -1.0
# Multiplicative hashing (Knuth 1973): a prime near 2**32 over the golden ratio.
_SPREAD = 2654435761


def draft_numbers(signals: DraftSignals) -> Floats:
    """Return the 15 statistics, their logarithms first: shape (1, 30); with a critic's nine (1, 48)."""
    of_critic = () if signals.critic is None else critic_statistics(signals.critic)
    numbers = np.concatenate([statistics(signals), of_critic])
    both: Floats = np.concatenate([np.log1p(np.abs(numbers)), numbers])
    return both[None]


def question_numbers(prompt_tokens: int) -> Floats:
    """Return what is known of a question beside its words: shape (1, 1)."""
    return np.array([[np.log1p(prompt_tokens)]], dtype=np.float64)


def token_features(signals: DraftSignals, draft_log_odds: float, question_log_odds: float) -> Floats:
    """Return the features of each token, shape (T, F), in the order of ``TOKEN_FEATURES``.

    With a critic those of ``CRITIC_FEATURES`` stand before the ids.
    """
    num = len(signals)
    entropy, tokens, place = signals.entropy, signals.tokens, np.arange(num)
    highest = entropy.max(initial=0.0)
    known = signals.last_divergence is not None
    columns = (
        entropy,
        signals.top,
        signals.top - signals.second,
        np.maximum.accumulate(entropy),
        np.cumsum(entropy),
        _shifted(entropy, 1, 0.0),
        _shifted(entropy, -1, 0.0),
        np.minimum(-signals.logprob, 50.0),
        place,
        place / max(1, num),
        num,
        draft_log_odds,
        question_log_odds,
        highest,
        entropy == highest,
        signals.prompt_tokens,
        signals.shown,
        signals.ended,
        signals.last_divergence if known else NO_DIVERGENCE,
        signals.divergence_age + place if known else NO_DIVERGENCE,
        *(() if signals.critic is None else _critic_columns(signals.critic)),
        tokens,
        _shifted(tokens, 1, -1),
        _shifted(tokens, 2, -1),
        _shifted(tokens, -1, -1),
    )
    features = np.empty((num, len(columns)))
    for number, column in enumerate(columns):
        features[:, number] = column
    return features


def _critic_columns(critic: CriticNumbers) -> tuple[NDArray[Any] | float, ...]:
    """Return what a critic says of each token, in the order of ``CRITIC_FEATURES``."""
    nats, highest = critic.kl, critic.kl.max(initial=0.0)
    return (
        nats,
        np.maximum.accumulate(nats),
        np.cumsum(nats),
        _shifted(nats, 1, 0.0),
        _shifted(nats, -1, 0.0),
        -critic.logprob,
        highest,
        nats == highest,
    )


def token_numbers(features: Floats) -> Floats:
    """Return a linear model's numbers of each token from its features, shape (T, 2D + 2): without ids.

    They and their logarithms; and the log-odds at each token if what stage 1 tells of the draft, or of the question,
    were spread evenly over the tokens.
    """
    numbers: Floats = features[:, :-NUM_IDS]
    columns = [TOKEN_FEATURES.index(f"log-odds of the {what}") for what in ("draft", "question")]
    share = np.logaddexp(0.0, features[:, columns]) / np.maximum(1.0, features[:, [TOKEN_FEATURES.index(_LENGTH)]])
    spread = np.log(np.expm1(np.maximum(share, 1e-12)))
    return np.hstack([np.log(np.abs(numbers) + 1e-3), numbers, spread])


def token_buckets(features: Floats) -> NDArray[np.int64]:
    """Return the buckets of each token and of the one before it, shape (T, 2): either has half of them."""
    ids = features[:, -NUM_IDS : -NUM_IDS + 2].astype(np.int64) + 1
    half = BUCKETS // 2
    buckets: NDArray[np.int64] = ids * _SPREAD % (1 << 32) * half // (1 << 32) + np.array([0, half])
    return buckets


def _shifted(numbers: NDArray[np.number], by: int, empty: float) -> NDArray[np.number]:
    """Move numbers to later places (or, by a negative number, to earlier ones)."""
    moved = np.full_like(numbers, empty)
    if by > 0:
        moved[by:] = numbers[:-by]
    else:
        moved[:by] = numbers[-by:]
    return moved
