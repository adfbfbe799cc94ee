"""What is decoded ahead changes nothing but the time: text, divergences, requests and bill, to the last bit.

The engine here is pickier than llama.cpp: its scores depend on which tokens were decoded together, so a row that was
read along another way is another row. The cloud waits until a chosen number of tokens has been decoded ahead.
"""

from __future__ import annotations

import pytest
from cases import each_of
from picky_house import MAX_TOKENS, answer, gather, picky_house

from hybrid.policy import PRESETS, choices_without_effect
from hybrid.run import SpanDrafted

__all__ = ["answer", "picky_house"]
# Numbers that are a share or a chance end at 1.
BOUNDED = {"random", "u-hlm", "relaxed", "cascade"}
# Decide by the seed where no token is drawn.
TOSSES = {"auto", "random"}
# What draws, drops and hands over in other ways than the rest; the others differ from these by a judge's arithmetic.
WHOLE = {"kl", "doubt", "greedy-exact", "paper", "exact", "u-hlm"}
ALL = [
    {"policy": name, "span": span, "threshold": threshold, "entropy": 0.9, "temperature": temperature, "lead": 1}
    for name in PRESETS
    for span in (1, 4)
    for threshold in (0.05, 1.0 if name in BOUNDED else float("inf"))
    for temperature in (0.0, 1.0)
    if not (name == "greedy-exact" and temperature)
]


def acting(choices):
    """What of them changes anything: 34 of the 140 say the same as another."""
    return tuple(item for item in choices.items() if item[0] not in choices_without_effect(choices["policy"], choices))


EVERY = list({acting(choices): choices for choices in reversed(ALL)}.values())[::-1]
# By default one of each kind; all of them among the slow tests.
FEW = [
    c
    for c in EVERY
    if c["policy"] in WHOLE and c["span"] == 4 and c["threshold"] == 0.05
    if c["temperature"] or c["policy"] in {"kl", "greedy-exact"}
]
REST = [choices for choices in EVERY if choices not in FEW]


@pytest.mark.slow
@pytest.mark.timeout(600)  # many inputs in one case
@pytest.mark.parametrize("inputs", [FEW, REST], ids=["few", "rest"])
def test_overlap_changes_no_text_no_number_no_request_and_no_bill(answer, inputs):
    for choices in each_of(inputs):
        for seed in each_of(range(2 if choices["temperature"] or choices["policy"] in TOSSES else 1)):
            expected, none, _ = answer(None, seed=seed, **choices)
            assert none == 0, choices
            for num_ahead in (0, 1, 3, 99):
                got, _, _ = answer(num_ahead, seed=seed, **choices)
                assert got == expected, (choices, seed, num_ahead)


def test_a_kept_span_finds_its_successor_decoded(answer):
    """At an infinite threshold every check is kept: all but the first span are ready when they are wanted."""
    told, ready, h = answer(99, policy="kl", span=4, threshold=float("inf"))
    tokens = told[2]
    assert ready >= len(tokens) - 2 * 4
    assert h.engine.num_decoded < 3 + len(tokens) + 2 * 5, "nothing is decoded twice"


def test_the_longer_span_after_one_that_is_kept_is_ready_too(house, picky_house, run):
    """A span of 16 is followed by one of 32: so many are decoded ahead, and not 16 again."""
    h = picky_house(99, small=house().tables[1])
    events = run(gather(h.client, policy="greedy-exact", max_tokens=60))
    first, second = (event for event in events if isinstance(event, SpanDrafted) and event.position < 20)
    assert len(first.ids) == 16
    assert len(second.ids) >= second.num_ready > 17


def test_a_bonus_that_was_foreseen_is_ready_too(house, picky_house, run):
    """The token that the cloud gives after a kept span is the local model's own next one where they agree."""
    h = picky_house(99, small=house().tables[1])
    events = run(gather(h.client, policy="greedy-exact", span=3, max_tokens=MAX_TOKENS))
    assert sum(event.num_ready for event in events if isinstance(event, SpanDrafted)) > 0


def test_nothing_is_decoded_ahead_where_rewinding_would_read_the_prefix_again(picky_house, run):
    h = picky_house(99)
    h.engine.has_exact_rewind = False
    events = run(gather(h.client, policy="kl", span=4, threshold=float("inf"), max_tokens=MAX_TOKENS))
    assert all(event.num_ready == 0 for event in events if isinstance(event, SpanDrafted))


def test_nothing_is_decoded_beyond_an_end_token(picky_house, run):
    """The end token itself is drafted and judged, but nobody reads on from it."""
    h = picky_house(99, small=lambda prefix: [0, 9, 0, 0, 0, 0, 0, 0 if len(prefix) < 8 else 99])
    events = run(gather(h.client, policy="kl", span=4, threshold=float("inf"), max_tokens=MAX_TOKENS))
    assert (len(events[-1].answer.tokens), events[-1].answer.finish_reason) == (5, "stop")
    assert h.engine.num_decoded == 3 + 5


def test_rows_are_let_go_of_once_they_are_behind(picky_house, run):
    """A row is as long as the vocabulary: an answer may not keep all of its own."""
    h = picky_house(99)
    run(gather(h.client, policy="kl", span=2, threshold=float("inf"), max_tokens=MAX_TOKENS))
    assert len(h.client._contexts.pool.free[0].cursor._rows) <= 2 * (2 + 1) + 1


def test_rows_are_let_go_of_while_the_cloud_writes(picky_house, run):
    """Read along, a long hand-off brings a row for every token."""
    h = picky_house(99)
    events = run(gather(h.client, policy="doubt", entropy=0, threshold=0, max_tokens=MAX_TOKENS))
    assert events[-1].answer.usage.cloud_tokens == len(events[-1].answer.tokens) >= 6
    assert len(h.client._contexts.pool.free[0].cursor._rows) <= 1


def test_nothing_is_ready_where_nothing_was_decoded_ahead(house, run):
    """Not even where an earlier answer to the same question left its tokens in the cache."""
    h = house()
    for choices in ({"policy": "local"}, {"policy": "kl", "overlap": False, "threshold": float("inf")}):
        for _ in range(2):
            events = run(gather(h.client, max_tokens=MAX_TOKENS, **choices))
            assert all(event.num_ready == 0 for event in events if isinstance(event, SpanDrafted))


def test_nothing_is_decoded_ahead_of_an_answer_that_has_no_more_room(picky_house, run):
    h = picky_house(99)
    run(gather(h.client, policy="kl", span=4, threshold=float("inf"), max_tokens=4))
    assert h.engine.num_decoded <= 3 + 4 + 1
