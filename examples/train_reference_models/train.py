"""Train the ladder of reference models and write the GGUF files and the model card.

    pip install '.[train]'
    python examples/train_reference_models/train.py                 # all four, then the card
    python examples/train_reference_models/train.py large           # one of them, no card
    python examples/train_reference_models/train.py --out my/models --seed 1

On CPUs the models train side by side, one thread each where there are two cores, the longest first; on a GPU one after
the other. A run that was stopped goes on from its last checkpoint (``--runs``) when the same command is given again: at
most fifty steps are lost. Ctrl-C stops all of them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from queue import Empty, Queue
from typing import Self

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from training import PLANS, Run

from hybrid.bench.reference import card
from hybrid.bench.tasks.mix import Model

# The longest first, so that the others fit beside it.
ORDER: tuple[Model, ...] = ("large", "mid", "small", "alien")


def train_one(name: Model, out: Path, runs: Path, seed: int, threads: int, told: Queue[tuple[str, int, float]]) -> None:
    """Train one model to its end in this process and write its file."""
    torch.set_num_threads(threads)
    runs.mkdir(parents=True, exist_ok=True)
    run = Run(PLANS[name], runs / f"{name}.pt", seed)
    told.put((name, run.progress.step, float("nan")))
    run.train(lambda progress, loss: told.put((name, progress.step, loss)))
    run.export(out)


def train_all(names: list[Model], out: Path, runs: Path, seed: int) -> None:
    """Train several models side by side, with a bar each on a terminal and a line per checkpoint elsewhere."""
    at_once = 1 if torch.cuda.is_available() else min(len(names), 2)
    threads = max(1, len(os.sched_getaffinity(0)) // at_once) if hasattr(os, "sched_getaffinity") else 1
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with context.Manager() as manager, ProcessPoolExecutor(at_once, mp_context=context) as pool, Bars(names) as bars:
        told = manager.Queue()
        running = {pool.submit(train_one, name, out, runs, seed, threads, told) for name in names}
        while running:
            done, running = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
            bars.drain(told)
            _raise_first(done)


def _raise_first(done: set[Future[None]]) -> None:
    for future in done:
        future.result()


class Bars:
    """What is seen of the runs."""

    def __init__(self, names: list[Model]) -> None:
        self._console = Console(stderr=True, highlight=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[said]}"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._tasks: dict[str, TaskID] = {
            name: self._progress.add_task(name, total=PLANS[name].steps, said="waits") for name in names
        }

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def drain(self, told: Queue[tuple[str, int, float]]) -> None:
        """Show what the runs have told since."""
        while True:
            try:
                name, step, loss = told.get_nowait()
            except Empty:
                return
            said = f"step {step} of {PLANS[name].steps}, loss {loss:.4f}"
            self._progress.update(self._tasks[name], completed=step, said=said)
            if not self._console.is_terminal:
                print(f"{name}: {said}", file=sys.stderr, flush=True)


def main() -> None:
    """Parse the command line, train, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ORDER)}; default: all, then the card")
    parser.add_argument("--out", type=Path, default=Path("hybrid/models"), help="where the GGUF files and the card go")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where checkpoints are kept")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in PLANS]:
        parser.error(f"no model {unknown[0]}: {', '.join(ORDER)}")
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        train_all([name for name in ORDER if name in (args.names or ORDER)], args.out, args.runs, args.seed)
        if not args.names:
            card.write(args.out, card.measured(args.out, tell=lambda said: print(f"card: {said}", file=sys.stderr)))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
