"""Graders: every wording and every correct form is right, a changed final answer is wrong, whatever stood before it."""

import importlib
import itertools
import json
import random
import re
from dataclasses import replace

import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st

from hybrid.tasks import BY_NAME, FAMILIES, Problem, polynomial
from hybrid.tasks.problem import Wording

families = each("family", FAMILIES, ids=lambda family: family.name)


def drawn(family, count):
    """So many of every level."""
    rng = random.Random(5)
    return [family.generate(rng, level) for level in family.numbers for _ in range(count)]


# ---- right ---------------------------------------------------------------------------------------------------------


@families
def test_every_worked_answer_is_graded_right_and_so_is_the_bare_final_answer(family):
    for problem in each_of(drawn(family, 300)):
        for text in (problem.worked, f" {problem.worked}\n", problem.worked.removesuffix("."), problem.final):
            assert family.grade(problem, text), (problem, text)


@families
def test_every_wording_is_graded_right_and_drawn(family):
    wording = getattr(importlib.import_module(f"hybrid.tasks.{family.name}"), "WORDING", Wording())
    for problem in each_of(drawn(family, 3) if family.name not in {"command", "rewriting"} else (), least=0):
        for opening, closing in each_of(itertools.product(wording.openings, wording.closings)):
            work = f"{opening} 1+1=3." if closing else ""  # a bare answer is one that nothing stands before
            assert family.grade(problem, f"{work} {closing} {problem.final}."), (opening, closing)
            assert family.grade(problem, f"{closing} {problem.final}"), closing
    worked = [problem.worked.removesuffix(f"{problem.final}.").strip() for problem in drawn(family, 300)]
    if len(wording) > 1:
        assert all(any(text.endswith(closing) for text in worked) for closing in wording.closings)
        assert all(any(text.startswith(opening) for text in worked) for opening in wording.openings)


