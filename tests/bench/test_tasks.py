"""Generated tasks: the answers are right, the graders exact, and no test problem was ever in training."""

import itertools
import json
import operator
import random
import re
from collections import Counter
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.bench.tasks import FAMILIES, Family, Problem, distinct, split_of, stream

BY_NAME = {family.name: family for family in FAMILIES}
SPLITS = ("train", "calibration", "test")
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}

families = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def drawn(family, count, seed=0):
    rng = random.Random(seed)
    return [family.generate(rng) for _ in range(count)]


# ---- solving each question from its text alone, so that a wrong generator cannot agree with itself ------------------


def solve_arithmetic(question):
    first, sign, second = re.fullmatch(r"What is (\d+) ([+-]) (\d+)\?", question).groups()
    return str(OPERATIONS[sign](int(first), int(second)))


def solve_sorting(question):
    left = [int(number) for number in re.findall(r"\d+", question)]
    answer = []
    while left:
        answer.append(left.pop(left.index(min(left))))
    return " ".join(map(str, answer))


def solve_word_problem(question):
    numbers = [int(number) for number in re.findall(r"\d+", question)]
    if "gives away" in question:
        have, bought, given_away = numbers
        return str(have + bought - given_away)
    boxes, each, have = numbers
    return str(boxes * each + have)


def polynomial(text):
    """Read ``4x^3 + x + 2`` as exponent to coefficient."""
    terms = Counter()
    for term in text.split(" + "):
        coefficient, x, exponent = re.fullmatch(r"(\d*)(x?)(?:\^(\d+))?", term).groups()
        terms[int(exponent or 1) if x else 0] += int(coefficient or 1)
    return terms


def check_integral(problem):
    """Differentiate the answer: that must give the question back."""
    integrand = polynomial(re.fullmatch(r"Integrate (.*)\.", problem.question)[1])
    antiderivative = polynomial(problem.final.removesuffix(" + C"))
    return integrand == {e - 1: c * e for e, c in antiderivative.items()} and 0 not in antiderivative


def solve_command(question):
    if clock := re.search(r" (\d+):(\d\d) (am|pm)\.$", question):
        hour, minute, half = int(clock[1]), clock[2], clock[3]
        afternoon = {12: 12, **{h: h + 12 for h in range(1, 12)}}
        morning = {12: 0, **{h: h for h in range(1, 12)}}
        return {"tool": "alarm", "time": f"{(afternoon if half == 'pm' else morning)[hour]:02d}:{minute}"}
    if length := re.search(r"(\d+) minutes(?: and (\d+) seconds)?\.$", question):
        return {"tool": "timer", "seconds": int(length[1]) * 60 + int(length[2] or 0)}
    room, place = re.search(r"the (\w+) light ((?:on the|by the|above the|next to the) \w+)", question).groups()
    if level := re.search(r"to (\d+) percent", question):
        return {"tool": "light", "room": room, "place": place, "level": int(level[1])}
    state = re.search(r"^Turn (on|off)|(on|off)\.$", question)
    return {"tool": "light", "room": room, "place": place, "state": state[1] or state[2]}


CHECKS = {
    "arithmetic": lambda problem: solve_arithmetic(problem.question) == problem.final,
    "sorting": lambda problem: solve_sorting(problem.question) == problem.final,
    "word_problem": lambda problem: solve_word_problem(problem.question) == problem.final,
    "integration": check_integral,
    "command": lambda problem: solve_command(problem.question) == json.loads(problem.final),
}


@families
def test_the_final_answer_is_the_one_that_the_question_has(family):
    """A wrong answer key would train the models wrong and then grade them right."""
    for problem in drawn(family, 1000):
        assert CHECKS[family.name](problem), problem


@families
def test_every_worked_answer_is_graded_correct(family):
    for problem in drawn(family, 1000):
        assert problem.family == family.name
        assert family.grade(problem, problem.worked), problem
        assert family.grade(problem, f" {problem.worked}\n"), problem


def test_every_equation_in_a_worked_answer_is_true():
    """The final number may be right by way of two wrong steps; a model would learn the steps."""
    for name in ("arithmetic", "word_problem"):
        for problem in drawn(BY_NAME[name], 1000):
            equations = re.findall(r"(\d+) ([+*-]) (\d+) = (\d+)", problem.worked)
            assert len(equations) == {"arithmetic": 1, "word_problem": 2}[name]
            assert all(OPERATIONS[sign](int(a), int(b)) == int(result) for a, sign, b, result in equations)
            assert equations[-1][-1] == problem.final


# ---- wrong answers -------------------------------------------------------------------------------------------------


