"""The facts: right by second tables where there are any, each asked in every split, popular answers wrong."""

import random
from collections import Counter

from cases import each, each_of

from hybrid.tasks import BY_NAME, split_of
from hybrid.tasks.facts import BY_LEVEL, FACTS, PHRASINGS, WORDING, ask_fact, canonicals, fact_of, word_answer

FAMILY = BY_NAME["facts"]
# The first ninety-two elements in their order: a position is an atomic number. Written without looking at the table.
PERIODIC_TABLE = """
H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr
Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir
Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U
"""
NAMED = """
H=hydrogen He=helium Li=lithium C=carbon N=nitrogen O=oxygen Ne=neon Na=sodium Mg=magnesium Al=aluminium
Si=silicon P=phosphorus S=sulfur Cl=chlorine Ar=argon K=potassium Ca=calcium Ti=titanium Cr=chromium Fe=iron
Co=cobalt Ni=nickel Cu=copper Zn=zinc Br=bromine Ag=silver Sn=tin Sb=antimony I=iodine Ba=barium W=tungsten
Pt=platinum Au=gold Hg=mercury Pb=lead U=uranium
"""
IN_ORDER = """
first=Mercury second=Venus third=Earth fourth=Mars fifth=Jupiter sixth=Saturn seventh=Uranus eighth=Neptune
"""
ELEMENTS = PERIODIC_TABLE.split()
NAMES = dict(entry.split("=") for entry in NAMED.split())
PLANETS = dict(entry.split("=") for entry in IN_ORDER.split())


def answers(head):
    return {phrase.removeprefix(head): fact.answer for phrase, fact in FACTS.items() if phrase.startswith(head)}


def test_there_are_at_least_120_facts_and_none_is_asked_twice():
    assert len(FACTS) == sum(map(len, BY_LEVEL)) >= 120
    assert len(FACTS) == len({phrase.casefold() for phrase in FACTS})


def test_symbols_and_atomic_numbers_are_those_of_the_periodic_table():
    assert {name: symbol for symbol, name in NAMES.items()} == answers("the chemical symbol of ")
    numbers = answers("the atomic number of ")
    assert len(numbers) == 20
    assert all(NAMES[ELEMENTS[int(number) - 1]] == name for name, number in numbers.items())


def test_planets_stand_in_their_order():
    found = {phrase: fact.answer for phrase, fact in FACTS.items() if phrase.endswith("planet from the Sun")}
    assert found == {f"the {ordinal} planet from the Sun": planet for ordinal, planet in PLANETS.items()}


def test_no_capital_is_that_of_two_places():
    capitals = answers("the capital of ")
    assert len(set(capitals.values())) == len(capitals) >= 60


def test_the_hardest_level_are_the_facts_with_a_popular_answer_and_that_one_is_wrong():
    assert {fact.phrase for fact in BY_LEVEL[2]} == {fact.phrase for fact in FACTS.values() if fact.popular}
    assert len(BY_LEVEL[2]) >= 25
    rng = random.Random(0)
    for fact in each_of(BY_LEVEL[2]):
        for wording in each_of(WORDING.closings):
            assert not FAMILY.grade(ask_fact(rng, fact, 0), f"{wording} {fact.popular}.")
        assert not FAMILY.grade(ask_fact(rng, fact, 0), word_answer(rng, fact.popular))


@each("fact", FACTS.values(), ids=lambda fact: fact.phrase)
def test_every_fact_is_trained_on_and_tested_in_other_phrasings(fact):
    problems = [ask_fact(random.Random(0), fact, number) for number in range(len(PHRASINGS))]
    assert len({problem.question for problem in problems}) == len(PHRASINGS) == 10
    counts = Counter(map(split_of, problems))
    assert counts["train"] >= 5
    assert counts["calibration"] >= 1
    assert counts["test"] >= 1
    assert {fact_of(problem) for problem in problems} == {fact}
    assert tuple(problem.canonical for problem in problems) == canonicals(fact)


def test_every_phrasing_is_trained_on():
    """A phrasing that is new in the test would measure something else."""
    rng = random.Random(0)
    for number in each_of(range(len(PHRASINGS))):
        splits = Counter(split_of(ask_fact(rng, fact, number)) for fact in FACTS.values())
        assert splits["train"] > 80
