"""Questions of a user's own file, a JSON object a line, and the graders of their answers.

``{"question": "6 * 7?", "kind": "sums", "grader": "number", "answer": "42", "max_tokens": 64}``. Without a grader a
question is asked and not graded. The law (``tests/bench/test_own_questions.py``): whatever a file holds, it is
questions or a UsageError that names the line, before anything runs; a doubtful answer is graded wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hybrid.errors import UsageError, to_one_line
from hybrid.settings.sources import told_fault
from hybrid.tasks.assistant import fold, fold_text

Grader: TypeAlias = Literal["exact", "number", "regex", "contains", "choice", "json"]
# After ``fold``, which takes thousands separators away. The 2 of "h2" is no number, that of "3-2" has no sign.
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d+(?:\.\d+)?|\.\d+)")
# A choice: after "answer is", alone at the beginning, or the only capital letter that stands alone but for I.
_CHOICES = (r"(?i:\banswer(?:\s+is|:)?)\s*:?\s*\W{0,3}([A-Z])\b(?!')", r"\A\W{0,3}([A-Z])(?:\W*\Z|[).:])")
_LETTER = r"\b[A-HJ-Z]\b(?!')"


class OwnQuestion(BaseModel):
    """A question of a line. ``tolerance``: how far a number may lie off; ``answer``: for ``json`` a value."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: Annotated[str, Field(min_length=1, alias="question")]
    kind: str = "own"
    grader: Grader | None = None
    answer: Any = None
    max_tokens: Annotated[int, Field(ge=1)] = 256
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    @model_validator(mode="after")
    def _fits(self) -> OwnQuestion:
        if (self.grader is None) != (self.answer is None or self.answer == ""):
            raise ValueError("grader and answer stand together, or neither does")
        if self.tolerance and self.grader != "number":
            raise ValueError("tolerance is of the grader number")
        try:
            if self.grader is not None:
                self.grade("")
        except (ArithmeticError, ValueError, TypeError, AttributeError, RecursionError, re.error) as error:
            msg = f"{self.grader} cannot grade by the answer {self.answer!r}: {to_one_line(error)}"
            raise ValueError(msg) from None
        return self

    @property
    def graded(self) -> bool:
        """Whether answers are right or wrong."""
        return self.grader is not None

    def grade(self, text: str) -> bool:
        """Tell whether an answer is right. Raises ValueError where nothing is right or wrong."""
        if self.grader is None:
            msg = f"answers to this question are not graded: {self.text}"
            raise ValueError(msg)
        return _GRADERS[self.grader](self, text)


def _contains(asked: OwnQuestion, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(fold_text(asked.answer))}(?!\w)", fold_text(text)) is not None


def _number(asked: OwnQuestion, text: str) -> bool:
    wanted, found = Decimal(str(asked.answer).replace(",", "")), _NUMBER.findall(fold(text))
    if not wanted.is_finite():
        raise ValueError("it is no number")
    return bool(found) and abs(Decimal(found[-1]) - wanted) <= Decimal(str(asked.tolerance))


def _choice(asked: OwnQuestion, text: str) -> bool:
    if not re.fullmatch("[A-Z]", asked.answer):
        raise ValueError("a choice is one capital letter")
    plain = text.replace("\u2019", "'").strip()
    said = next((found[-1:] for pattern in _CHOICES if (found := re.findall(pattern, plain))), None)
    return (said or [*set(re.findall(_LETTER, plain))]) == [asked.answer]


def _json(asked: OwnQuestion, text: str) -> bool:
    wanted = _canonical(asked.answer if isinstance(asked.answer, str) else json.dumps(asked.answer))
    inside = re.search(r"[{\[].*[}\]]", text, re.DOTALL)
    for found in (text, inside and inside.group()):
        try:
            return _canonical(found or "") == wanted
        except (ValueError, RecursionError):
            continue
    return False


def _canonical(text: str) -> str:
    """Write JSON with sorted keys and numbers by their value; no text is like a number. Raises ValueError."""
    return json.dumps(json.loads(text, parse_int=_by_value, parse_float=_by_value), sort_keys=True)


def _by_value(number: str) -> str:
    return f"\0{Decimal(number).normalize() + 0}"


_GRADERS: Mapping[Grader, Callable[[OwnQuestion, str], bool]] = {
    "exact": lambda asked, text: text.split() == asked.answer.split(),  # up to white space
    "number": _number,  # the last number of the text
    "regex": lambda asked, text: re.search(asked.answer, text) is not None,
    "contains": _contains,  # as whole words, whatever their case
    "choice": _choice,
    "json": _json,  # the whole text, or the object or list in it
}


def read_own_questions(path: Path) -> tuple[OwnQuestion, ...]:
    """Read a file. Raises UsageError, naming the line, where it is none, or asks something twice."""
    read: dict[str, OwnQuestion] = {}
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
            if line.strip() and read.setdefault((found := OwnQuestion.model_validate_json(line)).text, found) != found:
                msg = f"{path}, line {number}: this question was asked before, with another answer"
                raise UsageError(msg)
    except ValidationError as error:
        where, fault = told_fault(error, (*OwnQuestion.model_fields, "question"))
        msg = f"{path}, line {number}: {' '.join((*where[-1:], fault))}"
        raise UsageError(msg) from None
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path} cannot be read as questions: {error}"
        raise UsageError(msg) from None
    if not read:
        msg = f"{path} holds no question"
        raise UsageError(msg)
    return tuple(read.values())
