"""What labels say of a pair: against sums made by hand."""

from __future__ import annotations

import json
from itertools import groupby

import numpy as np
from bought_texts import questions
from cases import each, each_of

from hybrid.tune.diagnosis import LEVELS, Diagnosis, Quantiles, accepted, runs_of
from hybrid.tune.labels import CERTIFICATES

RNG = np.random.default_rng(3)


@each("share", [0.0, 0.3, 0.9, 1.0])
def test_runs_are_those_that_grouping_finds(share):
    for num in (0, 1, 7, 50):
        mask = RNG.random(num) < share
        assert runs_of(mask).tolist() == [len(list(run)) for found, run in groupby(mask.tolist()) if found]


def test_the_expected_accepted_length_is_that_of_an_enumeration():
    chances = RNG.random(9)
    for drafted in (1, 3, 9):
        by_hand = []
        for start in range(len(chances) - drafted + 1):
            window, expected = chances[start : start + drafted], 0.0
            for accepted_tokens in range(drafted + 1):  # the draft is cut after so many
                cut = 1.0 if accepted_tokens == drafted else 1.0 - window[accepted_tokens]
                expected += accepted_tokens * float(np.prod(window[:accepted_tokens])) * cut
            by_hand.append(expected)
        assert np.allclose(accepted(chances, drafted), by_hand)
    assert accepted(chances, 10).size == 0


def test_places_are_of_drafts_that_were_turned_down_and_shares_of_all():
    found = Diagnosis(questions(20, length=16))
    for judge in ("kl:0.1", "kl:1", "excess:0.5", "kl:1000"):
        told = found.first_rejections(judge)
        places = [(text.first_rejection(judge), len(text)) for text in found.texts]
        turned_down = [(place, num) for place, num in places if place is not None]
        assert told.share == len(turned_down) / 20
        assert sum(told.tenths) == told.offset.count == len(turned_down)
        assert told.tenths[0] == sum(place < num / 10 for place, num in turned_down)
        kept = sum(num if place is None else place for place, num in places)
        assert told.kept_share == kept / (kept + len(turned_down))
    assert told.share == 0.0
    assert told.offset == Quantiles(None, None, 0)


def test_certified_runs_add_up_and_everything_is_json():
    found = Diagnosis(questions(6))
    assert found.positions == sum(len(text) for text in found.texts)
    for rule in each_of(CERTIFICATES):
        told = found.certified(rule)
        lengths = [length for text in found.texts for length in runs_of(text.certified(rule))]
        assert told.share == sum(lengths) / found.positions
        assert told.lengths.count == len(lengths)
        assert told.lengths.values[-1] <= max(lengths)
    data = json.loads(json.dumps(found.to_json(["kl:0.5", "excess:0.5"]), allow_nan=False))
    assert data["tokens"] == found.positions
    assert len(data["measures"]["kl"]["values"]) == len(LEVELS)
    least, most = found.accepted_length(4)
    assert 0.0 < least <= most <= 4.0
    assert [each["judge"] for each in data["first_rejections"]] == ["kl:0.5", "excess:0.5"]
