"""What is frozen of llama.cpp: answers of the bundled models with all their events, and what a calibration finds.

A trace is what ``--trace`` writes, less its times. The rows of most are there as a digest, since a megabyte holds a
dozen of them; of ``ROWS`` they are whole, for what reads them back.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from frozen_text import TREE, Section, masked

import hybrid
from hybrid.errors import HybridError
from hybrid.policy import PRESETS
from hybrid.prob import Partition
from hybrid.record.events import TRACE_VERSION, Event, to_json

# One core and no drafting ahead: how much is drafted ahead is a matter of time.
OPENED = {"threads": 1, "overlap": False, "price": "1/0.1/4", "ledger": "none", "seed": 0, "span": 12}
QUESTIONS = {
    "greedy": ("Sort 91 17 55 23 68 12 77.", {"max_tokens": 40}),
    "sampled": ("What is 47 + 86?", {"temperature": 0.8, "top_p": 0.95, "seed": 7, "max_tokens": 40}),
    "short": ("Why is the sky blue?", {"max_tokens": 10, "trace_rows": True}),
}
TROUBLE = {
    "offline": {"offline": True},
    "a stop": {"stop": ("; 17",)},
    "two drafts": {"span": 2},
    "bounded": {"max_tokens": 3},
}
ROWS = ("kl, short", "exact, short", "doubt, short")
NUM_TRACES, NUM_LABELS = 20, 14
BENCH = ("bench", "auto", "--split", "calibration", "--num", "10", "--seed", "1", "--processes", "1", "--json")


def line(event: Event, *, whole: bool) -> str:
    """Return an event as a line of a trace; a row is a digest unless it is to be ``whole``."""
    told = to_json(event)
    for name in () if whole else {"local", "cloud", "parts"} & told.keys() if told["event"] == "rows" else ():
        row = told[name]
        told[name] = row and hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:10]
    return json.dumps(told, ensure_ascii=False)


async def trace(client: hybrid.AsyncClient, question: str, *, whole: bool = False, **choices: object) -> str:
    """Return the trace of an answer, or why there is none."""
    lines = [json.dumps({"trace": TRACE_VERSION})]
    try:
        async for event in client.stream(question, **choices):
            lines.append(line(event, whole=whole))  # noqa: PERF401  (what came before an error is told)
    except HybridError as error:
        lines.append(f"{type(error).__name__}: {error}")
    return masked("".join(f"{each}\n" for each in lines))


def answers() -> Section:
    """Answer each question by every preset, and one in trouble."""
    sort = QUESTIONS["greedy"][0]
    concepts = Partition.of_groups(40, [range(10, 20), range(20, 40)])

    async def asked() -> Section:
        found = {}
        async with hybrid.open(**OPENED) as client:
            for preset, (name, (question, choices)) in product(PRESETS, QUESTIONS.items()):
                key = f"{preset}, {name}"
                found[key] = await trace(client, question, whole=key in ROWS, policy=preset, **choices)
            for name, choices in TROUBLE.items():
                found[name] = await trace(client, sort, policy="kl", **({"max_tokens": 30} | choices))
        async with hybrid.open(**OPENED, cap="0.0001") as client:
            for preset in ("kl", "greedy-exact"):
                found[f"{preset}, at its cap"] = await trace(client, sort, policy=preset, max_tokens=40)
        return found

    with patch("hybrid.assemble.local_models.partition_of", lambda *_: concepts):
        return asyncio.run(asked())


def traces(answered: Section) -> Section:
    """Return the traces that can be read back: those of ``ROWS``, of trouble, and others without their rows."""
    read = [*ROWS, *TROUBLE, *(name for name in answered if "cap" in name)]
    others = [name for name in answered if name not in read and "Error: " not in answered[name].rsplit("\n", 2)[1]]
    read += others[:: max(1, len(others) // (NUM_TRACES - len(read)))][: NUM_TRACES - len(read)]
    lines = {name: answered[name].splitlines(keepends=True) for name in read}
    dropped = ('{"event": "rows"', '{"event": "recording_started"')
    return {
        name: "".join(each for each in lines[name] if name in ROWS or not each.startswith(dropped)) for name in read
    }


def program(*words: str) -> str:
    """Return what a command prints, run as a program with folders of its own."""
    with TemporaryDirectory() as folder:
        own = {f"XDG_{kind}_HOME": str(Path(folder) / kind) for kind in ("STATE", "CONFIG", "CACHE")}
        command = [sys.executable, "-P", "-m", "hybrid", *words]
        env = os.environ | own | {"PYTHONPATH": str(TREE), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
        said = done.stderr if done.returncode else ""
        return masked(f"{done.returncode}\n{indented(done.stdout)}\n{said}")


def indented(told: str) -> str:
    """Return JSON with a value a line, so that a difference is one."""
    return json.dumps(json.loads(told), indent=0) if told.startswith("{") else told


def calibrations() -> Section:
    """Calibrate the bundled pair by a few questions, bought anew."""
    words = ("calibrate", "--n", str(NUM_LABELS), "--price", "1/0.1/4", "--threads", "1", "--json")
    ways = (("--use",), ("--use", "--recover", "0.5", "--judge", "kl:0.3"))
    return {" ".join(more): program(*words, *more) for more in ways}


def bench() -> Section:
    """Run the experiment of ``auto``: ten minutes of one core."""
    return {" ".join(BENCH): program(*BENCH)}
