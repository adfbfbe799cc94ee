"""What a process takes before it answers: whole processes in turn, beside an empty one and the libraries alone.

CPU seconds are a child's own, so that other work on the machine weighs little; Windows tells none of a child's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from hybrid.assemble import BUNDLED_LOCAL
from hybrid.errors import EngineError
from hybrid.lab.speed.measure import WARM_UP, Bench, turns

# What an offline answer has of other people's.
LIBRARIES = "filelock, jinja2, llama_cpp, msgspec, numpy, platformdirs, psutil, pydantic, rich.console, typer"
EMPTY, ALONE, ANSWER = "python -c pass", "the libraries alone", "hybrid ask --offline"
OFFLINE = ("ask", "--offline", "--config", os.devnull, "--local", str(BUNDLED_LOCAL), "What is 47 + 86?")
COMMANDS = {"hybrid --version": ("--version",), "hybrid ask --help": ("ask", "--help"), ANSWER: OFFLINE}
PROGRAMS = {EMPTY: "pass", ALONE: f"import {LIBRARIES}", "import hybrid": "import hybrid"}
WAYS: dict[str, tuple[str, ...]] = {name: ("-c", program) for name, program in PROGRAMS.items()}
WAYS |= {name: ("-P", "-m", "hybrid", *words) for name, words in COMMANDS.items()}


def start(bench: Bench) -> str:
    """Measure processes from their beginning to their end. Raises EngineError where one fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HYBRID_")}
    took: dict[str, dict[str, list[float]]] = {unit: {name: [] for name in WAYS} for unit in ("CPU", "wall")}
    for i, which in turns(bench.num + WARM_UP, len(WAYS)):
        name, words = list(WAYS.items())[which]
        bench.say(f"{name}: turn {i + 1} of {bench.num + WARM_UP}")
        before, began = _children_s(), time.perf_counter()
        done = subprocess.run([sys.executable, *words], capture_output=True, check=False, env=environment)
        took["wall"][name].append(time.perf_counter() - began)
        took["CPU"][name].append(_children_s() - before)
        if done.returncode:
            msg = f"{name} failed: {done.stderr.decode(errors='replace').strip()}"
            raise EngineError(msg)
    for unit in list(took)[sys.platform == "win32" :]:
        seconds = {name: found[WARM_UP:] for name, found in took[unit].items()}
        for name, found in seconds.items():
            bench.add_ms(f"{unit} of {name}", found)
            bench.add_ratio(f"{unit} of {name} over {EMPTY}", found, seconds[EMPTY])
        bench.add_ratio(f"{unit} of {ANSWER} over {ALONE}", seconds[ANSWER], seconds[ALONE])
    return "whole processes in turn; the answer is the bundled small model's, which asks no other"


def _children_s() -> float:
    """Return the CPU seconds of all children that have ended; 0 on Windows."""
    if sys.platform == "win32":
        return 0.0
    import resource  # noqa: PLC0415  (Windows has none)

    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
