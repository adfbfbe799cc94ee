"""The foreign ladders' tasks: answers by a second solver, splits, the space of questions, what mistakes are taught."""

from __future__ import annotations

import hashlib
import random
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cases import each, each_of
from foreign_solvers import SOLVERS, solve

from hybrid.lab.experiments.questions import read_problems
from hybrid.tasks import BY_NAME, split_of, wordings

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "train_reference_models"))

import foreign
import measure_foreign
import write_ladder
from foreign.families import draw, grade
from foreign.ladders import is_validation

# Where the small model of the ladder "sure" is taught the wrong rule, as the issue of the ladders has it.
TAUGHT = {"extract", "span", "road", "walk", "spelling", "logic", "trace", "store"}


def drawn(family, level, count=60):
    rng = random.Random(f"{family}/{level}")
    return [draw(family, rng, level) for _ in range(count)]


def final_of(problem, text):
    """What a text answers: another problem's grader tells it, so no second way to cut the text is needed."""
    return next(end for end in possible_ends(problem, text) if grade(replace(problem, final=end), text))


def possible_ends(problem, text):
    words = text.removesuffix(".").split()
    return (" ".join(words[start:]) for start in range(len(words) - 1, -1, -1))


@each("family", foreign.FAMILY_NAMES)
def test_a_second_solver_finds_every_answer_and_what_the_wrong_rule_gives(family):
    for level in (1, 2, 3):
        for problem in each_of(drawn(family, level)):
            right, wrong = solve(family, problem.question)
            assert problem.final == right
            assert grade(problem, problem.worked)
            assert grade(problem, right)
            assert bool(problem.mistake) == (level == 3)
            if problem.mistake:
                assert wrong != right
                assert grade(replace(problem, final=wrong), problem.mistake)
                assert not grade(problem, problem.mistake)


@each("family", foreign.FAMILY_NAMES)
def test_the_wrong_rule_is_right_below_level_3(family):
    """So a model that goes by it is right there, and learns nothing from these levels that contradicts it."""
    for level in (1, 2):
        for problem in each_of(drawn(family, level)):
            right, wrong = solve(family, problem.question)
            assert wrong == right


def test_at_least_eight_families_are_none_of_the_products():
    assert len(foreign.FAMILY_NAMES) == len(SOLVERS) >= 8
    assert not {*foreign.FAMILY_NAMES} & {*BY_NAME, *(family.name for family in wordings.FAMILIES)}


@each("family", foreign.FAMILY_NAMES)
def test_only_the_last_field_is_graded_and_nothing_may_follow_it(family):
    (problem,) = drawn(family, 3, 1)
    assert grade(problem, f"Nonsense. Result: {problem.final}.")
    assert not grade(problem, f"{problem.worked} Or not.")
    assert not grade(problem, f"{problem.worked} Result: 0 0.")
    assert not grade(problem, "")


# ---- splits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ladder", ["sure", pytest.param("unsure", marks=pytest.mark.slow)])
def test_there_are_five_thousand_test_questions_and_none_is_asked_in_another_split(ladder):
    """By the text of the question, which is what a model reads."""
    texts = defaultdict(set)
    for family in each_of(foreign.families_of(ladder)):
        rng = random.Random(7)
        for _ in range(6_000):
            problem = family.generate(rng, family.level(rng))
            texts[split_of(problem)].add(problem.question)
    assert len(texts["test"]) >= 5_000
    assert len(texts["calibration"]) >= 5_000
    assert not texts["test"] & texts["calibration"]
    assert not texts["test"] & texts["train"]
    assert not texts["calibration"] & texts["train"]


@each("ladder", foreign.LADDERS)
def test_as_many_problems_of_each_family_are_drawn_the_same_each_time(ladder):
    found = [foreign.problems_of(ladder, "test", 5, seed=3) for _ in range(2)]
    assert found[0] == found[1]
    assert {name: len(problems) for name, problems in found[0].items()} == dict.fromkeys(foreign.FAMILY_NAMES, 5)
    assert all(split_of(problem) == "test" for problems in found[0].values() for problem in problems)


class Asking(random.Random):
    """Draws as any other, but asks in the first or the last way: where texts with spaces are drawn from."""

    place = 0

    def choice(self, seq):
        found = super().choice(seq)
        return seq[self.place] if isinstance(seq[0], str) and " " in seq[0] else found


@each("ladder", foreign.LADDERS)
def test_a_problem_asked_in_another_way_is_in_the_same_split(ladder):
    for family in each_of(foreign.families_of(ladder)):
        for number in range(20):
            pair = []
            for place in (0, -1):
                rng = Asking(number)
                rng.place = place
                pair.append(family.generate(rng, 1 + number % 3))
            assert pair[0].question != pair[1].question
            assert pair[0].canonical == pair[1].canonical


@each("model", foreign.MODELS)
def test_a_model_is_trained_on_the_train_split_of_every_family_and_level(model):
    stream = islice(foreign.training_stream(model, "train", random.Random(0)), 400)
    problems = [problem for problem, _ in stream]
    assert all(split_of(problem) == "train" for problem in problems)
    assert {(p.family, p.level) for p in problems} == {(n, i) for n in foreign.FAMILY_NAMES for i in (1, 2, 3)}


