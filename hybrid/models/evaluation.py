"""Count right answers of one model alone, family by family.

The laws, tested in ``tests/models/test_evaluation.py``: the same model on the same problems gives the same figures;
families weigh alike, whatever the number of problems of each.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from hybrid.engine import Engine
from hybrid.engine.llama import Weights
from hybrid.engine.port import Logits
from hybrid.errors import EngineError, UsageError
from hybrid.prob import Dense, kl
from hybrid.tasks import BY_NAME, MAX_TOKENS, Problem, Split, TaskFamily, distinct, wordings
from hybrid.tasks.mix import MIXES
from hybrid.tasks.statistics import Estimate, auroc, wilson
from hybrid.types import Ids, Message

# Which models answer which families, and which of them is the one that the others stand beside.
#
# The law, tested in ``tests/models/test_groups.py``: every bundled model is of one group, and no family is in two. A
# model that is not bundled is asked what the ladder is.


@dataclass(frozen=True)
class ModelGroup:
    """Models that answer the same families, with their families by name; ``large`` is the one that is given all.

    ``max_tokens`` is the most that an answer may have.
    """

    names: tuple[str, ...]
    large: str
    families: Mapping[str, TaskFamily]
    max_tokens: int


LADDER = ModelGroup(tuple(MIXES), "large", BY_NAME, MAX_TOKENS)
WORDINGS = ModelGroup(
    tuple(wordings.TASTES), "wordings-large", {each.name: each for each in wordings.FAMILIES}, wordings.MAX_TOKENS
)
GROUPS = (LADDER, WORDINGS)


def group_of(model: str) -> ModelGroup:
    """Return the group of a model's name; the ladder for any that is not bundled."""
    return next((group for group in GROUPS if model in group.names), LADDER)


# Answer questions greedily with one model and keep its logits; read the logits along another model's answer.
#
# The law, tested in ``tests/models/test_evaluation.py``: an answer is the text that ``hybrid ask --policy local``
# shows.


@dataclass(frozen=True)
class ModelAnswer:
    """A greedy answer. ``ids`` include the end token, ``text`` does not.

    ``rows`` are the logits before each id, shape (len(ids), V).
    """

    prompt: Ids
    ids: Ids
    rows: Logits
    text: str


class AnsweringModel:
    """One model that answers one question after the other."""

    def __init__(self, engine: Engine) -> None:
        """Take an engine; it stays the caller's to close."""
        self.engine = engine

    def write(self, question: str, max_tokens: int = MAX_TOKENS, *, keep_rows: bool = True) -> ModelAnswer:
        """Answer a question greedily until the end, ``max_tokens`` or a full context; the lowest id wins a tie.

        Without ``keep_rows`` only the last row is kept: at 49,152 tokens each takes 192 KiB.
        """
        engine = self.engine
        prompt = engine.render([Message("user", question)])
        limit = min(max_tokens, engine.num_context - len(prompt))
        engine.rewind(0)
        ids: list[int] = []
        rows = [engine.extend(prompt)[-1]]
        while True:
            ids.append(int(rows[-1].argmax()))
            if ids[-1] in engine.end_ids or len(ids) == limit:
                break
            if not keep_rows:
                rows.clear()
            rows.append(engine.extend((ids[-1],))[-1])
        shown = ids[:-1] if ids[-1] in engine.end_ids else ids
        decoder = codecs.getincrementaldecoder("utf-8")("replace")  # half a character at the end is not shown
        text = "".join(decoder.decode(engine.piece(token)) for token in shown)
        return ModelAnswer(prompt, tuple(ids), np.stack(rows), text)

    def read(self, written: ModelAnswer) -> Logits:
        """Return this model's rows along an answer of a model with the same vocabulary. Shape (T, V)."""
        self.engine.rewind(0)
        return self.engine.extend((*written.prompt, *written.ids[:-1]), num_rows=len(written.ids))


@contextmanager
def open_model(path: Path) -> Iterator[AnsweringModel]:
    """Load a GGUF file on one thread. Raises EngineError where that cannot be, or the file has no chat template."""
    weights = Weights(path)
    try:
        if weights.metadata("tokenizer.chat_template") is None:
            msg = f"{path} has no chat template, so that no question can be put to it"
            raise EngineError(msg)
        engine = weights.context(threads=1)
        try:
            yield AnsweringModel(engine)
        finally:
            engine.close()
    finally:
        weights.close()


# Called before each family with its name.
ReportProgress: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class GradedAnswer:
    """A problem, the answer, and whether it is right."""

    problem: Problem
    written: ModelAnswer
    correct: bool


@dataclass(frozen=True)
class Accuracy:
    """A number of problems, and how many were answered rightly."""

    num_problems: int
    num_correct: int

    @property
    def share(self) -> Estimate:
        """The share with Wilson's interval."""
        return wilson(self.num_correct, self.num_problems)


def count_right(graded: Sequence[GradedAnswer]) -> Accuracy:
    """Count right answers."""
    return Accuracy(len(graded), sum(answer.correct for answer in graded))


