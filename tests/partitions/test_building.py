"""Groups from texts and rows whose neighbours are known."""

from __future__ import annotations

import numpy as np
import pytest
from cases import each_of
from hypothesis import given
from hypothesis import strategies as st

from hybrid.partitions.building import JoinRules, build_groups
from hybrid.partitions.normal_form import normal_form

WIDTH = 48
MEANINGS = {
    "large": [" big", " large", " Large", "large"],
    "quick": [" quick", " fast"],
    "more": [" more", " less"],  # one direction, two sides
    "can": [" possible", " impossible"],
    "number": ["7", " 7", "8"],
    "no": [" not", " Not", " never"],
    "sign": ["(", "[", "{"],
    "quote": ['"', " \u201c"],
    "name": [" Anna", " Carl"],
    "first": ["Emil", "Hugo"],
    "also words": [" Bill", " Jack"],  # other rows than " bill" and " jack"
    "piece": ["ing", "ings"],
    "why": [" as", " because", " since"],
    "hence": ["so", "thus"],  # at the beginning of a text; after a space they have other rows
    "end": ["<end>", " END"],
}
STRANGERS = [" so", " thus", " bill", " jack", " Emil", " Hugo", *(f" word{chr(97 + i)}" for i in range(26))]
PIECES = [text.encode() for texts in [*MEANINGS.values(), STRANGERS] for text in texts]
END = {PIECES.index(b"<end>"), PIECES.index(b" END")}


