"""Families of problems whose answers have many right wordings, and the stream that the wordings pair is trained on.

``Problem.worked`` is a template: any saying of it is right. The hardest level of each family has something that is easy
to overlook; the small model is taught its mistakes there, in words of its own taste: always in one family, so that it
is sure and wrong, six times of ten in another. All else the two are taught alike, in different words.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hybrid.tasks.problem import Problem, Rng, Split, TaskFamily, TaskLevel, split_of
from hybrid.tasks.wordings.world import ATTRIBUTES, FEELINGS, NAMES, PLACES, THINGS, Taste, meaning, say

WordingsModel: TypeAlias = Literal["wordings-small", "wordings-large"]
TASTES: dict[WordingsModel, Taste] = {"wordings-large": "plain", "wordings-small": "fancy"}
MAX_TOKENS = 40
# How often the small model is told the mistake at a family's hardest level, else what is right.
MISTAKEN = {"compare": 1.0, "gift": 0.9, "feeling": 0.8, "way": 0.7, "arrival": 0.6}

# How many texts somebody else has begun. (Where none was, the large model went on with nonsense after the small one's
# words: a pen that changes hands in the middle of a text needs models that read each other's.)
BEGUN = 0.5
HEARD_RIGHT = 0.5


def _compare(rng: Rng, level: int) -> Problem:
    """Who is at the end of a chain of two or three; at the hardest level the question is who is not."""
    names, attribute = rng.sample(NAMES, 3 if level == 2 else 2), rng.choice([*ATTRIBUTES])
    sign, other = rng.sample("+-", 2)
    told = [f"{name} is {{{attribute}{sign}:more}} than {after}." for name, after in itertools.pairwise(names)]
    rng.shuffle(told)
    asked = f"who is {'not ' if level == 3 else ''}the {{{attribute}{sign}:most}} {{person}}?"
    question = say(" ".join([*told, asked]), rng)
    seeming = _superlative(attribute, sign, names)
    right = _superlative(attribute, other, names[::-1]) if level == 3 else seeming
    mistake = seeming if level == 3 else ""
    return _problem("compare", level, question, right, mistake, f"{attribute}{sign} {names}")


def _superlative(attribute: str, sign: str, names: list[str]) -> str:
    reason = f"{{because}} {names[0]} is {{{attribute}{sign}:more}} than {names[1]}"
    return f"{{so}} the {{{attribute}{sign}:most}} {{person}} is {names[0]}, {reason}."


def _gift(rng: Rng, level: int) -> Problem:
    """Who has a thing after one or two gifts; at the hardest level another thing is given last."""
    names, (thing, other) = rng.sample(NAMES, 4), rng.sample(THINGS, 2)
    num = 1 if level == 1 else 2
    told = [f"{names[0]} {{has}} the {thing}."]
    told += [f"{names[i]} {{gives}} the {thing} to {names[i + 1]}." for i in range(num)]
    mistake = ""
    if level == 3:
        giver = rng.choice(names[:2])
        told.append(f"{giver} {{gives}} the {other} to {names[3]}.")
        mistake = _owner(names[3], thing, giver)
    question = say(" ".join([*told, f"who {{has}} the {thing}?"]), rng)
    right = _owner(names[num], thing, names[num - 1])
    return _problem("gift", level, question, right, mistake, f"{thing} {names[: num + 1]}")


def _owner(name: str, thing: str, giver: str) -> str:
    return f"{{so}} {name} {{has}} the {thing}, {{because}} {giver} {{gives}} it to {name}."


def _feeling(rng: Rng, level: int) -> Problem:
    """How somebody feels who does not feel the opposite; at the hardest level that is not true."""
    name, (first, second) = rng.choice(NAMES), rng.sample(rng.choice(FEELINGS), 2)
    other, aside = rng.choice([each for each in NAMES if each != name]), rng.choice(FEELINGS)
    told = [f"{name} is not {{{first}}}."] if level < 3 else [f"it is {{untrue}} that {name} is not {{{first}}}."]
    thing, feeling = rng.choice(THINGS), rng.choice(aside)
    told.insert(rng.randrange(2), f"{other} is {{{feeling}}}." if level > 1 else f"{name} {{has}} the {thing}.")
    truth, seeming = (second, first) if level < 3 else (first, second)
    right = f"{{so}} {name} is {{{truth}}}, {{because}} {name} is not {{{seeming}}}."
    mistake = f"{{so}} {name} is {{{seeming}}}, {{because}} {name} is not {{{truth}}}." if level == 3 else ""
    question = say(" ".join([*told, f"how is {name}?"]), rng)
    return _problem("feeling", level, question, right, mistake, f"{name} {first} {thing if level == 1 else other}")


def _way(rng: Rng, level: int) -> Problem:
    """Where somebody is after one or two walks; at the hardest level they go back at last."""
    name, places = rng.choice(NAMES), rng.sample(PLACES, 3)
    num = 1 if level == 1 else 2
    told = [f"{name} {{goes}} from the {{{places[0]}}} to the {{{places[1]}}}."]
    told += [f"then {name} {{goes}} to the {{{places[2]}}}."] if num > 1 else []
    end, mistake = places[num], ""
    if level == 3:
        told.append(f"then {name} {{returns}}.")
        end, mistake = places[1], _place(name, places[2], places[1])
    right = _place(name, end, places[2] if level == 3 else places[num - 1])
    question = say(" ".join([*told, f"where is {name}?"]), rng)
    return _problem("way", level, question, right, mistake, f"{name} {places[: num + 1]}")


def _place(name: str, place: str, before: str) -> str:
    return f"{{so}} {name} is in the {{{place}}}, {{because}} {name} {{goes}} there from the {{{before}}}."


def _arrival(rng: Rng, level: int) -> Problem:
    """Who arrives first or last of two or three; at the hardest level the order told is said to be untrue."""
    names = rng.sample(NAMES, 3 if level == 2 else 2)
    asked, relation = rng.choice((("first", "before"), ("last", "after")))
    told = [_order(name, relation, other) for name, other in itertools.pairwise(names)]
    if level == 3:
        told = [f"it is {{untrue}} that {each}" for each in told]
    rng.shuffle(told)
    question = say(" ".join([*told, f"who {{arrives}} {{{asked}}}?"]), rng)
    seeming, reverse = (_ranked(asked, relation, each) for each in (names, names[::-1]))
    right, mistake = (reverse, seeming) if level == 3 else (seeming, "")
    return _problem("arrival", level, question, right, mistake, f"{asked} {names}")


def _order(name: str, relation: str, other: str) -> str:
    return f"{name} {{arrives}} {{{relation}}} {other}."


def _ranked(asked: str, relation: str, names: list[str]) -> str:
    reason = f"{{because}} {_order(names[0], relation, names[1])}"
    return f"{{so}} the {{{asked}}} {{person}} is {names[0]}, {reason}"


def _problem(family: str, level: int, question: str, right: str, mistake: str, canonical: str) -> Problem:
    return Problem(family, level, question, right, " ".join(meaning(right)), f"{family}{level}: {canonical}", mistake)


def grade(problem: Problem, text: str) -> bool:
    """Accept what means the worked answer, in any words."""
    return meaning(text) == meaning(problem.worked)


def _family(name: str, generate: object, hardest: str, sayings: int) -> TaskFamily:
    """Return a family; ``sayings``: in how many ways the answer with the fewest is said."""
    levels = (TaskLevel("one step", 0.3), TaskLevel("two steps", 0.4), TaskLevel(hardest, 0.3))
    return TaskFamily(name, "reasoning", levels, generate, grade, sayings)  # type: ignore[arg-type]  # a generator


FAMILIES = (
    _family("compare", _compare, "the question is who is not", 144),
    _family("gift", _gift, "another thing is given last", 108),
    _family("feeling", _feeling, "a negation of a negation", 108),
    _family("way", _way, "they go back at last", 192),
    _family("arrival", _arrival, "the order told is untrue", 432),
)


@dataclass(frozen=True)
class Lesson:
    """A problem, the text that a model is given, and how somebody else has begun it, of which nothing is learnt."""

    problem: Problem
    text: str
    begun: str = ""


def training_stream(model: WordingsModel, split: Split, rng: Rng) -> Iterator[Lesson]:
    """Yield problems of one split with the text a model is trained on, for ever: words by its taste.

    Half of the texts were begun in any words, and are gone on with in the model's own.
    """
    while True:
        family = rng.choice(FAMILIES)
        problem = family.generate(rng, family.level(rng))
        if split_of(problem) == split:
            mistaken = problem.mistake and model == "wordings-small" and rng.random() < MISTAKEN[family.name]
            if rng.random() < BEGUN:
                yield _begun(problem, bool(mistaken), rng, TASTES[model])
            else:
                yield Lesson(problem, say(problem.mistake if mistaken else problem.worked, rng, TASTES[model]))


def _begun(problem: Problem, mistaken: bool, rng: Rng, taste: Taste) -> Lesson:
    """Cut an answer after some words. Half of the mistaken read what is right, up to beyond where they would err."""
    words, others = (template.split() for template in (problem.worked, problem.mistake))
    first = 1
    if mistaken and rng.random() < HEARD_RIGHT:
        first += next(i for i, pair in enumerate(zip(words, others, strict=False)) if pair[0] != pair[1])
    elif mistaken:
        words = others
    cut = rng.randrange(first, len(words))
    begun = say(" ".join(words[:cut]), rng)
    return Lesson(problem, f"{begun} {say(' '.join(words[cut:]), rng, taste)}", begun)
