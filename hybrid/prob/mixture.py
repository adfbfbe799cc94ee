"""Several models over one text: the weighted sum of their laws, and weights that follow a reference.

The laws (``tests/prob/test_mixture.py``). KL(P || sum w_i Q_i) is at most sum w_i KL(P || Q_i). Weights stay a
distribution. Soft-Bayes loses little against the best fixed mixture, in hindsight, of any sequence of references
(Orseau, Lattimore and Legg 2017, arXiv:1901.02230). A Bayes mixture would lose little against the best single model
alone, and is not used where a true mixture is wanted.

Weights see a reference as what is shown of it: its listed tokens and one symbol for all others. Sums of laws are sums
there, too. This file must not know what a model is, nor when weights may change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hybrid.prob.distribution import CENSORED, Dense, Floats, Ints, TopK
from hybrid.prob.divergence import log_mass

# A target and a draft on what can be known of both: the tokens a top-k list shows, and one symbol for all others.
#
# The law. Exact sampling on these symbols, the last one resolved by whoever knows the target in full, gives the
# target's own law: two laws that agree on the symbols and, given the last, on its tokens, are one law. Enumerated over
# the whole loop in ``tests/policy``. What is shown must depend on the position alone: the actual token that an endpoint
# appends is not among the symbols, or the alphabet would depend on what was drawn.


@dataclass(frozen=True, eq=False)
class TopKPair:
    """``target`` and ``draft``, shape (A + 1,): the probabilities of ``ids``, shape (A,), and of all other tokens."""

    ids: Ints
    target: Floats
    draft: Floats

    def symbol(self, token: int) -> int:
        """Return where a token stands: its index in ``ids``, or A."""
        found = np.flatnonzero(self.ids == token)
        return int(found[0]) if found.size else self.ids.size

    def token(self, symbol: int) -> int | None:
        """Return the token of a symbol; None for the last, which is many."""
        return int(self.ids[symbol]) if symbol < self.ids.size else None


def pair_shown(target: TopK, draft: Dense) -> TopKPair:
    """Return both on the listed tokens of the target, as they are at temperature 1."""
    ids = target.ids[: target.num_listed]
    probs = target.probs[: target.num_listed]
    # All of the vocabulary is listed: what the sum leaves of one is rounding, and there is no token to draw.
    rest = max(0.0, 1.0 - float(probs.sum())) if ids.size < draft.num_tokens else 0.0
    return TopKPair(ids, np.append(probs, rest), _on(ids, draft))


def pair_known(target: Dense, draft: Dense) -> TopKPair:
    """Return both on the support of a target that is known in full; it leaves nothing for other tokens."""
    probs = target.probs
    ids = np.flatnonzero(probs > 0.0)
    return TopKPair(ids, np.append(probs[ids], 0.0), _on(ids, draft))


def _on(ids: Ints, draft: Dense) -> Floats:
    shared = ids[ids < draft.num_tokens]
    probs = np.zeros(ids.size + 1)
    probs[:-1][ids < draft.num_tokens] = draft.probs_of(shared)
    probs[-1] = draft.mass_outside(shared)
    return probs


# So much of a uniform law is added where laws are compared, so that no ratio is 0/0 and no loss infinite.
FLOOR = 1e-6
# Fixed share: so much of all weight is dealt out anew at each update, since which model is nearest changes in a text.
SHARE = 0.02

Reference: TypeAlias = TopK | int
"""What a reference said of a position: its row, or the token that it wrote."""


@dataclass(frozen=True, eq=False)
class MixtureRow(Dense):
    """A row that several models made. ``parts``: their own, None where one was not read; ``weights`` beside them.

    ``chosen``: whose row it is; None: the sum of all.
    """

    parts: tuple[Dense | None, ...] = ()
    weights: tuple[float, ...] = ()
    chosen: int | None = None


def mixture(parts: Sequence[Dense], weights: Sequence[float]) -> MixtureRow:
    """Return sum w_i Q_i over rows of shape (V,); weights are not negative and sum to one.

    Noise and shift are the largest of the parts. A log-ratio of two sums lies between those of the parts. And with r_i,
    the part's share of the sum at a token, and pi_i P_i = P r_i, KL(P || sum) is KL(pi || w) + sum pi_i KL(P_i || Q_i);
    of other readings it is at most that (data processing). So its root moves by at most (sum pi_i shift_i^2)^(1/2).

    >>> parts = [Dense.from_probs(np.array(probs)) for probs in ([0.5, 0.5], [1.0, 0.0])]
    >>> mixture(parts, (0.5, 0.5)).probs.round(6).tolist()
    [0.75, 0.25]
    """
    weighed = [(part, weight) for part, weight in zip(parts, weights, strict=True) if weight > 0.0]
    if len(weighed) == 1:  # to the last bit its own
        only = weighed[0][0]
        return MixtureRow(only.logits, only.log_total, only.noise, only.shift, tuple(parts), tuple(weights))
    logs = [part.logprobs + log_mass(weight) for part, weight in weighed]
    top = np.maximum(np.max(logs, axis=0), CENSORED)
    total = np.zeros_like(top)
    for log in logs:
        total += np.exp(np.subtract(log, top, out=log), out=log)
    with np.errstate(divide="ignore"):
        summed = np.log(total) + top
    noise = max(part.noise for part, _ in weighed)
    shifts = [part.shift for part, _ in weighed if part.shift is not None]
    shift = max(shifts) if len(shifts) == len(weighed) else None
    kept = np.result_type(*(part.logits for part, _ in weighed))  # as they came: a span holds many rows
    whole = Dense.from_logits(summed.astype(kept), noise, shift)
    return MixtureRow(whole.logits, whole.log_total, noise, shift, tuple(parts), tuple(weights))


def selected(parts: Sequence[Dense | None], chosen: int, weights: Sequence[float]) -> MixtureRow:
    """Return the row of one of several models, to the last bit, beside what was read of the others."""
    row = parts[chosen]
    if row is None:
        msg = "the chosen model's row was not read"
        raise ValueError(msg)
    return MixtureRow(row.logits, row.log_total, row.noise, row.shift, tuple(parts), tuple(weights), chosen)


@dataclass(frozen=True)
class MixtureWeights:
    """Soft-Bayes: weights of shape (N,) for a sum of laws, after so many references; ``first`` are those before any.

    The rate at the t-th is sqrt(ln N / (N t)), and as it falls the first weights come back by as much, by which no
    number of references must be known before.
    """

    weights: tuple[float, ...]
    first: tuple[float, ...]
    num_seen: int = 0

    @classmethod
    def start(cls, weights: Sequence[float]) -> MixtureWeights:
        """Return the weights before any reference."""
        return cls(tuple(weights), tuple(weights))

    def after(self, reference: Reference, parts: Sequence[Dense]) -> MixtureWeights:
        """Return the weights after one more reference, to which ``parts`` are the models' rows."""
        seen, num = self.num_seen + 1, len(self.weights)
        rate = float(np.sqrt(np.log(num) / (num * seen)))
        kept = float(np.sqrt(seen / (seen + 1)))
        moved = np.array(self.weights) * (1.0 - rate + rate * gains(reference, parts, self.weights))
        return MixtureWeights(_distribution(kept * moved + (1.0 - kept) * np.array(self.first)), self.first, seen)


