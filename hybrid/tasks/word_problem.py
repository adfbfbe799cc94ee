"""Word problems of two and three steps, one equation a step, freely worded.

Every sum is of a two-digit and a one-digit number. The hardest level has a number that does not count: a model
that never saw one makes a step of it.
"""

from __future__ import annotations

from hybrid.tasks.problem import Problem, Rng, TaskFamily, TaskLevel, Wording, draw

NAMES = ("Tom", "Ana", "Sam", "Lea", "Max", "Eva", "Ben", "Mia", "Leo", "Zoe", "Tim", "Ida")
ITEMS = ("apples", "books", "coins", "pens", "cards", "shells", "stamps", "keys")
GAINS = ("{} buys {} more.", "{} finds {} more.", "{} gets {} more.")
LOSSES = ("{} gives away {}.", "{} loses {}.", "{} sells {}.")
ASIDES = ("{} is {} years old.", "{} has {} friends.", "{} lives in house number {}.", "{} walks {} miles a day.")
JOINTS = (". Then ", ". Next ", ", then ", ", and ")
WORDING = Wording(
    closings=("So the answer is", "That makes", "In the end:", "The answer is"),
    openings=("First", "We start with", "To begin:", "Step by step:"),
)
LEVELS = (
    TaskLevel("two steps", 0.3),
    TaskLevel("three steps", 0.35),
    TaskLevel("two or three steps, and a number that does not count", 0.35),
)


def generate(rng: Rng, level: int) -> Problem:
    """Draw one problem; names, things and the order of gains and losses make twins."""
    num_steps = {1: 2, 2: 3}.get(level) or rng.choice((2, 3))
    name, item = rng.choice(NAMES), rng.choice(ITEMS)
    if rng.random() < 0.4:
        boxes, each = rng.randint(2, 9), rng.randint(2, 9)
        amount, steps = boxes * each, [f"{boxes}*{each}={boxes * each}"]
        told = [f"{name} buys {boxes} boxes with {each} {item} each."]
        start = f"{boxes}*{each}"
    else:
        amount, steps = rng.randint(10, 89), []
        told = [f"{name} has {amount} {item}."]
        start = str(amount)
    changes = []
    while len(steps) < num_steps:
        change = rng.randint(2, 9) * (rng.choice((1, -1)) if amount > 9 else 1)
        told.append(rng.choice(GAINS if change > 0 else LOSSES).format(name, abs(change)))
        steps.append(f"{amount}{change:+d}={amount + change}")
        amount += change
        changes.append(f"{change:+d}")
    if level == 3:
        told.insert(rng.randrange(1, len(told)), rng.choice(ASIDES).format(name, rng.randint(2, 9)))
    question = (
        f"{' '.join(told)} {rng.choice(('How many {} does {} have now?', 'What number of {} does {} have now?'))}"
    )
    worked = WORDING.text(rng, f"{_joined(rng, steps)}.", str(amount))
    canonical = f"word_problem: {start} {' '.join(sorted(changes))}"
    return Problem("word_problem", level, question.format(item, name), worked, str(amount), canonical)


def _joined(rng: Rng, steps: list[str]) -> str:
    text = steps[0]
    for step in steps[1:]:
        text += draw(rng, JOINTS) + step
    return text


def grade(problem: Problem, text: str) -> bool:
    """Accept the number alone or after any of the closings, whatever the steps were."""
    return problem.final in WORDING.finals(text)


FAMILY = TaskFamily("word_problem", "reasoning", LEVELS, generate, grade, len(WORDING))
