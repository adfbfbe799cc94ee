"""Prefix cells against a toy two tokens deep, against tokens of one vocabulary, and their traps."""

from __future__ import annotations

import numpy as np
import pytest
from cases import each_of
from hypothesis import given
from hypothesis import strategies as st

from hybrid.prob import (
    Dense,
    TopK,
    acceptance,
    excess_loss,
    favourite_certificate,
    kl,
    kl_divergence,
    total_variation,
)
from hybrid.prob.cells import LEAST, PrefixRow, TextRow, TokenBytes

seeds = st.integers(0, 2**32 - 1)
OURS = TokenBytes((b"a", b"b", b"ab", b"ba", b"aab", b"<end>"), frozenset({5}))
THEIRS = (b"a", b"b", b"aa", b"bb", b"bab", None)
END = 5


def text_row(masses, ending, tail, spelling, best, read=b""):
    return TextRow.after([PrefixRow(1.0, read, masses, ending, tail)], spelling, best)


def laws(rng, num=6):
    """A first step, and what follows each of its tokens."""
    return rng.dirichlet(np.full(num, 0.5)), rng.dirichlet(np.full(num, 0.5), size=num)


def mass_two_deep(pieces, root, first, second):
    """Sum what begins with some bytes, over all pairs of tokens that are long enough to tell, and what is not told."""
    known = unknown = 0.0
    for i, piece in enumerate(pieces):
        if i == END:
            continue
        if piece.startswith(root):
            known += first[i]
        elif root.startswith(piece):
            for j, following in enumerate(pieces):
                text = piece + (b"" if j == END else following)
                known += first[i] * second[i][j] * text.startswith(root)
                unknown += first[i] * second[i][j] * (j != END and root.startswith(text) and text != root)
    return known, unknown


def row_of(probs, shown=None):
    """The row of the other vocabulary, of which ``shown`` tokens are told."""
    order = np.argsort(-probs)[:shown]
    masses = {THEIRS[i]: float(probs[i]) for i in order if i != END}
    ending = float(probs[END]) if END in order else 0.0
    return text_row(masses, ending, max(0.0, 1.0 - sum(masses.values()) - ending), OURS, best=0)


@given(seeds, st.sampled_from([None, 2, 3]))
def test_cells_are_disjoint_and_their_masses_hold_what_two_steps_give(seed, shown):
    rng = np.random.default_rng(seed)
    (p, p2), (q, q2) = laws(rng), laws(rng)
    cells = row_of(p, shown).cells(Dense.from_probs(q))
    assert not any(a != b and a.startswith(b) for a in cells.roots for b in cells.roots)
    for i, root in each_of(enumerate(cells.roots)):
        for pieces, first, second, low, high in (
            (THEIRS, p, p2, cells.target_low[i], cells.target_high[i]),
            (OURS.pieces, q, q2, cells.draft_low[i], cells.draft_high[i]),
        ):
            known, unknown = mass_two_deep(pieces, root, first, second)
            assert low - 1e-12 <= known + unknown
            assert known <= high + 1e-12
    assert cells.target_low.sum() <= 1 + 1e-9 <= cells.target_high.sum() + 2e-9
    assert cells.draft_low.sum() <= 1 + 1e-9 <= cells.draft_high.sum() + 2e-9


@given(seeds, st.sampled_from([None, 1, 2, 4]))
def test_with_one_vocabulary_the_cells_are_at_most_as_far_apart_as_the_tokens(seed, shown):
    rng = np.random.default_rng(seed)
    p, q = (rng.dirichlet(np.full(6, 0.6)) for _ in range(2))
    order = np.argsort(-p)[:shown]
    masses = {OURS.pieces[i]: float(p[i]) for i in order if i != END}
    ending = float(p[END]) if END in order else 0.0
    row = text_row(masses, ending, max(0.0, 1.0 - sum(masses.values()) - ending), OURS, int(np.argmax(p)))
    draft = Dense.from_probs(q)
    found = kl_divergence(row, draft)
    assert 0.0 <= found.estimate <= found.lower <= kl(Dense.from_probs(p), draft) + 1e-9
    assert found.lower <= found.upper


def test_where_no_token_begins_another_and_all_is_shown_it_is_the_divergence_of_tokens():
    pieces = TokenBytes((b"cat", b"dog", b"emu", b"<end>"), frozenset({3}))
    p, q = np.array([0.5, 0.2, 0.2, 0.1]), np.array([0.1, 0.3, 0.4, 0.2])
    row = text_row({b"cat": 0.5, b"dog": 0.2, b"emu": 0.2}, 0.1, 0.0, pieces, 0)
    found = kl_divergence(row, Dense.from_probs(q))
    assert found.lower == pytest.approx(kl(Dense.from_probs(p), Dense.from_probs(q)), abs=1e-9)
    assert found.upper == pytest.approx(found.lower, abs=1e-9)


