"""Measure the reference models of a folder and write their card there: ``card.json`` and the page ``CARD.md``.

    python examples/train_reference_models/card.py
    python examples/train_reference_models/card.py --dir my/models --n 100
    python examples/train_reference_models/card.py --json > card.json

Every model of the folder answers the same problems of the test split; the smaller ones are compared with the large one
token by token. ``card.json`` is for programs and for ``hybrid models verify``. It takes about ten minutes on one core.

The page is ``card_page.py``'s. The laws, tested in ``tests/models/test_card.py``: levels add up to their family, and
models are compared only where every token has the same piece in both.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from card_page import page
from numpy.typing import NDArray
from pydantic import ValidationError

from hybrid.cli.command import check_writable, progress, write_whole
from hybrid.engine.llama import Weights
from hybrid.engine.port import Logits
from hybrid.errors import EngineError, UsageError
from hybrid.models import card as evaluation
from hybrid.models.card import (
    CARD,
    GROUPS,
    AgreementSummary,
    AnsweringModel,
    GradedAnswer,
    ModelAnswer,
    ModelCard,
    ModelCards,
    ModelGroup,
    ModelShape,
    ReportProgress,
    TaskFamilyScore,
    TrainingRun,
    fingerprint,
    open_model,
)
from hybrid.prob import Dense, kl
from hybrid.settings.names import MODELS
from hybrid.tasks import Split
from hybrid.tasks.statistics import auroc

Answers: TypeAlias = Mapping[str, Sequence[GradedAnswer]]

PAGE = "CARD.md"
NUM_PROBLEMS = 150
SPLIT: Split = "test"


def measure_models(folder: Path, report_progress: ReportProgress, num_problems: int = NUM_PROBLEMS) -> ModelCards:
    """Measure the models of a folder on the test split.

    Raises UsageError where a family has not so many problems, EngineError where a model is missing or unusable.
    """
    cards: dict[str, ModelCard] = {}
    for group in GROUPS:
        cards |= _measure_group(group, folder, report_progress, num_problems)
    return ModelCards(split=SPLIT, num_problems=num_problems, models=cards)


def _measure_group(
    group: ModelGroup, folder: Path, report_progress: ReportProgress, num_problems: int
) -> dict[str, ModelCard]:
    """Measure the models of a group on its problems."""
    problems = evaluation.problems_of(SPLIT, num_problems, group=group)
    with ExitStack() as stack:
        models = {name: stack.enter_context(open_model(folder / f"{name}.gguf")) for name in group.names}
        graded = {
            name: evaluation.evaluate(model, problems, _told_of(name, report_progress), group=group)
            for name, model in models.items()
        }
        cards = {}
        for name in group.names:
            if name != group.large:
                report_progress(f"{name} beside {group.large}")
            beside = _beside(name, group.large, models, graded)
            cards[name] = _card(folder / f"{name}.gguf", group, graded[name], beside)
        return cards


def _told_of(name: str, report_progress: ReportProgress) -> ReportProgress:
    return lambda family: report_progress(f"{name} answers {family}")


def _card(path: Path, group: ModelGroup, answers: Answers, beside: Mapping[str, Agreement]) -> ModelCard:
    """Put together what a file says of itself and what was measured."""
    scores = {name: evaluation.count_right(found) for name, found in answers.items()}
    weights = Weights(path)
    try:
        note = weights.metadata("hybrid.training")
        sizes = {key: int(weights.metadata(f"llama.{full}") or 0) for key, full in _SIZES.items()}
        return ModelCard(
            file=fingerprint(path),
            parameters=weights.num_parameters,
            num_tokens=weights.num_tokens,
            pre_tokenizer=weights.metadata("tokenizer.ggml.pre") or "",
            shape=ModelShape(**sizes),
            training=_training(note),
            overall=round(evaluation.overall(scores), 4),
            families={
                name: TaskFamilyScore(**evaluation.accuracy_to_json(scores[name]), levels=_levels(group, found))
                for name, found in answers.items()
            },
            beside_large=Agreement.joined(beside.values()).summary() if beside else None,
            beside_large_by_family={name: found.summary() for name, found in beside.items()},
        )
    finally:
        weights.close()


def _training(note: str | None) -> TrainingRun | None:
    """Read the training script's note; None where the file has no such note."""
    try:
        return TrainingRun.model_validate_json(note or "")
    except ValidationError:
        return None


