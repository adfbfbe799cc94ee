"""Whether ``greedy-exact`` writes what a server writes by itself at temperature 0: question by question, ties counted.

    python tests/oracles/own_greedy.py stub llama-server vllm [--questions 100] [--max-tokens 32]

The reference is the real one behind a server, the local model its requantisation. The server's own text is asked for
over its own route, by no code of the client's. A server scores a span in a batch and writes token by token; the two
differ in the last digits. So where two texts part, the server's own two best tokens must lie closer together than half
as much again as the gap between the two best was seen to move, at positions where the texts agree: that is a near tie.
Nothing else excuses a difference.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np
from endpoints import PATIENT
from kept_servers import folder_of, serving_kept
from real_servers import missing, serving
from server_environments import Unavailable

import hybrid
from hybrid.engine.llama import Weights
from hybrid.engine.real_models import model_file
from hybrid.record.events import Rows, Started
from hybrid.tasks.assistant import KINDS, QUESTIONS

SERVERS = ("stub", "llama-server", "vllm")
CONTEXT, FOLDER = 1024, "real"
# In the place of any token that ends a text.
END = -1
# The gap between two tokens moves more where both are unlikely; only small gaps can turn round.
SMALL_NATS = 1.0
# The largest of 80 moves is no bound of the next: on one processor a text of ten parted at 0.358 nats, after 0.334.
MARGIN = 1.5


@dataclass(frozen=True)
class OwnText:
    """What a server writes by itself. ``gaps``: nats between the two best, at each position that it told."""

    ids: tuple[int, ...]
    gaps: tuple[float, ...]


@dataclass
class Comparison:
    """Of so many questions. ``moves``: by how much the small gaps moved where the texts agree, in nats.

    ``near_ties`` and ``wrong``: where two texts part, as question, position and gap. ``written_by``: how many tokens
    each model wrote.
    """

    num: int = 0
    tokens: int = 0
    moves: list[float] = field(default_factory=list)
    parted: list[tuple[str, int, float]] = field(default_factory=list)
    written_by: Counter[str | None] = field(default_factory=Counter)

    @property
    def noise(self) -> float:
        """How far apart two tokens may lie that turn round, in nats."""
        return MARGIN * max(self.moves, default=0.0)

    @property
    def near_ties(self) -> list[tuple[str, int, float]]:
        return [parted for parted in self.parted if parted[-1] <= self.noise]

    @property
    def wrong(self) -> list[tuple[str, int, float]]:
        return [parted for parted in self.parted if parted[-1] > self.noise]

    def __str__(self) -> str:
        gaps = ", ".join(f"{gap:.3f}" for *_, gap in self.near_ties)
        half = np.median(self.moves or [0.0])
        return (
            f"{self.num - len(self.parted)} of {self.num} texts equal ({self.tokens} tokens), "
            f"{len(self.near_ties)} part at a near tie ({gaps}), {len(self.wrong)} elsewhere; "
            f"of {len(self.moves)} gaps below {SMALL_NATS:.0f} nat half move by {half:.4f} nats, "
            f"all by {max(self.moves, default=0.0):.4f} at most"
        )


def mixed(num: int) -> list[str]:
    """Return questions of the test split, the kinds in turn."""
    rows = [[q.text for q in QUESTIONS if q.kind == kind and q.split == "test"] for kind in KINDS]
    longest = max(map(len, rows))
    return list(islice((row[i] for i in range(longest) for row in rows if i < len(row)), num))


def own_text(kind: str, url: str, prompt: Sequence[int], max_tokens: int, end_ids: frozenset[int]) -> OwnText:
    """Ask a server for its greedy text."""
    if kind == "llama-server":
        body = {"prompt": list(prompt), "n_predict": max_tokens, "temperature": 0, "n_probs": 2, "return_tokens": True}
        reply = _post(f"{url}/completion", body | {"cache_prompt": False})
        rows = [[top["logprob"] for top in row["top_logprobs"]] for row in reply["completion_probabilities"]]
        return _own(reply["tokens"], rows, reply["stop_type"] == "eos", end_ids)
    [model] = httpx.get(f"{url}/v1/models", trust_env=False, timeout=60).json()["data"]
    body = {"model": model["id"], "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0, "logprobs": 2}
    [choice] = _post(f"{url}/v1/completions", body | {"return_token_ids": True})["choices"]
    rows = [list(row.values()) for row in choice["logprobs"]["top_logprobs"]]
    return _own(choice["token_ids"], rows, choice["finish_reason"] == "stop", end_ids)


def _own(ids: Sequence[int], rows: Sequence[Sequence[float]], ended: bool, end_ids: frozenset[int]) -> OwnText:
    written = tuple(token for token in ids if token not in end_ids)
    return OwnText((*written, END) if ended else written, tuple(map(_gap, rows)))


def _gap(logprobs: Sequence[float]) -> float:
    second, first = np.sort(logprobs)[-2:]
    return float(first - second)


def _post(url: str, body: dict) -> dict:
    reply = httpx.post(url, json=body, trust_env=False, timeout=300)
    reply.raise_for_status()
    return reply.json()


def compare(
    kind: str, url: str, local: Path, questions: Sequence[str], max_tokens: int, **choices: object
) -> Comparison:
    """Answer each question by ``greedy-exact`` and by the server itself; ``choices`` are further settings."""
    found = Comparison()
    choices = {"policy": "greedy-exact", "max_tokens": max_tokens, "ctx": CONTEXT, "price": "free"} | PATIENT | choices
    with (
        closing(Weights(local)) as weights,
        hybrid.open(local=local, cloud=url, ledger="none", trace_rows=True, **choices) as client,
    ):
        for question in questions:
            if found.num % 10 == 0:
                print(f"{kind}: {found.num} of {len(questions)} compared", file=sys.stderr)
            events = list(client.stream(question))
            answer = events[-1].answer
            assert answer.degraded is None, answer.degraded
            [prompt] = [event.prompt for event in events if isinstance(event, Started)]
            own = own_text(kind, url, prompt, max_tokens, weights.end_ids)
            ids = tuple(token.id for token in answer.tokens) + (END,) * (answer.finish_reason == "stop")
            found.written_by.update(token.model for token in answer.tokens)
            scored = {event.at: event.cloud for event in events if isinstance(event, Rows) and event.cloud is not None}
            count(
                found,
                question,
                ids,
                own,
                {len(at): _gap(row.logprobs) for at, row in scored.items() if at == ids[: len(at)]},
            )
    return found


def count(found: Comparison, question: str, ids: tuple[int, ...], own: OwnText, scored: dict[int, float]) -> None:
    """Count one question; ``scored`` are the gaps in the rows that decided, by position."""
    agreed = next(
        (i for i, (a, b) in enumerate(zip(ids, own.ids, strict=False)) if a != b), min(len(ids), len(own.ids))
    )
    found.num += 1
    found.tokens += agreed
    for i in range(min(agreed, len(own.gaps))):
        if i in scored and own.gaps[i] <= SMALL_NATS:
            found.moves.append(abs(own.gaps[i] - scored[i]))
    if ids != own.ids:
        gap = own.gaps[agreed] if agreed < len(own.gaps) else scored.get(agreed, np.inf)
        found.parted.append((question, agreed, gap))


@contextmanager
def serving_real(kind: str, folder: Path) -> Iterator[str]:
    """Serve the real reference by one of the servers and yield its address. Raises Unavailable, UsageError."""
    model, log = model_file("real"), folder / f"{kind}.txt"
    if kind == "llama-server" and (why := missing(kind)):
        raise Unavailable(why)
    with ExitStack() as stack:
        if kind == "stub":
            flags = ("--model", "real", "--port", "0", "--ctx", str(CONTEXT), "--threads", "1", "--until-stdin-closes")
            process = subprocess.Popen(
                [sys.executable, "-m", "server_stub", *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            yield process.stdout.readline().decode().split()[-1]
        elif kind == "vllm":
            yield stack.enter_context(serving_kept(kind, folder_of(kind, model, folder / FOLDER), log)).url
        else:
            yield stack.enter_context(serving(kind, model, log)).url


def main() -> int:
    """Compare over each server that is named; exit 1 if a text parts where there is no near tie."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", nargs="+", choices=SERVERS)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=32)
    args, failed = parser.parse_args(), False
    for kind in args.server:
        with TemporaryDirectory(prefix="hybrid-greedy-") as folder, serving_real(kind, Path(folder)) as url:
            began = time.monotonic()
            found = compare(kind, url, model_file("real:q3"), mixed(args.questions), args.max_tokens)
            print(f"{kind}: {found} ({time.monotonic() - began:.0f} s)", flush=True)
            for parted in found.wrong:
                print(json.dumps(parted))
            failed |= bool(found.wrong)
    return failed


if __name__ == "__main__":
    sys.exit(main())
