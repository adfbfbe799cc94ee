"""Train the ladder of reference models and write the GGUF files and the model card.

    pip install '.[train]'
    python examples/train_reference_models/train.py                 # all of them, then the card
    python examples/train_reference_models/train.py large           # one of them, no card
    python examples/train_reference_models/train.py --out my/models --seed 1

On CPUs two models train side by side, the longest first; on a GPU one after the other. A run that was stopped goes on
from its last checkpoint (``--runs``) when the same command is given again: at most fifty steps are lost.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from typing import Self, TypeAlias

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from training import PLANS, OtherRecipe, Plan, Run

# A model's name, its step, and the mean loss since the last word.
Told: TypeAlias = "Queue[tuple[str, int, float]]"


def train_one(plan: Plan, out: Path, runs: Path, seed: int, threads: int, told: Told) -> None:
    """Train one model to its end in a process of its own, and write its file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us says when to stop
    torch.set_num_threads(threads)
    try:
        run = Run(plan, runs / f"{plan.name}.pt", seed)
    except OtherRecipe as error:
        sys.exit(f"train: {error}")
    told.put((plan.name, run.progress.step, float("nan")))
    run.train(lambda progress, loss: told.put((plan.name, progress.step, loss)))
    run.export(out)


def train_all(plans: Sequence[Plan], out: Path, runs: Path, seed: int) -> bool:
    """Train the models in turn, two at once on CPUs, and tell whether all came to their end.

    Where one fails or we are interrupted, the others are stopped; their checkpoints stay.
    """
    out.mkdir(parents=True, exist_ok=True)
    runs.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    told: Told = context.Queue()
    at_once = 1 if torch.cuda.is_available() else min(len(plans), 2)
    threads = max(1, (os.cpu_count() or 1) // at_once)
    waiting = [
        context.Process(target=train_one, args=(plan, out, runs, seed, threads, told), daemon=True) for plan in plans
    ]
    running: list[BaseProcess] = []
    try:
        with Bars(plans) as bars:
            while waiting or running:
                while waiting and len(running) < at_once:
                    running.append(waiting.pop(0))
                    running[-1].start()
                bars.show(told)
                if any(process.exitcode for process in running):
                    return False
                running = [process for process in running if process.exitcode is None]
        return True
    finally:
        for process in running:
            process.terminate()
            process.join()


class Bars:
    """What is seen of the runs: a bar each on a terminal, a line for each checkpoint elsewhere."""

    def __init__(self, plans: Iterable[Plan]) -> None:
        """Begin with every model waiting."""
        console = Console(stderr=True, highlight=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[said]}"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._steps = {plan.name: plan.steps for plan in plans}
        self._bars = {
            name: self._progress.add_task(name, total=steps, said="waits") for name, steps in self._steps.items()
        }

    def __enter__(self) -> Self:
        """Draw."""
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last picture."""
        self._progress.stop()

    def show(self, told: Told) -> None:
        """Wait a second for what a run tells, and show it."""
        try:
            name, step, loss = told.get(timeout=1.0)
        except Empty:
            return
        said = f"step {step:,} of {self._steps[name]:,}" + (f", loss {loss:.4f}" if loss == loss else "")  # noqa: PLR0124  (NaN)
        self._progress.update(self._bars[name], completed=step, said=said)
        if self._progress.disable:
            print(f"{name}: {said}", file=sys.stderr, flush=True)


def main() -> int:
    """Parse the command line, train, and measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PLANS)}; default: all, then the card")
    parser.add_argument("--out", type=Path, default=Path("hybrid/models"), help="where the GGUF files and the card go")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where checkpoints are kept")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in PLANS]:
        parser.error(f"no model {unknown[0]}: {', '.join(PLANS)}")
    plans = [plan for name, plan in PLANS.items() if name in (args.names or PLANS)]
    try:
        if not train_all(plans, args.out, args.runs, args.seed):
            return 1
        if not args.names:
            measure = [sys.executable, Path(__file__).with_name("card.py"), "--dir", args.out]
            return subprocess.run(measure, check=False).returncode
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
