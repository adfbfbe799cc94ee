"""Signals are a function of text and rows."""

import numpy as np
import pytest

from hybrid.defer import STATISTICS, DraftSignals, statistics
from hybrid.prob import Dense


def naive_statistics(signals):
    """The same numbers from plain lists."""
    entropy, n = list(signals.entropy), len(signals.tokens)
    falling = [*sorted(entropy, reverse=True), 0.0, 0.0][:3]
    margins = [*sorted(a - b for a, b in zip(signals.top, signals.second, strict=True)), 1.0][:2]
    logs = [max(-50.0, each) for each in signals.logprob]
    return [
        *falling,
        sum(entropy) / n,
        sum(entropy),
        entropy[0],
        *margins,
        len([h for h in entropy if h > 0.1]),
        len([h for h in entropy if h > 0.5]),
        n,
        entropy.index(max(entropy)) / n,
        sum(logs),
        sum(logs) / n,
        signals.prompt_tokens,
    ]


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 40])
def test_the_statistics_are_the_naive_ones(make_signals, num_tokens):
    signals = make_signals(num_tokens, num_tokens)
    assert statistics(signals) == pytest.approx(naive_statistics(signals), abs=1e-12)
    assert len(STATISTICS) == 15 == len(set(STATISTICS))


def test_an_empty_draft_and_an_impossible_token_have_finite_statistics(make_signals):
    empty = statistics(make_signals(1, 0))
    assert list(empty[:14]) == [0.0] * 14
    point = Dense.from_probs(np.array([1.0, 0.0]))
    forced = DraftSignals.of_rows((), 3, 0, [1], [point], ended=False)
    assert forced.logprob[0] == -np.inf
    assert np.isfinite(statistics(forced)).all()


def test_the_numbers_of_a_row_are_the_distributions_own():
    probs = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
    signals = DraftSignals.of_rows((7,), 11, 2, [1, 2], [Dense.from_probs(row) for row in probs], ended=True)
    assert signals.entropy == pytest.approx(-(probs * np.log(probs)).sum(axis=1))
    assert signals.top == pytest.approx([0.5, 0.7])
    assert signals.second == pytest.approx([0.3, 0.2])
    assert signals.logprob == pytest.approx(np.log([0.3, 0.7]))
    assert (signals.words, signals.prompt_tokens, signals.shown, signals.ended) == ((7,), 11, 2, True)


def test_a_draft_without_a_row_for_each_token_is_none():
    with pytest.raises(ValueError, match="argument 2 is longer"):
        DraftSignals.of_rows((), 1, 0, [0, 0], [Dense.from_probs(np.array([0.5, 0.5]))] * 3, ended=False)
    with pytest.raises(ValueError, match="one row for each"):
        DraftSignals((), 1, 0, np.zeros(2, dtype=np.int64), *[np.zeros(3)] * 4, ended=False)
