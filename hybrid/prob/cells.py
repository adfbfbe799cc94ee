"""Prefix cells: two models that spell differently, compared by the bytes that come next.

Tokens of two vocabularies are no common events, strings that begin alike are: a cell is "what comes next begins with
these bytes". Its mass under a model is that of the tokens that begin so, exactly, in one step, but for tokens that are
a proper beginning of the cell's bytes themselves: whether what follows them goes on so, this step does not tell. That
mass is the ambiguity, and the cell's true mass lies between the one and the sum of both.

The laws (``tests/prob/test_cells.py``). Events are disjoint. On a model whose second step is known, too, the true mass
of each is within its bounds. So the divergence over cells is one of the two processes over bytes, coarsened: it is at
most their own (data processing), and with one vocabulary at most that of the tokens.

A row may begin inside a token of the model's: ``TextRow.after`` is what is known once some bytes of it were read. An
answer's end is a cell of its own, whatever its tokens are called. This file knows bytes, and not how text is split.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from hybrid.prob.distribution import Dense, Floats, Ints, TopK
from hybrid.prob.terms import Interval, forward, kl_in_boxes
from hybrid.types import Divergence

NOTHING: Mapping[bytes, Mapping[bytes, float]] = MappingProxyType({})
# Drafted tokens that are likelier than this have cells of their own; what is less likely may be ambiguous.
LEAST = 1e-3


@dataclass(frozen=True, eq=False)
class TokenBytes:
    """A vocabulary's tokens by their bytes. ``pieces``: of each id; ``end_ids``: those that end a text."""

    pieces: tuple[bytes, ...]
    end_ids: frozenset[int]

    @cached_property
    def ids_of(self) -> Mapping[bytes, Ints]:
        """The tokens of some bytes; those that end a text, or have no bytes, are none."""
        found: dict[bytes, list[int]] = {}
        for token, piece in enumerate(self.pieces):
            if piece and token not in self.end_ids:
                found.setdefault(piece, []).append(token)
        return {piece: np.array(ids, dtype=np.int64) for piece, ids in found.items()}

    @cached_property
    def ordered(self) -> tuple[list[bytes], Ints]:
        """The tokens that have bytes, in the order of these."""
        pairs = sorted((piece, int(token)) for piece, ids in self.ids_of.items() for token in ids)
        return [piece for piece, _ in pairs], np.array([token for _, token in pairs], dtype=np.int64)

    def range_of(self, prefix: bytes) -> tuple[int, int]:
        """Return where in that order the tokens stand that begin with some bytes, at least one: from, to."""
        pieces = self.ordered[0]
        after = prefix.rstrip(b"\xff")
        end = bisect_left(pieces, after[:-1] + bytes([after[-1] + 1])) if after else len(pieces)
        return bisect_left(pieces, prefix), end

    def first(self, text: bytes) -> int | None:
        """Return the longest token that text begins with; None: it begins with none."""
        ends = range(len(text), 0, -1)
        return next((int(self.ids_of[text[:end]][0]) for end in ends if text[:end] in self.ids_of), None)


@dataclass(frozen=True, eq=False)
class PrefixEvents:
    """C disjoint events and what both models give them: masses between two bounds each, arrays of shape (C,).

    ``roots``: the bytes that the first C - 2 begin with. The last but one is the text's end, the last everything else.
    """

    roots: tuple[bytes, ...]
    target_low: Floats
    target_high: Floats
    draft_low: Floats
    draft_high: Floats


@dataclass(frozen=True, eq=False)
class PrefixRow:
    """A row of another vocabulary, some bytes before the place that is looked at.

    ``weight``: how likely a token begins there, given the text before the place. ``read``: the bytes between.
    ``masses``: the probability of each string that its tokens spell; ``ending``: that the text ends; ``tail``: what
    it does not show. ``followed``: tokens that end at the place are counted by the row that stands there.
    """

    weight: float
    read: bytes
    masses: Mapping[bytes, float]
    ending: float
    tail: float
    followed: bool = False

    @property
    def going_on(self) -> dict[bytes, float]:
        """What follows the place, by the strings that reach beyond it."""
        size = len(self.read)
        return {
            text[size:]: self.weight * mass
            for text, mass in self.masses.items()
            if len(text) > size and text.startswith(self.read)
        }

    @property
    def hidden(self) -> float:
        """The mass of which it says nothing: what it does not show, and tokens behind which another row would stand."""
        inside = (
            text for text in self.masses if self.read.startswith(text) and (text != self.read or not self.followed)
        )
        return self.weight * (self.tail + sum(self.masses[text] for text in inside))


