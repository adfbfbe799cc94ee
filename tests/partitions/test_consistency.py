"""Two embeddings of the same words: what changes a measure, and what must not."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid.errors import UsageError
from hybrid.partitions.embedding import cka_interval, compare_embeddings, linear_cka, shared_words

NUM, WIDTH = 400, 24
PIECES = [f" {chr(97 + i % 26)}{chr(97 + i // 26)}q".encode() for i in range(NUM)]


class Table:
    def __init__(self, rows):
        self.rows = rows.astype(np.float32)
        self.num_rows, self.width = self.rows.shape

    def read(self, start, stop):
        return self.rows[start:stop]


def naive_cka(first, second):
    """Song et al.'s estimate with the kernels written out, N x N."""

    def hsic(one, other):
        n = one.shape[0]
        k, l = one @ one.T, other @ other.T  # noqa: E741
        np.fill_diagonal(k, 0.0)
        np.fill_diagonal(l, 0.0)
        e = np.ones(n)
        return np.trace(k @ l) + (e @ k @ e) * (e @ l @ e) / ((n - 1) * (n - 2)) - 2 / (n - 2) * (e @ k @ l @ e)

    return hsic(first, second) / np.sqrt(hsic(first, first) * hsic(second, second))


@pytest.fixture
def rows(rng):
    """Words in clusters, as embeddings have them."""
    return rng.normal(size=(40, WIDTH))[np.arange(NUM) % 40] + 0.3 * rng.normal(size=(NUM, WIDTH))


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def compared(first, second, **words):
    return compare_embeddings((Table(first), words.get("a", PIECES)), (Table(second), words.get("b", PIECES)))


def test_it_is_the_estimate_with_the_kernels_written_out(rng):
    first, second = rng.normal(size=(30, 5)) + 3.0, rng.normal(size=(30, 9))
    second[:, :3] += first[:, :3]
    assert linear_cka(first, second) == pytest.approx(naive_cka(first, second), abs=1e-9)


def test_a_rotation_a_shift_and_a_scale_of_all_rows_change_nothing(rows, rng):
    turned = rows @ np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0] * 7.0 + 5.0
    found = compared(rows, turned)
    assert found.cka.value == pytest.approx(1.0, abs=1e-4)
    assert found.overlap.value > 0.999
    assert (found.words, found.shared) == (NUM, NUM)


def test_strangers_have_nothing_in_common_but_chance(rows, rng):
    """A biased estimate would give a sixth of width to words here, 0.06 and more; this one is 0 within its interval."""
    found = compared(rng.normal(size=(NUM, WIDTH)), rng.normal(size=(NUM, 2 * WIDTH)))
    assert found.cka.low < 0.0 < found.cka.high
    assert abs(found.cka.value) < 0.02
    assert found.overlap.low < found.chance + 0.005 < found.overlap.high + 0.01


def test_more_noise_is_less_consistency_in_both_measures(rows, rng):
    found = [compared(rows, rows + scale * rng.normal(size=rows.shape)) for scale in (0.1, 0.5, 2.0)]
    assert [each.cka.value for each in found] == sorted((each.cka.value for each in found), reverse=True)
    assert [each.overlap.value for each in found] == sorted((each.overlap.value for each in found), reverse=True)
    assert found[2].cka.high < found[0].cka.low


@pytest.mark.slow
def test_the_interval_holds_what_many_words_give(rng):
    """200 samples of 100 words: the interval of 95 % misses the value of 20,000 words in 5 to 24 of them at most."""
    mix = rng.normal(size=(6, 6))

    def drawn(num):
        first = rng.normal(size=(num, 6))
        return first, 0.7 * first @ mix + rng.normal(size=(num, 6))

    truth = linear_cka(*drawn(20_000))
    missed = 0
    for _ in range(200):
        first, second = drawn(100)
        found = cka_interval(first, second, rng.permutation(100) % 20)
        missed += not found.low <= truth <= found.high
    assert missed <= 24


def test_words_are_paired_by_their_bytes_whatever_their_ids(rows):
    order = np.random.default_rng(1).permutation(NUM)
    shuffled = [PIECES[i] for i in order]
    found = compared(rows, np.vstack([rows[order], np.ones((2, WIDTH))]), b=[*shuffled, b"7", b" alone"])
    assert found.cka.value == pytest.approx(1.0, abs=1e-4)


def test_shared_words_are_letters_only_and_each_is_there_once():
    first = [b" a b", b"7", b" cat", b"(", b" cat", b" dog", b" not", b"\xff"]
    second = [b" dog", b"7", b"(", b" cat", b"\xff", b" not", b" dog"]
    assert [side.tolist() for side in shared_words(first, second)] == [[2, 5], [3, 0]]


def test_too_few_shared_words_are_refused(rows):
    with pytest.raises(UsageError, match="the two vocabularies share 49 words, and a comparison needs 50"):
        compared(rows, rows, b=[*PIECES[:49], *(b"7" for _ in range(NUM - 49))])
