"""Behaviour is what ``write.py`` recorded, byte for byte: scaffolding for work that moves code and changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import each
from frozen_models import answers, calibrations
from frozen_scripted import exchanges, ledgers, monitor, prices, shown
from frozen_text import differences, fingerprint, kept

HERE = Path(__file__).parent
MOST_SHOWN = 8


def alike(file, **found):
    """Hold sections against those of a file; a failure names the items, each with its first line that differs."""
    told = list(differences({name: kept(HERE / file)[name] for name in found}, found))
    more = [f"and {len(told) - MOST_SHOWN} items more"] if len(told) > MOST_SHOWN else []
    assert not told, "\n".join(["another behaviour than was recorded", *told[:MOST_SHOWN], *more])


def same_machine(file):
    here, there = fingerprint(), kept(HERE / file)["machine"]["fingerprint"]
    if here != there:
        pytest.skip(f"recorded where rows have other last digits: {there}, here {here}")


def test_a_difference_is_told_by_its_item_and_its_first_line():
    stored = {"a": {"x": "1\n2\n3", "y": "1", "gone": "1"}, "elsewhere": {}}
    assert not list(differences(stored, stored))
    told = list(differences(stored, {"a": {"x": "1\n5\n4", "y": "1", "new": "1"}}))
    assert told == ["a, gone: no longer there", "a, new: not recorded", "a, x, line 2:\n  recorded 2\n  now      5"]


@each("section", [exchanges, ledgers, prices])
def test_exchanges_ledgers_and_prices_are_as_recorded(section):
    alike("scripted.xz", **{section.__name__: section()})


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
