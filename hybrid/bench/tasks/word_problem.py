"""Two-step word problems, worked in two equations."""

from __future__ import annotations

import re

from hybrid.bench.tasks.problem import Family, Problem, Rng

NAMES = ("Tom", "Ana", "Sam", "Lea", "Max", "Eva", "Ben", "Mia", "Leo", "Zoe")
ITEMS = ("apples", "books", "coins", "pens", "cards", "shells", "stamps", "keys")


def generate(rng: Rng) -> Problem:
    """Draw one problem: buy and give away, or boxes of so many and some more."""
    name, item = rng.choice(NAMES), rng.choice(ITEMS)
    if rng.random() < 0.5:
        have, more = rng.randrange(10, 90), rng.randrange(10, 90)
        away = rng.randrange(1, have + more)
        total, left = have + more, have + more - away
        question = f"{name} has {have} {item}, buys {more} more and gives away {away}. How many {item} are left?"
        return Problem(
            "word_problem",
            question,
            f"{have} + {more} = {total}. {total} - {away} = {left}. The answer is {left}.",
            str(left),
        )
    boxes, each, have = rng.randrange(2, 10), rng.randrange(2, 10), rng.randrange(1, 90)
    bought, total = boxes * each, boxes * each + have
    question = f"{name} buys {boxes} boxes with {each} {item} each and already has {have}. How many {item} in total?"
    return Problem(
        "word_problem",
        question,
        f"{boxes} * {each} = {bought}. {bought} + {have} = {total}. The answer is {total}.",
        str(total),
    )


def grade(problem: Problem, text: str) -> bool:
    """Accept by the number after "The answer is", which must close the text."""
    match = re.search(r"The answer is (\d+)\.?$", text.strip())
    return match is not None and match[1] == problem.final


FAMILY = Family("word_problem", generate, grade)