def test_equal_strings_are_not_equal_events():
    """``the`` here is ``the`` and ``there`` on the other side: string by string the models would be far apart."""
    pieces = TokenBytes((b"the", b"there", b"x"), frozenset())
    row = text_row({b"the": 0.9, b"x": 0.1}, 0.0, 0.0, pieces, 0)
    found = kl_divergence(row, Dense.from_probs(np.array([0.3, 0.6, 0.1])))
    assert found.lower == pytest.approx(0.0, abs=1e-9)


def test_two_tokens_that_change_places_are_seen():
    """A sorted comparison (ULD) would find nothing."""
    pieces = TokenBytes((b"yes", b"no"), frozenset())
    row = text_row({b"yes": 0.9, b"no": 0.1}, 0.0, 0.0, pieces, 0)
    assert kl_divergence(row, Dense.from_probs(np.array([0.1, 0.9]))).lower > 1.0


def test_inside_a_token_the_row_is_what_goes_on_from_what_was_read():
    row = text_row({b"number": 0.3, b"nut": 0.1, b"nu": 0.2, b"cat": 0.3}, 0.05, 0.05, OURS, 0, read=b"nu")
    assert dict(zip(row.strings, row.masses.tolist(), strict=True)) == pytest.approx(
        {b"mber": 0.3 / 0.65, b"t": 0.1 / 0.65}
    )
    assert row.hidden == pytest.approx(
        0.25 / 0.65
    )  # "nu" itself, after which another row stands, and what is not shown
    assert row.ending == 0.0


def test_a_text_may_have_come_about_by_other_tokens_than_those_it_was_read_in():
    """After ": " a model that writes " -" as one token says "-", whatever it would say after " " alone."""
    before = PrefixRow(1.0, b" ", {b" -": 0.9, b" ": 0.1}, 0.0, 0.0, followed=True)
    there = PrefixRow(0.1, b"", {b"8": 0.95, b"-": 0.05}, 0.0, 0.0)
    row = TextRow.after([before, there], OURS, 0)
    assert dict(zip(row.strings, row.masses.tolist(), strict=True)) == pytest.approx({b"-": 0.905, b"8": 0.095})
    assert row.hidden == 0.0


@given(seeds)
def test_where_a_drafted_token_is_longer_than_theirs_the_texts_are_those_of_two_steps(seed):
    rng = np.random.default_rng(seed)
    first, second = laws(rng)
    masses = {THEIRS[i]: float(first[i]) for i in range(END)}
    after_a = {THEIRS[i]: float(second[0][i]) for i in range(END)}
    row = TextRow.after([PrefixRow(1.0, b"", masses, float(first[END]), 0.0)], OURS, 0, beyond={b"a": after_a})
    two_steps = masses | {b"a": first[0] * second[0][END]}
    for piece, share in after_a.items():
        two_steps[b"a" + piece] = two_steps.get(b"a" + piece, 0.0) + first[0] * share
    found = dict(zip(row.strings, row.masses.tolist(), strict=True))
    assert found == pytest.approx({text: two_steps[text] for text in found}, abs=1e-12)
    assert sum(found.values()) + row.ending == pytest.approx(1.0)


def test_a_text_that_the_target_would_not_write_tells_nothing():
    row = text_row({b"cat": 1.0}, 0.0, 0.0, OURS, 0, read=b"zz")
    assert (row.strings, row.hidden) == ((), 1.0)
    assert kl_divergence(row, Dense.from_probs(np.full(6, 1 / 6))).lower == pytest.approx(0.0, abs=1e-9)


def test_where_neither_model_names_a_string_the_text_ends_or_nothing_is_known():
    """The draft is sure of the end, and the target's row is silent there: no cells but the end and everything else."""
    sure = Dense.from_probs(np.array([0.0, 0.0, 0.0, 0.0, 0.0, 1.0]))
    silent = text_row({b"cat": 1.0}, 0.0, 0.0, OURS, 0, read=b"zz")
    found = kl_divergence(silent, sure)
    assert (found.lower, silent.overlap(sure)) == (pytest.approx(0.0, abs=1e-9), 1.0)
    assert kl_divergence(text_row({}, 1.0, 0.0, OURS, END), sure).upper == pytest.approx(0.0, abs=1e-9)


