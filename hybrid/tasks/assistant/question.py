"""The questions: read from the tables in ``questions/``, one a kind, and checked as they are read.

The laws, tested in ``tests/tasks/test_assistant_questions.py``: no question stands there twice; a grader accepts its
own reference answer and rejects every wrong one that is stated, an empty answer, and the question read back; twins
share a ``canonical`` text and so a split. This file knows no model.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from importlib.resources import files
from typing import Any, Literal

from hybrid.tasks.assistant.answers import AnswerSpec, NumberAnswer, PhraseAnswer, numbers_of

QuestionSplit = Literal["calibration", "test"]

KEYS = {"text", "canonical", "max_tokens"}
# What each grader is told by: one of the first, and what may stand beside it.
GRADERS = {"any_of": {"wrong"}, "exact": {"wrong"}, "fields": {"wrong"}, "label": {"labels"}, "number": {"wrong"}}

# What is shorter may be an answer: the line "Total 6.80" of a receipt.
ECHO_WORDS = 6


@dataclass(frozen=True)
class AssistantQuestion:
    """A question, how its answers are graded (None: not at all), and how many tokens an answer may have.

    ``canonical`` decides the split; twins share it.
    """

    kind: str
    text: str
    answer: AnswerSpec | None
    canonical: str
    max_tokens: int

    @property
    def split(self) -> QuestionSplit:
        """Tell the split from the canonical text: sha256, even or odd."""
        even = hashlib.sha256(self.canonical.encode()).digest()[-1] % 2 == 0
        return "calibration" if even else "test"

    @property
    def graded(self) -> bool:
        """Whether answers are right or wrong."""
        return self.answer is not None

    def grade(self, text: str) -> bool:
        """Tell whether an answer is right. Raises ValueError where nothing is right or wrong."""
        if self.answer is None:
            msg = f"answers to this question are not graded: {self.text}"
            raise ValueError(msg)
        return self.answer.accepts(text)


def parse_questions(kind: str, table: dict[str, Any]) -> Iterator[AssistantQuestion]:
    """Yield the questions of a kind's table. Raises ValueError, naming the question, where an entry breaks a law."""
    for entry in table["question"]:
        try:
            yield _parse(kind, entry, table["max_tokens"])
        except (KeyError, TypeError, ValueError) as error:
            msg = f"{kind}: {entry.get('text', entry)!r}: {error}"
            raise ValueError(msg) from None


def _parse(kind: str, entry: dict[str, Any], max_tokens: int) -> AssistantQuestion:
    text = entry["text"].strip()
    grader = [key for key in GRADERS if key in entry]
    allowed = KEYS.union(*({key} | GRADERS[key] for key in grader))
    if len(grader) > 1 or not entry.keys() <= allowed:
        msg = f"unknown or clashing keys: {', '.join(sorted(entry.keys() - KEYS))}"
        raise ValueError(msg)
    answer = _answer(grader[0], entry) if grader else None
    if answer is not None:
        _check(answer, text)
    canonical = fold_text(entry.get("canonical", text))
    return AssistantQuestion(kind, text, answer, canonical, entry.get("max_tokens", max_tokens))


def _answer(grader: str, entry: dict[str, Any]) -> AnswerSpec:
    told, wrong = entry[grader], tuple(map(str, entry.get("wrong", ())))
    if grader == "number":
        given, value = numbers_of(entry["text"]), Decimal(str(told))
        return NumberAnswer(value, frozenset() if value in given else given, wrong)
    if grader == "label":
        if told not in entry["labels"]:
            msg = f"{told} is not among the labels"
            raise ValueError(msg)
        return PhraseAnswer(((told,),), tuple(label for label in entry["labels"] if label != told))
    fields = tuple((forms,) if isinstance(forms, str) else tuple(forms) for forms in told)
    return PhraseAnswer(fields if grader == "fields" else ((*told,),), wrong, alone=grader != "any_of")


def _check(answer: AnswerSpec, text: str) -> None:
    """Refuse a grader that is wrong about what is known: its own answer, stated wrong ones, silence, an echo.

    An echo: the question as a whole, each of its lines and what it quotes, unless that is too short to be one.
    """
    forms = [form for field in answer.fields for form in field] if isinstance(answer, PhraseAnswer) else []
    single = forms if isinstance(answer, PhraseAnswer) and len(answer.fields) == 1 else []
    for right in (answer.reference, f"{answer.reference}.", *single):
        if not answer.accepts(right):
            msg = f"the right answer {right!r} would be graded wrong"
            raise ValueError(msg)
    parts = (*text.splitlines(), *re.findall(r'"(.+?)"', text))
    echoes = (text, *(part for part in parts if len(part.split()) >= ECHO_WORDS))
    for wrong in (*answer.counterexamples, "", "I am sorry, but I do not know.", f"not {answer.reference}", *echoes):
        if answer.accepts(wrong):
            msg = f"the wrong answer {wrong!r} would be graded right"
            raise ValueError(msg)


def fold_text(text: str) -> str:
    """Return a text in lower case with single spaces: what decides a split, and whether two questions are one."""
    return " ".join(text.lower().split())


def _load() -> tuple[AssistantQuestion, ...]:
    """Read every table, in the order of the names of the kinds. Raises ValueError where a question stands twice."""
    tables = sorted(files(__package__).joinpath("questions").iterdir(), key=lambda table: table.name)
    found = [
        question
        for table in tables
        if table.name.endswith(".toml")
        for question in parse_questions(table.name.removesuffix(".toml"), tomllib.loads(table.read_text("utf-8")))
    ]
    seen: set[str] = set()
    for question in found:
        if fold_text(question.text) in seen:
            msg = f"{question.kind}: asked twice: {question.text}"
            raise ValueError(msg)
        seen.add(fold_text(question.text))
    return tuple(found)


QUESTIONS = _load()
KINDS = tuple(dict.fromkeys(question.kind for question in QUESTIONS))