# Question, final answer, right answers, wrong answers. Written by hand.
BY_HAND = {
    "arithmetic": (
        "What is 3 - 12?",
        "-9",
        ["-9", "-9.", "3 - 12 = -9", "3<12; Answer: -9.", "1+1=3; Answer: -9"],
        [
            "9",
            "- 9",
            "-9 -9",
            "-90",
            "Answer: -9. Answer: 9.",
            "Answer:",
            "12 - 3 = -9",
            "The result: -9",
            "NoAnswer: -9",
            "-9 and more",
        ],
    ),
    "multiplication": (
        "Compute 12 * 3.",
        "36",
        ["36", "12 * 3 = 36", "12*3: a2*3=06+0=06|6; Answer: 36.", "wrong; Answer: 36"],
        ["036", "360", "36 apples", "Answer: 36 or 63.", "12 * 4 = 36", "Answer: 3 6"],
    ),
    "word_problem": (
        "Tom has 38 shells. Tom loses 3. How many shells does Tom have now?",
        "35",
        [
            "35",
            "So the answer is 35.",
            "That makes 35.",
            "That makes 36. That makes 35.",
            "In the end: 35.",
            "38-3=35. The answer is 35",
        ],
        ["38-3=35", "In the end: 53.", "That makes 35. That makes 36.", "It is not the answer is 36 but 35"],
    ),
    "equation": (
        "Solve 3y + 5 = 26 for y.",
        "y = 7",
        ["7", "y = 7", "y=7.", "So y = 7.", "Hence y is 7.", "26-5=21. The solution is 7.", "This gives 7 = y."],
        ["x = 7", "y = -7", "y = 70", "So y.", "7y", "y = 7 or y = 8", "So y = 7. Hence y = 8."],
    ),
    "integration": (
        "Integrate 4x + 1.",
        "2x^2 + x + C",
        ["2x^2 + x + C", "x + C + 2x^2", "C + x + 2x^2.", "2x^2+x+C", "2*x^2 + x + C", "Answer: 2x^2 + x + C."],
        ["2x^2 + x", "2x^2 + C", "2x^2 + x + C + C", "2x^2 - x + C", "2x^2 + x C", "2x^2 + x + D", "4x + 1 + C", "C"],
    ),
    "differentiation": (
        "Differentiate 2x^3 - x.",
        "6x^2 - 1",
        ["6x^2 - 1", "-1 + 6x^2", "6x^2-1.", "6*x^2 - 1", "2x^3 - x; Answer: 6x^2 - 1"],
        ["6x^2 + 1", "6x^2", "6x^2 - 1 + C", "6x - 1", "6x^2 - x", "6x^2 1", "6x2 - 1", "", "6^2 - 1", "6x^2 - - 1"],
    ),
    "gcd": ("gcd of 12 and 8?", "4", ["4", "4.", "12=12; Answer: 4."], ["-4", "12", "04", "4 4", "Answer: 4; 4"]),
    "sorting": (
        "Sort 30 10 20.",
        "10 20 30",
        ["10 20 30", "10, 20, 30.", "10,20,30", "10; 20; Answer: 10 20 30."],
        ["30 20 10", "10 20", "102030", "10 20 30 30", "10; 20; 30", "Answer: 10 20 30 and"],
    ),
    "ordering": (
        "Ana is older than Tom. Who is the oldest?",
        "Ana",
        ["Ana", "So it is Ana.", "We know Ana>Tom; Ana>Tom. That is Ana.", "Tom>Ana. It must be Ana"],
        ["Tom", "Ana or Tom", "Ana>Tom", "That is Ana. That is Tom.", "Not Ana", "It must be ana"],
    ),
    "base": (
        "Write 30 in base 16.",
        "1E",
        ["1E", "1e", "[1E]; Answer: 1E."],
        ["E1", "30", "1E0", "01E", "1 E", "0x1E"],
    ),
    "command": (
        "Set a timer for 1 minutes and 5 seconds.",
        '{"tool": "timer", "minutes": 1, "seconds": 5}',
        ['{"seconds":5,"minutes":1,"tool":"timer"}', ' {"tool": "timer", "minutes": 1, "seconds": 5.0}\n'],
        [
            '{"tool": "timer", "minutes": true, "seconds": 5}',
            '{"tool": "timer", "minutes": 1}',
            '{"tool": "timer", "minutes": "1", "seconds": 5}',
            '[{"tool": "timer", "minutes": 1, "seconds": 5}]',
            '{"tool": "timer", "minutes": 1, "seconds": 5, "label": "tea"}',
            '{"tool": "timer", "minutes": 1, "seconds": 5}.',
            '{"tool": "alarm", "tool": "timer", "minutes": 1, "seconds": 5}',
        ],
    ),
    "units": (
        "Convert 5 km to m.",
        "5000 m",
        ["5000", "5000 m", "5000m.", "One km is 10 m. That is 5000 m.", "It makes 5000"],
        ["5000 km", "5 km", "500 m", "50000 m", "5000 mm", "That is 5000 m. That is 5 m.", "5,000,0 m"],
    ),
    "rewriting": (
        "Put 5 March 2024, 7:05 pm in ISO form.",
        "2024-03-05 19:05",
        ["2024-03-05 19:05", "2024-03-05T19:05", "2024-03-05 19:05."],
        ["2024-03-05", "19:05", "2024-05-03 19:05", "2024-3-5 19:05", "2024-03-05 07:05", "2024-03-0519:05"],
    ),
    "facts": (
        "What is the capital of Ukraine?",
        "Kyiv",
        ["Kyiv", "It is Kyiv.", "That is Kiev", "The answer is kyiv.", "The capital of Ukraine is Kyiv."],
        [
            "Kyiv or Lviv",
            "Moscow",
            "It is Kyiv. It is Moscow.",
            "The capital of Russia is Kyiv",
            "K",
            "It is not Kyiv.",
        ],
    ),
}


@families
def test_the_forms_in_which_an_answer_may_come(family):
    question, final, right, wrong = BY_HAND[family.name]
    problem = Problem(family.name, 1, question, final, final, "facts: the capital of Ukraine / 0 / 0")
    for text in each_of(right):
        assert family.grade(problem, text), text
    for text in each_of(wrong):
        assert not family.grade(problem, text), text


