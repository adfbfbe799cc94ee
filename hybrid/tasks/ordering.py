"""Who is the tallest: transitive comparisons of people, freely worded.

The premises come in any order. The work writes each with the greater person first, then who stands over each greater
person, then all of them counted from the end that the question asks for. So every step is one look-up; otherwise a
model must find in one go who is over nobody, and where "shortest" stands in a chain. The hardest level asks for the
second: a model that never saw it answers with the first.
"""

from __future__ import annotations

from hybrid.tasks.problem import Problem, Rng, TaskFamily, TaskLevel, Wording

NAMES = ("Tom", "Ana", "Sam", "Lea", "Max", "Eva", "Ben", "Mia", "Leo", "Zoe", "Tim", "Ida")
# More, less, most, least.
RELATIONS = (
    ("taller", "shorter", "tallest", "shortest"),
    ("older", "younger", "oldest", "youngest"),
    ("faster", "slower", "fastest", "slowest"),
    ("richer", "poorer", "richest", "poorest"),
)
WORDING = Wording(
    closings=("So it is", "The answer is", "That is", "It must be"),
    openings=("We know", "In symbols:", "Given:", "Let us compare:"),
)
LEVELS = (
    TaskLevel("three people", 0.3),
    TaskLevel("four people, told with either of two opposite words", 0.35),
    TaskLevel("four people, asked for the second", 0.35),
)


def generate(rng: Rng, level: int) -> Problem:
    """Draw one chain; what is compared and the order of the premises make twins."""
    chain = rng.sample(NAMES, 3 if level == 1 else 4)
    more, less, most, least = rng.choice(RELATIONS)
    pairs = [(chain[i], chain[i + 1]) for i in range(len(chain) - 1)]
    rng.shuffle(pairs)
    told: list[str] = []
    for high, low in pairs:
        turned = level > 1 and rng.random() < 0.5
        told.append(f"{low} is {less} than {high}." if turned else f"{high} is {more} than {low}.")
    top = rng.random() < 0.5
    place = 1 if level == 3 else 0
    final = chain[place] if top else chain[-1 - place]
    question = f"{' '.join(told)} Who is the {'second ' * place}{most if top else least}?"
    worked = WORDING.text(rng, _work(pairs, chain, top), final)
    canonical = f"ordering: {' > '.join(chain)}, {'top' if top else 'bottom'}"
    return Problem("ordering", level, question, worked, final, canonical)


def _work(pairs: list[tuple[str, str]], chain: list[str], top: bool) -> str:
    """Write the steps; names stand after a space, where each of them is the same tokens as in the question."""
    over = {low: high for high, low in pairs}
    compared = ", ".join(f"{high} > {low}" for high, low in pairs)
    above = ", ".join(f"over {high} {over.get(high, '-')}" for high, _ in pairs)
    places = range(1, len(chain) + 1) if top else range(len(chain), 0, -1)
    counted = " ".join(f"{place} {name}" for place, name in zip(places, chain, strict=True))
    return f"{compared}; {above}; {'top' if top else 'bottom'} {counted}."


def grade(problem: Problem, text: str) -> bool:
    """Accept the name alone or after any of the closings, whatever the steps were."""
    return problem.final in WORDING.finals(text)


FAMILY = TaskFamily("ordering", "reasoning", LEVELS, generate, grade, len(WORDING))
