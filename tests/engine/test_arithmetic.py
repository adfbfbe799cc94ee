"""The tolerance of comparisons between rows is measured here and now, and a wrong token exceeds it."""

from __future__ import annotations

import numpy as np
from arithmetic import LEAST_GAP, LEAST_NATS, MOST_GAP, MOST_NATS, Tolerance, agrees, apart, tolerance
from cases import each

from hybrid.prob import Dense

KINDS = ("bundled", "attention", "recurrent", "hybrid")


def rows(engine, ids):
    engine.rewind(0)
    return [Dense.from_logits(scores) for scores in engine.extend(ids, len(ids))]


@each("kind", KINDS)
def test_a_wrong_token_in_the_prefix_shows_even_at_the_ceiling(opened, kind):
    """Else a tolerance that a noisy machine needs would let a cursor pass that reads another text."""
    widest, seen = Tolerance(MOST_NATS, MOST_GAP), []
    with opened(kind) as engine:
        rng = np.random.default_rng(1)
        for _ in range(5):
            ids = tuple(rng.integers(3, min(engine.num_tokens, 250), 40).tolist())
            wrong = (*ids[:20], ids[20] % 200 + 7, *ids[21:])
            pairs = [*zip(rows(engine, wrong), rows(engine, ids), strict=True)]
            assert all(agrees(*pair, widest) for pair in pairs[:20]), "before it the texts are one"
            seen += [not agrees(*pair, widest) for pair in pairs[21:25]]
    assert len(seen) == 20
    assert np.mean(seen) >= 0.6


def test_what_is_measured_lies_between_the_least_and_the_ceiling():
    found = tolerance()
    assert LEAST_NATS <= found.nats <= MOST_NATS
    assert LEAST_GAP <= found.gap <= MOST_GAP


def test_rows_are_apart_by_the_most_of_the_likely_tokens():
    first, second = (Dense.from_logits(np.log(p)) for p in ([0.6, 0.3999, 1e-4], [0.5, 0.4995, 5e-4]))
    assert np.isclose(apart(first, second), np.log(0.4995 / 0.3999))
    assert agrees(first, second, Tolerance(0.3, 0.1))
    assert not agrees(first, second, Tolerance(0.2, 0.1))
    tie = Dense.from_logits(np.log([0.49, 0.51]))
    assert agrees(tie, Dense.from_logits(np.log([0.51, 0.49])), Tolerance(0.1, 0.05))
    assert not agrees(tie, Dense.from_logits(np.log([0.51, 0.49])), Tolerance(0.1, 0.03))