@dataclass(frozen=True)
class SelectionWeights:
    """Hedge with a fixed share (Herbster and Warmuth 1998): the chances that a model is the nearest to a reference."""

    weights: tuple[float, ...]

    @classmethod
    def start(cls, weights: Sequence[float]) -> SelectionWeights:
        """Return the weights before any reference."""
        return cls(tuple(weights))

    @property
    def chosen(self) -> int:
        """The model of most weight, the first on a tie."""
        return int(np.argmax(self.weights))

    def after(self, reference: Reference, parts: Sequence[Dense]) -> SelectionWeights:
        """Return the weights after one more reference, to which ``parts`` are the models' rows."""
        lost = losses(reference, parts)
        moved = np.array(self.weights) * np.exp(lost.min() - lost)
        return SelectionWeights(_distribution((1.0 - SHARE) * moved / moved.sum() + SHARE / lost.size))


def gains(reference: Reference, parts: Sequence[Dense], weights: Sequence[float]) -> Floats:
    """Return how much likelier each model makes the reference than their sum does, shape (N,); on average 1.

    It is the gradient, in the weights, of the log-likelihood of the sum.
    """
    target, laws = _shown(reference, parts)
    gained: Floats = laws @ (target / (np.asarray(weights) @ laws))
    return gained


def losses(reference: Reference, parts: Sequence[Dense]) -> Floats:
    """Return KL(reference || model) on what is shown, in nats, shape (N,); of a written token its surprise."""
    target, laws = _shown(reference, parts)
    there = target > 0.0
    lost: Floats = (target[there] * (np.log(target[there]) - np.log(laws[:, there]))).sum(axis=1)
    return np.maximum(lost, 0.0)


def _shown(reference: Reference, parts: Sequence[Dense]) -> tuple[Floats, Floats]:
    """Return the reference on what is shown, shape (A + 1,), and the models' laws there with the floor: (N, A + 1)."""
    num_tokens = parts[0].num_tokens
    if isinstance(reference, int):
        target = np.array([1.0, 0.0])
        own = [float(part.probs_of(np.array([reference]))[0]) for part in parts]
        laws = np.array([[prob, max(0.0, 1.0 - prob)] for prob in own])
    else:
        pairs = [pair_shown(reference, part) for part in parts]
        target, laws = pairs[0].target / pairs[0].target.sum(), np.array([pair.draft for pair in pairs])
    even = np.full(target.size, 1.0 / num_tokens)
    even[-1] = max(1, num_tokens - (target.size - 1)) / num_tokens
    return target, (1.0 - FLOOR) * laws + FLOOR * even


def _distribution(weights: Floats) -> tuple[float, ...]:
    """Take the rounding out of weights that sum to one."""
    return tuple((weights / weights.sum()).tolist())
