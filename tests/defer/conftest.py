"""Signals made of random numbers, for laws that hold of any draft."""

import numpy as np
import pytest

from hybrid.defer import DraftSignals


def draw_signals(seed: int, num_tokens: int, shown: int = 0) -> DraftSignals:
    rng = np.random.default_rng(seed)
    top = rng.uniform(0.2, 1.0, num_tokens)
    second = (1 - top) * rng.uniform(0, 1, num_tokens)
    return DraftSignals(
        tuple(sorted({int(bucket) for bucket in rng.integers(0, 4096, 9)})),
        int(rng.integers(5, 900)),
        shown,
        rng.integers(0, 1024, num_tokens),
        rng.exponential(0.3, num_tokens),
        top,
        second,
        np.log(top),
        bool(rng.integers(0, 2)),
        *((float(rng.exponential()), int(rng.integers(0, 30))) if shown else (None, 0)),
    )


@pytest.fixture
def make_signals():
    return draw_signals