_SIZES = {
    "width": "embedding_length",
    "layers": "block_count",
    "heads": "attention.head_count",
    "hidden": "feed_forward_length",
    "context": "context_length",
}


def _levels(group: ModelGroup, answers: Sequence[GradedAnswer]) -> tuple[tuple[int, int], ...]:
    """Return right answers and problems of each level, from 1."""
    numbers = group.families[answers[0].problem.family].numbers
    of_level = [[answer.correct for answer in answers if answer.problem.level == number] for number in numbers]
    return tuple((sum(right), len(right)) for right in of_level)


def _beside(
    name: str, large: str, models: Mapping[str, AnsweringModel], graded: Mapping[str, Answers]
) -> dict[str, Agreement]:
    """Compare a model with the large one by family; empty for the large one and for a model with other tokens."""
    if name == large or not _one_vocabulary(models[name], models[large]):
        return {}
    return {
        family: compare(models[name], models[large], graded[name][family], graded[large][family])
        for family in graded[name]
    }


def _one_vocabulary(first: AnsweringModel, second: AnsweringModel) -> bool:
    a, b = first.engine, second.engine
    return a.num_tokens == b.num_tokens and all(a.piece(token) == b.piece(token) for token in range(a.num_tokens))


# Measure how far a smaller model's rows are from the large one's, and how well its entropy predicts disagreement.
#
# The laws, tested in ``tests/models/test_evaluation.py``: a model beside itself agrees everywhere, at a KL of 0; along
# the small model's own text a position counts as disagreement where the large model, given the same prefix, would have
# written another token. Both models' full distributions are needed, which no endpoint gives.


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


def read(model: AnsweringModel, written: ModelAnswer) -> Logits:
    """Return a model's rows along an answer of a model with the same vocabulary. Shape (T, V)."""
    model.engine.rewind(0)
    return model.engine.extend((*written.prompt, *written.ids[:-1]), num_rows=len(written.ids))


def compare(
    small: AnsweringModel, large: AnsweringModel, by_small: Sequence[GradedAnswer], by_large: Sequence[GradedAnswer]
) -> Agreement:
    """Read each model's answers with the other; their vocabularies must be one."""
    along_large = [(answer.written.rows, read(small, answer.written)) for answer in by_large]
    along_small = [(answer.written.rows, read(large, answer.written)) for answer in by_small]
    return Agreement(
        kl=np.array([kl(p, q) for large_rows, small_rows in along_large for p, q in _paired(large_rows, small_rows)]),
        same=np.concatenate([p.argmax(-1) == q.argmax(-1) for p, q in along_large]),
        entropy=np.array([Dense.from_logits(row).entropy() for rows, _ in along_small for row in rows]),
        differs=np.concatenate([p.argmax(-1) != q.argmax(-1) for q, p in along_small]),
    )


def _paired(first: Logits, second: Logits) -> Iterable[tuple[Dense, Dense]]:
    return zip(map(Dense.from_logits, first), map(Dense.from_logits, second), strict=True)


def main() -> int:
    """Parse the command line, measure and write; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=MODELS, help="where the GGUF files are and the card goes")
    parser.add_argument("--n", type=int, default=NUM_PROBLEMS, help="problems of each family")
    parser.add_argument("--json", action="store_true", help="print the card as JSON and write no file")
    args = parser.parse_args()
    if args.n < 1:
        parser.error("--n: at least 1")
    try:
        if not args.json:
            for name in (CARD, PAGE):
                check_writable("--dir", args.dir / name)
        with progress("the model is loaded") as report_progress:
            measured = measure_models(args.dir, report_progress, args.n)
    except UsageError as error:
        parser.error(str(error))
    except EngineError as error:
        sys.exit(f"card: {error}")
    except KeyboardInterrupt:
        return 130
    if args.json:
        print(measured.model_dump_json())
        return 0
    write_whole(args.dir / CARD, f"{measured.model_dump_json(indent=1)}\n")
    write_whole(args.dir / PAGE, page(measured))
    print(args.dir / CARD, args.dir / PAGE, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
