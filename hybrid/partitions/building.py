"""Groups of tokens that say the same, from their texts and their directions.

Two steps. Tokens of one form (``partitions.normal_form``) are joined as far as their directions agree. Then forms are
joined that are mutual nearest neighbours, the nearest first, while a group stays small, holds together on the whole,
and holds no two sides of a contrast.

The laws (``tests/partitions/test_building.py``): no token is in two groups; a token without a normal form is in none;
no group is larger than ``most_tokens``, holds two classes or two scripts; the same input gives the same groups.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hybrid.partitions.embedding import Directions, RowSource, directions, nearest, unit
from hybrid.partitions.normal_form import NormalForm, TokenKind, is_turned, normal_form, on_two_sides, sides_of

# A letter is a label or a variable, and it has no normal form; a word of two letters may be "so" or "as".
_LEAST_LETTERS = 2
_ROMAN = re.compile(r"[ivxlcdm]+")
Report = Callable[[str], None]


@dataclass(frozen=True)
class JoinRules:
    """When forms are joined. ``neighbours``: of each other's so many nearest; ``cosine``: at least.

    ``same_form``: the least cosine of two spellings of one form. ``average``: the least mean cosine of the pairs that
    two groups bring together, which keeps chains of neighbours from becoming one group. ``most_tokens``: of a group.
    """

    neighbours: int = 5
    cosine: float = 0.6
    same_form: float = 0.35
    average: float = 0.5
    most_tokens: int = 32

    @classmethod
    def from_cosine(cls, cosine: float) -> JoinRules:
        """Return the rules that join words from a cosine on; clusters hold together a tenth below it.

        >>> JoinRules.from_cosine(0.6) == JoinRules()
        True
        """
        return cls(cosine=cosine, average=round(cosine - 0.1, 6))


@dataclass(frozen=True)
class _Form:
    """The tokens that one node of the second step stands for."""

    form: str
    ids: tuple[int, ...]
    token_class: TokenKind
    script: str
    joins: bool


def build_groups(
    pieces: Sequence[bytes],
    special_ids: Collection[int],
    source: RowSource | None,
    rules: JoinRules = JoinRules(),
    report: Report = lambda _: None,
) -> list[tuple[int, ...]]:
    """Return groups of two tokens and more, each in ascending order, the groups by their first token.

    ``pieces``: the bytes of each token; ``special_ids``: those that control or end a text. Without rows tokens are
    joined by their texts alone.
    """
    wordings = {
        token: wording
        for token, piece in enumerate(pieces)
        if token not in special_ids and (wording := normal_form(piece)) is not None
    }
    words = np.array([i for i, each in wordings.items() if each.token_class is TokenKind.WORD], dtype=np.int64)
    known = directions(source, len(pieces), words, report) if source is not None and words.size else None
    forms = list(_forms(wordings, known, rules))
    groups = [form.ids for form in forms if len(form.ids) > 1]
    if known is not None:
        groups = _joined(forms, known, rules, report)
    return sorted(groups)


def _forms(wordings: dict[int, NormalForm], known: Directions | None, rules: JoinRules) -> Iterable[_Form]:
    """Yield the tokens of each form, apart where their directions are."""
    by_form: dict[tuple[TokenKind, str, str], list[int]] = defaultdict(list)
    for token, wording in wordings.items():
        by_form[wording.token_class, wording.script, wording.form].append(token)
    known_words = _known_words(wordings.values())
    for (token_class, script, form), ids in by_form.items():
        parts = _agreeing(ids, known, rules) if token_class is TokenKind.WORD and known is not None else [ids]
        for part in parts:
            of_part = [wordings[token] for token in part]
            long = len(form) >= _LEAST_LETTERS and not _ROMAN.fullmatch(form)
            is_name = all(each.starts_word and each.is_name for each in of_part)
            joins = token_class is TokenKind.WORD and long and (script, form) in known_words and not is_name
            for first in range(0, len(part), rules.most_tokens):
                yield _Form(form, tuple(part[first : first + rules.most_tokens]), token_class, script, joins)


def _known_words(wordings: Collection[NormalForm]) -> set[tuple[str, str]]:
    """Return the forms that are words: spelt after a space, where the vocabulary marks that, and not as names only."""
    starting = any(each.starts_word for each in wordings)
    return {(each.script, each.form) for each in wordings if not each.is_name and (each.starts_word or not starting)}


def _agreeing(ids: Sequence[int], known: Directions, rules: JoinRules) -> list[list[int]]:
    """Split tokens of one form into parts within which each is near another one."""
    rows = known.rows[np.searchsorted(known.ids, ids)]
    near = rows @ rows.T >= rules.same_form
    parts: list[list[int]] = []
    left = list(range(len(ids)))
    while left:
        part = [left.pop(0)]
        frontier = list(part)
        while frontier:
            here = frontier.pop()
            reached = [other for other in left if near[here, other]]
            left = [other for other in left if other not in reached]
            part += reached
            frontier += reached
        parts.append(sorted(ids[i] for i in part))
    return parts


class _Clusters:
    """Forms that are joined one pair after another. The sum of a cluster's vectors gives mean cosines to another."""

    def __init__(self, forms: Sequence[_Form], rows: np.ndarray, rules: JoinRules) -> None:
        self._forms, self._rules = forms, rules
        self._parent = list(range(len(forms)))
        self._members = [[number] for number in range(len(forms))]
        self._sums = rows.astype(np.float64)
        self._sides = [sides_of(form.form) for form in forms]

    def root(self, number: int) -> int:
        while self._parent[number] != number:
            self._parent[number] = self._parent[self._parent[number]]
            number = self._parent[number]
        return number

    def join(self, one: int, other: int) -> None:
        """Join the clusters of two forms where the rules allow it."""
        one, other = self.root(one), self.root(other)
        if one == other or not self._may_join(one, other):
            return
        self._parent[other] = one
        self._members[one] += self._members[other]
        self._sums[one] += self._sums[other]
        self._sides[one] |= self._sides[other]

    def _may_join(self, one: int, other: int) -> bool:
        sizes = [sum(len(self._forms[each].ids) for each in self._members[root]) for root in (one, other)]
        pairs = len(self._members[one]) * len(self._members[other])
        if sum(sizes) > self._rules.most_tokens or self._sums[one] @ self._sums[other] < self._rules.average * pairs:
            return False
        if on_two_sides(self._sides[one], self._sides[other]):
            return False
        forms = [[self._forms[each].form for each in self._members[root]] for root in (one, other)]
        return not any(is_turned(here, there) for here in forms[0] for there in forms[1])

    def groups(self) -> list[tuple[int, ...]]:
        """Return the tokens of each cluster that has two or more."""
        roots = [number for number, parent in enumerate(self._parent) if number == parent]
        found = (sorted(i for each in self._members[root] for i in self._forms[each].ids) for root in roots)
        return [tuple(ids) for ids in found if len(ids) > 1]