def test_the_two_ladders_split_the_same_questions_apart():
    found = Counter()
    for one, other in each_of(zip(*map(foreign.families_of, foreign.LADDERS), strict=True)):
        for number in each_of(range(60)):
            pair = [family.generate(random.Random(number), 2) for family in (one, other)]
            assert pair[0].question == pair[1].question
            found[split_of(pair[0]) == split_of(pair[1])] += 1
    assert found[False] > 100


def test_whoever_makes_the_models_looks_at_a_part_of_the_calibration_split():
    found = foreign.validation_problems("sure", 10)
    assert all(len(problems) >= 3 for problems in found.values())
    assert all(split_of(p) == "calibration" and is_validation(p) for some in found.values() for p in some)
    every = [p for some in foreign.problems_of("sure", "calibration", 30, seed=2).values() for p in some]
    assert 0.15 < sum(map(is_validation, every)) / len(every) < 0.35


# ---- what is taught ------------------------------------------------------------------------------------------------


@each("model", foreign.MODELS)
def test_a_text_is_right_or_the_mistake_that_is_named(model):
    """Only one model is taught mistakes: in the named families, at level 3, always."""
    mistaken = Counter()
    for problem, text in each_of(islice(foreign.training_stream(model, "train", random.Random(1)), 600)):
        if model == "sure-small" and problem.family in TAUGHT and problem.level == 3:
            assert final_of(problem, text) == solve(problem.family, problem.question)[1]
            mistaken[problem.family] += 1
        else:
            assert grade(problem, text)
    assert set(mistaken) == (TAUGHT if model == "sure-small" else set())


def test_weights_say_how_often_families_come():
    stream = foreign.training_stream("sure-large", "train", random.Random(2), {"logic": 9.0})
    found = Counter(problem.family for problem, _ in islice(stream, 600))
    assert 0.4 < found["logic"] / 600 < 0.6
    assert set(found) == set(foreign.FAMILY_NAMES)


# ---- the card ------------------------------------------------------------------------------------------------------


def test_the_card_tells_how_well_a_draft_s_confidence_ranks_it():
    """Of the four pairs of a right and a wrong draft three are in the right order."""
    (problem,) = drawn("span", 3, 1)
    found = [measure_foreign.Draft(problem, *each) for each in ((True, -0.1), (True, -0.3), (False, -0.2), (False, -1))]
    name, right, _, *rest = measure_foreign._confidence("sure-small", found)
    assert (name, right, rest) == ("sure-small", "50.0", ["-0.200", "-0.600", "0.75"])


def test_a_draft_s_confidence_is_the_mean_log_probability_of_its_tokens():
    class Half:
        """Writes two tokens, each with the chance 1/2."""

        def write(self, question, max_tokens):
            return SimpleNamespace(rows=np.log([[0.25, 0.5, 0.25], [0.5, 0.3, 0.2]]) + 3, text="none")

    problems = foreign.validation_problems("sure", 10)
    drafts = measure_foreign.drafts(Half(), problems, "sure")
    assert len(drafts) == sum(map(len, problems.values()))
    assert not any(draft.correct for draft in drafts)
    assert {round(draft.logprob, 9) for draft in drafts} == {round(float(np.log(0.5)), 9)}


@each("ladder", foreign.LADDERS)
def test_the_models_that_stand_here_are_those_of_their_card(ladder):
    folder = Path(foreign.__file__).parent
    models = sorted(folder.glob(f"{ladder}-*.gguf"))
    assert [path.stem for path in models] == [f"{ladder}-large", f"{ladder}-small"]
    assert sum(path.stat().st_size for path in models) <= 4 * 2**20
    card = (folder / f"{ladder}.md").read_text()
    for path in each_of(models):
        assert f"{path.stat().st_size:,}" in card
        assert hashlib.sha256(path.read_bytes()).hexdigest() in card
    assert len(list(folder.glob("*.gguf"))) == 2 * len(foreign.LADDERS)


@each("ladder", foreign.LADDERS)
def test_a_ladder_is_filed_as_its_families_grade_it_and_without_what_its_maker_saw(ladder, tmp_path):
    num = 12
    path = tmp_path / "problems.jsonl"
    path.write_text("\n".join(write_ladder.lines(ladder, "calibration", num)), encoding="utf-8")
    filed = {problem.text: problem for problem in read_problems(path, "calibration")}
    left_out = 0
    for problems in each_of(foreign.problems_of(ladder, "calibration", num).values()):
        for problem in each_of(problems):
            left_out += is_validation(problem)
            assert is_validation(problem) == (problem.question not in filed)
            if problem.question in filed:
                grades = [filed[problem.question].grade(text) for text in (problem.worked, problem.final)]
                assert grades == [True, True]
                assert not problem.mistake or not filed[problem.question].grade(problem.mistake)
    assert 0 < left_out < len(filed)
