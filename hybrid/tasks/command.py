"""Spoken commands to JSON tool calls with two to five slots: timer, alarm, light, message, calendar.

The hardest level has one slot more than the others know, or a date that crosses a month's end: the typical mistake
leaves the slot out, or writes February 31.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from hybrid.tasks.problem import Problem, Rng, TaskFamily, TaskLevel

ROOMS = ("kitchen", "bedroom", "office", "hall", "garage", "bathroom", "cellar", "attic")
PLACES = ("ceiling", "desk", "floor", "wall", "bed", "door", "window", "shelf")
COLOURS = ("red", "green", "blue", "white", "yellow", "pink", "orange", "warm")
LABELS = ("tea", "pasta", "eggs", "bread", "laundry", "pizza", "rice", "cake")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
NAMES = ("Tom", "Ana", "Sam", "Lea", "Max", "Eva", "Ben", "Mia", "Leo", "Zoe")
EVENTS = ("dentist", "meeting", "lunch", "concert", "party", "training", "doctor", "exam")
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
# Of a common year: the commands name none.
LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
LEVELS = (
    TaskLevel("timer, alarm or light with two slots", 0.3),
    TaskLevel("alarm with a day, light with a colour, message, or a calendar entry within the month", 0.35),
    TaskLevel("one slot more, or a calendar entry across a month's end", 0.35),
)
ToolCall: TypeAlias = dict[str, Any]


def generate(rng: Rng, level: int) -> Problem:
    """Draw one command with its slots and one of several phrasings; phrasings make twins."""
    question, call = rng.choice(TOOLS[level - 1])(rng)
    if rng.random() < 0.2 and not question.startswith("Today"):
        question = f"Please {question[0].lower()}{question[1:]}"
    answer = json.dumps(call)
    mistake = json.dumps(_overlooked(call)) if level == 3 else ""
    return Problem("command", level, question, answer, answer, f"command: {answer}", mistake)


def _overlooked(call: ToolCall) -> ToolCall:
    """Return a call of the hardest level without its last slot, or with a day that its month has not."""
    if call["tool"] != "calendar":
        return dict(list(call.items())[:-1])
    month, day = call["today"].split("-")
    return call | {"date": f"{month}-{int(day) + call['days']}"}


def _timer(rng: Rng) -> tuple[str, ToolCall]:
    minutes, seconds = rng.randint(2, 90), rng.randrange(5, 60, 5)
    ask = rng.choice(("Set a timer for {}.", "Start a timer of {}.", "Count down {}."))
    call = {"tool": "timer", "minutes": minutes, "seconds": seconds}
    return ask.format(f"{minutes} minutes and {seconds} seconds"), call


def _named_timer(rng: Rng) -> tuple[str, ToolCall]:
    question, call = _timer(rng)
    label = rng.choice(LABELS)
    told = rng.choice((" for the {}.", " and call it {}.", " named {}."))
    return question[:-1] + told.format(label), call | {"label": label}


def _alarm(rng: Rng) -> tuple[str, ToolCall]:
    spoken, time = _time(rng)
    ask = rng.choice(("Wake me at {}", "Set an alarm for {}", "Ring at {}"))
    return f"{ask.format(spoken)}.", {"tool": "alarm", "time": time}


def _alarm_on_a_day(rng: Rng) -> tuple[str, ToolCall]:
    question, call = _alarm(rng)
    day = rng.choice(DAYS)
    return f"{question[:-1]} on {day}.", call | {"day": day}


def _repeated_alarm(rng: Rng) -> tuple[str, ToolCall]:
    question, call = _alarm_on_a_day(rng)
    told = rng.choice((" and on every {} after that.", " and repeat it every {}."))
    return question[:-1] + told.format(call["day"]), call | {"repeat": "weekly"}


def _light(rng: Rng) -> tuple[str, ToolCall]:
    room, place, level = rng.choice(ROOMS), rng.choice(PLACES), rng.randint(5, 99)
    ask = rng.choice(("Dim the {0} {1} light to {2} percent.", "Set the {1} light in the {0} to {2} percent."))
    return ask.format(room, place, level), {"tool": "light", "room": room, "place": place, "level": level}


def _coloured_light(rng: Rng) -> tuple[str, ToolCall]:
    question, call = _light(rng)
    colour = rng.choice(COLOURS)
    return f"{question[:-1]} and make it {colour}.", call | {"colour": colour}


def _later_light(rng: Rng) -> tuple[str, ToolCall]:
    question, call = _coloured_light(rng)
    minutes = rng.randint(2, 60)
    return f"{question[:-1]} in {minutes} minutes.", call | {"after_minutes": minutes}


def _message(rng: Rng) -> tuple[str, ToolCall]:
    name, delay, place = rng.choice(NAMES), rng.randint(2, 60), rng.choice(("at home", "at the office", "at the gate"))
    text = f"I will be {place} in {delay} minutes"
    ask = rng.choice(("Tell {} that {}.", "Write to {} that {}.", "Let {} know that {}."))
    return ask.format(name, text), {"tool": "message", "to": name, "text": text}


def _entry(rng: Rng, *, crosses: bool) -> tuple[str, ToolCall]:
    month, days = rng.randint(1, 12), rng.randint(2, 6)
    length = LENGTHS[month - 1]
    day = rng.randint(length - days + 1, length) if crosses else rng.randint(1, length - days)
    title, (spoken, time) = rng.choice(EVENTS), _time(rng)
    date = f"{month % 12 + 1:02d}-{day + days - length:02d}" if crosses else f"{month:02d}-{day + days:02d}"
    ask = rng.choice(("Add {2} in {1} days at {3}", "Put {2} on the calendar in {1} days at {3}"))
    question = f"Today is {MONTHS[month - 1]} {day}. {ask.format(day, days, title, spoken)}."
    call = {"tool": "calendar", "title": title, "today": f"{month:02d}-{day:02d}", "days": days}
    return question, call | {"date": date, "time": time}


def _entry_within(rng: Rng) -> tuple[str, ToolCall]:
    return _entry(rng, crosses=False)


def _entry_across(rng: Rng) -> tuple[str, ToolCall]:
    return _entry(rng, crosses=True)


def _time(rng: Rng) -> tuple[str, str]:
    hour, minute, half = rng.randint(1, 12), rng.randrange(0, 60, 5), rng.choice(("am", "pm"))
    return f"{hour}:{minute:02d} {half}", f"{hour % 12 + 12 * (half == 'pm'):02d}:{minute:02d}"


TOOLS: tuple[tuple[Callable[[Rng], tuple[str, ToolCall]], ...], ...] = (
    (_timer, _alarm, _light),
    (_alarm_on_a_day, _coloured_light, _message, _entry_within),
    (_named_timer, _repeated_alarm, _later_light, _entry_across),
)


def grade(problem: Problem, text: str) -> bool:
    """Accept any JSON text that parses to the same object; ``1`` and ``1.0`` are the same number, ``true`` is none."""
    try:
        return bool(_typed(json.loads(text, object_pairs_hook=_once)) == _typed(json.loads(problem.final)))
    except (ValueError, RecursionError):  # the latter: more open brackets than the parser nests
        return False


def _once(pairs: list[tuple[str, Any]]) -> ToolCall:
    """Refuse a slot that is given twice."""
    call = dict(pairs)
    if len(call) < len(pairs):
        raise ValueError("a slot twice")
    return call


def _typed(value: Any) -> Any:
    """Tell truth values from numbers, which Python holds equal."""
    if isinstance(value, dict):
        return {key: (isinstance(one, bool), one) for key, one in value.items()}
    return value


FAMILY = TaskFamily("command", "assistant", LEVELS, generate, grade)
