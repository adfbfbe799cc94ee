"""The calibrations that come with the package, of bundled models."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest

import hybrid.defer
from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.defer import Calibration, word_buckets
from hybrid.defer.learned import BoostedTrees
from hybrid.engine.identity import identify
from hybrid.settings.names import MODELS
from hybrid.tasks import FAMILIES, distinct
from hybrid.tune.diagnosis import auroc, ece

DATA = Path(hybrid.defer.__file__).parent / "data"


class Shipped(NamedTuple):
    """A file, the model that drafts, its critic, the least AUROC, and by how much a hard problem's words must tell."""

    path: Path
    local: Path
    critic: str | None
    auroc: float
    by_words: float


# With no critic, with the middle model of the ladder as one, and of the model that spells otherwise.
FILES = [
    Shipped(DATA / "bundled.json", BUNDLED_LOCAL, None, 0.93, 0.25),
    Shipped(DATA / "bundled-critic.json", BUNDLED_LOCAL, "mid", 0.97, 0.25),
    Shipped(DATA / "bundled-alien.json", MODELS / "alien.gguf", None, 0.91, 0.1),
]


@pytest.fixture(scope="module", params=FILES, ids=lambda each: each.path.stem)
def file(request):
    return request.param


@pytest.fixture(scope="module")
def shipped(file):
    return Calibration.from_json(json.loads(file.path.read_text()))


def test_its_chances_rank_and_hold_on_questions_that_its_folds_had_not_seen(shipped, file):
    """80 problems of each family; what the issue of a wrong chance would be is money or a wrong answer."""
    assert len(shipped.questions) == 80 * len(FAMILIES)
    assert auroc(shipped.questions) >= file.auroc
    assert ece(shipped.questions) <= 0.05
    assert (shipped.judge, shipped.score.judge, shipped.loss, shipped.worth) == ("kl:0.7", "kl:0.7", "verdict", 2.2)
    assert isinstance(shipped.score.hazard, BoostedTrees)


def test_it_is_of_the_bundled_models(shipped, file):
    assert shipped.critic == (identify(MODELS / f"{file.critic}.gguf") if file.critic else None)
    assert (shipped.local, shipped.cloud) == (identify(file.local), BUNDLED_CLOUD.stem)


def test_it_is_small_and_is_written_as_it_was_read(shipped, file):
    text = file.path.read_text()
    assert len(text) < 300_000
    assert json.dumps(shipped.to_json()) == text


def test_a_hard_problem_is_likelier_to_be_turned_down_than_an_easy_one(shipped, file):
    """By its words alone, before anything is drafted. Problems of the calibration split, so no test problem is seen."""
    told = {level: [] for level in (1, 3)}
    for family in FAMILIES:
        for level, chances in told.items():
            for problem in distinct(family, "calibration", 2, seed=5, level=level):
                chances.append(shipped.score.before(word_buckets(problem.question), 34).turned_down)
    assert sum(told[3]) / len(told[3]) > sum(told[1]) / len(told[1]) + file.by_words
