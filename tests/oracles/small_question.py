"""How long a small question takes beside callers and an upstream that mean no good, as a ratio to its time alone.

    python tests/oracles/small_question.py [NAME ...] [--questions 60] [--callers 12]
    python tests/oracles/small_question.py --stream 400 [NAME ...]

NAME: turns-25000, turns-100000, numbers (a list of four million), texts (a million empty ones), lists, pages (of the
monitor, unread), or what the upstream says (``lying_upstream.LIES``). The callers and the upstream are processes of
their own, so that the one that measures is not what waits. They have half of the cores, and the server the other half,
alone, too: on another machine they would take none of the server's, and beside a dozen processes on its two cores an
idle server took 40 times its time. Alone and beside take turns within one run. With ``--stream`` it is an honest
stream of so many events a second that is relayed: from the upstream itself, alone, and beside each NAME.
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
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from hostile_callers import ask, connect, local, relayed, request, silent_pages, turns
from lying_upstream import DONE, LIES, LyingUpstream, Question, Step, delta, endless, head, last
from serve_process import ServeProcess, relay_to

STREAM_S = 4


def steady(question: Question) -> Iterator[Step]:
    """An honest stream, at the events a second that its question names."""
    rate = int(question.lie.removeprefix("steady-"))
    yield head("200 OK", "Connection: close", streamed=True)
    began = time.monotonic()
    for i in range(STREAM_S * rate):
        yield delta("a")
        yield max(0.0, began + (i + 1) / rate - time.monotonic())
    yield last() + DONE


LIES["endless-small-events"] = endless(head(streamed=True), delta("a"))
LIES.update({f"steady-{rate}": steady for rate in (50, 100, 200, 400, 800)})
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
    """Send it without end, and read what comes; after a refusal that says when to come again, a second later."""
    raw = request(body_of(name), "Connection: close")
    print("ready", flush=True)
    while True:
        first = b""
        with suppress(OSError), connect(port) as there:
            there.sendall(raw)
            while part := there.recv(1 << 16):
                first = first or part
        if b"retry-after:" in first.partition(b"\r\n\r\n")[0].lower():
            time.sleep(1.0)


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


def stream(port: int, rate: int) -> tuple[float, float, float]:
    """Read an honest stream: its whole time in s, 95th percentile and maximum of the gaps between its events in ms."""
    came, told = [time.monotonic()], b""
    with connect(port) as there:
        there.sendall(request(relayed(f"steady-{rate}", stream=True) | {"max_tokens": 10_000}, "Connection: close"))
        while part := there.recv(1 << 16):
            told += part
            if b'"content"' in part:
                came.append(time.monotonic())
    if told.count(b'"content"') < STREAM_S * rate:
        raise RuntimeError(told[:2000])
    gaps = [1000 * (after - before) for before, after in pairwise(came[1:])]
    return came[-1] - came[0], statistics.quantiles(gaps, n=20)[-1], max(gaps)


def measure_stream(server: ServeProcess, url: str, rate: int, names: list[str], callers: int) -> Iterator[str]:
    """Read it from the upstream itself, relayed alone, and relayed beside each; a line each."""
    said = "{:22} whole {:5.2f} s; between events p95 {:5.1f} ms, max {:5.0f}".format
    yield said("itself", *stream(int(url.rpartition(":")[2].partition("/")[0]), rate))
    yield said("relayed", *stream(server.port, rate))
    for name in names:
        with processes(*[["--call", name, str(server.port)]] * callers) as attack:
            for each in attack:
                each.stdout.readline()
            time.sleep(WARMS_UP_S)
            yield said(name, *stream(server.port, rate))
        time.sleep(WARMS_UP_S)


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
    """Measure each attack or an honest stream, a line each; or be the upstream or a caller."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*")
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--callers", type=int, default=12)
    parser.add_argument("--stream", type=int, metavar="RATE", choices=[50, 100, 200, 400, 800])
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
                if args.stream:
                    for line in measure_stream(server, url, args.stream, args.name, args.callers):
                        print(line, flush=True)
                    return
                for name in args.name or USUAL:
                    print(measure(server, name, args.questions, args.callers), flush=True)


if __name__ == "__main__":
    main()
