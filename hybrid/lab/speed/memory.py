"""Measure the peak memory of a loop, in a fresh process that is watched while the loop runs.

The process's own record of its peak says nothing: loading repacks the weights and has a higher peak than any loop.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from hybrid.engine import Cursor
from hybrid.engine.bare import BareContext
from hybrid.engine.llama import Weights
from hybrid.errors import EngineError
from hybrid.policy import SeededCoin
from hybrid.policy.gates import ALWAYS
from hybrid.policy.requests import Draft, ids
from hybrid.run.drafting import Drafter
from hybrid.types import Sampling

PROMPT = tuple(range(300, 364))
NUM_CONTEXT = 512
NUM_SPANS = 6
LOOPS = {
    "bare": "llama_decode, a token at a time",
    "spans of 8": "drafts of 8 and their rows, 8 more decoded ahead",
    "spans of 32": "drafts of 32 and their rows, 32 more decoded ahead",
}


def peak_mib(loop: str, model: Path) -> float:
    """Run a loop in a process of its own and return the largest resident set seen in it, in MiB."""
    command = [sys.executable, "-P", "-m", "hybrid.lab.speed.memory", loop, str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        msg = f"the {loop} loop did not end well in a process of its own: {last}"
        raise EngineError(msg)
    return float(done.stdout)


def main() -> None:
    """Run the loop that is named and print the peak."""
    loop, model = sys.argv[1:]
    weights = Weights(model)
    seen = _bare(weights) if loop == "bare" else _draft(weights, int(loop.split()[-1]))
    print(max(seen) / 2**20)  # noqa: T201  (the answer)


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


def _bare(weights: Weights) -> Iterator[int]:
    bare = BareContext(weights, NUM_CONTEXT, 1, num_rows=1)
    bare.decode(PROMPT, rows=False)
    for i in range(NUM_SPANS * 16):
        bare.decode((PROMPT[i % len(PROMPT)],))
        yield _resident()


def _draft(weights: Weights, span: int) -> Iterator[int]:
    drafter = Drafter(Cursor(weights.context(NUM_CONTEXT, 1)), PROMPT, Sampling(), SeededCoin(0))
    request = Draft((), span, ALWAYS, wants_next_row=True)
    for _ in range(NUM_SPANS):
        drafted = drafter.draft(request, span, lambda: False)
        yield _resident()
        request = Draft(request.at + ids(drafted.span), span, ALWAYS, wants_next_row=True)
        drafter.look_ahead(request, span + 1, lambda: False)
        yield _resident()


if __name__ == "__main__":
    main()
