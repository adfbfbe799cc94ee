"""What is known over concepts joins a score's features, where it was fitted with them; elsewhere nothing changes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from concept_score import concept_score
from critic_score import score_of

from hybrid.defer import Calibration, ConceptNumbers, CriticNumbers, PriorScore, score_from_json, score_to_json
from hybrid.defer.features import (
    CONCEPT_FEATURES,
    CRITIC_FEATURES,
    NUM_IDS,
    TOKEN_FEATURES,
    draft_numbers,
    token_features,
)
from hybrid.defer.signals import CONCEPT_STATISTICS, concept_statistics

NUMBERS = ConceptNumbers(np.array([0.0, 0.9, 0.2]), 0.4)
CRITIC = CriticNumbers(np.array([0.1, 2.0, 0.9]), np.array([-0.1, -3.0, -0.5]))


def test_a_part_of_a_draft_has_the_entropies_of_the_part(make_signals):
    signals = replace(make_signals(1, 3), concepts=NUMBERS)
    assert signals.part(slice(1, 3)).concepts.entropy.tolist() == [0.9, 0.2]
    assert signals.part(slice(1, 3)).concepts.last_divergence == 0.4
    assert make_signals(1, 3).part(slice(1, 3)).concepts is None
    with pytest.raises(ValueError, match="each of its tokens"):
        replace(make_signals(1, 2), concepts=NUMBERS)


@pytest.mark.parametrize("critic", [None, CRITIC])
def test_their_features_stand_beside_the_others_and_move_none(make_signals, critic):
    plain = replace(make_signals(1, 3), critic=critic)
    known = replace(plain, concepts=NUMBERS)
    without, with_them = token_features(plain, 0.3, 0.1), token_features(known, 0.3, 0.1)
    num = len(TOKEN_FEATURES) - NUM_IDS + len(CRITIC_FEATURES) * (critic is not None)
    assert (with_them[:, :num] == without[:, :num]).all()
    assert (with_them[:, -NUM_IDS:] == without[:, -NUM_IDS:]).all()
    told = dict(zip(CONCEPT_FEATURES, with_them[:, num:-NUM_IDS].T.tolist(), strict=True))
    assert told["entropy over concepts"] == [0.0, 0.9, 0.2]
    assert told["entropy within concepts"] == (plain.entropy - NUMBERS.entropy).tolist()
    assert told["highest entropy over concepts so far"] == [0.0, 0.9, 0.9]
    assert told["entropies over concepts so far"] == pytest.approx([0.0, 0.9, 1.1])
    assert told["highest entropy over concepts of the draft"] == [0.9, 0.9, 0.9]
    assert told["last divergence over concepts"] == [0.4, 0.4, 0.4]
    width = 30 + 18 * (critic is not None)
    assert (draft_numbers(plain).shape, draft_numbers(known).shape) == ((1, width), (1, width + 12))


def test_where_nothing_was_measured_before_the_draft_no_divergence_is_told(make_signals):
    known = replace(make_signals(1, 3), concepts=replace(NUMBERS, last_divergence=None))
    assert (token_features(known, 0.3, 0.1)[:, -NUM_IDS - 1] == -1.0).all()


def test_statistics_are_in_their_order_and_those_of_nothing_are_zeros(make_signals):
    signals = make_signals(1, 3)
    told = dict(zip(CONCEPT_STATISTICS, concept_statistics(signals, NUMBERS).tolist(), strict=True))
    assert told["highest entropy over concepts"] == 0.9
    assert told["second highest entropy over concepts"] == 0.2
    assert told["mean entropy over concepts"] == pytest.approx(1.1 / 3)
    assert told["sum of entropies over concepts"] == pytest.approx(1.1)
    assert told["entropies over concepts above 0.1"] == 2
    assert told["sum of entropies within concepts"] == pytest.approx(signals.entropy.sum() - 1.1)
    empty = signals.part(slice(0))
    assert not concept_statistics(empty, NUMBERS.part(slice(0))).any()


def test_a_score_reads_what_it_was_fitted_with_and_passes_over_it_otherwise(make_signals):
    plain = make_signals(1, 3)
    known = replace(plain, concepts=NUMBERS)
    assert (concept_score("p1").forecast(known).hazard > 0.5).tolist() == [False, True, False]
    with pytest.raises(ValueError, match="concepts"):
        concept_score("p1").forecast(plain)
    alone = score_of(None)
    assert alone.forecast(known).hazard.tolist() == alone.forecast(plain).hazard.tolist()
    assert PriorScore("kl:0.7").concepts is None


def test_a_score_keeps_its_partition_through_json(make_signals):
    score, signals = concept_score("p1"), replace(make_signals(1, 3), concepts=NUMBERS)
    again = score_from_json(json.loads(json.dumps(score_to_json(score))))
    assert again.concepts == "p1"
    assert again.forecast(signals).hazard.tolist() == score.forecast(signals).hazard.tolist()
    assert "concepts" not in score_to_json(score_of(None))


def test_files_of_the_versions_before_are_read_and_theirs_is_their_own():
    """A program that knows no concepts would take the columns for others."""
    known = Calibration("a", "b", "kl:0.7", "verdict", 2.2, concept_score("p1"))
    versions = [replace(known, score=score).version for score in (score_of(None), score_of("c1"), concept_score("p1"))]
    assert versions == [1, 2, 3]
    kept = json.loads(json.dumps(known.to_json()))
    assert Calibration.from_json(kept).concepts == "p1"
    for version in (1, 2):
        with pytest.raises(ValueError, match="version"):
            Calibration.from_json({**kept, "version": version})
