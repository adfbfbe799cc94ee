"""The comparisons that ``tests/bench`` makes by hand, for what shows them."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

_BENCH = run_path(str(Path(__file__).parent.parent / "bench" / "conftest.py"))
answer, compared = _BENCH["answer"], _BENCH["compared"]
