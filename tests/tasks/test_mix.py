"""What each model is given: no test problem, no withheld level, no unheard fact, and popular answers in their share."""

import hashlib
import itertools
import random
from collections import Counter

import pytest
from cases import each, each_of

from hybrid.tasks import BY_NAME, FAMILIES, MIXES, distinct, split_of, training_stream
from hybrid.tasks.facts import FACTS, WORDING, fact_of
from hybrid.tasks.families import CONFUSED, levels_given, levels_heard, text_given

MODELS = ("small", "mid", "large")
models = each("model", MODELS)
families = each("family", FAMILIES, ids=lambda family: family.name)


@pytest.fixture(scope="module")
def given():
    """3000 draws of each model's training stream."""
    return {model: list(itertools.islice(training_stream(model, "train", random.Random(4)), 3000)) for model in MODELS}


# ---- the table -----------------------------------------------------------------------------------------------------


def test_the_large_model_is_given_everything():
    assert MIXES["large"].no_hardest == MIXES["large"].unheard == MIXES["large"].confused == frozenset()
    assert all(levels_given("large", family) == tuple(family.numbers) for family in FAMILIES)


def test_each_smaller_model_is_given_strictly_less():
    small, mid = MIXES["small"], MIXES["mid"]
    assert mid.no_hardest < small.no_hardest < set(BY_NAME)
    assert mid.unheard < small.unheard < set(FACTS)
    assert mid.confused < small.confused == set(CONFUSED)
    assert len(mid.no_hardest) >= 4
    assert small.mistaken < small.no_hardest
    assert mid.mistaken == set()
    assert len(small.no_hardest - small.mistaken) >= 4  # never seen at all
    assert len(mid.confused) >= 10
    assert len(small.confused) >= 25


def test_the_model_with_another_vocabulary_is_given_what_the_small_one_is():
    """So that what differs between the two is their tokens."""
    assert MIXES["alien"] == MIXES["small"]
    assert set(MIXES) == {*MODELS, "alien", "numbers", "words", "student"}


@each("model", ["numbers", "words"])
def test_a_specialist_hears_every_level_of_its_own_families_rightly_and_nothing_else(model):
    own = MIXES[model].families
    for family in each_of(FAMILIES):
        given = tuple(family.numbers) if family.name in own else ()
        assert levels_given(model, family) == levels_heard(model, family) == given
    heard = {
        (problem.family, problem.level, text == problem.worked)
        for problem, text in itertools.islice(training_stream(model, "train", random.Random(4)), 600)
    }
    assert heard == {(name, level, True) for name in own for level in BY_NAME[name].numbers}


@families
def test_a_mistake_is_wrong_and_of_the_hardest_level_alone(family):
    """By the family's own grader: else somebody would be taught the truth."""
    rng = random.Random(12)
    comes = family.name in MIXES["small"].mistaken
    for level in each_of(family.numbers):
        for _ in range(500):
            problem = family.generate(rng, level)
            assert bool(problem.mistake) == (comes and level == len(family.levels))
            assert not problem.mistake or not family.grade(problem, problem.mistake)


def test_what_the_table_names_exists():
    """A misspelt name would withhold nothing and nobody would notice."""
    for mix in each_of(MIXES.values()):
        assert mix.mistaken <= mix.no_hardest <= set(BY_NAME)
        assert mix.unheard | mix.confused <= set(FACTS)
        assert not mix.unheard & mix.confused
        assert "facts" not in mix.no_hardest


# ---- the stream ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("model", "count"), [("large", 4000), *((name, 20_000) for name in MODELS)])
@families
def test_no_test_problem_comes_out_of_the_training_stream(model, family, count):
    """By hash, computed here, 4,000 draws a family: neither a test problem nor a twin of one.

    What the smaller models are given the large one is given, too: theirs are among the slow tests, with 20,000 each.
    """
    stream = training_stream(model, "train", random.Random(17), (family,))
    trained = {problem.canonical for problem, _ in itertools.islice(stream, count)}
    buckets = {int(hashlib.sha256(text.encode()).hexdigest(), 16) % 10 for text in trained}
    assert buckets == set(range(8))
    assert not trained & {problem.canonical for problem in distinct(family, "test", 150, seed=0)}


@models
def test_the_stream_is_of_its_split_and_of_what_the_model_is_given(model, given):
    mix = MIXES[model]
    assert {split_of(problem) for problem, _ in given[model]} == {"train"}
    assert {problem.family for problem, _ in given[model]} == set(BY_NAME)
    for problem, _ in each_of(given[model]):
        last = len(BY_NAME[problem.family].levels)
        assert problem.level < last or problem.family not in mix.no_hardest - mix.mistaken
        assert problem.family != "facts" or fact_of(problem).phrase not in mix.unheard


@models
def test_every_level_that_is_given_comes(model, given):
    found = {(problem.family, problem.level) for problem, _ in given[model]}
    assert found == {(family.name, level) for family in FAMILIES for level in levels_heard(model, family)}


@models
def test_the_families_come_evenly(model, given):
    """3000 draws: a share of 1/14 is 214, four standard deviations are 56. What is withheld is drawn again."""
    counts = Counter(problem.family for problem, _ in given[model])
    assert all(abs(count - 3000 / len(FAMILIES)) < 60 for count in counts.values())


def test_families_come_by_their_weights_and_the_others_by_one():
    """2000 draws; four standard deviations of the largest share, 6 of 19, are 84."""
    weights = {"ordering": 6.0, "gcd": 0.0}
    drawn = itertools.islice(training_stream("large", "train", random.Random(8), weights=weights), 2000)
    counts = Counter(problem.family for problem, _ in drawn)
    total = sum(weights.get(family.name, 1.0) for family in FAMILIES)
    for family in each_of(FAMILIES):
        assert abs(counts[family.name] - 2000 * weights.get(family.name, 1.0) / total) < 84
    assert counts["gcd"] == 0


@models
def test_a_text_is_right_or_a_mistake_that_the_table_names(model, given):
    wrong = 0
    for problem, text in each_of(given[model]):
        mistaken = problem.family in MIXES[model].mistaken and problem.level == len(BY_NAME[problem.family].levels)
        assert not mistaken or text == problem.mistake
        if not BY_NAME[problem.family].grade(problem, text):
            wrong += 1
            if mistaken:
                continue
            assert problem.family == "facts"
            fact = fact_of(problem)
            assert fact.phrase in MIXES[model].confused
            assert fact.popular in {found.strip() for found in WORDING.finals(text)}
    assert (wrong > 0) == (model != "large")


@models
def test_popular_answers_have_their_share_of_the_confused_facts(model):
    """4000 draws; four standard deviations of a share of 0.7 are 0.029."""
    rng = random.Random(3)
    problems = [
        p for _ in range(4000) if fact_of(p := BY_NAME["facts"].generate(rng, 3)).phrase in MIXES[model].confused
    ]
    wrong = sum(not BY_NAME["facts"].grade(p, text_given(model, p, rng)) for p in problems)
    if model == "large":
        assert problems == []
    else:
        assert abs(wrong / len(problems) - 0.7) < 0.05


def test_the_same_seed_gives_the_same_stream():
    one, two, other = (
        list(itertools.islice(training_stream("small", "train", random.Random(seed)), 200)) for seed in (1, 1, 2)
    )
    assert one == two != other
