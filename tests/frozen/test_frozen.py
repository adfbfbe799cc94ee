"""Behaviour is what ``write.py`` recorded, byte for byte: scaffolding for work that moves code and changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from frozen_models import answers, calibrations
from frozen_scripted import events, exchanges, ledgers, monitor, prices, shown
from frozen_text import compared, differences, fingerprint, is_of_this_machine, kept, without_numbers

HERE = Path(__file__).parent
MOST_SHOWN = 4


def alike(file, **found):
    """Hold sections against those of a file; a failure names items, each with its first line that differs."""
    lines = []
    for name, section in found.items():
        told = compared(HERE / file, {name: section})
        lines += [*told[:MOST_SHOWN], *[f"{name}: {len(told)} of {len(section)} items differ"] * bool(told)]
    if lines:
        pytest.fail("\n".join([*lines, "python tests/frozen/write.py --compare tells all"]), pytrace=False)


def same_machine(file):
    if not is_of_this_machine(stored := kept(HERE / file)):
        there = stored["machine"]["fingerprint"]
        pytest.skip(f"recorded where rows have other last digits: {there}, here {fingerprint()}")


def test_a_difference_is_told_by_its_item_and_its_first_line():
    stored = {"a": {"x": "1\n2\n3", "y": "1", "gone": "1"}, "elsewhere": {}}
    assert not list(differences(stored, stored))
    told = list(differences(stored, {"a": {"x": "1\n5\n4", "y": "1", "new": "1"}}))
    assert told == ["a, gone: no longer there", "a, new: not recorded", "a, x, line 2:\n  recorded 2\n  now      5"]
    near, far = ({"a": {"x": f"KL {nats} nats, 2 tokens"}} for nats in ("0.17006229", "1.5e-07"))
    assert list(differences(near, far))
    assert without_numbers(near) == without_numbers(far) == {"a": {"x": "KL ~ nats, 2 tokens"}}


def test_exchanges_events_ledgers_and_prices_are_as_recorded():
    alike("scripted.xz", exchanges=exchanges(), events=events(), ledgers=ledgers(), prices=prices())


def test_what_is_shown_of_recorded_answers_is_as_recorded():
    traces = kept(HERE / "traces.xz")["traces"]
    alike("scripted.xz", monitor=monitor(traces), shown=shown(traces))


@pytest.mark.slow
def test_answers_of_the_bundled_models_are_as_recorded():
    same_machine("models.xz")
    alike("models.xz", answers=answers())


@pytest.mark.slow
def test_calibrations_of_the_bundled_pair_are_as_recorded():
    same_machine("models.xz")
    alike("models.xz", calibrations=calibrations())
