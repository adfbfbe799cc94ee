"""Buying labels: for each question the local model's draft, checked, and the cloud's own answer, each once.

The laws (``tests/tune/test_buying.py``): a text that stands in the file is never asked for again; each is written down
before the next is asked for; a cap that is reached, and a cloud that stays away, end the buying with what was bought
kept; a question that does not fit the models' contexts costs its own label and no other's.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from hybrid.errors import ContextOverflow, MissingCapability, UsageError
from hybrid.policy.requests import BudgetDenied, NoAnswer
from hybrid.record.conversation import TextOrTurns, turns_of, words_of
from hybrid.run import AsyncClient
from hybrid.run.text_rows import Writer
from hybrid.settings.config import AnswerChoices
from hybrid.settings.names import BUNDLED
from hybrid.store.files import LineFile, make_folder, open_regular
from hybrid.tasks import FAMILIES, MAX_TOKENS, TaskFamily, distinct, wordings
from hybrid.tasks.assistant import QUESTIONS
from hybrid.tune.labels import LabelledAnswers, LabelledText

# What was bought of a pair of models, on disk: a line a text, written before the next is bought.
#
#     ``{"labels":1,"local":"5d...","endpoint":"https://api.example.com/v1","model":"large-1"}``
#     ``{"question":"8d5e1f...","writer":"local","words":[...],"tokens":[...],...}``
#
# A question stands there as a hash, a text as the numbers of its tokens (whoever has the model can read them). The file
# is for its owner alone (mode 0600).
#
# The law: wherever the process is killed, what stands as a whole line is kept and what was torn is removed, so that no
# text is bought twice but the one that was under way; two processes do not buy for one pair at once
# (``tests/tune/test_label_file.py`` cuts at every byte).

LABELS_VERSION = 1


@dataclass(frozen=True)
class PairNames:
    """Which two models: the local one's identity, the endpoint's name, and the model there."""

    local: str
    endpoint: str
    model: str

    def file(self, folder: Path) -> Path:
        """Return where what was bought of them lies."""
        digest = blake2b(f"{self.local} {self.endpoint} {self.model}".encode(), digest_size=12).hexdigest()
        return folder / f"{digest}.jsonl"


class LabelFile:
    """The texts that were bought of one pair. The file is locked for as long as this lives."""

    def __init__(self, path: Path, pair: PairNames) -> None:
        """Open or make the file, and read it. Raises UsageError where that cannot be, or another process has it."""
        self._texts: dict[tuple[str, Writer], LabelledText] = {}
        make_folder(path.parent)
        self._file = LineFile(path, "another process is buying")
        try:
            self._read(pair)
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        """Texts."""
        return len(self._texts)

    def has(self, question: str, writer: Writer) -> bool:
        """Whether a text was bought."""
        return (question, writer) in self._texts

    def question(self, name: str) -> LabelledAnswers | None:
        """Return a question whose two texts were bought; None where one is missing."""
        draft, written = self._texts.get((name, "local")), self._texts.get((name, "cloud"))
        return None if draft is None or written is None else LabelledAnswers(draft, written)

    def add(self, question: str, writer: Writer, text: LabelledText) -> None:
        """Keep a text. It is on the disk, or nothing of it is, when this returns or raises.

        Raises OSError, naming the file, where it cannot be written.
        """
        self._write({"question": question, "writer": writer, **text.to_json()})
        self._texts[question, writer] = text

    def close(self) -> None:
        """Close the file and give the lock back."""
        self._file.close()

    def _read(self, pair: PairNames) -> None:
        header = {"labels": LABELS_VERSION, **asdict(pair)}
        lines = [line for line in self._file.lines() if line.endswith(b"\n")]
        if not lines:
            self._file.cut(0)
            self._write(header)
            return
        found: dict[tuple[str, Writer], LabelledText] = {}
        with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            if msgspec.json.decode(lines[0]) == header:
                for line in lines[1:]:
                    kept = msgspec.json.decode(line)
                    question, writer = msgspec.convert((kept["question"], kept["writer"]), tuple[str, Writer])
                    found[question, writer] = LabelledText.from_json(kept)
                self._texts = found
                self._file.cut(sum(map(len, lines)))
                return
        msg = f"{self._file.path} holds something that this version did not write: move it away, or remove it"
        raise UsageError(msg)

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.append([msgspec.json.encode(line, enc_hook=float) + b"\n"])


def bought_before(folder: Path, local: str, endpoint: str) -> dict[Path, PairNames]:
    """Return the files of what was bought of a local model at an endpoint, whichever models it had; the newest last."""
    found: dict[Path, PairNames] = {}
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns):
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, UsageError), open_regular(path) as file:
            header = msgspec.json.decode(file.buffer.readline(), type=dict[str, Any])
            pair = PairNames(*(str(header.get(each.name)) for each in fields(PairNames)))
            if (pair.local, pair.endpoint) == (local, endpoint):
                found[path] = pair
    return found


# An endpoint that has failed for so many questions in a row, each asked more than once, is not asked for the rest.
MOST_FAILURES = 3
_WRITERS: tuple[Writer, ...] = get_args(Writer)


@dataclass(frozen=True)
class LabelRequest:
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
class LabelledQuestions:
    """Questions that have their labels, in the order in which they were given.

    ``ended``: why the others have none, in a word and a sentence; None: all have, but ``skipped`` which do not fit.
    """

    questions: tuple[LabelledAnswers, ...]
    bought_now: int = 0
    skipped: int = 0
    ended: tuple[Literal["cap", "cloud"], str] | None = None


async def buy(
    client: AsyncClient,
    asked: Sequence[LabelRequest],
    file: LabelFile,
    tell: Callable[[BuyingProgress], None],
    clock: Callable[[], float] = time.monotonic,
) -> LabelledQuestions:
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
            return LabelledQuestions(questions_in(asked, file), done - len(before), skipped, ("cap", failed.why))
        failures, why = (0, why) if failed is None else (failures + 1, failed.why)
        if failures == MOST_FAILURES:
            break
        if failed is None:
            done += 1
            left_s = (clock() - began) / (done - len(before)) * (total - done - skipped)
            tell(BuyingProgress(done, total, client.spent.nanousd, left_s))
    return LabelledQuestions(questions_in(asked, file), done - len(before), skipped, ("cloud", why) if why else None)


def questions_in(asked: Sequence[LabelRequest], file: LabelFile) -> tuple[LabelledAnswers, ...]:
    """Return the questions whose labels stand in the file, each once, in the order in which they were given."""
    names = dict.fromkeys(each.name for each in asked)
    return tuple(found for name in names if (found := file.question(name)) is not None)


async def critiqued(client: AsyncClient, asked: Sequence[LabelRequest], file: LabelFile) -> tuple[LabelledAnswers, ...]:
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


async def _buy(client: AsyncClient, each: LabelRequest, file: LabelFile) -> BudgetDenied | NoAnswer | None:
    """Buy what is missing of one question; return why that failed, None where it did not."""
    for writer in _WRITERS:
        if file.has(each.name, writer):
            continue
        found = await client.text_rows(each.prompt, writer, **each.choices)
        if found.failed is not None:
            return found.failed
        file.add(each.name, writer, LabelledText.of_rows(words_of(each.prompt), found, await client.partition()))
    question = file.question(each.name)
    _mind_rows((question,) if question else ())
    return None


def _mind_rows(questions: Sequence[LabelledAnswers]) -> None:
    """Raise MissingCapability where what was bought came without the cloud's rows: no label is in it."""
    if questions and not any(len(each.judged) for each in questions):
        raise MissingCapability("labels are the cloud's log-probabilities, and this endpoint tells none")


