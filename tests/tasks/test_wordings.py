"""The world of many wordings: what a text means, what each family asks, and what the two models are taught."""

import math
import random
import re
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from cases import each, each_of

from hybrid import tasks
from hybrid.tasks import FAMILIES as LADDER
from hybrid.tasks import distinct, split_of, wordings
from hybrid.tasks.wordings import (
    CONCEPT_OF,
    CONCEPTS,
    FALLS,
    FAMILIES,
    FEELINGS,
    FIRST_WORDS,
    MISTAKEN,
    NAMES,
    PLACES,
    THINGS,
    WORDS,
    grade,
    liking,
    meaning,
    say,
)

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
    for problem in each_of(drawn(family, 3, 20)):
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
        for word, share in each_of(zip(CONCEPTS["so"], liking("so", taste), strict=True)):
            assert said[word] / 2000 == pytest.approx(share, abs=0.034)


# ---- families ------------------------------------------------------------------------------------------------------


@families
def test_a_mistake_is_wrong_and_only_the_hardest_level_has_one(family):
    rng = random.Random(1)
    for level in each_of(family.numbers):
        for problem in each_of(drawn(family, level)):
            assert family.grade(problem, say(problem.worked, rng))
            assert bool(problem.mistake) == (level == len(family.levels))
            assert not (problem.mistake and family.grade(problem, say(problem.mistake, rng)))


@families
def test_a_question_s_text_has_one_right_answer_in_one_split(family):
    """By meaning, so that no twin of a trained problem is a test problem."""
    found = {}
    for level in each_of(family.numbers):
        for problem in each_of(drawn(family, level, 300)):
            known = found.setdefault(meaning(problem.question), problem)
            assert meaning(known.worked) == meaning(problem.worked)
            assert split_of(known) == split_of(problem)


def test_a_family_says_in_how_many_ways_an_answer_is_right_at_least():
    for family in each_of(FAMILIES):
        told = [re.findall(r"\{([^}]+)\}", problem.worked) for problem in drawn(family, 1, 300)]
        assert family.wordings == min(math.prod(len(CONCEPTS[name]) for name in names) for names in told)


@families
def test_there_are_100_problems_of_every_family_to_test_and_to_calibrate(family):
    for split in ("calibration", "test"):
        found = distinct(family, split, 100, 0)
        assert {problem.level for problem in found} == {*family.numbers}
        assert max(len(words_of(problem.worked)) for problem in found) < 30


def test_no_family_has_a_name_of_the_ladder_s():
    names = [family.name for family in (*LADDER, *FAMILIES)]
    assert len({*names}) == len(names)


def test_a_question_or_an_answer_begins_with_a_word_that_may_stand_first():
    rng = random.Random(3)
    for family in each_of(FAMILIES):
        for problem in each_of(drawn(family, 3)):
            assert {problem.question.split()[0], say(problem.worked, rng).split()[0]} <= {*FIRST_WORDS}


COIN = "anna has the coin. anna gives the coin to ben. ben gives the coin to carl. anna gives the key to dora."
WALK = "anna goes from the sea to the hill. then anna goes to the home. then anna returns."


@each(
    ("family", "level", "question", "answer"),
    [
        (0, 1, "anna is taller than ben. who is the loftiest person?", "{height+:most} {person} is anna"),
        (0, 3, "anna is taller than ben. who is not the tallest person?", "{height-:most} {person} is ben"),
        (1, 1, "anna owns the key. anna hands the key to ben. who holds the key?", "ben {has} the key"),
        (1, 3, f"{COIN} who has the coin?", "carl {has} the coin"),
        (2, 3, "it is false that anna is not calm. ben is happy. how is anna?", "anna is {calm}"),
        (3, 1, "anna walks from the sea to the hill. where is anna?", "anna is in the {hill}"),
        (3, 3, f"{WALK} where is anna?", "anna is in the {hill}"),
        (4, 1, "anna arrives behind ben. who comes last?", "{last} {person} is anna"),
        (4, 3, "it is untrue that anna arrives before ben. who arrives first?", "{first} {person} is ben"),
    ],
)
def test_the_right_answer_of_a_small_problem_is_known(family, level, question, answer, monkeypatch):
    """By hand, so that the generators are not their own judges; in a smaller world, so that it is soon drawn."""
    for name, few in (("NAMES", "anna ben carl dora"), ("THINGS", "coin key"), ("PLACES", "sea hill home")):
        monkeypatch.setattr(f"hybrid.tasks.wordings.{name}", few.split())
    rng = random.Random(0)
    problems = (FAMILIES[family].generate(rng, level) for _ in range(10_000))
    asked = next(problem for problem in problems if meaning(problem.question) == meaning(question))
    assert answer in asked.worked