def test_the_end_of_a_text_is_an_event_of_its_own_whatever_it_is_called():
    row = text_row({b"b": 0.1, b"a": 0.1}, 0.8, 0.0, OURS, END)
    sure = Dense.from_probs(np.array([0.1, 0.1, 0.0, 0.0, 0.0, 0.8]))
    assert kl_divergence(row, sure).lower < 0.15
    assert row.best == END


def test_its_list_for_display_begins_with_the_token_that_the_target_takes():
    row = text_row({b"b": 0.6, b"aab": 0.3}, 0.1, 0.0, OURS, 1)
    assert row.ids.tolist() == [1, 4, 5]
    assert row.probs.tolist() == pytest.approx([0.6, 0.3, 0.1])
    assert isinstance(row.within(3), TopK)


def test_what_the_draft_finds_likely_has_a_cell_of_its_own():
    q = np.array([0.5, 0.2, 0.2, 0.1 - LEAST / 2, LEAST / 2, 0.0])
    cells = row_of(np.array([0.0, 0.5, 0.0, 0.5, 0.0, 0.0])).cells(Dense.from_probs(q))
    assert cells.roots == (b"a", b"b")
    assert cells.draft_low[0] == pytest.approx(0.7 + LEAST / 2)


@given(seeds)
def test_the_overlap_of_cells_is_no_less_than_that_of_the_two_processes(seed):
    rng = np.random.default_rng(seed)
    (p, p2), (q, q2) = laws(rng), laws(rng)
    row, draft = row_of(p), Dense.from_probs(q)
    sides = (THEIRS, p, p2), (OURS.pieces, q, q2)
    roots = row.cells(draft, fine=True).roots
    shared = sum(min(mass_two_deep(pieces, root, *steps)[0] for pieces, *steps in sides) for root in roots)
    assert acceptance(row, draft).upper >= shared - 1e-9
    assert total_variation(row, draft).lower >= 0.0


def test_an_excess_is_what_the_token_it_takes_is_likelier_by():
    row = text_row({b"b": 0.6, b"aab": 0.2, b"a": 0.1}, 0.1, 0.0, OURS, 1)
    assert excess_loss(row, 1).upper == 0.0
    assert excess_loss(row, 0).lower == pytest.approx(np.log(0.6 / 0.3))
    assert excess_loss(row, 4).lower == pytest.approx(np.log(0.6 / 0.3)), "``a`` may go on as ``ab``"
    assert excess_loss(row, 4).upper == pytest.approx(np.log(0.6 / 0.2))
    assert excess_loss(row, END).lower == pytest.approx(np.log(6))
    assert favourite_certificate(row) == 0.0


def test_where_a_model_spells_a_space_by_itself_a_wrong_name_behind_it_is_seen():
    """Coarse cells are blind to it: all that begins with a space is one. Fine ones know, but for that space's mass."""
    words = TokenBytes((b" Paris", b" London", b" ", b"<end>"), frozenset({3}))
    target = TextRow.listed_as(0, (b" ", b" Paris"), np.array([0.02, 0.97]), 0.01, 0.0, words, 0.02)
    wrong, right = (Dense.from_probs(np.array(probs)) for probs in ((0.01, 0.97, 0.01, 0.01), (0.97, 0.01, 0.01, 0.01)))
    assert kl_divergence(target, wrong).lower > 3.0
    assert kl_divergence(target, right).lower < 0.05
    assert kl_divergence(target, Dense(wrong.logits, noise=0.01)).noise == pytest.approx(0.03)
    coarse = target.cells(wrong)
    assert coarse.roots == (b" ",)
    assert coarse.target_low[0] == pytest.approx(coarse.draft_low[0])


def test_an_excess_has_room_for_what_is_hidden_and_for_what_ends_inside_a_token():
    row = TextRow.listed_as(2, (b"ab", b"a", b"b"), np.array([0.5, 0.2, 0.1]), 0.05, 0.15, OURS, 0.01)
    bounds = {0: (0.7, 0.85), 1: (0.1, 0.25), 3: (0.0, 0.25), 4: (0.0, 0.35), END: (0.05, 0.2)}
    least, most = 0.5, 0.85  # of "ab": "a" may go on so
    for token, (low, high) in bounds.items():
        found = excess_loss(row, token)
        assert found.lower == pytest.approx(max(0.0, np.log(least / high))), token
        assert found.upper == pytest.approx(max(0.0, np.log(most / low)) if low else np.inf), token
        assert found.noise == pytest.approx(0.02)
    assert (excess_loss(row, 2).lower, excess_loss(row, 2).upper) == (0.0, 0.0)
