"""Write a foreign ladder as ``hybrid bench peers --ladder`` reads it: both models, and problems of both halves.

    python examples/train_reference_models/write_ladder.py sure runs/ladders/sure --calibration 240 --test 520

Of the calibration split those problems are left out that whoever made the models has looked at (``is_validation``).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import foreign
from foreign.families import PLAIN, WORDINGS
from foreign.ladders import is_validation

from hybrid.tasks import Problem, Split

HERE = Path(__file__).parent / "foreign"


def lines(ladder: foreign.Ladder, split: Split, num: int) -> Iterator[str]:
    """Yield the problems of a split, about ``num`` of each family, one JSON object a line."""
    for found in foreign.problems_of(ladder, split, num).values():
        for problem in found:
            if not is_validation(problem):
                yield json.dumps(_filed(problem, split))


def _filed(problem: Problem, split: Split) -> dict[str, object]:
    closings = WORDINGS.get(problem.family, PLAIN).closings
    told = {"split": split, "kind": problem.family, "question": problem.question, "answer": problem.final}
    return told | {"closings": closings}


def main() -> int:
    """Parse the command line and write the folder; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ladder", choices=foreign.LADDERS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", type=Path, default=HERE, help="where the GGUF files are")
    parser.add_argument("--calibration", type=int, default=240, help="calibration problems drawn a family")
    parser.add_argument("--test", type=int, default=520, help="test problems a family")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for size in ("small", "large"):
        shutil.copyfile(args.models / f"{args.ladder}-{size}.gguf", args.out / f"{size}.gguf")
    halves: dict[Split, int] = {"calibration": args.calibration, "test": args.test}
    problems = [line for split, num in halves.items() for line in lines(args.ladder, split, num)]
    (args.out / "problems.jsonl").write_text("\n".join(problems) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
