"""Ten families of problems, none a variant of one in ``hybrid.tasks``, each with a wrong rule at its hardest level.

At level 3 a rule matters that levels 1 and 2 do not need. ``Problem.mistake`` is the whole answer of somebody who goes
by the wrong rule there: worked as carefully, always with another result. No other level has a mistake.

The laws, tested in ``tests/examples/test_foreign.py``: a second solver, which reads nothing but the question, finds the
final answer of every problem, and by the wrong rule the result of every mistake. This file knows no model and no split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from hybrid.tasks import Problem, TaskLevel
from hybrid.tasks.command import LENGTHS, MONTHS
from hybrid.tasks.problem import Rng, Wording

Draw: TypeAlias = Callable[[Rng, int], Problem]

# The final answer is what follows the last closing, up to the end of the text, or the whole text.
PLAIN = Wording(closings=("Result:",))
FREE = Wording(closings=("Result:", "So it is", "That gives"), openings=("Let us see:", "Step by step:", "We find"))
WORDINGS = {"road": FREE, "walk": FREE, "extract": FREE, "store": FREE}

NAMES = ("Ada", "Bob", "Cleo", "Dan", "Eli", "Fay", "Gus", "Hal", "Ivy", "Jon", "Kim", "Lou")
FIELDS = {
    "city": ("Oslo", "Rome", "Lima", "Bonn", "Cork", "Bern", "Kyiv", "Riga", "Nice", "Baku"),
    "pet": ("cat", "dog", "fish", "bird", "goat", "frog", "mouse", "horse"),
    "job": ("cook", "clerk", "nurse", "pilot", "baker", "judge", "miner", "tailor"),
    "age": tuple(map(str, range(21, 70))),
}
LENGTH_OF = dict(zip(MONTHS, LENGTHS, strict=True))
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SET_LETTERS = LETTERS[:12]
LOGIC_LETTERS = "bcdefghjkmnpqrstuvwx"
TOWNS = ("Ash", "Bay", "Cole", "Dunn", "Elm", "Ford", "Glen", "Hull")
MOVES = {"up": (0, 1), "down": (0, -1), "right": (1, 0), "left": (-1, 0)}
EDGE = 9
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
GOODS = ("pens", "cups", "hats", "bags", "keys", "jars", "lamps", "rugs")
VARIABLES = "xynmkt"
FRUITS = ("fig", "plum", "pear", "kiwi", "lime", "date", "nut", "apple", "mango", "olive", "grape", "melon")


def _problem(
    rng: Rng, family: str, level: int, told: str, asks: Sequence[str], *answers: tuple[str, str], same: str = ""
) -> Problem:
    """Return a problem whose question is ``told`` and one of several ways to ask; these are twins.

    ``answers``: work and final answer, of what is right and, at level 3, of what is wrong. ``same``: what else than
    ``told`` is equal for twins.
    """
    wording = WORDINGS.get(family, PLAIN)
    worked, *mistake = (wording.text(rng, work, final) for work, final in answers)
    question = f"{told} {rng.choice(asks)}".strip()
    canonical = f"{family}: {same or told} {asks[0]}"
    return Problem(family, level, question, worked, answers[0][1], canonical, *mistake)


def _extract(rng: Rng, level: int) -> Problem:
    """Look a field of a JSON record up. The wrong rule: of two records the first is meant, whoever is named."""
    people = rng.sample(NAMES, 1 if level == 1 else 2)
    keys = rng.sample([*FIELDS], 3 if level == 1 else 2)
    columns = {key: rng.sample(FIELDS[key], len(people)) for key in keys}
    records = [{"name": name} | {key: columns[key][i] for key in keys} for i, name in enumerate(people)]
    key, place = rng.choice(keys), int(level == 3)
    told = ", ".join("{" + ", ".join(f'"{k}": "{v}"' for k, v in record.items()) + "}" for record in records)
    asks = [ask.format(key, people[place]) for ask in ("What is the {} of {}?", "Give the {} of {}.")]
    read = keys[: keys.index(key) + 1]
    answers = [(", ".join(f'"{k}": "{record[k]}"' for k in ["name", *read]) + ".", record[key]) for record in records]
    return _problem(rng, "extract", level, f"[{told}]", asks, *(answers[::-1] if level == 3 else answers[:1]))


def _span(rng: Rng, level: int) -> Problem:
    """Count the days between two dates of a common year. The wrong rule: every month has 30 days."""
    lengths = {1: range(28, 32), 2: (30,), 3: (28, 31)}[level]
    month = rng.choice([name for name, length in LENGTH_OF.items() if length in lengths and name != "December"])
    after = MONTHS[MONTHS.index(month) + 1]
    if level == 1:
        first, last = sorted(rng.sample(range(1, LENGTH_OF[month] + 1), 2))
        told, answers = f"{first} {month} to {last} {month}", [(f"{_minus(last, first)}.", str(last - first))]
    else:
        first, last = rng.randint(1, 27), rng.randint(1, LENGTH_OF[after])
        told = f"{first} {month} to {last} {after}"
        answers = [_days(month, length, first, last) for length in (LENGTH_OF[month], 30)[: level - 1]]
    asks = (f"How many days from {told}?", f"Count the days from {told}.")
    return _problem(rng, "span", level, "", asks, *answers)


def _days(month: str, length: int, first: int, last: int) -> tuple[str, str]:
    rest = length - first
    return f"{month} has {length}, {_minus(length, first)}, {_plus(rest, last)}.", str(rest + last)


def _minus(high: int, low: int) -> str:
    """Write a difference of two digits by its ones and its tens."""
    borrowed = int(high % 10 < low % 10)
    ones, tens = (high % 10 + 10 * borrowed, low % 10), (high // 10 - borrowed, low // 10)
    digits = ", ".join(f"{a}-{b}={a - b}" for a, b in (ones, tens))
    return f"{digits}, {high}-{low}={high - low}"


def _plus(one: int, other: int) -> str:
    """Write a sum of two digits by its ones and its tens."""
    ones, tens = one % 10 + other % 10, one // 10 + other // 10
    carried = f"+1={tens + 1}" if ones > 9 else f"={tens}"
    return f"{one % 10}+{other % 10}={ones}, {one // 10}+{other // 10}{carried}, {one}+{other}={one + other}"


def _sets(rng: Rng, level: int) -> Problem:
    """Combine two sets. The wrong rule: what is in exactly one set is what is in either."""
    while True:
        one, other = (set(rng.sample(SET_LETTERS, rng.randint(2, 5))) for _ in range(2))
        if one & other and one - other:
            break
    work = " ".join(f"{x}:{'A' * (x in one)}{'B' * (x in other)}" for x in sorted(one | other)) + "."
    told = ", ".join(f"{name} = {{{', '.join(sorted(each))}}}" for name, each in (("A", one), ("B", other))) + "."
    if level == 2 and rng.random() < 0.5:
        ask, found = "in A and not in B", [one - other]
    else:
        ask = ("in both", "in A or B", "in exactly one")[level - 1]
        found = [[one & other], [one | other], [one ^ other, one | other]][level - 1]
    asks = (f"What is {ask}?", f"Which letters are {ask}?")
    return _problem(rng, "sets", level, told, asks, *((work, " ".join(sorted(each))) for each in found))


def _road(rng: Rng, level: int) -> Problem:
    """Find the shorter of two ways. The wrong rule: where there is a direct road, it is the shorter."""
    start, end, *over = rng.sample(TOWNS, 4 if level == 1 else 3)
    while True:
        legs = [(rng.randint(1, 9), rng.randint(1, 9)) for _ in over]
        lengths = [sum(pair) for pair in legs] + ([rng.randint(2, 18)] if level > 1 else [])
        if lengths[0] != lengths[1] and (level == 1 or (lengths[0] < lengths[1]) == (level == 3)):
            break
    roads = [f"{a}-{b} {n}" for c, pair in zip(over, legs, strict=True) for a, b, n in _legs(start, c, end, pair)]
    ways = [f"over {each}" for each in over]
    work = [
        f"{', '.join(f'{a}-{b} {n}' for a, b, n in _legs(start, each, end, pair))}, {pair[0]}+{pair[1]}={sum(pair)}"
        for each, pair in zip(over, legs, strict=True)
    ]
    if level > 1:
        roads.append(f"{start}-{end} {lengths[1]}")
        ways.append("direct")
        work.append(f"{start}-{end} {lengths[1]}")
    same = " ".join(sorted(roads))
    rng.shuffle(roads)
    right = ways[lengths.index(min(lengths))]
    asks = [ask.format(start, end) for ask in ("Shortest way from {} to {}?", "How is it shortest from {} to {}?")]
    answers = [(f"{'; '.join(work)}.", final) for final in (right, "direct")[: 1 + (level == 3)]]
    return _problem(rng, "road", level, f"Roads: {', '.join(roads)}.", asks, *answers, same=same)


def _legs(start: str, over: str, end: str, pair: tuple[int, int]) -> tuple[tuple[str, str, int], ...]:
    return (start, over, pair[0]), (over, end, pair[1])


def _walk(rng: Rng, level: int) -> Problem:
    """Walk over a board with walls. The wrong rule: who goes over an edge comes in at the other side."""
    while True:
        start = rng.randint(0, EDGE), rng.randint(0, EDGE)
        moves = [(rng.choice([*MOVES]), rng.randint(1, 6)) for _ in range(2 if level == 1 else 3)]
        walls, wraps = _path(start, moves, wraps=False), _path(start, moves, wraps=True)
        if (walls[-1] != wraps[-1]) if level == 3 else (walls == wraps):
            break
    told = f"Board 0 to {EDGE} with walls. Start at {start[0]} {start[1]}. Go "
    told += ", ".join(f"{way} {num}" for way, num in moves) + "."
    paths = (walls, wraps)[: 1 + (level == 3)]
    answers = []
    for path in paths:
        steps = ", ".join(f"{way} {num} to {x} {y}" for (way, num), (x, y) in zip(moves, path, strict=True))
        answers.append((f"{steps}.", f"{path[-1][0]} {path[-1][1]}"))
    return _problem(rng, "walk", level, told, ("Where is it?", "Where does it end?"), *answers)


def _path(start: tuple[int, int], moves: Sequence[tuple[str, int]], *, wraps: bool) -> list[tuple[int, int]]:
    (x, y), path = start, []
    for way, num in moves:
        x, y = (each + num * step for each, step in zip((x, y), MOVES[way], strict=True))
        x, y = (x % (EDGE + 1), y % (EDGE + 1)) if wraps else (min(max(x, 0), EDGE), min(max(y, 0), EDGE))
        path.append((x, y))
    return path


def _spelling(rng: Rng, level: int) -> Problem:
    """Write letters backwards, or the next letter of each. The wrong rule: z stays z, and does not become a."""
    word = [rng.choice(LETTERS if level == 1 else LETTERS[:-1]) for _ in range(rng.randint(4, 6))]
    if level == 3:
        word[rng.randrange(len(word))] = "z"
    spelled = " ".join(word)
    if level == 1:
        asks, finals = (f"Write backwards: {spelled}", f"Spell backwards: {spelled}"), [" ".join(word[::-1])]
    else:
        asks = (f"Write the next letter of each: {spelled}", f"Shift each letter by one: {spelled}")
        finals = [" ".join(_next(each, last) for each in word) for last in ("a", "z")[: level - 1]]
    return _problem(rng, "spelling", level, "", asks, *(("", final) for final in finals))


def _next(letter: str, last: str) -> str:
    return last if letter == "z" else chr(ord(letter) + 1)


def _table(rng: Rng, level: int) -> Problem:
    """Look a cell up. The wrong rule: a dash is 0, where it means what the day before has."""
    days = [DAYS[i] for i in sorted(rng.sample(range(7), 3 if level == 1 else 4))]
    goods = rng.sample(GOODS, 2 if level == 1 else 3)
    cells = [[str(rng.randint(1, 9)) for _ in days] for _ in goods]
    row, column = rng.randrange(len(goods)), rng.randrange(level == 3, len(days))
    for i, each in enumerate(cells):
        if level == 3 and i == row:
            each[column] = "-"
        elif level > 1 and i != row and rng.random() < 0.5:
            each[rng.randrange(1, len(days))] = "-"
    told = f"Days: {' '.join(days)}. " + " ".join(f"{g}: {' '.join(r)}." for g, r in zip(goods, cells, strict=True))
    told += " A dash is as before."
    asks = [ask.format(goods[row], days[column]) for ask in ("How many {} on {}?", "Give the {} of {}.")]
    answers = []
    for filling in (cells[row][column - 1], "0")[: 1 + (level == 3)]:
        filled = [filling if cell == "-" else cell for cell in cells[row]]
        read = " ".join(f"{day} {cell}" for day, cell in zip(days, filled, strict=True))
        answers.append((f"{goods[row]}: {' '.join(cells[row])}; {read}.", filled[column]))
    return _problem(rng, "table", level, told, asks, *answers)


def _logic(rng: Rng, level: int) -> Problem:
    """Tell a statement's truth. The wrong rule: a "not" before the first letter negates the whole statement."""
    while True:
        names = rng.sample(LOGIC_LETTERS, 2 if level == 1 else 3)
        values = [rng.random() < 0.5 for _ in names]
        negated = [level == 3, *(level < 3 and rng.random() < 0.4 for _ in names[1:])]
        joints = [rng.choice(("and", "or"))] if level == 1 else ["and", "or"]
        right = _reduced([value != no for value, no in zip(values, negated, strict=True)], joints)
        work, plain = _reduced(values, joints)
        wrong = f"{work[:-1]}; not {_said(plain)} = {_said(not plain)}.", not plain
        if level < 3 or right[1] != wrong[1]:
            break
    terms = [f"{'not ' * no}{name}" for name, no in zip(names, negated, strict=True)]
    said = terms[0] + "".join(f" {joint} {term}" for joint, term in zip(joints, terms[1:], strict=True))
    told = ", ".join(f"{name} is {_said(value)}" for name, value in zip(names, values, strict=True)) + "."
    answers = [(each[0], _said(each[1])) for each in (right, wrong)[: 1 + (level == 3)]]
    return _problem(rng, "logic", level, told, (f"What is {said}?", f"Tell the truth of {said}."), *answers)


