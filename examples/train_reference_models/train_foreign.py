"""Train a foreign ladder, its small and its large model side by side, and write the GGUF files.

    python examples/train_reference_models/train_foreign.py unsure
    python examples/train_reference_models/train_foreign.py sure --out my/models --runs my/runs

Both together take one torch thread each, so that a ladder keeps two cores busy. A run that was stopped goes on from its
last checkpoint (``--runs``) when the same command is given again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from foreign import LADDERS, Ladder
from train import train_all
from training import Plan
from vocabulary import SURE, UNSURE

SEEDS: dict[Ladder, int] = {"unsure": 11, "sure": 23}
PLANS: dict[Ladder, tuple[Plan, ...]] = {
    "unsure": (
        Plan("unsure-large", (128, 4, 4, 320), 1_800, 1_000, vocabulary=UNSURE, tokens_per_step=8_192),
        Plan("unsure-small", (48, 2, 3, 128), 1_000, 600, vocabulary=UNSURE, tokens_per_step=8_192),
    ),
    "sure": (
        Plan("sure-large", (120, 4, 5, 336), 1_800, 1_000, vocabulary=SURE, tokens_per_step=8_192),
        Plan("sure-small", (96, 3, 4, 240), 1_600, 900, vocabulary=SURE, tokens_per_step=8_192),
    ),
}


def main() -> int:
    """Parse the command line and train; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ladder", choices=LADDERS)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models of the ladder; default: both")
    parser.add_argument("--out", type=Path, default=Path("runs/foreign"), help="where the GGUF files go")
    parser.add_argument("--runs", type=Path, default=Path("runs/foreign"), help="where checkpoints are kept")
    args = parser.parse_args()
    plans = PLANS[args.ladder]
    if unknown := set(args.names) - {plan.name for plan in plans}:
        parser.error(f"no model {unknown.pop()} in {args.ladder}")
    plans = [plan for plan in plans if plan.name in (args.names or {plan.name})]
    try:
        return 0 if train_all(plans, args.out, args.runs, SEEDS[args.ladder]) else 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