# The questions that a pair is calibrated on where the user brings none: those of the calibration splits.
#
# A bundled pair is asked generated problems, its families taking turns; any other pair the questions to an assistant.
# Neither split was trained or tested on.

# Enough for a dial: on real text 160 questions set one within a tenth of the share that was asked for. A score of
# verdicts goes on getting better: on the bundled pair its AUROC is 0.79 with 140 labels and 0.95 with 1,120.
NUM_QUESTIONS = 200


def bundled_families(cloud: str | None) -> Sequence[TaskFamily] | None:
    """Return the families that a pair with this cloud was trained on; None where it is not bundled."""
    if cloud in wordings.TASTES:
        return wordings.FAMILIES
    return FAMILIES if cloud is None or cloud in BUNDLED else None


def bundled_questions(
    num: int, max_tokens: int | None = None, families: Sequence[TaskFamily] = FAMILIES
) -> list[LabelRequest]:
    """Return problems of the calibration split, seed 0. Raises UsageError where there are not so many."""
    share, more = divmod(num, len(families))
    try:
        drawn = [distinct(family, "calibration", share + (i < more), 0) for i, family in enumerate(families)]
    except ValueError as error:
        raise UsageError(str(error)) from None
    turns = [problems[turn] for turn in range(share + 1) for problems in drawn if turn < len(problems)]
    return [LabelRequest(each.question, {"max_tokens": max_tokens or MAX_TOKENS}) for each in turns]


def assistant_questions(num: int, max_tokens: int | None = None) -> list[LabelRequest]:
    """Return questions of the calibration split in an order of their own. Raises UsageError where there are fewer."""
    found = [each for each in QUESTIONS if each.split == "calibration"]
    if num > len(found):
        msg = f"there are {len(found)} calibration questions, not {num}: bring your own with --questions FILE"
        raise UsageError(msg)
    drawn = sorted(found, key=lambda each: hashlib.sha256(f"0 {each.text}".encode()).digest())[:num]
    return [LabelRequest(each.text, {"max_tokens": max_tokens or each.max_tokens}) for each in drawn]