def _reduced(values: Sequence[bool], joints: Sequence[str]) -> tuple[str, bool]:
    """Return the steps from the left, which is right where every "and" comes before every "or", and the truth."""
    truth, steps = values[0], []
    for joint, value in zip(joints, values[1:], strict=True):
        found = (truth and value) if joint == "and" else (truth or value)
        steps.append(f"{_said(truth)} {joint} {_said(value)} = {_said(found)}")
        truth = found
    return f"{'; '.join(steps)}.", truth


def _said(value: bool) -> str:
    return "true" if value else "false"


def _trace(rng: Rng, level: int) -> Problem:
    """Run a short program by hand. The wrong rule: of a double assignment the first is done before the second."""
    one, other = names = rng.sample(VARIABLES, 2)
    values = {name: rng.randint(1, 9) for name in names}
    lines, states = (
        [f"{name} = {value}" for name, value in values.items()],
        [" ".join(f"{name}={value}" for name, value in values.items())],
    )
    for _ in range((1, 3, 1)[level - 1]):
        name, term = rng.choice(names), rng.choice((*names, str(rng.randint(1, 9))))
        amount = values[term] if term in values else int(term)
        before, sign = values[name], "-" if amount <= values[name] and rng.random() < 0.5 else "+"
        values[name] += amount if sign == "+" else -amount
        lines.append(f"{name} = {name} {sign} {term}")
        states.append(f"{name}={before}{sign}{amount}={values[name]}")
    if level < 3:
        asked = rng.choice(names)
        answers = [(f"{', '.join(states)}.", str(values[asked]))]
    else:
        if values[one] == values[other]:
            return _trace(rng, level)
        asked, found = other, values[other]
        lines.append(f"{one}, {other} = {other}, {one} + {other}")
        answers = []
        for added in (values[one], found):
            states[2:] = [f"{one}={found} {other}={added}+{found}={added + found}"]
            answers.append((f"{', '.join(states)}.", str(added + found)))
    asks = (f"What does print({asked}) show?", f"What is {asked} then?")
    return _problem(rng, "trace", level, f"{'; '.join(lines)};", asks, *answers)


