"""Questions to a general assistant, in plain English, short and long, graded where an answer is right or wrong."""

from __future__ import annotations

import hashlib
import re
import tomllib
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from importlib.resources import files
from typing import Any, Literal

__all__ = [
    "ECHO_WORDS",
    "GRADERS",
    "KEYS",
    "KINDS",
    "QUESTIONS",
    "SENTENCE_WORDS",
    "WORDS_BESIDE",
    "AnswerSpec",
    "AssistantQuestion",
    "NumberAnswer",
    "PhraseAnswer",
    "QuestionSplit",
    "fold",
    "fold_text",
    "numbers_of",
    "parse_questions",
]


# Whether an answer in free words is right: two graders, exact ones.
#
# The law, tested in ``tests/tasks/test_assistant_answers.py``: an answer is right if it names the right thing and none
# of the wrong ones, up to the end of the first whole sentence that names something; what follows is explanation. So a
# list of labels is wrong, in whatever order, as is an empty answer, a refusal, and the question read back. What is
# negated or asked is not named: "not Paris" and "Paris?" name nothing, "not Sydney but Canberra" names Canberra. A
# doubtful case is graded wrong. This file knows neither the questions nor where they come from.

# An extraction is to be handed out, not the text around it; "The name of the person who wrote this message is" has 10.
WORDS_BESIDE = 10
# "Positive. Negative. Neutral." is a list, not a sentence and its explanation.
SENTENCE_WORDS = 3

_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6}
_VALUES = {word: n for n, word in enumerate(_SMALL)} | {word: 10 * n for n, word in enumerate(_TENS, 2)} | {"a": 1}
_BELOW_100 = rf"(?:(?:{'|'.join(_TENS)})(?:[ -](?:{'|'.join(_SMALL[1:10])}))?|{'|'.join(reversed(_SMALL))})"
_BELOW_1000 = rf"(?:(?:{_BELOW_100}|a)[ -]hundred(?:(?: and)?[ -]{_BELOW_100})?|{_BELOW_100})"
_WORDED = re.compile(
    rf"\b(?:(?:{_BELOW_1000}|a)[ -](?:thousand|million)(?:,?(?: and)?[ -]{_BELOW_1000})?|{_BELOW_1000})\b"
)
_NUMBER = re.compile(r"(?<![\w.])(?:(?<!\w)-)?\d+(?:\.\d+)?(?!\d|\.\d|(?:st|nd|rd|th)\b)")

# Neither a single line break ends a sentence nor the number of an item: both part the items of a list.
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\n\d\.)(?: *\n\s*\n\s*| +)")
_CLAUSE_END = re.compile(r"[.,;:!?()\n]|\bbut\b")
_NEGATORS = frozenset(("not", "no", "never", "neither", "nor", "without", "than", "cannot", "instead"))
_NEGATED_AFTER = re.compile(r"\s+(?:(?:is|was|are|were)\s+not\b|(?:is|was|are|were)n't\b)")
# A part of a longer word, address or number is no mention: "non-positive", "mary.anna@x.org", "KX-22010", "45.50".
_LEFT, _RIGHT = r"(?<![\w@+])(?<!\w[-.'])", r"(?![\w@+]|-\w|[.']\w(?<!'s))"


def fold(text: str) -> str:
    """Return the text without what does not matter: case, accents, emphasis, the writing of numbers, wide spaces.

    >>> fold("**Brasília** has *twenty-one* “Quadras”, not 1,000.")
    'brasilia has 21 quadras, not 1000.'
    """
    plain = "".join(mark for mark in unicodedata.normalize("NFKD", text) if not unicodedata.combining(mark))
    plain = plain.replace("\u2019", "'").replace("\u2010", "-").replace("\u2013", "-").replace("\u2212", "-").casefold()
    plain = re.sub(r"[*`\"\u201c\u201d]|(?<!\w)'|'(?!\w)", "", plain)
    plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", plain)
    plain = re.sub(r"[^\S\n]+", " ", plain)
    plain = _WORDED.sub(_in_digits, plain)
    return re.sub(r"\bminus (?=\d)", "-", plain).strip()


