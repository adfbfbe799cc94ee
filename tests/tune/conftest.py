"""The client over scripted models that ``tests/run`` has, and questions for it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from runpy import run_path

import pytest

_RUN = run_path(str(Path(__file__).parent.parent / "run" / "conftest.py"))
house, run, SMALL, LARGE, END = (_RUN[name] for name in ("house", "run", "SMALL", "LARGE", "END"))
PAIR = ("local", "http://scripted", "scripted")


@pytest.fixture
def label_file(tmp_path):
    """Open the pair's file; what a test has left open is closed."""
    from hybrid.tune.label_file import LabelFile, PairNames

    opened = []

    def build(path=tmp_path / "labels" / "pair.jsonl"):
        opened.append(LabelFile(path, PairNames(*PAIR)))
        return opened[-1]

    yield build
    for file in opened:
        with suppress(OSError):  # the test has closed it
            file.close()