@dataclass(frozen=True, eq=False, kw_only=True)
class TextRow(TopK):
    """A target of another vocabulary, as text: what may come next, by its bytes, beside a draft of this vocabulary.

    ``strings`` and ``masses`` (shape (A,)): what the target's tokens spell from here on, and how likely each is.
    ``ending``: how likely the text ends here. ``hidden``: the mass of which nothing is known. As a ``TopK`` it is a
    list for display: the token that goes on as the target's most likely one does, and of each other string the longest.
    """

    spelling: TokenBytes
    strings: tuple[bytes, ...]
    masses: Floats
    ending: float
    hidden: float

    @classmethod
    def after(
        cls,
        reaches: Sequence[PrefixRow],
        spelling: TokenBytes,
        best: int,
        noise: float = 0.0,
        beyond: Mapping[bytes, Mapping[bytes, float]] = NOTHING,
    ) -> TextRow:
        """Return what rows of another vocabulary tell of a place that they reach; ``best``: the token it takes first.

        A text may have come about by other tokens than those it was read in: each row before the place that reaches
        beyond it has its share, by how likely a token begins there. ``beyond``: where a drafted token is longer than
        theirs, the rows inside it, by the bytes before them, from short to long.
        """
        left: dict[bytes, float] = {}
        for reach in reaches:
            for text, mass in reach.going_on.items():
                left[text] = left.get(text, 0.0) + mass
        for text, masses in beyond.items():
            mass = left.get(text, 0.0)
            for piece, share in masses.items() if mass > 0.0 else ():
                left[text + piece] = left.get(text + piece, 0.0) + mass * share
                left[text] -= mass * share
        left = {text: mass for text, mass in left.items() if mass > 0.0}
        hidden = sum(reach.hidden for reach in reaches)
        ending = sum(reach.weight * reach.ending for reach in reaches if not reach.read)
        total = sum(left.values()) + ending + hidden
        if not total > 0.0:  # the target would not write what was read
            left, hidden, total = {}, 1.0, 1.0
        shares = np.array([*left.values()], dtype=np.float64) / total
        return cls.listed_as(best, tuple(left), shares, ending / total, hidden / total, spelling, noise)

    @classmethod
    def listed_as(
        cls,
        best: int,
        strings: tuple[bytes, ...],
        masses: Floats,
        ending: float,
        hidden: float,
        spelling: TokenBytes,
        noise: float = 0.0,
    ) -> TextRow:
        """Return the row with its list for display."""
        shown: dict[int, float] = {best: ending if best in spelling.end_ids else 0.0}
        if ending and best not in spelling.end_ids and spelling.end_ids:
            shown[min(spelling.end_ids)] = ending
        for text, mass in zip(strings, masses.tolist(), strict=True):
            token = best if text.startswith(spelling.pieces[best]) else spelling.first(text)
            if token is not None:
                shown[token] = shown.get(token, 0.0) + mass
        others = sorted((token for token in shown if token != best and shown[token] > 0.0), key=lambda t: -shown[t])
        ids = [best, *others]
        probs = np.maximum(np.array([shown[token] for token in ids]), np.finfo(float).tiny)
        tail_max = max(hidden, float(probs.min()))
        return cls(
            ids=np.array(ids, dtype=np.int64),
            logprobs=np.log(probs),
            tail_max=tail_max,
            num_listed=len(ids),
            noise=noise,
            spelling=spelling,
            strings=strings,
            masses=masses,
            ending=ending,
            hidden=hidden,
        )

    def within(self, num_tokens: int) -> TopK:  # noqa: ARG002  (its list is of the draft's vocabulary)
        """Return itself."""
        return self

    def kl(self, draft: Dense) -> Divergence:
        """Return KL(target || draft) over cells, in nats: at most that of the two models over bytes.

        Coarse cells are sure and may be blind (everything that begins with a space), fine ones see more where little is
        ambiguous. Each bounds the same divergence, so the better end of both counts.
        """
        coarse, fine = (self.cells(draft, fine=fine) for fine in (False, True))
        bounds = [kl_in_boxes(c.target_low, c.target_high, c.draft_low, c.draft_high) for c in (coarse, fine)]
        lower, told = max(found.lower for found in bounds), coarse.target_low.copy()
        told[-1] = self.hidden
        with np.errstate(divide="ignore"):
            estimate = float(forward(np.log(told), np.log(coarse.draft_high)).sum())
        upper = max(lower, bounds[0].upper)
        return Divergence(min(max(0.0, estimate), lower), lower, upper, self.noise + draft.noise)

    def overlap(self, draft: Dense) -> float:
        """Return the most that the sum of min(p, q) over cells can be: no chance to keep a draft is above it."""
        cells = self.cells(draft, fine=True)
        apart = np.maximum(cells.target_low - cells.draft_high, cells.draft_low - cells.target_high)
        return 1.0 - float(np.maximum(apart, 0.0).sum()) / 2.0

    def excess(self, token: int) -> Interval:
        """Return how much likelier what the target takes is than what begins with another token, in nats."""
        if token == self.best:
            return Interval(0.0, 0.0, 2.0 * self.noise)
        (least, most), (low, high) = self._mass_of(self.best), self._mass_of(token)
        with np.errstate(divide="ignore"):
            ends = np.log([least, most]) - np.log([high, low]) if low > 0.0 else (np.log(least) - np.log(high), np.inf)
        return Interval(max(0.0, float(ends[0])), max(0.0, float(ends[1])), 2.0 * self.noise)

    def _mass_of(self, token: int) -> tuple[float, float]:
        """Return the bounds of the probability that what comes next begins with a token."""
        if token in self.spelling.end_ids:
            return self.ending, min(1.0, self.ending + self.hidden)
        piece, masses = self.spelling.pieces[token], [*zip(self.strings, self.masses.tolist(), strict=True)]
        known = sum(mass for text, mass in masses if text.startswith(piece))
        unclear = sum(mass for text, mass in masses if text != piece and piece.startswith(text))
        return known, min(1.0, known + unclear + self.hidden)

    def cells(self, draft: Dense, *, fine: bool = False) -> PrefixEvents:
        """Lay both models out over cells: as coarse as what is shown and what the draft finds likely allow, or as fine.

        Coarse, no shown string ends inside a cell; fine, each longest one is a cell, and what ends before is ambiguous.
        """
        spelling = self.spelling
        likely = np.flatnonzero(draft.logits >= draft.log_total + np.log(LEAST))
        drafted = {spelling.pieces[token] for token in likely.tolist() if token not in spelling.end_ids}
        roots = (_leaves if fine else _roots)({*self.strings, *drafted} - {b""})
        before = {root[:end] for root in roots for end in range(1, len(root))}
        shown: dict[bytes, float] = {}
        for text, mass in zip(self.strings, self.masses.tolist(), strict=True):
            shown[text] = shown.get(text, 0.0) + mass
        target = _Side(
            [sum(mass for text, mass in shown.items() if text.startswith(root)) for root in roots],
            {text: mass for text, mass in shown.items() if text in before},
            self.ending,
        )
        running = np.concatenate(([0.0], np.cumsum(draft.probs_of(spelling.ordered[1]))))
        own = _Side(
            [float(running[end] - running[start]) for start, end in map(spelling.range_of, roots)],
            {text: float(draft.probs_of(spelling.ids_of[text]).sum()) for text in before & spelling.ids_of.keys()},
            float(draft.probs_of(np.array(sorted(spelling.end_ids), dtype=np.int64)).sum()),
        )
        return PrefixEvents(roots, *target.bounds(roots, self.hidden), *own.bounds(roots, 0.0))


