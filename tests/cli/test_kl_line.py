"""The line of divergence: unknown is a gap, and the upper half is what is above the threshold."""

from __future__ import annotations

import math

from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st

from hybrid.cli.chat import BARS, BEYOND, GAP, HALF, LEFT, RIGHT, kl_line, threshold_of
from hybrid.record.answer import Token
from hybrid.run.composition import policy_of
from hybrid.settings.config import Settings
from hybrid.types import Divergence

NATS = st.one_of(st.none(), st.floats(0.0, 40.0), st.just(math.inf))
THRESHOLDS = st.one_of(st.none(), st.floats(0.0, 5.0), st.just(math.inf))


def token(nats):
    kl = None if nats is None else Divergence(nats, nats, nats, 0.0)
    return Token(0, "a", "local", "unchecked", kl=kl)


def drawn(known, threshold, width=400):
    line = kl_line([token(nats) for nats in known], threshold, width)
    return line, line.plain.partition(LEFT)[2].partition(RIGHT)[0]


@given(
    st.lists(NATS, min_size=1, max_size=30).filter(lambda known: any(each is not None for each in known)), THRESHOLDS
)
def test_each_token_is_a_bar_by_its_threshold_or_a_gap(known, threshold):
    line, bars = drawn(known, threshold)
    assert len(bars) == len(known)
    for nats, bar in each_of(zip(known, bars, strict=True)):
        assert (bar == GAP) == (nats is None), "unknown is not zero"
        if nats is not None and threshold is not None and threshold < math.inf:
            assert (bar in BARS[HALF:]) == (nats > threshold)
    beyond = [] if threshold is None else [i for i, nats in enumerate(known) if nats is not None and nats > threshold]
    marked = {i for span in line.spans if span.style == BEYOND for i in range(span.start, span.end)}
    assert marked == {len(LEFT) + i for i in beyond}


@given(st.lists(NATS, min_size=2, max_size=200).filter(lambda known: any(each is not None for each in known)))
def test_where_tokens_share_a_column_the_largest_is_drawn_and_the_line_fits(known):
    _, bars = drawn(known, 0.5, width=40)
    assert len(LEFT) + len(bars) + len(RIGHT) <= 40
    step = math.ceil(len(known) / (40 - len(LEFT) - len(RIGHT)))
    for column, bar in each_of(enumerate(bars)):
        here = [nats for nats in known[column * step : (column + 1) * step] if nats is not None]
        assert bar == (drawn([max(here)], 0.5)[1] if here else GAP)


def test_more_is_drawn_no_lower():
    heights = [BARS.index(drawn([nats / 100], 0.5)[1]) for nats in range(120)]
    assert heights == sorted(heights)
    assert (heights[0], heights[50], heights[51], heights[-1]) == (0, HALF - 1, HALF, len(BARS) - 1)


def test_what_was_not_measured_at_all_is_said_in_words():
    assert kl_line([token(None)] * 3, 0.5, 80).plain == "KL: none of 3 tokens was measured"


def test_the_words_say_how_many_were_measured_and_where_most(monkeypatch):
    line, _ = drawn([0.1, None, 0.7, 0.2], 0.5)
    assert line.plain.endswith("3 of 4 tokens measured, most 0.7 nats at token 3, threshold 0.5")
    assert "\n" not in line.plain
    narrow, _ = drawn([0.1, None, 0.7, 0.2], 0.5, width=30)
    assert narrow.plain.splitlines()[1].startswith("3 of 4")


@each(
    "policy, threshold",
    [("kl:0.2", 0.2), ("doubt:0.03", 0.03), ("paper:inf", math.inf), ("excess:1", None), ("local", None)],
)
def test_the_threshold_is_the_one_that_the_policy_decides_by(policy, threshold):
    assert threshold_of(str(policy_of(Settings(policy=policy)))) == threshold
