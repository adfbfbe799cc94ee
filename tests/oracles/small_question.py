"""How long a small question takes beside callers and an upstream that mean no good, as a ratio to its time alone.

    python tests/oracles/small_question.py [NAME ...] [--questions 60] [--callers 12]

NAME: turns-25000, turns-100000, numbers (a list of four million), texts (a million empty ones), lists, pages (of the
monitor, unread), or what the upstream says (``lying_upstream.LIES``). The callers and the upstream are processes of
their own, so that the one that measures is not what waits. They have half of the cores, and the server the other half,
alone, too: on another machine they would take none of the server's, and beside a dozen processes on its two cores an
idle server took 40 times its time. Alone and beside take turns within one run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from hostile_callers import ask, connect, local, relayed, request, silent_pages, turns
from lying_upstream import LIES, LyingUpstream, delta, endless, head
from serve_process import ServeProcess, relay_to

LIES["endless-small-events"] = endless(head(streamed=True), delta("a"))
USUAL = ["turns-25000", "turns-100000", "numbers", "texts", "lists", "pages", "endless-comments"]
USUAL += ["endless-small-events", "endless-100-continue", "endless-events"]
WARMS_UP_S, ROUNDS = 2.0, 3
CORES = sorted(os.sched_getaffinity(0))
HALF = (len(CORES) + 1) // 2


def body_of(name: str) -> bytes:
    """The body that a caller sends again and again."""
    if name.startswith("turns-"):
        return json.dumps(turns(int(name.removeprefix("turns-")))).encode()
    lists = {"numbers": b"1", "texts": b'""', "lists": b"[]"}
    if (item := lists.get(name)) is not None:
        num = 200_000 if item == b"[]" else 8_000_000 // (len(item) + 1)
        return b'{"model": "hybrid", "messages": [' + b",".join([item] * num) + b"]}"
    return json.dumps(relayed(name, stream=True)).encode()


def call(name: str, port: int) -> None:
    """Send it without end, and read what comes."""
    raw = request(body_of(name), "Connection: close")
    print("ready", flush=True)
    while True:
        with suppress(OSError), connect(port) as there:
            there.sendall(raw)
            while there.recv(1 << 16):
                pass


@contextmanager
def processes(*parts: list[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """This program in some of its parts, until the block is left."""
    started = [subprocess.Popen([sys.executable, __file__, *part], stdout=subprocess.PIPE, text=True) for part in parts]
    for each in started:
        os.sched_setaffinity(each.pid, CORES[HALF:] or CORES)
    try:
        yield started
    finally:
        for each in started:
            each.kill()
            each.communicate()


def times_ms(port: int, num: int) -> list[float]:
    """Ask so many small questions one by one."""
    found = []
    for i in range(num):
        told = ask(port, local(f"What is {i % 9 + 1} + {i % 7 + 2}?"))
        if told.status != 200:
            raise RuntimeError(told)
        found.append(told.seconds * 1000)
    return found


def measure(server: ServeProcess, name: str, questions: int, callers: int) -> str:
    """Ask alone and beside, in turn; return a line."""
    alone, beside = list[float](), list[float]()
    server.rest()
    for _ in range(ROUNDS):
        alone += times_ms(server.port, questions // ROUNDS)
        with ExitStack() as attack:
            if name == "pages":
                attack.enter_context(silent_pages(server.port, 100))
            else:
                for each in attack.enter_context(processes(*[["--call", name, str(server.port)]] * callers)):
                    each.stdout.readline()
            time.sleep(WARMS_UP_S)
            beside += times_ms(server.port, questions // ROUNDS)
        time.sleep(WARMS_UP_S)
    medians = [statistics.median(found) for found in (alone, beside)]
    tails = [statistics.quantiles(found, n=10)[-1] for found in (alone, beside)]
    said = f"{name:22} median {medians[0]:4.0f} ms alone, {medians[1]:4.0f} beside: {medians[1] / medians[0]:5.1f}x; "
    said += f"p90 {tails[0]:4.0f}, {tails[1]:5.0f}: {tails[1] / tails[0]:5.1f}x; "
    return said + f"max {max(beside):6.0f} ms; {server.peak_mib:4.0f} MiB above idle"


def main() -> None:
    """Measure each attack, a line each; or be the upstream or a caller."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", default=USUAL)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--callers", type=int, default=12)
    parser.add_argument("--call", nargs=2, metavar=("NAME", "PORT"), help=argparse.SUPPRESS)
    parser.add_argument("--upstream", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.call:
        call(args.call[0], int(args.call[1]))
    elif args.upstream:
        with LyingUpstream() as there:
            print(there.url, flush=True)
            time.sleep(3600)
    else:
        os.sched_setaffinity(0, CORES[:HALF])
        with processes(["--upstream"]) as [upstream], TemporaryDirectory() as folder:
            url = upstream.stdout.readline().strip()
            with ServeProcess(Path(folder), **relay_to(url), HYBRID_RETRIES="0") as server:
                times_ms(server.port, 10)
                for name in args.name:
                    print(measure(server, name, args.questions, args.callers), flush=True)


if __name__ == "__main__":
    main()
