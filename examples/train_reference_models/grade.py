"""Grade a model's greedy answers on problems it was not trained on.

python examples/train_reference_models/grade.py hybrid/models/small.gguf --num 100
"""

from __future__ import annotations

import argparse
from pathlib import Path

import hybrid
from hybrid.bench.tasks import FAMILIES, distinct


def main() -> None:
    """Print correct answers per family on the test split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--num", type=int, default=100, help="problems a family")
    args = parser.parse_args()
    total = 0
    with hybrid.open(local=args.model, policy="local", max_tokens=240) as client:
        for family in FAMILIES:
            problems = distinct(family, "test", args.num, seed=0)
            correct = sum(family.grade(problem, client.generate(problem.question).text) for problem in problems)
            total += correct
            print(f"{family.name:14} {correct:4} of {len(problems)}", flush=True)
    print(f"{'all':14} {total:4} of {args.num * len(FAMILIES)}")


if __name__ == "__main__":
    main()