@dataclass(frozen=True)
class _Side:
    """One model's masses: of each cell, of what ends before a cell's bytes do, of the text's end."""

    known: list[float]
    unclear: Mapping[bytes, float]
    ending: float

    def bounds(self, roots: tuple[bytes, ...], hidden: float) -> tuple[Floats, Floats]:
        """Return the bounds of all cells, the end and everything else among them; ``hidden`` may be in any."""
        beside = np.array([sum(self.unclear.get(root[:end], 0.0) for end in range(1, len(root))) for root in roots])
        others = max(0.0, 1.0 - sum(self.known) - self.ending - hidden)
        low = np.array([*self.known, self.ending, max(0.0, others - sum(self.unclear.values()))])
        high = np.array([*(self.known + beside), self.ending, others]) + hidden
        return low, np.minimum(high, 1.0)


def _leaves(strings: set[bytes]) -> tuple[bytes, ...]:
    """Return the strings that no other of them begins with.

    >>> _leaves({b"the", b"there", b"a"}), _leaves(set())
    ((b'a', b'there'), ())
    """
    ordered = sorted(strings)
    after = [*ordered, b""][1:]
    return tuple(text for text, following in zip(ordered, after, strict=True) if not following.startswith(text))


def _roots(strings: set[bytes]) -> tuple[bytes, ...]:
    """Return the strings that begin with no other of them.

    >>> _roots({b"the", b"there", b"a"})
    (b'a', b'the')
    """
    roots: list[bytes] = []
    for text in sorted(strings):
        if not roots or not text.startswith(roots[-1]):
            roots.append(text)
    return tuple(roots)


__all__ = ["LEAST", "PrefixEvents", "PrefixRow", "TextRow", "TokenBytes"]