def problems_of(split: Split, num_problems: int, seed: int = 0, group: ModelGroup = LADDER) -> dict[str, list[Problem]]:
    """Draw as many problems of each family of a group. Raises UsageError where a family has not so many."""
    try:
        return {name: distinct(family, split, num_problems, seed) for name, family in group.families.items()}
    except ValueError as error:
        raise UsageError(str(error)) from None


def evaluate(
    model: AnsweringModel,
    problems: Mapping[str, Sequence[Problem]],
    report_progress: ReportProgress,
    *,
    group: ModelGroup = LADDER,
    keep_rows: bool = True,
) -> dict[str, list[GradedAnswer]]:
    """Let a model answer problems of a group, and grade it. ``keep_rows`` as in ``AnsweringModel.write``."""
    found: dict[str, list[GradedAnswer]] = {}
    for name, asked in problems.items():
        report_progress(name)
        grade = group.families[name].grade
        answers = [(each, model.write(each.question, group.max_tokens, keep_rows=keep_rows)) for each in asked]
        found[name] = [GradedAnswer(each, written, grade(each, written.text)) for each, written in answers]
    return found


def overall(scores: Mapping[str, Accuracy]) -> float:
    """Return the share of right answers, each family weighing alike."""
    return sum(score.share.value for score in scores.values()) / len(scores)


def to_json(model: str, graded: Mapping[str, Sequence[GradedAnswer]]) -> dict[str, Any]:
    """Return plain data for ``json.dumps``."""
    scores = {name: count_right(answers) for name, answers in graded.items()}
    return {
        "model": model,
        "overall": round(overall(scores), 4),
        "families": {name: accuracy_to_json(found) for name, found in scores.items()},
    }


def accuracy_to_json(found: Accuracy) -> dict[str, float]:
    """Return a family's figures for JSON."""
    return {
        "n": found.num_problems,
        "correct": found.num_correct,
        "low": round(found.share.low, 4),
        "high": round(found.share.high, 4),
    }


# Measure how far a smaller model's rows are from the large one's, and how well its entropy predicts disagreement.
#
# The laws, tested in ``tests/models/test_evaluation.py``: a model beside itself agrees everywhere, at a KL of 0; along
# the small model's own text a position counts as disagreement where the large model, given the same prefix, would have
# written another token. Both models' full distributions are needed, which no endpoint gives.


class AgreementSummary(BaseModel):
    """The figures of an agreement, for the card.

    Along the large model's answers (``num_large_tokens``): the share of positions where both would write the same
    token, and the mean KL. Along the small model's (``num_small_tokens``): how often the large one would write another
    token, and the AUROC of the small one's entropy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    agreement: float
    mean_kl: float
    num_large_tokens: int
    auroc: float | None
    num_differing: int
    num_small_tokens: int


@dataclass(frozen=True)
class Agreement:
    """Two models beside each other, position by position.

    Along the large model's texts: KL(P_large || Q_small) in nats, and whether both would write the same; shapes (N,).
    Along the small model's: its entropy in nats, and whether the large one would have written another token; (M,).
    """

    kl: NDArray[np.float64]
    same: NDArray[np.bool_]
    entropy: NDArray[np.float64]
    differs: NDArray[np.bool_]

    @classmethod
    def joined(cls, parts: Iterable[Agreement]) -> Agreement:
        """Concatenate the positions of several agreements."""
        several = list(parts)
        return cls(
            *(np.concatenate([getattr(part, name) for part in several]) for name in cls.__dataclass_fields__),
        )

    @property
    def auroc(self) -> float | None:
        """The chance that entropy is higher where the models differ than where they agree."""
        return auroc(self.entropy, self.differs)

    def summary(self) -> AgreementSummary:
        """Return the figures of a card."""
        ranked = self.auroc
        return AgreementSummary(
            agreement=round(float(self.same.mean()), 4),
            mean_kl=max(0.0, round(float(self.kl.mean()), 4)),
            num_large_tokens=int(self.same.size),
            auroc=None if ranked is None else round(ranked, 4),
            num_differing=int(self.differs.sum()),
            num_small_tokens=int(self.differs.size),
        )


def compare(
    small: AnsweringModel, large: AnsweringModel, by_small: Sequence[GradedAnswer], by_large: Sequence[GradedAnswer]
) -> Agreement:
    """Read each model's answers with the other; their vocabularies must be one."""
    along_large = [(answer.written.rows, small.read(answer.written)) for answer in by_large]
    along_small = [(answer.written.rows, large.read(answer.written)) for answer in by_small]
    return Agreement(
        kl=np.array([kl(p, q) for large_rows, small_rows in along_large for p, q in _paired(large_rows, small_rows)]),
        same=np.concatenate([p.argmax(-1) == q.argmax(-1) for p, q in along_large]),
        entropy=np.array([Dense.from_logits(row).entropy() for rows, _ in along_small for row in rows]),
        differs=np.concatenate([p.argmax(-1) != q.argmax(-1) for q, p in along_small]),
    )


def _paired(first: Logits, second: Logits) -> Iterable[tuple[Dense, Dense]]:
    return zip(map(Dense.from_logits, first), map(Dense.from_logits, second), strict=True)