def other_numbers(text):
    """Change every number in a text in turn: by one, by a digit more, by a digit less."""
    for match in re.finditer(r"\d+", text):
        for other in (str(int(match[0]) + 1), match[0] + "0", match[0][1:]):
            yield text[: match.start()] + other + text[match.end() :]


def wrong_arithmetic(problem):
    yield from other_numbers(problem.final)
    yield f"{problem.worked.split(' = ')[0]} = {int(problem.final) + 10}"
    yield f"-{problem.final}"
    yield problem.final + "." + problem.final
    yield problem.worked + " or " + problem.final
    yield problem.worked.split("=")[0]


def wrong_word_problem(problem):
    yield from other_numbers(f"The answer is {problem.final}.")
    yield problem.worked.rpartition(problem.final)[0] + str(int(problem.final) + 1) + "."
    yield problem.worked + " And then"
    yield problem.worked.split(" The answer")[0]
    yield problem.final
    yield f"The answer is -{problem.final}."


def wrong_sorting(problem):
    numbers = problem.final.split()
    yield from other_numbers(problem.final)
    yield " ".join(numbers[1:])
    yield " ".join(numbers[:-1])
    yield " ".join([*numbers, numbers[-1]])
    yield "".join(numbers)
    if len(set(numbers)) > 1:
        yield " ".join(reversed(numbers))
        first = next(i for i in range(len(numbers) - 1) if numbers[i] != numbers[i + 1])
        numbers[first], numbers[first + 1] = numbers[first + 1], numbers[first]
        yield " ".join(numbers)


def wrong_integration(problem):
    terms = problem.final.split(" + ")
    yield from other_numbers(problem.final)
    for left_out in range(len(terms)):
        yield " + ".join(terms[:left_out] + terms[left_out + 1 :])
    yield " + ".join([terms[0], *terms])
    yield problem.final.replace("x", "y")
    yield problem.final.replace(" + ", " - ")
    yield re.fullmatch(r"Integrate (.*)\.", problem.question)[1] + " + C"


def wrong_command(problem):
    call = json.loads(problem.final)
    for key, value in call.items():
        yield json.dumps({k: v for k, v in call.items() if k != key})
        yield json.dumps(call | {key: value + 1 if isinstance(value, int) else value + "s"})
        yield json.dumps(call | {key: str(value) if isinstance(value, int) else None})
    yield json.dumps(call | {"more": 1})
    yield json.dumps([call])
    yield problem.final[:-1]
    yield problem.final + problem.final
    yield problem.final.replace('"', "'")
    yield f"Sure: {problem.final}"


WRONG = {
    "arithmetic": wrong_arithmetic,
    "word_problem": wrong_word_problem,
    "sorting": wrong_sorting,
    "integration": wrong_integration,
    "command": wrong_command,
}


@families
def test_no_mutated_answer_is_graded_correct(family):
    """A grader that is lenient by mistake would show a small model as good as a large one."""
    for problem in drawn(family, 300):
        for text in WRONG[family.name](problem):
            assert text != problem.final or family.name == "word_problem"
            assert not family.grade(problem, text), (problem, text)


@families
def test_the_answer_to_another_question_is_wrong(family):
    for problem, other in itertools.pairwise(drawn(family, 500)):
        if other.final != problem.final:
            assert not family.grade(problem, other.worked)


@families
@given(text=st.text(max_size=60))
def test_any_text_at_all_gets_a_grade(family, text):
    problem = drawn(family, 1)[0]
    assert family.grade(problem, text) in (True, False)


@families
@pytest.mark.parametrize("text", ["", " ", "[" * 100_000, "9" * 100_000, "[" * 5, "NaN", "null", "\ud800", "+ + +"])
def test_the_ramblings_of_a_model_are_wrong_and_end_no_run(family, text):
    """A small model that is stuck repeats one token to the end: brackets beyond what a parser nests, for one."""
    assert not family.grade(drawn(family, 1)[0], text)


def test_the_forms_in_which_an_answer_may_come():
    by_hand = {
        "arithmetic": ("12 + 30 = 42", "42", ["42", "42.", "12 + 30 = 42", " 12 + 30 = 42.\n"]),
        "word_problem": ("-", "7", ["The answer is 7.", "The answer is 7", "3 + 4 = 7. The answer is 7."]),
        "sorting": ("-", "10 20 30", ["10 20 30", "10, 20, 30", "10,20,30.", " 10  20 30 "]),
        "integration": ("-", "2x^2 + x + C", ["2x^2 + x + C", "x + C + 2x^2", "C + x + 2x^2."]),
        "command": (
            "-",
            '{"tool": "timer", "seconds": 60}',
            ['{"seconds":60,"tool":"timer"}', ' {"tool": "timer", "seconds": 60}\n'],
        ),
    }
    for name, (worked, final, accepted) in by_hand.items():
        problem = Problem(name, "-", worked, final)
        for text in accepted:
            assert BY_NAME[name].grade(problem, text), text