def _joined(forms: Sequence[_Form], known: Directions, rules: JoinRules, report: Report) -> list[tuple[int, ...]]:
    """Join forms that are mutual nearest neighbours; return all groups, also of forms that join nothing."""
    joining = [form for form in forms if form.joins]
    groups = [form.ids for form in forms if not form.joins and len(form.ids) > 1]
    if len(joining) < 2:
        return groups + [form.ids for form in joining if len(form.ids) > 1]
    rows = np.stack([known.rows[np.searchsorted(known.ids, form.ids)].mean(axis=0) for form in joining])
    clusters = _Clusters(joining, unit(rows), rules)
    for _, one, other in _mutual(*nearest(unit(rows), rules.neighbours, report), rules.cosine):
        if joining[one].script == joining[other].script:
            clusters.join(one, other)
    return groups + clusters.groups()


def _mutual(found: np.ndarray, cosines: np.ndarray, least: float) -> list[tuple[float, int, int]]:
    """Return pairs of mutual neighbours with their negative cosine, the nearest first."""
    of_each = [set(each) for each in found.tolist()]
    pairs = [
        (-float(cosine), one, other)
        for one, (others, near) in enumerate(zip(found.tolist(), cosines.tolist(), strict=True))
        for other, cosine in zip(others, near, strict=True)
        if one < other and cosine >= least and one in of_each[other]
    ]
    return sorted(pairs)


__all__ = ["JoinRules", "build_groups"]
