"""Buying labels: for each question the local model's draft, checked, and the cloud's own answer, each once.

The laws (``tests/tune/test_buying.py``): a text that stands in the file is never asked for again; each is written down
before the next is asked for; a cap that is reached, and a cloud that stays away, end the buying with what was bought
kept; a question that does not fit the models' contexts costs its own label and no other's.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, Protocol, Unpack, get_args

from hybrid.cloud import Capabilities
from hybrid.config import AnswerChoices
from hybrid.defer import CriticNumbers
from hybrid.errors import ContextOverflow, MissingCapability
from hybrid.policy.requests import BudgetDenied, NoAnswer
from hybrid.prob import Partition
from hybrid.run.conversation import TextOrTurns, turns_of, words_of
from hybrid.run.spending import Spent
from hybrid.run.text_rows import TextRows, Writer
from hybrid.tune.bought import BoughtQuestion, BoughtText
from hybrid.tune.label_file import LabelFile
from hybrid.types import Ids

# An endpoint that has failed for so many questions in a row, each asked more than once, is not asked for the rest.
MOST_FAILURES = 3
_WRITERS: tuple[Writer, ...] = get_args(Writer)


class PairClient(Protocol):
    """What is asked of a client over the pair: ``run.AsyncClient`` is one."""

    @property
    def spent(self) -> Spent:
        """What was spent so far."""
        ...

    async def capabilities(self) -> Capabilities:
        """Connect and return what the endpoint can do. Raises CloudError."""
        ...

    async def text_rows(self, prompt: TextOrTurns, writer: Writer, **choices: Unpack[AnswerChoices]) -> TextRows:
        """Have one model answer, and both read its text."""
        ...

    async def partition(self) -> Partition | None:
        """Return which tokens say the same; None where nobody knows."""
        ...

    async def critic_numbers(self, prompt: TextOrTurns, text: Ids, **choices: Unpack[AnswerChoices]) -> CriticNumbers:
        """Return what the critic says of a text."""
        ...


@dataclass(frozen=True)
class AskedForLabels:
    """A question, and what makes its prompt and bounds its answer: ``system``, ``raw``, ``max_tokens``."""

    prompt: TextOrTurns
    choices: AnswerChoices = field(default_factory=AnswerChoices)

    @property
    def name(self) -> str:
        """A hash of all that decides its two texts, but the models: 32 hexadecimal digits."""
        turns = self.prompt if isinstance(self.prompt, str) else [asdict(turn) for turn in turns_of(self.prompt, None)]
        told = json.dumps([turns, sorted(self.choices.items())], ensure_ascii=True)
        return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class BuyingProgress:
    """How far it is: questions that have their labels, of how many; nano-dollars spent by this run; seconds left.

    ``nanousd``: None where it is not known. ``left_s``: None before one was bought.
    """

    done: int
    total: int
    nanousd: int | None
    left_s: float | None


@dataclass(frozen=True)
class Bought:
    """Questions that have their labels, in the order in which they were given.

    ``ended``: why the others have none, in a word and a sentence; None: all have, but ``skipped`` which do not fit.
    """

    questions: tuple[BoughtQuestion, ...]
    bought_now: int = 0
    skipped: int = 0
    ended: tuple[Literal["cap", "cloud"], str] | None = None


async def buy(
    client: PairClient,
    asked: Sequence[AskedForLabels],
    file: LabelFile,
    tell: Callable[[BuyingProgress], None],
    clock: Callable[[], float] = time.monotonic,
) -> Bought:
    """Buy what the file does not hold yet. Raises CloudRefusal, and UsageError where a question cannot be put."""
    began, before = clock(), questions_in(asked, file)
    _mind_rows(before)
    total, done, skipped, failures, why = len({each.name for each in asked}), len(before), 0, 0, ""
    for each in asked:
        if file.question(each.name) is not None:
            continue
        try:
            failed = await _buy(client, each, file)
        except ContextOverflow:
            skipped += 1
            continue
        if isinstance(failed, BudgetDenied):
            return Bought(questions_in(asked, file), done - len(before), skipped, ("cap", failed.why))
        failures, why = (0, why) if failed is None else (failures + 1, failed.why)
        if failures == MOST_FAILURES:
            break
        if failed is None:
            done += 1
            left_s = (clock() - began) / (done - len(before)) * (total - done - skipped)
            tell(BuyingProgress(done, total, client.spent.nanousd, left_s))
    return Bought(questions_in(asked, file), done - len(before), skipped, ("cloud", why) if why else None)


def questions_in(asked: Sequence[AskedForLabels], file: LabelFile) -> tuple[BoughtQuestion, ...]:
    """Return the questions whose labels stand in the file, each once, in the order in which they were given."""
    names = dict.fromkeys(each.name for each in asked)
    return tuple(found for name in names if (found := file.question(name)) is not None)


async def critiqued(client: PairClient, asked: Sequence[AskedForLabels], file: LabelFile) -> tuple[BoughtQuestion, ...]:
    """Return the questions whose labels stand in the file with what the client's critic says of each.

    The critic is here, so that is worked out anew each time and costs nothing: labels that were bought without one
    serve as well. Raises UsageError where there is no critic.
    """
    found = []
    for each in {each.name: each for each in asked}.values():
        if (question := file.question(each.name)) is not None:
            tokens = tuple(question.judged.signals.tokens.tolist())
            found.append(replace(question, critic=await client.critic_numbers(each.prompt, tokens, **each.choices)))
    return tuple(found)


async def _buy(client: PairClient, each: AskedForLabels, file: LabelFile) -> BudgetDenied | NoAnswer | None:
    """Buy what is missing of one question; return why that failed, None where it did not."""
    for writer in _WRITERS:
        if file.has(each.name, writer):
            continue
        found = await client.text_rows(each.prompt, writer, **each.choices)
        if found.failed is not None:
            return found.failed
        file.add(each.name, writer, BoughtText.of_rows(words_of(each.prompt), found, await client.partition()))
    question = file.question(each.name)
    _mind_rows((question,) if question else ())
    return None


def _mind_rows(questions: Sequence[BoughtQuestion]) -> None:
    """Raise MissingCapability where what was bought came without the cloud's rows: no label is in it."""
    if questions and not any(len(each.judged) for each in questions):
        raise MissingCapability("labels are the cloud's log-probabilities, and this endpoint tells none")
