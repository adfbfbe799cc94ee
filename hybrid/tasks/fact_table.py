"""What the facts family asks: facts that do not change, each with its answer, and the wrong answer people often give.

Source: general knowledge as in any atlas or encyclopedia (capitals as the countries and states name them; symbols and
numbers of the periodic table of IUPAC; the eight planets of the IAU's definition of 2006). Nothing that changes: no
populations, no office holders, no records of people. A popular answer is a larger or better known city, or a symbol
guessed from the English name. The law: no fact is asked twice, and a popular answer is never a right one; periodic
table, planets and counts are checked against a second table (``tests/tasks/test_facts.py``).
"""

from __future__ import annotations

from dataclasses import dataclass


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