@dataclass(frozen=True)
class PhraseAnswer:
    """Right if every field is named, in this order, and nothing of ``wrong``.

    ``fields``: the accepted forms of each thing that is asked for, mostly one. ``alone``: the answer may have
    ``WORDS_BESIDE`` words more than the longest forms, since only that is asked for; an explanation is not counted.
    """

    fields: tuple[tuple[str, ...], ...]
    wrong: tuple[str, ...] = ()
    alone: bool = False

    @property
    def reference(self) -> str:
        """A right answer, in its shortest form."""
        return ", ".join(forms[0] for forms in self.fields)

    @property
    def counterexamples(self) -> tuple[str, ...]:
        """Wrong answers: those stated, and the fields in the wrong order."""
        turned = ", ".join(forms[0] for forms in reversed(self.fields))
        return (*self.wrong, turned) if len(self.fields) > 1 else self.wrong

    def accepts(self, text: str) -> bool:
        """Tell whether an answer is right."""
        forms, num_words = _named(self._pattern, fold(text), explained=len(self.fields) == 1)
        named = [self._meanings[form] for form in forms]
        if None in named or (self.alone and num_words > self._most_words):
            return False
        firsts = [named.index(field) if field in named else -1 for field in range(len(self.fields))]
        return -1 not in firsts and firsts == sorted(firsts)

    @cached_property
    def _meanings(self) -> dict[str, int | None]:
        """What each form names: the number of a field, or None, something wrong."""
        right = {fold(form): field for field, forms in enumerate(self.fields) for form in forms}
        return dict.fromkeys(map(fold, self.wrong)) | right

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """The longest form at each place, so that "past perfect" is no mention of "past"."""
        forms = sorted(self._meanings, key=len, reverse=True)
        return re.compile(f"{_LEFT}(?:{'|'.join(map(re.escape, forms))}){_RIGHT}")

    @cached_property
    def _most_words(self) -> int:
        return WORDS_BESIDE + sum(max(len(form.split()) for form in forms) for forms in self.fields)


@dataclass(frozen=True)
class NumberAnswer:
    """Right if one number is named, this one, in digits or in words; numbers in ``given`` are passed over.

    ``given``: the numbers of the question, where the answer is not among them: "7 times 8 is 56" names 56.
    """

    value: Decimal
    given: frozenset[Decimal] = frozenset()
    wrong: tuple[str, ...] = ()

    @property
    def reference(self) -> str:
        """A right answer, in digits."""
        return str(self.value)

    @property
    def counterexamples(self) -> tuple[str, ...]:
        """Wrong answers: those stated, and the neighbours of the right one."""
        return (*self.wrong, str(self.value + 1), str(self.value - 1))

    def accepts(self, text: str) -> bool:
        """Tell whether an answer is right."""
        plain = fold(text)
        if self.value == 1:
            plain = re.sub(r"\bone\b", "1", plain)
        passed_over = {sign * number for number in self.given for sign in (1, -1)} - {self.value}
        found, _ = _named(_NUMBER, plain, lambda number: Decimal(number) not in passed_over)
        return set(map(Decimal, found)) == {self.value}


AnswerSpec = PhraseAnswer | NumberAnswer


def numbers_of(text: str) -> frozenset[Decimal]:
    """Return the numbers that a text names, in digits or in words."""
    return frozenset(Decimal(match.group()) for match in _NUMBER.finditer(fold(text)))


def _named(
    pattern: re.Pattern[str], plain: str, counts: Callable[[str], bool] = bool, *, explained: bool = True
) -> tuple[list[str], int]:
    """Return what is named and ``counts``, in order, and the number of words read.

    Where an answer may be ``explained``, the first whole sentence that names something is the last one read.
    """
    named: list[str] = []
    num_words = 0
    for sentence in _SENTENCE_END.split(plain):
        here = [] if sentence.endswith("?") else [form for form in _affirmed(pattern, sentence) if counts(form)]
        named += here
        num_words += len(sentence.split())
        if here and explained and len(sentence.split()) >= SENTENCE_WORDS:
            break
    return named, num_words


def _affirmed(pattern: re.Pattern[str], sentence: str) -> Iterator[str]:
    """Yield the matches that no word of the three before them in their clause negates, nor "is not" after them."""
    for match in pattern.finditer(sentence):
        before = _CLAUSE_END.split(sentence[: match.start()])[-1].split()[-3:]
        negated = any(word in _NEGATORS or word.endswith("n't") for word in before)
        if not negated and not _NEGATED_AFTER.match(sentence, match.end()):
            yield match.group()


def _in_digits(match: re.Match[str]) -> str:
    """Write a worded number in digits; a single "one" mostly is no number and stays."""
    if match.group() == "one":
        return "one"
    total = part = 0
    for word in re.findall(r"[a-z]+", match.group()):
        if word == "hundred":
            part *= 100
        elif word in _SCALES:
            total, part = total + part * _SCALES[word], 0
        elif word != "and":
            part += _VALUES[word]
    return str(total + part)


# The questions: read from the tables in ``questions/``, one a kind, and checked as they are read.
#
# The laws, tested in ``tests/tasks/test_assistant_questions.py``: no question stands there twice; a grader accepts its
# own reference answer and rejects every wrong one that is stated, an empty answer, and the question read back; twins
# share a ``canonical`` text and so a split. This file knows no model.

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