class Table:
    """Rows of a table, as a model file gives them."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows.astype(np.float32)
        self.num_rows, self.width = self.rows.shape

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.rows[start:stop]


@pytest.fixture(scope="module")
def table():
    """Each meaning has a direction; its words lie close to it. All rows share a large mean and a strong component."""
    rng = np.random.default_rng(3)
    rows = [
        2.0 * direction + 0.2 * rng.normal(size=WIDTH)
        for texts in MEANINGS.values()
        for direction in [rng.normal(size=WIDTH)]
        for _ in texts
    ]
    rows += [2.0 * rng.normal(size=WIDTH) for _ in STRANGERS]
    common = rng.normal(size=(4, WIDTH))
    strength = rng.normal(size=(len(rows), 3)) * 20
    return Table(np.array(rows) + 30 * common[0] + strength @ common[1:])


def texts(groups):
    return {frozenset(PIECES[token].decode() for token in group) for group in groups}


def test_neighbours_with_one_meaning_are_one_concept_and_nothing_else_is(table):
    assert texts(build_groups(PIECES, END, table)) == {
        frozenset({" big", " large", " Large", "large"}),
        frozenset({" quick", " fast"}),
        frozenset({" as", " because", " since"}),
        frozenset({"so", "thus"}),
        frozenset({'"', " \u201c"}),
    }


def test_without_rows_spellings_alone_are_joined():
    spellings = [(" large", " Large", "large"), ('"', " \u201c"), (" so", "so"), (" thus", "thus")]
    spellings += [(" Bill", " bill"), (" Jack", " jack"), (" Emil", "Emil"), (" Hugo", "Hugo")]
    assert texts(build_groups(PIECES, END, None)) == set(map(frozenset, spellings))


def test_one_spelling_with_two_meanings_is_two_concepts():
    """ " US" and " us" are one form; their directions tell them apart."""
    rng = np.random.default_rng(0)
    country, people = rng.normal(size=(2, WIDTH))
    pieces = [b" US", b" USA", b" us", b"us", *(f" w{chr(97 + i)}q".encode() for i in range(26))]
    rows = np.vstack([country, country, people, people + 0.1, *rng.normal(size=(26, WIDTH))])
    assert build_groups(pieces, set(), Table(rows)) == [(2, 3)]


def test_a_roman_number_joins_no_other_word():
    rng = np.random.default_rng(0)
    pieces = [b" iv", b" vii", b" big", b" large", *(f" w{chr(97 + i)}q".encode() for i in range(26))]
    same = rng.normal(size=(2, WIDTH))
    rows = np.vstack([same[0], same[0], same[1], same[1], *rng.normal(size=(26, WIDTH))])
    assert build_groups(pieces, set(), Table(rows)) == [(2, 3)]


def test_a_form_with_many_spellings_is_cut_where_a_group_is_full():
    cases = ["word", "Word", "WORD", "wORD", "woRD", "worD", "WOrd"]
    assert build_groups([each.encode() for each in cases], set(), None, JoinRules(most_tokens=3)) == [
        (0, 1, 2),
        (3, 4, 5),
    ]


def test_a_neighbour_that_has_nearer_neighbours_is_not_joined():
    """The middle word is nearest to the first and to the last; of the two it is nearer to the last."""
    rng = np.random.default_rng(2)
    axes = np.linalg.qr(rng.normal(size=(99, 99)))[0]
    common = rng.normal(size=(60, 3)) * 30 @ axes[90:93]
    first, middle, last = axes[0], 0.8 * axes[0] + 0.6 * axes[1], 0.78 * axes[0] + 0.59 * axes[1] + 0.2 * axes[2]
    rows = Table(np.vstack([first, middle, last, axes[3:60]]) + common)
    pieces = [f" {chr(97 + i % 26)}{chr(97 + i // 26)}zz".encode() for i in range(60)]
    assert build_groups(pieces, set(), rows, JoinRules(neighbours=1)) == [(1, 2)]
    assert build_groups(pieces, set(), rows, JoinRules(neighbours=2)) == [(0, 1, 2)]


def test_a_padded_matrix_and_a_row_that_is_no_number_change_nothing_else(table):
    padded = Table(np.vstack([table.rows, np.full((7, WIDTH), 1e4)]))
    assert build_groups(PIECES, END, padded) == build_groups(PIECES, END, table)
    broken = table.rows.copy()
    broken[-1, 3] = np.nan
    assert texts(build_groups(PIECES, END, Table(broken))) == texts(build_groups(PIECES, END, table))


@pytest.mark.slow
def test_a_chain_of_neighbours_is_not_one_concept():
    """Each is near the next one (cos .8), the first and the last are not: single linkage joins all twelve."""
    rng = np.random.default_rng(5)
    axes = np.linalg.qr(rng.normal(size=(300, 300)))[0]
    chain = [axes[0]]
    for axis in axes[1:12]:
        chain.append(0.8 * chain[-1] + 0.6 * axis)
    common = rng.normal(size=(292, 3)) * 30 @ axes[292:295]  # what is removed, so that the chain is not
    rows = Table(np.vstack([chain, axes[12:292]]) + common)
    pieces = [f" {chr(97 + i % 26)}{chr(97 + i // 26)}zz".encode() for i in range(292)]
    single = JoinRules(average=-1.0)
    assert max(map(len, build_groups(pieces, set(), rows, single))) == 12
    assert max(map(len, build_groups(pieces, set(), rows))) <= 6


KINDS = """ big| Big|big| large| small| not|n't|7| 12|(| +|"|\u201d| |\n|\n\n|a| A| one| two| happy| unhappy|=|ing"""
WORDS = st.sampled_from([*KINDS.split("|"), " \u043a\u043e\u0442", "\u00b2"])


@given(st.lists(WORDS, min_size=2, max_size=24, unique=True), st.integers(0, 2**31), st.integers(2, 6), st.booleans())
def test_the_laws_hold_however_near_everything_is(words, seed, most, all_near):
    """Rows that are all alike would merge everything, if texts did not forbid it."""
    pieces = [word.encode() for word in words]
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(len(words), 8)) * (0.01 if all_near else 1.0) + rng.normal(size=8)
    special = {int(rng.integers(len(words)))}
    groups = build_groups(
        pieces, special, Table(rows), JoinRules(cosine=-1.0, same_form=-1.0, average=-1.0, most_tokens=most)
    )
    flat = [token for group in groups for token in group]
    assert len(flat) == len(set(flat))
    assert groups == sorted(groups)
    for group in each_of(groups, least=0):
        said = [normal_form(pieces[token]) for token in group]
        assert 2 <= len(group) <= most
        assert not special & set(group)
        assert None not in said
        assert len({(each.token_class, each.script) for each in said}) == 1
        assert not {"one", "two"} <= {each.form for each in said}
        assert not {"happy", "unhappy"} <= {each.form for each in said}