# ---- splits --------------------------------------------------------------------------------------------------------


@given(st.text(), st.text(), st.text(), st.text())
def test_the_split_depends_on_the_question_alone(question, family, worked, final):
    """And on it by this rule: the shipped models were trained by it, so another one would leak their test set."""
    bucket = int(sha256(question.encode("utf-8", "surrogatepass")).hexdigest(), 16) % 10
    assert split_of(Problem(family, question, worked, final)) == (["train"] * 8 + ["calibration", "test"])[bucket]


@families
def test_another_answer_to_the_same_question_stays_in_its_split(family):
    for problem in drawn(family, 200):
        assert split_of(replace(problem, family="other", worked="?", final="?")) == split_of(problem)


@families
def test_no_question_of_one_split_occurs_in_another_whatever_the_seed(family):
    """Three thousand draws of each split, every split from three seeds that no other one has."""
    seen = {}
    for number, split in enumerate(SPLITS):
        draws = (itertools.islice(stream(family, split, random.Random(10 * number + i)), 1000) for i in range(3))
        problems = list(itertools.chain.from_iterable(draws))
        assert {split_of(problem) for problem in problems} == {split}
        seen[split] = {problem.question for problem in problems}
        assert len(seen[split]) > 100
    for one, other in itertools.combinations(SPLITS, 2):
        assert not seen[one] & seen[other]


def test_the_splits_are_about_eight_to_one_to_one():
    """10000 draws over all families; four standard deviations of a share of 0.1 are 0.012, and repeats add to that."""
    counts = Counter(split_of(problem) for family in FAMILIES for problem in drawn(family, 2000))
    assert abs(counts["train"] / 10_000 - 0.8) < 0.02
    assert abs(counts["calibration"] / 10_000 - 0.1) < 0.02
    assert abs(counts["test"] / 10_000 - 0.1) < 0.02


# ---- seeds ---------------------------------------------------------------------------------------------------------


@families
def test_the_same_seed_gives_the_same_problems(family):
    assert drawn(family, 50, seed=7) == drawn(family, 50, seed=7)
    assert drawn(family, 50, seed=7) != drawn(family, 50, seed=8)
    assert distinct(family, "test", 50, seed=7) == distinct(family, "test", 50, seed=7)
    assert distinct(family, "test", 50, seed=7) != distinct(family, "test", 50, seed=8)


@families
def test_generation_reads_no_random_numbers_but_its_own(family):
    """With the global generator mixed in, the same seed would give other problems in another program."""
    random.seed(1)
    first = distinct(family, "train", 20, seed=3)
    state = random.getstate()
    random.seed(2)
    assert distinct(family, "train", 20, seed=3) == first
    random.seed(1)
    assert random.getstate() == state


@families
@pytest.mark.parametrize("split", SPLITS)
def test_distinct_problems_are_distinct_and_of_their_split(family, split):
    problems = distinct(family, split, 200, seed=0)
    assert len({problem.question for problem in problems}) == len(problems) == 200
    assert {split_of(problem) for problem in problems} == {split}


@families
def test_a_smaller_number_of_problems_is_the_beginning_of_a_larger_one(family):
    """So that a quick run and a long one are about the same problems."""
    assert distinct(family, "test", 60, seed=0)[:20] == distinct(family, "test", 20, seed=0)
    assert distinct(family, "test", 0, seed=0) == []


def only(*questions):
    return Family("only", lambda rng: Problem("only", rng.choice(questions), "", ""), operator.eq)


QUESTIONS = [f"question {i}" for i in range(200)]
TRAINING = [q for q in QUESTIONS if split_of(Problem("only", q, "", "")) == "train"]


def test_distinct_gives_all_there_are_and_raises_for_one_more():
    few = only(*TRAINING[:5])
    assert sorted(p.question for p in distinct(few, "train", 5, seed=0)) == sorted(TRAINING[:5])
    with pytest.raises(ValueError, match="family only has only 5 distinct train problems, not 6"):
        distinct(few, "train", 6, seed=0)


@pytest.mark.timeout(20)
def test_distinct_raises_where_the_split_is_empty():
    """A family so small that no question falls into a tenth of all hashes must not hang the benchmark."""
    with pytest.raises(ValueError, match="only 0 distinct test problems, not 1"):
        distinct(only(*TRAINING[:5]), "test", 1, seed=0)
