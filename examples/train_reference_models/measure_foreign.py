"""Measure a foreign ladder on validation questions and print its card as Markdown.

    python examples/train_reference_models/measure_foreign.py sure
    python examples/train_reference_models/measure_foreign.py sure --dir my/models --num 60

The questions are those of the calibration split that ``is_validation`` leaves to whoever makes the models; nothing else
of it is looked at, and nothing of the test split.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import foreign
import numpy as np

from hybrid.models.card import AnsweringModel, open_model
from hybrid.tasks import Problem
from hybrid.tasks.statistics import auroc, wilson


@dataclass(frozen=True)
class Draft:
    """A greedy answer to a problem: whether it is right, and the mean log-probability of its tokens in nats."""

    problem: Problem
    correct: bool
    logprob: float


def drafts(model: AnsweringModel, problems: Mapping[str, Sequence[Problem]], ladder: foreign.Ladder) -> list[Draft]:
    """Let a model answer every problem greedily."""
    found = []
    for family in foreign.families_of(ladder):
        for problem in problems[family.name]:
            written = model.write(problem.question, foreign.MAX_TOKENS)
            rows = written.rows.astype(np.float64)
            logprobs = rows.max(-1) - np.logaddexp.reduce(rows, axis=-1)  # a greedy token has the largest logit
            found.append(Draft(problem, family.grade(problem, written.text), float(logprobs.mean())))
    return found


def page(ladder: foreign.Ladder, folder: Path, problems: Mapping[str, Sequence[Problem]]) -> str:
    """Return the card of a ladder whose two files are in a folder."""
    names = [f"{ladder}-small", f"{ladder}-large"]
    files, answers = [], {}
    for name in names:
        path = folder / f"{name}.gguf"
        with open_model(path) as model:
            weights = model.engine.weights
            made = json.loads(weights.metadata("hybrid.training") or "{}")
            files.append((name, f"{weights.num_parameters:,}", f"{path.stat().st_size:,}", *_made(made), _sha256(path)))
            answers[name] = drafts(model, problems, ladder)
    said = (
        f"Greedy answers to {sum(map(len, problems.values()))} validation questions of the calibration split, in "
        "percent right. A draft's log-probability is the mean over its tokens, in nats; AUROC: the chance that a right "
        "draft's is above a wrong one's."
    )
    columns = ("model", "parameters", "bytes", "seed", "steps", "tokens seen", "minutes", "device", "SHA-256")
    return "\n\n".join(
        [
            f"# The foreign ladder `{ladder}`",
            said,
            _table(columns, files),
            _table(("family", "questions", *names, *(f"{n}, level 3" for n in names)), _shares(problems, answers)),
            _table(
                ("model", "right", "95 %", "mean of right", "mean of wrong", "AUROC"),
                [_confidence(*each) for each in answers.items()],
            ),
        ]
    )


def _made(made: Mapping[str, object]) -> tuple[str, ...]:
    minutes = float(str(made["seconds"])) / 60
    return str(made["seed"]), f"{made['step']:,}", f"{made['tokens']:,}", f"{minutes:.0f}", str(made["device"])


def _sha256(path: Path) -> str:
    return f"`{hashlib.sha256(path.read_bytes()).hexdigest()}`"


def _shares(problems: Mapping[str, Sequence[Problem]], answers: Mapping[str, list[Draft]]) -> Iterable[tuple[str, ...]]:
    for family in [*problems, ""]:
        of_family = [[d for d in found if family in {"", d.problem.family}] for found in answers.values()]
        hardest = [[d for d in found if d.problem.level == 3] for found in of_family]
        cells = [f"{100 * sum(d.correct for d in found) / len(found):.0f}" for found in (*of_family, *hardest)]
        yield (family or "all", str(len(of_family[0])), *cells)


def _confidence(name: str, found: Sequence[Draft]) -> tuple[str, ...]:
    correct = np.array([draft.correct for draft in found])
    logprobs = np.array([draft.logprob for draft in found])
    share, ranked = wilson(int(correct.sum()), correct.size), auroc(logprobs, correct)
    means = [f"{logprobs[which].mean():.3f}" if which.any() else "" for which in (correct, ~correct)]
    interval = f"{100 * share.low:.1f} to {100 * share.high:.1f}"
    return name, f"{100 * share.value:.1f}", interval, *means, "" if ranked is None else f"{ranked:.2f}"


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, tuple("---" for _ in columns), *rows))


def main() -> int:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ladder", choices=foreign.LADDERS)
    parser.add_argument("--dir", type=Path, default=Path("runs/foreign"), help="where the two GGUF files are")
    parser.add_argument("--num", type=int, default=40, help="about how many questions of each family")
    args = parser.parse_args()
    for path in (args.dir / f"{args.ladder}-{size}.gguf" for size in ("small", "large")):
        if not path.is_file():
            parser.error(f"there is no {path}: train_foreign.py writes it, and --dir names another folder")
    print(page(args.ladder, args.dir, foreign.validation_problems(args.ladder, args.num)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
