"""What a study's records depend on beside its questions: kept concepts, and what was fitted with a critic."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
from cases import each_of
from study_records import KL, design

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.engine.identity import identify
from hybrid.engine.vocabulary import VocabularyFile
from hybrid.errors import UsageError
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.frame import ask_prices
from hybrid.lab.experiments.grid import ModelPair
from hybrid.lab.experiments.peers import calibrated_planner
from hybrid.lab.study.answers import answers_grids
from hybrid.pairs.store import calibration_for
from hybrid.partitions.partition_file import load_partition


def test_records_of_an_arm_over_concepts_depend_on_those_that_are_kept_and_none_are_refused_before_anything_runs():
    arms = (Arm("concepts:1", "concepts", {"threshold": 1.0}),)
    wordings = ModelPair(*(BUNDLED_LOCAL.with_name(f"wordings-{size}.gguf") for size in ("small", "large")))
    contents = []
    for own in each_of((arms, KL[:1])):
        asked = replace(design({0: {"bundled": ()}}, own), pairs={"bundled": wordings})
        [grid] = answers_grids(asked)
        contents.append(grid.content)
    with closing(VocabularyFile(wordings.local)) as words:
        kept = load_partition(None, words.vocabulary_digest, words.num_tokens).digest
    assert (contents[0][-1], kept in contents[1]) == (kept, False)
    bundled = replace(design({0: {"bundled": ()}}, arms), pairs={"bundled": ModelPair(BUNDLED_LOCAL, BUNDLED_CLOUD)})
    with pytest.raises(UsageError, match="hybrid concepts build"):
        answers_grids(bundled)


def test_an_arm_that_weighs_beside_a_critic_knows_what_was_fitted_with_it():
    planners = []
    for critic in each_of((None, BUNDLED_LOCAL.with_name("mid.gguf"))):
        pair = ModelPair(BUNDLED_LOCAL, BUNDLED_CLOUD, critic)
        asked = replace(design({0: {"bundled": ()}}, (Arm("auto", "auto"),)), pairs={"bundled": pair})
        [grid] = answers_grids(asked)
        planners.append(grid.trial.args[1])
    wanted = [
        calibration_for(identify(BUNDLED_LOCAL), BUNDLED_CLOUD.stem, critic=critic, shipped_only=True)
        for critic in (None, identify(BUNDLED_LOCAL.with_name("mid.gguf")))
    ]
    prices = ask_prices(asked.tariffs[0].setting, asked.tariffs[0].prices)
    found, known = (
        [each.score.to_json() for each in own] for own in (planners, [calibrated_planner(e, prices) for e in wanted])
    )
    assert found == known
    assert known[0] != known[1]