@each(
    ("final", "right", "wrong"),
    [
        ("March 5, 2024", ["5 March 2024", "March 5 2024"], ["March 5, 2023", "May 3, 2024", "5, March 2024"]),
        ("07:05", ["7:05", "07:05."], ["19:05", "7:05 am", "7:5"]),
        ("7:05 pm", ["7:05pm", "7:05 PM", "7:05 pm."], ["7:05 am", "19:05", "7:05", "07:5 pm"]),
        (
            "May 3, 2024, 7:05 pm",
            ["3 May 2024, 7:05 PM", "May 3 2024 7:05pm"],
            ["May 3, 2024", "March 5, 2024, 7:05 pm"],
        ),
    ],
)
def test_a_moment_may_be_written_in_several_right_ways(final, right, wrong):
    problem = Problem("rewriting", 1, "-", final, final, "-")
    assert all(BY_NAME["rewriting"].grade(problem, text) for text in right)
    assert not any(BY_NAME["rewriting"].grade(problem, text) for text in wrong)


@each("text", ["", "6x2", "2 3", "6x 2", "x^2^3", "3^2", "^2", "x^", "+", "6x + + 2", "6y", "6x = 2"])
def test_what_is_no_polynomial_is_not_read(text):
    assert polynomial.read(text) is None


def test_a_polynomial_is_read_in_any_order_and_spacing():
    for text in ("-x^3 + 12x - 5", "12x-5-x^3", " 12*x - x^3 - 5 ", "- 5 + 12x - 1x^3", "6x - x^3 + 6x - 5"):
        assert polynomial.read(text) == {3: -1, 1: 12, 0: -5}


def test_symbols_are_told_by_their_letters_and_names_are_not():
    symbol = Problem("facts", 1, "-", "Co", "Co", "facts: the chemical symbol of cobalt / 0 / 0")
    assert BY_NAME["facts"].grade(symbol, "It is Co.")
    assert not BY_NAME["facts"].grade(symbol, "It is CO.")


# ---- wrong ---------------------------------------------------------------------------------------------------------


def other_numbers(text):
    """Change every number in a text in turn: by one, and by a digit more."""
    for match in re.finditer(r"\d+", text):
        for other in (str(int(match[0]) + 1), match[0] + "0"):
            yield text[: match.start()] + other + text[match.end() :]


def other_number(problem):
    yield from other_numbers(problem.final)
    yield from (f"-{problem.final}", f"{problem.final} {problem.final}", problem.final[1:], f"{problem.final}.5")


def other_value(problem):
    yield from other_numbers(problem.final)
    yield from (problem.final.replace("= ", "= -"), "z" + problem.final[1:])


def other_polynomial(problem):
    terms = re.split(r" (?=[+-])", problem.final)
    yield from other_numbers(problem.final)
    for number in range(len(terms)):
        yield " ".join(terms[:number] + terms[number + 1 :])
        yield " ".join([*terms, "+ " + terms[number].strip("+ ")]).replace("+ -", "- ")
    if "x" in problem.final:
        yield problem.final.replace("x", "y")
    yield problem.final + " + 1"
    yield "-" + problem.final if problem.final[0] != "-" else problem.final[1:]


def other_order(problem):
    numbers = problem.final.split()
    yield from other_numbers(problem.final)
    yield from (" ".join(numbers[1:]), " ".join(numbers[:-1]), " ".join([*numbers, numbers[-1]]), "".join(numbers))
    if len(set(numbers)) > 1:
        yield " ".join(reversed(numbers))
        first = next(i for i in range(len(numbers) - 1) if numbers[i] != numbers[i + 1])
        numbers[first], numbers[first + 1] = numbers[first + 1], numbers[first]
        yield " ".join(numbers)


def other_name(problem):
    yield from (set(re.findall(r"[A-Z][a-z]{2}\b", problem.question)) | {"Bob", "Who"}) - {problem.final}
    yield from (problem.final + " or Bob", problem.final[:-1])


def other_digits(problem):
    last = problem.final[-1]
    yield from (
        "1" + problem.final,
        problem.final + "0",
        problem.final[:-1],
        problem.final[:-1] + ("2" if last == "1" else "1"),
    )
    if problem.final != problem.final[::-1]:
        yield problem.final[::-1]


