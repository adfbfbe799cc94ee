"""The shared cache: the longest prefix of whole blocks that was computed under its salt, as comparing finds it."""

from __future__ import annotations

from cases import each
from hypothesis import given
from hypothesis import strategies as st

from hybrid.engine import num_shared
from server_stub.slots import PrefixCache

IDS = st.lists(st.integers(0, 1), max_size=20).map(tuple)
SALTED = st.tuples(IDS, st.sampled_from([None, "mine"]))


@given(added=st.lists(SALTED, max_size=6), asked=SALTED, block=st.integers(1, 5))
def test_what_is_found_is_what_comparing_with_everything_finds(added, asked, block):
    cache, (ids, salt) = PrefixCache(block), asked
    for one in added:
        cache.add(*one)
    shared = max((num_shared(other, ids) for other, its in added if its == salt), default=0)
    assert cache.longest(ids, salt) == shared - shared % block


def test_blocks_are_told_from_each_other_by_what_stands_before_them():
    cache = PrefixCache(2)
    cache.add((1, 2, 3, 4), None)
    assert cache.longest((5, 6, 3, 4), None) == 0
    assert cache.longest((3, 4), None) == 0


@each("block", [1, 3])
def test_the_least_recently_used_goes_first_and_tails_before_heads(block):
    cache = PrefixCache(block, capacity=12)
    old, new, third = ((n,) * 6 for n in range(3))
    cache.add(old, None)
    cache.add(new, None)
    assert cache.longest(old, None) == 6
    cache.add(third[:3], None)
    assert (cache.longest(old, None), cache.longest(third, None)) == (6, 3)
    assert cache.longest(new, None) == 3
