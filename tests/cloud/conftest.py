"""The model behind the servers whose replies were recorded."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import hybrid
from hybrid.engine import Cursor
from hybrid.engine.llama import Weights

LARGE = Path(hybrid.__file__).parent / "models" / "large.gguf"


@pytest.fixture(scope="module")
def large():
    """The model that the recorded servers served."""
    if not LARGE.exists():
        pytest.skip("the bundled model large.gguf is not installed")
    with closing(Weights(LARGE)) as weights, closing(weights.context(threads=1)) as engine:
        yield Cursor(engine)