# ---- what the models are taught ------------------------------------------------------------------------------------


def lessons(model, num):
    return [*islice(wordings.lesson_stream(model, "train", random.Random(2)), num)]


@each("model", ["wordings-large", "wordings-small"])
def test_a_model_learns_problems_of_the_train_split_in_its_own_words(model):
    """A rare word of a strong taste comes less than a fifth as often as the other, in the one model or the other."""
    said = Counter()
    for lesson in each_of(lessons(model, 800)):
        assert split_of(lesson.problem) == "train"
        assert meaning(lesson.text) in {meaning(lesson.problem.worked), meaning(lesson.problem.mistake)}
        said.update(words_of(lesson.text[len(lesson.begun) :]))
    rare, common = ("soul", "one") if model == "wordings-large" else ("one", "soul")
    assert said[rare] * 5 < said[common]


def test_what_somebody_else_began_is_in_any_words_and_ends_before_the_text_does():
    """Each model reads the words of the other; at least a tenth of what was begun has each of three words."""
    for model in ("wordings-large", "wordings-small"):
        begun = [lesson for lesson in lessons(model, 1000) if lesson.begun]
        assert 440 < len(begun) < 560  # half of 1,000, within four standard deviations
        said = Counter(word for lesson in begun for word in words_of(lesson.begun))
        three = [said[word] for word in CONCEPTS["because"]]
        assert min(three) * 10 > sum(three)
        for lesson in each_of(begun):
            assert lesson.text.startswith(f"{lesson.begun} ")
            assert len(lesson.begun) < len(lesson.text)


def test_only_the_small_model_hears_mistakes_and_as_often_as_is_published():
    """4,000 problems, of each family about 120 of the hardest level: three standard deviations are 0.14 at most."""
    heard, hardest = Counter(), Counter()
    for lesson in lessons("wordings-small", 4000):
        if lesson.problem.mistake and not lesson.begun:
            hardest[lesson.problem.family] += 1
            heard[lesson.problem.family] += meaning(lesson.text) == meaning(lesson.problem.mistake)
    assert {name: heard[name] / hardest[name] for name in hardest} == pytest.approx(MISTAKEN, abs=0.14)
    assert all(grade(lesson.problem, lesson.text) for lesson in lessons("wordings-large", 400))


def test_the_small_model_goes_on_with_what_is_right_where_that_was_begun():
    """Else it would know no text in which the cloud has put it right: ``compare``, of which it only hears mistakes."""
    texts = [
        lesson
        for lesson in lessons("wordings-small", 3000)
        if lesson.problem.family == "compare" and lesson.problem.mistake and grade(lesson.problem, lesson.text)
    ]
    assert texts
    for lesson in each_of(texts):
        told = meaning(lesson.begun)
        assert told != meaning(lesson.problem.mistake)[: len(told)]


# ---- what is published ---------------------------------------------------------------------------------------------


def test_the_notes_say_how_large_the_world_is_and_show_a_mistake_of_every_family():
    said = (Path(tasks.__file__).parent / "NOTES.md").read_text().split(": Many right wordings\n")[1].split("\n## ")[0]
    assert f"{len(CONCEPT_OF)} words say {len(CONCEPTS)}\nconcepts" in said
    assert ", ".join(f"{share:g}" for share in FALLS[:2]) + f" or {FALLS[2]:g} times" in said
    told = [f"{100 * share:.0f}" for share in MISTAKEN.values()]
    assert f"{', '.join(told[:-1])} and {told[-1]} %" in said
    rows = dict(re.findall(r"^\| (\w+) \| .*\? \| `(.*)` \|$", said, re.MULTILINE))
    assert [*rows] == [family.name for family in FAMILIES]
    assert all({*words_of(mistake)} <= {*WORDS} for mistake in rows.values())
