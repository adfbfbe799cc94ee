"""Rewriting a time, a date, or both together.

The hardest level has a date and a time in one: the typical mistake writes the date alone.
"""

from __future__ import annotations

import re

from hybrid.tasks.command import LENGTHS, MONTHS
from hybrid.tasks.problem import Problem, Rng, TaskFamily, TaskLevel

ASK = ("Write {} {}.", "Rewrite {} {}.", "Give {} {}.", "Put {} {}.")
LEVELS = (
    TaskLevel("a time of day, between the 12-hour and the 24-hour form", 0.3),
    TaskLevel("a date, between words and the ISO form", 0.35),
    TaskLevel("a date with a time of day, both from words to the ISO form or back", 0.35),
)


def generate(rng: Rng, level: int) -> Problem:
    """Draw one moment and the form that is wanted; the forms in which it may be given make twins."""
    hour, minute = rng.randrange(24), rng.randrange(60)
    year, month = rng.randint(1900, 2099), rng.randint(1, 12)
    day = rng.randint(1, LENGTHS[month - 1])
    clock, spoken = f"{hour:02d}:{minute:02d}", f"{(hour + 11) % 12 + 1}:{minute:02d} {'pm' if hour > 11 else 'am'}"
    iso, words = f"{year}-{month:02d}-{day:02d}", f"{MONTHS[month - 1]} {day}, {year}"
    turned = f"{day} {MONTHS[month - 1]} {year}"
    to_digits = rng.random() < 0.5
    if level == 1:
        given, final = (spoken, clock) if to_digits else (clock, spoken)
        form = "in 24-hour form" if to_digits else "in 12-hour form"
    elif level == 2:
        given, final = (rng.choice((words, turned)), iso) if to_digits else (iso, words)
        form = "in ISO form" if to_digits else "in words"
    else:
        date = rng.choice((words, turned))
        given, final = (
            (f"{date}, {spoken}", f"{iso} {clock}") if to_digits else (f"{iso} {clock}", f"{words}, {spoken}")
        )
        form = "in ISO form" if to_digits else "in words"
    question = rng.choice(ASK).format(given, form)
    mistake = (iso if to_digits else words) if level == 3 else ""
    return Problem("rewriting", level, question, final, final, f"rewriting: {final}", mistake)


def grade(problem: Problem, text: str) -> bool:
    """Accept the final answer; in words also "5 March 2024", a missing comma, "PM" and a missing space before it.

    In the 24-hour form of a time alone the leading zero may be missing; in the ISO form a "T" may join date and time.
    """
    if len(text) > 100:  # longer than any answer, however padded
        return False
    return _plain(text.strip().removesuffix(".")) == _plain(problem.final)


def _plain(text: str) -> str:
    text = re.sub(r"^(\d{1,2}) ([A-Z][a-z]+),? (\d{4})", r"\2 \1, \3", text, flags=re.ASCII)
    text = re.sub(r"^([A-Z][a-z]+ \d{1,2}),? (\d{4})", r"\1 \2", text, flags=re.ASCII)
    text = re.sub(r"^([A-Z][a-z]+ \d{1,2} \d{4}),? (?=\d)", r"\1 ", text, flags=re.ASCII)
    text = re.sub(r"^(\d{4}-\d\d-\d\d)T(?=\d)", r"\1 ", text, flags=re.ASCII)
    text = re.sub(r"(?<=\d) ?([ap]m)$", r" \1", text, flags=re.ASCII | re.IGNORECASE)
    text = re.sub(r"^(\d:\d\d)$", r"0\1", text, flags=re.ASCII)
    return re.sub(r"[AP]M$", lambda half: half[0].lower(), text)


FAMILY = TaskFamily("rewriting", "assistant", LEVELS, generate, grade)
