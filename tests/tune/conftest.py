"""The client over scripted models that ``tests/run`` has, and questions for it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from scripted_house import END, LARGE, SMALL, house, run

__all__ = ["END", "LARGE", "SMALL", "house", "run"]

PAIR = ("local", "http://scripted", "scripted")


@pytest.fixture
def label_file(tmp_path):
    """Open the pair's file; what a test has left open is closed."""
    from hybrid.tune.buying import LabelFile, PairNames

    opened = []

    def build(path=tmp_path / "labels" / "pair.jsonl"):
        opened.append(LabelFile(path, PairNames(*PAIR)))
        return opened[-1]

    yield build
    for file in opened:
        with suppress(OSError):  # the test has closed it
            file.close()
