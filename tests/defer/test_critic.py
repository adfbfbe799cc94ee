"""What a critic says joins a score's features, where the score was fitted with one; elsewhere nothing changes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from critic_score import score_of

from hybrid.defer import Calibration, CriticNumbers, UninformedScore, score_from_json, score_to_json
from hybrid.defer.features import CRITIC_FEATURES, NUM_IDS, TOKEN_FEATURES, draft_numbers, token_features
from hybrid.defer.signals import CRITIC_STATISTICS, MOST_KL, critic_statistics
from hybrid.prob import Dense

DRAFTER, CRITIC = Dense.from_probs(np.array([0.9, 0.05, 0.05])), Dense.from_probs(np.array([0.2, 0.2, 0.6]))
NUMBERS = CriticNumbers(np.array([0.1, 2.0, 0.9]), np.array([-0.1, -3.0, -0.5]))


def test_its_divergence_is_under_its_own_law_and_its_surprise_at_the_drafted_token():
    """KL(drafter || critic) would be 1.10, not 1.38."""
    found = CriticNumbers.of_rows([0, 2], [DRAFTER, DRAFTER], [CRITIC, DRAFTER])
    expected = 0.2 * np.log(0.2 / 0.9) + 0.2 * np.log(0.2 / 0.05) + 0.6 * np.log(0.6 / 0.05)
    assert found.kl == pytest.approx([expected, 0.0])
    assert found.logprob == pytest.approx(np.log([0.2, 0.05]))
    with pytest.raises(ValueError, match="zip"):
        CriticNumbers.of_rows([0, 2], [DRAFTER], [CRITIC])


def test_what_one_model_excludes_stays_a_number():
    sure, other = Dense.from_probs(np.array([1.0, 0.0, 0.0])), Dense.from_probs(np.array([0.0, 1.0, 0.0]))
    found = CriticNumbers.of_rows([0], [sure], [other])
    assert (found.kl.tolist(), found.logprob.tolist()) == ([MOST_KL], [-MOST_KL])


def test_a_draft_has_two_numbers_of_each_token_and_a_part_of_it_those_of_the_part(make_signals):
    signals = replace(make_signals(1, 3), critic=NUMBERS)
    part = signals.part(slice(1, 3))
    assert part.tokens.tolist() == signals.tokens[1:].tolist()
    assert part.critic.kl.tolist() == [2.0, 0.9]
    assert part.critic.logprob.tolist() == [-3.0, -0.5]
    assert make_signals(1, 3).part(slice(1, 3)).critic is None
    with pytest.raises(ValueError, match="each token"):
        replace(make_signals(1, 2), critic=NUMBERS)
    with pytest.raises(ValueError, match="two numbers"):
        CriticNumbers(np.zeros(2), np.zeros(3))


def test_features_of_a_critic_stand_beside_the_others_and_move_none(make_signals):
    plain = make_signals(1, 3)
    read = replace(plain, critic=NUMBERS)
    without, with_it = token_features(plain, 0.3, 0.1), token_features(read, 0.3, 0.1)
    num = len(TOKEN_FEATURES) - NUM_IDS
    assert (with_it[:, :num] == without[:, :num]).all()
    assert (with_it[:, -NUM_IDS:] == without[:, -NUM_IDS:]).all()
    told = dict(zip(CRITIC_FEATURES, with_it[:, num:-NUM_IDS].T.tolist(), strict=True))
    assert told["critic's KL"] == [0.1, 2.0, 0.9]
    assert told["highest KL so far"] == [0.1, 2.0, 2.0]
    assert told["KL before"] == [0.0, 0.1, 2.0]
    assert told["KL after"] == [2.0, 0.9, 0.0]
    assert told["surprise to the critic"] == [0.1, 3.0, 0.5]
    assert told["is the highest KL"] == [0.0, 1.0, 0.0]
    assert draft_numbers(plain).shape == (1, 30)
    assert draft_numbers(read).shape == (1, 48)


def test_statistics_of_a_critic_are_in_their_order_and_those_of_nothing_are_zeros():
    numbers = replace(NUMBERS, kl=np.array([0.3, 2.0, 0.9]))
    told = dict(zip(CRITIC_STATISTICS, critic_statistics(numbers).tolist(), strict=True))
    assert told["highest KL"] == 2.0
    assert told["second highest KL"] == 0.9
    assert (told["KLs above 0.1"], told["KLs above 0.7"]) == (3, 2)
    assert told["place of the highest KL"] == pytest.approx(1 / 3)
    assert told["least log-probability to the critic"] == -3.0
    assert not critic_statistics(NUMBERS.part(slice(0))).any()
    assert critic_statistics(NUMBERS.part(slice(1))).shape == (len(CRITIC_STATISTICS),)


def test_a_score_reads_the_critic_that_it_was_fitted_with_and_passes_over_any_other(make_signals):
    plain = make_signals(1, 3)
    read = replace(plain, critic=NUMBERS)
    assert (score_of().forecast(read).hazard > 0.5).tolist() == [False, True, True]
    with pytest.raises(ValueError, match="critic"):
        score_of().forecast(plain)
    alone = score_of(None)
    assert alone.forecast(read).hazard.tolist() == alone.forecast(plain).hazard.tolist()
    assert UninformedScore("kl:0.7").critic is None


@pytest.mark.parametrize("critic", [None, "c1"])
def test_a_score_keeps_its_critic_through_json(make_signals, critic):
    score, signals = score_of(critic), replace(make_signals(1, 3), critic=NUMBERS)
    again = score_from_json(json.loads(json.dumps(score_to_json(score))))
    assert again.critic == critic
    assert again.forecast(signals).hazard.tolist() == score.forecast(signals).hazard.tolist()
    assert ("critic" in score_to_json(score)) == (critic is not None)


def test_a_program_that_knows_no_critic_does_not_believe_a_score_that_was_fitted_with_one():
    """Such a program reads version 1 alone, and would take the columns for others."""
    known = Calibration("a", "b", "kl:0.7", "verdict", 2.2, score_of())
    assert (known.version, replace(known, score=score_of(None)).version) == (2, 1)
    kept = json.loads(json.dumps(known.to_json()))
    assert Calibration.from_json(kept).critic == "c1"
    for version in (1, 3):
        with pytest.raises(ValueError, match="version"):
            Calibration.from_json({**kept, "version": version})


def test_a_score_that_reads_numbers_over_concepts_is_refused_with_what_to_do():
    """Its columns would be taken for others, whatever version its file claims."""
    for version, score in ((1, score_of(None)), (2, score_of()), (3, score_of())):
        kept = Calibration("a", "b", "kl:0.7", "verdict", 2.2, score).to_json()
        with pytest.raises(ValueError, match="over concepts, which no score does any more: hybrid calibrate fits"):
            Calibration.from_json({**kept, "version": version, "score": kept["score"] | {"concepts": "p1"}})
        Calibration.from_json({**kept, "score": kept["score"] | {"concepts": None}})