def _store(rng: Rng, level: int) -> Problem:
    """Tell what comes out of a stack or a queue next. The wrong rule: a queue gives what came last, as a stack does."""
    fruits = iter(rng.sample(FRUITS, 4))
    while True:
        puts = [True, *(rng.random() < 0.6 for _ in range(3 if level == 1 else 4))]
        held = [sum(1 if put else -1 for put in puts[: end + 1]) for end in range(len(puts))]
        if min(held) >= 1 and sum(puts) <= 4 and not all(puts) and (level < 3 or held[-1] > 1):
            break
    steps = [next(fruits) if put else "" for put in puts]
    told = f"{'Queue' if level == 3 else 'Stack'}: {', '.join(f'put {each}' if each else 'take' for each in steps)}."
    answers = [_kept(steps, place) for place in (0, -1)] if level == 3 else [_kept(steps, -1)]
    return _problem(rng, "store", level, told, ("What is taken next?", "What comes out next?"), *answers)


def _kept(steps: Sequence[str], place: int) -> tuple[str, str]:
    """Return what is held after each step, and what comes out next: of place 0 or -1."""
    held: list[str] = []
    states = []
    for fruit in steps:
        if fruit:
            held.append(fruit)
        else:
            held.pop(place)
        states.append(" ".join(held))
    return f"{', '.join(states)}.", held[place]


