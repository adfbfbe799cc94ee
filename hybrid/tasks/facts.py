"""True facts, asked in ten phrasings and answered in four wordings.

A problem is a fact in one phrasing, and so is its canonical text: every fact is trained on in some phrasings and tested
in others. For this the canonical text ends in a number, the least one with which the fact's ten phrasings fall into all
three splits (five of them at least into training); the rule of the splits is the same as for every family.
"""

from __future__ import annotations

import itertools
from collections import Counter
from functools import cache

from hybrid.tasks.fact_table import FACTS, Fact
from hybrid.tasks.problem import Problem, Rng, TaskFamily, TaskLevel, split_of_text
from hybrid.tasks.wording import Wording

PHRASINGS = (
    *("What is {}?", "Name {}.", "Tell me {}.", "Do you know {}?", "I would like to know {}."),
    *("Please give me {}.", "Can you say what {} is?", "Quiz: {}.", "I forgot {}.", "Remind me of {}."),
)
WORDING = Wording(closings=("It is", "That is", "The answer is", ""))
LEVELS = (
    TaskLevel("chemical symbols, atomic numbers, planets, counts", 0.35),
    TaskLevel("capitals and superlatives", 0.35),
    TaskLevel("facts that people often get wrong", 0.3),
)
BY_LEVEL = tuple(tuple(fact for fact in FACTS.values() if fact.level == level) for level in (1, 2, 3))


def generate(rng: Rng, level: int) -> Problem:
    """Draw a fact, a phrasing and a wording."""
    return ask_fact(rng, rng.choice(BY_LEVEL[level - 1]), rng.randrange(len(PHRASINGS)))


def ask_fact(rng: Rng, fact: Fact, phrasing: int) -> Problem:
    """Ask for a fact in one phrasing."""
    canonical = canonicals(fact)[phrasing]
    question = PHRASINGS[phrasing].format(fact.phrase)
    return Problem("facts", fact.level, question, word_answer(rng, fact.answer), fact.answer, canonical)


def word_answer(rng: Rng, answer: str) -> str:
    """Word an answer, a right or a popular one."""
    return WORDING.text(rng, "", answer)


def fact_of(problem: Problem) -> Fact:
    """Return the fact that a problem asks for."""
    return FACTS[problem.canonical.removeprefix("facts: ").split(" / ")[0]]


@cache
def canonicals(fact: Fact) -> tuple[str, ...]:
    """Return the canonical texts of a fact's problems, a phrasing each."""
    for turn in itertools.count():
        found = tuple(f"facts: {fact.phrase} / {number} / {turn}" for number in range(len(PHRASINGS)))
        splits = Counter(map(split_of_text, found))
        if splits["train"] >= 5 and splits["calibration"] and splits["test"]:
            return found
    raise AssertionError  # pragma: no cover  (the count has no end)


def grade(problem: Problem, text: str) -> bool:
    """Accept the answer or another right form of it, in any wording; symbols in their own letters, names in any."""
    fact = fact_of(problem)
    same = str.casefold if len(fact.answer) > 2 else str
    forms = {same(form) for form in (fact.answer, *fact.also)}
    subjects = {f"{fact.phrase} is ", f"{fact.phrase[0].upper()}{fact.phrase[1:]} is ", "the ", ""}
    accepted = {same(subject) + form for subject in subjects for form in forms}
    return any(same(found) in accepted for found in WORDING.finals(text))


FAMILY = TaskFamily("facts", "knowledge", LEVELS, generate, grade, len(WORDING))
