"""True facts, asked in ten phrasings and answered in four wordings.

A problem is a fact in one phrasing, and so is its canonical text: every fact is trained on in some phrasings and tested
in others. For this the canonical text ends in a number, the least one with which the fact's ten phrasings fall into all
three splits (five of them at least into training); the rule of the splits is the same as for every family.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from functools import cache

from hybrid.tasks.problem import Problem, Rng, TaskFamily, TaskLevel, Wording, split_of_text

# What the facts family asks: facts that do not change, each with its answer, and the wrong answer people often give.
#
# Source: general knowledge as in any atlas or encyclopedia (capitals as the countries and states name them; symbols and
# numbers of the periodic table of IUPAC; the eight planets of the IAU's definition of 2006). Nothing that changes: no
# populations, no office holders, no records of people. A popular answer is a larger or better known city, or a symbol
# guessed from the English name. The law: no fact is asked twice, and a popular answer is never a right one; periodic
# table, planets and counts are checked against a second table (``tests/tasks/test_facts.py``).


@dataclass(frozen=True)
class Fact:
    """``phrase`` names what is asked for ("the capital of Australia"); ``also``: other right forms of the answer."""

    phrase: str
    answer: str
    level: int
    popular: str = ""
    also: tuple[str, ...] = ()


def _pairs(text: str) -> list[list[str]]:
    """Read ``subject: answer`` or ``subject: answer: popular wrong answer``, separated by semicolons."""
    return [[part.strip() for part in entry.split(":")] for entry in text.split(";")]


SYMBOLS = _pairs(
    "hydrogen: H; helium: He; lithium: Li; carbon: C; nitrogen: N; oxygen: O; neon: Ne; magnesium: Mg; aluminium: Al;"
    "silicon: Si; phosphorus: P; sulfur: S; chlorine: Cl; argon: Ar; calcium: Ca; titanium: Ti; chromium: Cr;"
    "cobalt: Co; nickel: Ni; zinc: Zn; bromine: Br; iodine: I; barium: Ba; platinum: Pt; uranium: U;"
    "gold: Au: Go; silver: Ag: Si; iron: Fe: Ir; sodium: Na: So; potassium: K: Po; tin: Sn: Ti; lead: Pb: Le;"
    "copper: Cu: Co; tungsten: W: Tu; mercury: Hg: Me; antimony: Sb: An"
)
ATOMIC_NUMBERS = _pairs(
    "hydrogen: 1; helium: 2; lithium: 3; carbon: 6; nitrogen: 7; oxygen: 8; neon: 10; sodium: 11; aluminium: 13;"
    "silicon: 14; sulfur: 16; chlorine: 17; argon: 18; calcium: 20; iron: 26; copper: 29; silver: 47; gold: 79;"
    "lead: 82; uranium: 92"
)
PLANETS = _pairs(
    "first: Mercury; second: Venus; third: Earth; fourth: Mars; fifth: Jupiter; sixth: Saturn; seventh: Uranus;"
    "eighth: Neptune"
)
COUNTS = _pairs(
    "sides of a triangle: 3; sides of a pentagon: 5; sides of a hexagon: 6; sides of an octagon: 8; faces of a cube: 6;"
    "edges of a cube: 12; legs of a spider: 8; legs of an ant: 6; bones of an adult human: 206;"
    "strings of a violin: 4; keys of a modern piano: 88; days of a leap year: 366; degrees of a full circle: 360;"
    "squares of a chessboard: 64; letters of the English alphabet: 26"
)
CAPITALS = _pairs(
    "France: Paris; Germany: Berlin; Italy: Rome; Spain: Madrid; Portugal: Lisbon; Austria: Vienna; Poland: Warsaw;"
    "Hungary: Budapest; Greece: Athens; Norway: Oslo; Sweden: Stockholm; Finland: Helsinki; Denmark: Copenhagen;"
    "Ireland: Dublin; Belgium: Brussels; Romania: Bucharest; Bulgaria: Sofia; Croatia: Zagreb; Serbia: Belgrade;"
    "Slovenia: Ljubljana; Iceland: Reykjavik; Estonia: Tallinn; Latvia: Riga; Lithuania: Vilnius; Russia: Moscow;"
    "Ukraine: Kyiv; Japan: Tokyo; Thailand: Bangkok; Mongolia: Ulaanbaatar; Nepal: Kathmandu; Iran: Tehran;"
    "Iraq: Baghdad; Egypt: Cairo; Kenya: Nairobi; Ethiopia: Addis Ababa; Ghana: Accra; Senegal: Dakar; Tunisia: Tunis;"
    "Algeria: Algiers; Zambia: Lusaka; Angola: Luanda; Cuba: Havana; Jamaica: Kingston; Mexico: Mexico City;"
    "Peru: Lima; Chile: Santiago; Argentina: Buenos Aires; Uruguay: Montevideo; Colombia: Bogota; Venezuela: Caracas;"
    "Paraguay: Asuncion; Cambodia: Phnom Penh; Laos: Vientiane; Bangladesh: Dhaka; Jordan: Amman; Lebanon: Beirut;"
    "Qatar: Doha; the Czech Republic: Prague;"
    "Australia: Canberra: Sydney; Turkey: Ankara: Istanbul; Brazil: Brasilia: Rio de Janeiro; Canada: Ottawa: Toronto;"
    "Switzerland: Bern: Zurich; New Zealand: Wellington: Auckland; Morocco: Rabat: Casablanca; Nigeria: Abuja: Lagos;"
    "Pakistan: Islamabad: Karachi; India: New Delhi: Mumbai; China: Beijing: Shanghai; Vietnam: Hanoi: Saigon;"
    "Kazakhstan: Astana: Almaty; Ecuador: Quito: Guayaquil; Scotland: Edinburgh: Glasgow; Wales: Cardiff: Swansea;"
    "the United Arab Emirates: Abu Dhabi: Dubai; California: Sacramento: Los Angeles; Texas: Austin: Houston;"
    "Florida: Tallahassee: Miami; Illinois: Springfield: Chicago; Pennsylvania: Harrisburg: Philadelphia;"
    "Michigan: Lansing: Detroit; Nevada: Carson City: Las Vegas"
)
OTHERS = _pairs(
    "the largest planet: Jupiter; the largest ocean: Pacific; the highest mountain above the sea: Everest;"
    "the largest animal: blue whale; the fastest animal on land: cheetah; the tallest animal: giraffe;"
    "the largest continent: Asia; the largest country by area: Russia; the hardest natural mineral: diamond;"
    "the deepest lake: Baikal;"
    "the hottest planet: Venus: Mercury; the smallest planet: Mercury: Pluto;"
    "the smallest continent: Australia: Europe; the largest island: Greenland: Australia;"
    "the largest organ of the human body: skin: liver; the most common gas in the air: nitrogen: oxygen"
)
ALSO = {
    "Kyiv": ("Kiev",),
    "Astana": ("Nur-Sultan",),
    "Pacific": ("Pacific Ocean",),
    "Everest": ("Mount Everest", "Mt Everest"),
    "Baikal": ("Lake Baikal",),
}


def _facts(named: str, entries: list[list[str]], level: int) -> list[Fact]:
    """Make facts of one kind; one with a popular wrong answer is of the hardest level."""
    return [
        Fact(named.format(subject), answer, 3 if popular else level, "".join(popular), ALSO.get(answer, ()))
        for subject, answer, *popular in entries
    ]


_ALL = (
    *_facts("the chemical symbol of {}", SYMBOLS, 1),
    *_facts("the atomic number of {}", ATOMIC_NUMBERS, 1),
    *_facts("the {} planet from the Sun", PLANETS, 1),
    *_facts("the number of {}", COUNTS, 1),
    *_facts("the capital of {}", CAPITALS, 2),
    *_facts("{}", OTHERS, 2),
)
FACTS = {fact.phrase: fact for fact in _ALL}


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
