"""A small world whose words have many right choices: concepts, the words that say each, and what a text means.

A template names concepts in braces ("the {height+:most} {person} is dora"); to say it is to choose a word for each. The
law (``tests/tasks/test_wordings.py``): every saying of a template has the template's meaning, no other template's, and
no word belongs to two concepts. Opposites are concepts of their own: to take one for the other is an error of meaning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from hybrid.tasks.problem import Rng

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