def grade(problem: Problem, text: str) -> bool:
    """Accept the final answer alone or after the last of any closing of the family, whatever the steps were."""
    return problem.final in WORDINGS.get(problem.family, PLAIN).finals(text)


# What each level holds, and its share of a split and of training.
_SHARES = (0.25, 0.35, 0.4)
_HOLDS: dict[str, tuple[Draw, str, str, str]] = {
    "extract": (_extract, "one record", "the first of two records", "the second of two records"),
    "span": (_span, "within a month", "from a month of 30 days into the next", "from a month of 28 or 31 days"),
    "sets": (_sets, "in both", "in either, or in one and not in the other", "in exactly one"),
    "road": (_road, "two ways over a town", "a direct road that is shorter", "a direct road that is longer"),
    "walk": (_walk, "two moves", "three moves", "three moves, and a wall that changes where it ends"),
    "spelling": (_spelling, "backwards", "the next letters", "the next letters, a z among them"),
    "table": (_table, "three days, two goods", "four days, three goods", "the cell is a dash"),
    "logic": (_logic, "two letters", "three letters", "a not before the first of three letters"),
    "trace": (_trace, "one change", "three changes", "a change, and two assignments at once"),
    "store": (_store, "a stack, four steps", "a stack, five steps", "a queue that gives other than a stack"),
}
FAMILY_NAMES = tuple(_HOLDS)


def levels_of(family: str) -> tuple[TaskLevel, ...]:
    """Return a family's levels."""
    return tuple(TaskLevel(holds, share) for holds, share in zip(_HOLDS[family][1:], _SHARES, strict=True))


def draw(family: str, rng: Rng, level: int) -> Problem:
    """Draw one problem."""
    return _HOLDS[family][0](rng, level)
