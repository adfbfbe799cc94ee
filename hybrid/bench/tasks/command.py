"""Spoken commands to JSON tool calls: timer, light, alarm."""

from __future__ import annotations

import json

from hybrid.bench.tasks.problem import Family, Problem, Rng

ROOMS = ("kitchen", "bedroom", "office", "hall", "garage", "bathroom")
PLACES = ("on the left", "on the right", "by the door", "by the window", "above the desk", "next to the bed")


def generate(rng: Rng) -> Problem:
    """Draw one command with its slots and one of several phrasings."""
    question, call = rng.choice((_timer, _light, _alarm))(rng)
    answer = json.dumps(call)
    return Problem("command", question, answer, answer)


def _timer(rng: Rng) -> tuple[str, dict[str, object]]:
    minutes, seconds = rng.randrange(1, 90), rng.randrange(0, 60, 5)
    length = f"{minutes} minutes" + (f" and {seconds} seconds" if seconds else "")
    question = rng.choice((f"Set a timer for {length}.", f"Start a timer of {length}.", f"Remind me in {length}."))
    return question, {"tool": "timer", "seconds": minutes * 60 + seconds}


def _light(rng: Rng) -> tuple[str, dict[str, object]]:
    room, state, place = rng.choice(ROOMS), rng.choice(("on", "off")), rng.choice(PLACES)
    level = rng.randrange(5, 100)
    question = rng.choice(
        (
            f"Turn {state} the {room} light {place}.",
            f"Please switch the {room} light {place} {state}.",
            f"Dim the {room} light {place} to {level} percent.",
        )
    )
    if question.startswith("Dim"):
        return question, {"tool": "light", "room": room, "place": place, "level": level}
    return question, {"tool": "light", "room": room, "place": place, "state": state}


def _alarm(rng: Rng) -> tuple[str, dict[str, object]]:
    hour, minute, half = rng.randrange(1, 13), rng.randrange(60), rng.choice(("am", "pm"))
    question = rng.choice(("Wake me at", "Set an alarm for", "Ring at")) + f" {hour}:{minute:02d} {half}."
    return question, {"tool": "alarm", "time": f"{hour % 12 + (12 if half == 'pm' else 0):02d}:{minute:02d}"}


def grade(problem: Problem, text: str) -> bool:
    """Accept any JSON text that parses to the same object."""
    try:
        return bool(json.loads(text) == json.loads(problem.final))
    except (ValueError, RecursionError):  # the latter: more open brackets than the parser nests
        return False


FAMILY = Family("command", generate, grade)
