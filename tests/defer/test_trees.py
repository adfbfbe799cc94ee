"""Trees in numpy held against a walk node by node, and against the library that fits them."""

import json
from dataclasses import replace

import numpy as np
import pytest

from hybrid.defer.learned import BoostedTrees


def draw_trees(seed, num_trees=5, num_features=3, depth=4):
    """Random trees, grown from their roots; some branches end early."""
    rng = np.random.default_rng(seed)
    roots, feature, number, left, right = [], [], [], [], []

    def grow(levels):
        own = len(feature)
        feature.append(int(rng.integers(num_features)))
        number.append(float(rng.normal()))
        left.append(own)
        right.append(own)
        if levels == depth or (levels and rng.random() < 0.8):
            left[own] = grow(levels - 1)
            right[own] = grow(levels - 1)
        return own

    roots.extend(grow(depth) for _ in range(num_trees))
    ints = (np.array(each, dtype=np.int64) for each in (roots, feature))
    return BoostedTrees(0.25, num_features, *ints, np.array(number), np.array(left), np.array(right))


def naive_log_odds(trees, row):
    total = trees.start
    for root in trees.roots:
        node = root
        while trees.left[node] != node:
            node = (trees.left if row[trees.feature[node]] <= trees.number[node] else trees.right)[node]
        total += trees.number[node]
    return total


@pytest.mark.parametrize("seed", range(5))
def test_every_row_reaches_the_leaf_that_a_walk_reaches(seed):
    trees = draw_trees(seed)
    rows = np.random.default_rng(seed).normal(size=(40, 3))
    rows[:3, 0] = trees.number[trees.roots[:3]]  # on the border the walk goes left
    assert trees.log_odds(rows) == pytest.approx([naive_log_odds(trees, row) for row in rows], abs=1e-12)
    assert trees.log_odds(rows[:0]).shape == (0,)


def test_a_row_has_the_same_log_odds_alone_and_among_others():
    """To the last bit: a draft that is read again in other pieces must decide the same."""
    trees, rows = draw_trees(1), np.random.default_rng(1).normal(size=(33, 3))
    assert list(trees.log_odds(rows)) == [trees.log_odds(row[None])[0] for row in rows]


def test_trees_are_read_as_they_were_written_to_the_last_bit():
    trees, rows = draw_trees(2), np.random.default_rng(2).normal(size=(20, 3))
    again = BoostedTrees.from_json(json.loads(json.dumps(trees.to_json())))
    assert list(again.log_odds(rows)) == list(trees.log_odds(rows))
    assert again.to_json() == trees.to_json()


def test_a_file_that_would_walk_for_ever_or_leave_its_arrays_is_refused():
    trees = draw_trees(3)
    back = trees.left.copy()
    back[back[0]] = 0
    for change in (
        {"left": back},
        {"left": trees.left + len(trees.left)},
        {"roots": trees.roots - 1},
        {"feature": trees.feature + 3},
        {"number": trees.number[:-1]},
    ):
        with pytest.raises(ValueError, match="tree"):
            replace(trees, **change)
    damaged = {
        **trees.to_json(),
        "number": BoostedTrees.to_json(replace(trees, number=trees.number * np.inf))["number"],
    }
    with pytest.raises(ValueError, match="number that is none"):
        BoostedTrees.from_json(damaged)
