"""What recorded requests would cost: counted from texts by a second hand, token by token."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.lab.experiments.frame import PRICES, SETTINGS, CountedRequest, cost, counted
from hybrid.lab.experiments.world import RecordedRequest
from hybrid.types import CloudUsage

BY_NAME = {setting.name: setting for setting in SETTINGS}

texts = st.lists(st.sampled_from((7, 8)), min_size=1, max_size=6).map(tuple)
requests = st.one_of(
    st.builds(lambda sent, new: RecordedRequest("write", sent, 0, new, CloudUsage(len(sent), len(new))), texts, texts),
    st.builds(
        lambda sent, num: RecordedRequest("check", sent, min(num, len(sent) - 1), (), CloudUsage(len(sent), 1)),
        texts,
        st.integers(1, 3),
    ),
)
answers = st.lists(requests, max_size=4)


def naive(answer, *, shared, reads, session, cached_price, written_price):
    """Walk along every request: a token is known if an earlier request of the answer began with all up to it."""
    total = 0.0
    for number, request in enumerate(answer):
        earlier = [before.sent + before.written for before in answer[:number]]
        known = [any(text[: i + 1] == request.sent[: i + 1] for text in earlier) for i in range(len(request.sent))]
        if session:
            total += known.count(False) + (written_price * request.usage.completion_tokens * (request.kind == "write"))
            continue
        wanted_from = len(request.sent) - request.num_scored - 1  # the token whose row is wanted first
        for i in range(-shared, len(request.sent)):
            readable = reads[request.kind] and i < wanted_from and (i < 0 or known[i])
            total += cached_price if readable else 1.0
        total += written_price * request.usage.completion_tokens
    return total


@given(answers, st.sampled_from(sorted(BY_NAME)), st.sampled_from(PRICES))
def test_a_bill_is_that_of_a_second_hand_which_walks_along_every_text(answer, name, prices):
    setting = BY_NAME[name]
    expected = naive(
        answer,
        shared={"S": 500, "SU": 500}.get(name, 0),
        reads={"write": True, "check": name in {"C", "S"}},
        session=name == "new",
        cached_price=prices.cached,
        written_price=prices.written,
    )
    assert cost(counted(answer), setting, prices) == pytest.approx(expected)


@given(answers)
def test_what_caches_more_is_never_dearer(answer):
    counts = counted(answer)
    costs = {setting.name: cost(counts, setting, PRICES[0]) for setting in SETTINGS}
    assert costs["new"] <= costs["C"] <= costs["U"]
    assert costs["C"] <= costs["S"] <= costs["SU"]


def test_a_check_of_a_draft_after_what_the_cloud_wrote_pays_for_what_the_cache_cannot_give():
    """Swapping the two orders, or reading the scored tokens from the cache, changes these numbers."""
    wrote = RecordedRequest("write", (1, 2, 3), 0, (4, 5), CloudUsage(3, 2))
    check = RecordedRequest("check", (1, 2, 3, 4, 5, 6, 7), 2, (), CloudUsage(7, 1))
    assert counted([wrote, check])[1] == CountedRequest("check", 7, 2, 5, 1)
    assert counted([check, wrote])[1] == CountedRequest("write", 3, 0, 3, 2)
    alone, after = (cost(counted(each), BY_NAME["C"], PRICES[0]) for each in ([wrote], [wrote, check]))
    assert after - alone == pytest.approx(4 * 0.1 + 3 + 4)
    names = itertools.product(("U", "SU"), (0, 1))
    dear = {(name, i): cost(counted([wrote, check]), BY_NAME[name], PRICES[i]) for name, i in names}
    assert dear["U", 0] == 3 + 8 + 7 + 4
    assert dear["SU", 0] == 50 + 3 + 8 + 500 + 7 + 4
    assert dear["U", 1] == 3 + 16 + 7 + 8
