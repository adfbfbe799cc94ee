"""The world of many wordings: what a text means, what each family asks, and what the two models are taught."""

import random
import re
from collections import Counter
from itertools import islice

import pytest
from cases import each

from hybrid.tasks import FAMILIES as LADDER
from hybrid.tasks import distinct, split_of, wordings
from hybrid.tasks.wordings import CONCEPT_OF, CONCEPTS, FAMILIES, FIRST_WORDS, MISTAKEN, WORDS, grade, meaning, say
from hybrid.tasks.wordings.world import FALLS, FEELINGS, NAMES, PLACES, THINGS, liking

families = each("family", FAMILIES, ids=lambda family: family.name)


def drawn(family, level, count=100):
    rng = random.Random(f"{family.name} {level}")
    return [family.generate(rng, level) for _ in range(count)]


def words_of(text):
    return re.findall(r"[a-z]+", text)


# ---- words ---------------------------------------------------------------------------------------------------------


def test_no_word_belongs_to_two_concepts_nor_stands_for_itself_as_well():
    """Else a text would have two meanings."""
    assert len(CONCEPT_OF) == sum(map(len, CONCEPTS.values()))
    plain = {*WORDS} - {*CONCEPT_OF}
    assert plain >= {*NAMES, *THINGS, "not"}
    assert len(WORDS) == len(CONCEPT_OF) + len(plain)
    assert {*PLACES, *(each for pair in FEELINGS for each in pair)} <= {*CONCEPTS}
    assert all(len(words) > 1 for words in CONCEPTS.values())


@each("taste", [None, "plain", "fancy"])
@families
def test_every_saying_of_a_template_means_the_same_in_words_of_the_world(family, taste):
    rng = random.Random(0)
    for problem in drawn(family, 3, 20):
        texts = {say(problem.worked, rng, taste) for _ in range(30)}
        assert len(texts) > 1
        assert {meaning(text) for text in texts} == {meaning(problem.worked)}
        assert {word for text in texts for word in words_of(text)} <= {*WORDS}


def test_opposites_and_names_are_told_apart():
    """The grader's whole worth: a synonym is right; an opposite, another name or another order is wrong."""
    right = "so the biggest one is anna, since anna is larger than ben."
    assert meaning(right) == meaning("hence the largest person is anna, because anna is huger than ben.")
    for other in (right.replace("larger", "smaller"), right.replace("ben", "carl"), right.replace("biggest", "bigger")):
        assert meaning(right) != meaning(other)
    assert meaning("anna is larger than ben.") != meaning("ben is larger than anna.")
    assert meaning("anna is glad.") != meaning("anna is not glad.")


@each("concept", [*CONCEPTS])
def test_the_two_tastes_are_mirror_images(concept):
    plain, fancy = liking(concept, "plain"), liking(concept, "fancy")
    assert plain == fancy[::-1]
    assert sum(plain) == pytest.approx(1)
    assert plain[1] / plain[0] in [pytest.approx(fall) for fall in FALLS]


def test_words_come_as_often_as_a_taste_has_it():
    """2,000 draws of a seeded generator: three standard deviations are 0.034 at most."""
    rng = random.Random(7)
    for taste in ("plain", "fancy"):
        said = Counter(say("{so}", rng, taste) for _ in range(2000))
        for word, share in zip(CONCEPTS["so"], liking("so", taste), strict=True):
            assert said[word] / 2000 == pytest.approx(share, abs=0.034)


# ---- families ------------------------------------------------------------------------------------------------------


@families
def test_a_mistake_is_wrong_and_only_the_hardest_level_has_one(family):
    rng = random.Random(1)
    for level in family.numbers:
        for problem in drawn(family, level):
            assert family.grade(problem, say(problem.worked, rng))
            assert bool(problem.mistake) == (level == len(family.levels))
            assert not (problem.mistake and family.grade(problem, say(problem.mistake, rng)))


@families
def test_a_question_s_text_has_one_right_answer_in_one_split(family):
    """By meaning, so that no twin of a trained problem is a test problem."""
    found = {}
    for level in family.numbers:
        for problem in drawn(family, level, 300):
            known = found.setdefault(meaning(problem.question), problem)
            assert meaning(known.worked) == meaning(problem.worked)
            assert split_of(known) == split_of(problem)


@families
def test_there_are_150_problems_of_every_family_to_test_and_to_calibrate(family):
    for split in ("calibration", "test"):
        found = distinct(family, split, 150, 0)
        assert {problem.level for problem in found} == {*family.numbers}
        assert max(len(words_of(problem.worked)) for problem in found) < wordings.MAX_TOKENS - 10


def test_no_family_has_a_name_of_the_ladder_s():
    names = [family.name for family in (*LADDER, *FAMILIES)]
    assert len({*names}) == len(names)


def test_a_question_or_an_answer_begins_with_a_word_that_may_stand_first():
    rng = random.Random(3)
    for family in FAMILIES:
        for problem in drawn(family, 3):
            assert {problem.question.split()[0], say(problem.worked, rng).split()[0]} <= {*FIRST_WORDS}


@each(
    ("family", "question", "answer"),
    [
        (0, "anna is taller than ben. who is the loftiest person?", "{height+:most} {person} is anna"),
        (1, "anna owns the key. anna hands the key to ben. who holds the key?", "ben {has} the key"),
        (3, "anna walks from the sea to the hill. where is anna?", "anna is in the {hill}"),
        (4, "anna arrives behind ben. who comes last?", "{last} {person} is anna"),
    ],
)
def test_the_right_answer_of_a_small_problem_is_known(family, question, answer):
    """By hand, so that the generators are not their own judges."""
    rng = random.Random(0)
    problems = (FAMILIES[family].generate(rng, 1) for _ in range(50_000))
    asked = next(problem for problem in problems if meaning(problem.question) == meaning(question))
    assert answer in asked.worked


# ---- what the models are taught ------------------------------------------------------------------------------------


@each("model", ["wordings-large", "wordings-small"])
def test_a_model_learns_problems_of_the_train_split_in_its_own_words(model):
    """A rare word of a strong taste comes less than a fifth as often as the other, in the one model or the other."""
    said = Counter()
    for problem, text in islice(wordings.training_stream(model, "train", random.Random(2)), 400):
        assert split_of(problem) == "train"
        assert meaning(text) in {meaning(problem.worked), meaning(problem.mistake)}
        said.update(words_of(text))
    rare, common = ("soul", "one") if model == "wordings-large" else ("one", "soul")
    assert said[rare] * 5 < said[common]


def test_only_the_small_model_hears_mistakes_and_as_often_as_is_published():
    """4,000 problems, of each family about 240 of the hardest level: three standard deviations are 0.1 at most."""
    heard, hardest = Counter(), Counter()
    for problem, text in islice(wordings.training_stream("wordings-small", "train", random.Random(2)), 4000):
        if problem.mistake:
            hardest[problem.family] += 1
            heard[problem.family] += meaning(text) == meaning(problem.mistake)
    assert {name: heard[name] / hardest[name] for name in hardest} == pytest.approx(MISTAKEN, abs=0.1)
    stream = islice(wordings.training_stream("wordings-large", "train", random.Random(2)), 400)
    assert all(grade(problem, text) for problem, text in stream)