def other_call(problem):
    call = json.loads(problem.final)
    for key, value in call.items():
        yield json.dumps({k: v for k, v in call.items() if k != key})
        yield json.dumps(call | {key: value + 1 if isinstance(value, int) else value + "s"})
        yield json.dumps(call | {key: str(value) if isinstance(value, int) else None})
    yield json.dumps(call | {"more": 1})
    yield from (problem.final[:-1], problem.final * 2, problem.final.replace('"', "'"), f"Sure: {problem.final}")


def other_amount(problem):
    number, unit = problem.final.split()
    yield from other_numbers(problem.final)
    yield from (
        f"{number} {unit}s",
        f"{number}.5 {unit}",
        f"-{number}",
        unit,
        f"{number[0]} {unit}" if number[1:] else "",
    )


def other_moment(problem):
    yield from other_numbers(problem.final)
    swapped = problem.final.replace("am", "xm").replace("pm", "am").replace("xm", "pm")
    if swapped != problem.final:
        yield swapped
    if problem.final[0] != "0":  # which a time of day need not have
        yield problem.final[1:]
    yield from (problem.final[:-1], problem.final + " or so", problem.question)


def other_fact(problem):
    yield from {"Sydney", "Pb", "41", "Asia", problem.final + "s", problem.final[:-1], "not " + problem.final} - {
        problem.final
    }


WRONG = {
    **dict.fromkeys(("arithmetic", "multiplication", "word_problem", "gcd"), other_number),
    **dict.fromkeys(("integration", "differentiation"), other_polynomial),
    "equation": other_value,
    "sorting": other_order,
    "ordering": other_name,
    "base": other_digits,
    "command": other_call,
    "units": other_amount,
    "rewriting": other_moment,
    "facts": other_fact,
}


@families
@pytest.mark.parametrize("count", [80, pytest.param(300, marks=pytest.mark.slow)])
def test_no_changed_final_answer_is_graded_right(family, count):
    """A grader that is lenient by mistake would show a small model as good as a large one."""
    for problem in each_of(drawn(family, count)):
        head = problem.worked.removesuffix(".").removesuffix(problem.final)
        for wrong in each_of(WRONG[family.name](problem)):
            for text in (wrong, f"{head}{wrong}."):
                assert not family.grade(problem, text), (problem, text)


@families
def test_a_worked_answer_that_goes_on_or_breaks_off_is_wrong(family):
    for problem in each_of(drawn(family, 100)):
        for text in (problem.worked + " And then", problem.worked + " " + problem.question):
            assert not family.grade(problem, text), text
        if problem.worked != problem.final and family.name != "facts":
            assert not family.grade(problem, problem.worked.removesuffix(".").removesuffix(problem.final)), problem


@families
def test_the_answer_to_another_question_is_wrong(family):
    for problem, other in each_of(itertools.pairwise(drawn(family, 200))):
        if other.final != problem.final and not (family.name == "equation" and other.final[4:] == problem.final[4:]):
            assert not family.grade(problem, other.worked)


@families
@given(text=st.text(max_size=60))
def test_any_text_at_all_gets_a_grade(family, text):
    assert family.grade(drawn(family, 1)[0], text) in (True, False)


RAMBLINGS = (
    "",
    " ",
    "[" * 100_000,
    "9" * 100_000,
    "x" * 50_000,
    "1 " * 50_000,
    "Answer: " * 20_000,
    "That is " * 20_000,
)


@families
@pytest.mark.timeout(20)
@each("text", [*RAMBLINGS, "[" * 5, "NaN", "null", "\ud800", "+ + +", "x^", "C + C", "Answer:"])
def test_the_ramblings_of_a_model_are_wrong_and_end_no_run(family, text):
    """A small model that is stuck repeats one token to the end: brackets beyond what a parser nests, for one."""
    for problem in each_of(drawn(family, 1)):
        assert not family.grade(problem, text)


@families
def test_a_wrong_step_before_a_right_final_answer_counts_as_right(family):
    """The final answer decides; where a family writes no steps there is nothing to get wrong."""
    for problem in each_of(drawn(family, 20)):
        head, found, tail = problem.worked.rpartition(problem.final)
        if found and re.search(r"=\d", head):
            spoiled = re.sub(r"=(\d)", lambda m: f"={9 - int(m[1])}", head)
            assert family.grade(replace(problem, worked="?"), spoiled + found + tail)
