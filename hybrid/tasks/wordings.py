"""Families of problems whose answers have many right wordings, and the stream that the wordings pair is trained on.

``Problem.worked`` is a template: any saying of it is right. The hardest level of each family has something that is easy
to overlook; the small model is taught its mistakes there, in words of its own taste: always in one family, so that it
is sure and wrong, six times of ten in another. All else the two are taught alike, in different words.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hybrid.tasks.problem import Problem, Rng, Split, TaskFamily, TaskLevel, split_of

# A small world whose words have many right choices: concepts, the words that say each, and what a text means.
#
# A template names concepts in braces ("the {height+:most} {person} is dora"); to say it is to choose a word for each.
# The law (``tests/tasks/test_wordings.py``): every saying of a template has the template's meaning, no other
# template's, and no word belongs to two concepts. Opposites are concepts of their own: to take one for the other is an
# error of meaning.

Taste = Literal["plain", "fancy"]
"""Which words a writer likes: the first of each concept, or the last. Everybody reads all of them."""

# Comparatives and superlatives of one direction of an attribute, then of the other.
ATTRIBUTES: Mapping[str, tuple[str, str]] = {
    "size": ("bigger/biggest larger/largest huger/hugest", "smaller/smallest tinier/tiniest littler/littlest"),
    "height": ("taller/tallest higher/highest loftier/loftiest", "shorter/shortest lower/lowest"),
    "speed": ("faster/fastest quicker/quickest swifter/swiftest", "slower/slowest tardier/tardiest"),
    "weight": ("heavier/heaviest weightier/weightiest", "lighter/lightest slighter/slightest"),
    "strength": ("stronger/strongest mightier/mightiest tougher/toughest", "weaker/weakest feebler/feeblest"),
    "wealth": ("richer/richest wealthier/wealthiest", "poorer/poorest needier/neediest"),
    "wit": ("smarter/smartest cleverer/cleverest brighter/brightest", "duller/dullest dimmer/dimmest"),
    "noise": ("louder/loudest noisier/noisiest", "quieter/quietest stiller/stillest"),
    "joy": ("happier/happiest gladder/gladdest merrier/merriest", "sadder/saddest glummer/glummest"),
    "age": ("older/oldest elder/eldest", "younger/youngest fresher/freshest"),
}
OTHERS: Mapping[str, str] = {
    "so": "so hence thus therefore",
    "because": "because since as",
    "person": "one person soul",
    "has": "has owns holds",
    "gives": "gives hands passes",
    "glad": "happy glad merry jolly",
    "sad": "sad gloomy glum",
    "calm": "calm quiet placid",
    "angry": "angry cross furious",
    "brave": "brave bold daring",
    "afraid": "afraid scared fearful",
    "goes": "goes walks strolls heads",
    "returns": "returns retreats",
    "shop": "shop store",
    "home": "house home",
    "forest": "forest woods",
    "sea": "sea ocean",
    "town": "town city",
    "garden": "garden yard",
    "stream": "stream brook creek",
    "hill": "hill mount",
    "untrue": "false untrue wrong",
    "arrives": "arrives comes appears",
    "before": "before ere",
    "after": "after behind",
    "first": "first earliest soonest",
    "last": "last latest",
}
FORMS = ("more", "most")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _concepts() -> dict[str, tuple[str, ...]]:
    found = {name: _words(words) for name, words in OTHERS.items()}
    for name, directions in ATTRIBUTES.items():
        for sign, words in zip("+-", directions, strict=True):
            for number, form in enumerate(FORMS):
                found[f"{name}{sign}:{form}"] = tuple(pair.split("/")[number] for pair in words.split())
    return found


CONCEPTS: Mapping[str, tuple[str, ...]] = _concepts()
_NUMBERS = {name: number for number, name in enumerate(CONCEPTS)}
CONCEPT_OF: Mapping[str, str] = {word: name for name, words in CONCEPTS.items() for word in words}
NAMES = _words("anna ben carl dora emil fred gina hugo ida john kate leo mary nina otto paul")
THINGS = _words("ball book box coin cup hat key lamp pen rope")
PLACES = ("shop", "home", "forest", "sea", "town", "garden", "stream", "hill")
FEELINGS = (("glad", "sad"), ("calm", "angry"), ("brave", "afraid"))
PLAIN_WORDS = _words("the is than to in it not that who how where then from there")
WORDS = tuple(sorted({*CONCEPT_OF, *NAMES, *THINGS, *PLAIN_WORDS}))
# What a text begins with, or a turn of a conversation.
FIRST_WORDS = tuple(sorted({*NAMES, *CONCEPTS["so"], "it", "user", "assistant"}))
# How much rarer a writer's next best word is: by little in one concept of three, by so much in another that it hardly
# comes. (By little in all of them, words were 0.4 to 1.4 nats apart: a threshold told them from errors of meaning.)
FALLS = (0.4, 0.15, 0.03)


def say(template: str, rng: Rng, taste: Taste | None = None) -> str:
    """Choose a word for each concept of a template: by a taste, or evenly."""

    def word(found: re.Match[str]) -> str:
        words = CONCEPTS[found[1]]
        return rng.choice(words) if taste is None else rng.choices(words, liking(found[1], taste))[0]

    return re.sub(r"\{([^}]+)\}", word, template)


def liking(concept: str, taste: Taste) -> tuple[float, ...]:
    """Return how often a writer of one taste says each word of a concept, in the words' order; they sum to 1.

    >>> [round(share, 2) for share in liking("so", "plain")]
    [0.62, 0.25, 0.1, 0.04]
    """
    fall, places = FALLS[_NUMBERS[concept] % len(FALLS)], range(len(CONCEPTS[concept]))
    shares = [fall**place for place in (places if taste == "plain" else reversed(places))]
    return tuple(share / sum(shares) for share in shares)


def is_told(text: str) -> bool:
    """Whether all words of a text are of this world."""
    return not {*re.findall(r"[\w']+", text)} - {*WORDS}


def meaning(text: str) -> tuple[str, ...]:
    """Return what a text means, or a template: its words in order, each as its concept where it says one.

    >>> meaning("thus ben owns the ball .") == meaning("{so} ben {has} the ball.")
    True
    """
    found = re.findall(r"\{([^}]+)\}|([\w']+)", text)
    return tuple(concept or CONCEPT_OF.get(word, word) for concept, word in found)


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


def lesson_stream(model: WordingsModel, split: Split, rng: Rng) -> Iterator[Lesson]:
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


# Problems with many right wordings: a small world, its families, and what the wordings pair is taught of it.
