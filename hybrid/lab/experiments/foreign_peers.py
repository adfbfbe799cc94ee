"""Other people's routers over the same questions: whose text they show, and what they ask of the large model.

A router is a package of the extra ``peers`` with its own defaults. It is given two servers with chat completions, one a
model; a judge is the large model at a third one, since routers tell models apart by name. Nothing leaves loopback.

The law (``tests/bench/test_foreign_peers.py``): requests and tokens are what the large model's servers charged,
whatever a package says of itself; and a run that was interrupted asks what it has not asked yet.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    closing,
    contextmanager,
)
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import msgspec
import numpy as np

from hybrid.assemble.reaching import bundled_server
from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.wire import Wire
from hybrid.errors import UsageError
from hybrid.lab.experiments.grid import GradedQuestion
from hybrid.lab.experiments.peers import DialResults
from hybrid.lab.experiments.questions import ProblemSet
from hybrid.store.files import LineFile, make_folder

# What a request is, by the server that it reached.
KINDS = {"large": "write", "judge": "judge"}
# Switchyard's judges send 3,300 and 6,800 tokens of the bundled vocabulary and ask for 4,096 more.
JUDGE_FLAGS = ("--ctx", "16384")
# A judge reads its prompt within seconds; crowded cores may take minutes.
PATIENCE = Timeouts(first_byte=600.0, read=600.0, total=600.0)
# Switchyard recommends ``auto``; the others have the values of its documents' examples, but for ``confirmations``: with
# two, the default, a question that is its own session is never escalated.
JUDGED = ('type = "llm_classifier"', 'classifier_target = "judge"', 'strong_target = "large"', 'weak_target = "small"')
AUTO_ROUTE = ('type = "auto"', 'capable_target = "large"', 'efficient_target = "small"')
CAPABILITY_ROUTE = (*JUDGED, 'mode = "capability"', "base_threshold = 0.5", "threshold_step = 0.1")
ESCALATION_ROUTE = (*JUDGED, 'mode = "escalation"', "escalation = { confirmations = 1 }")

# Takes a question; returns the text that is shown and the name of the model that wrote it.
AskPeer: TypeAlias = Callable[[GradedQuestion], Awaitable[tuple[str, str]]]


@dataclass(frozen=True)
class ForeignPeer:
    """A router: its distribution, the module that is imported, and whether it has a judge.

    ``start`` takes the module, the models' URLs by name, and a folder for settings.
    """

    distribution: str
    module: str
    start: Callable[[Any, Mapping[str, str], Path], AbstractAsyncContextManager[AskPeer]]
    judges: bool = False


@dataclass(frozen=True)
class ForeignRecord:
    """One question: ``sent``, the large model was asked anything; ``kept``, the small model's text was shown.

    ``requests`` are those that reached the large model: kind, prompt tokens, completion tokens.
    """

    peer: str
    question: str
    right: bool
    sent: bool
    kept: bool
    requests: tuple[tuple[str, int, int], ...]
    seconds: float


def foreign_answers(records: Sequence[ForeignRecord], written: float) -> DialResults:
    """Return records as columns; a written token costs ``written`` prompt tokens, and nothing is cached.

    >>> asked = ForeignRecord("a", "?", True, True, False, (("judge", 100, 5), ("write", 20, 10)), 0.1)
    >>> foreign_answers([asked], 4.0).paid
    array([180.])
    """
    paid = [sum(read + written * wrote for _, read, wrote in each.requests) for each in records]
    rows = [(each.right, cost, len(each.requests), each.sent) for each, cost in zip(records, paid, strict=True)]
    return DialResults(*np.array(rows, dtype=np.float64).reshape(-1, 4).T)


def run_peer(
    name: str, ground: ProblemSet, folder: Path, num: int | None, report_progress: Callable[[str], None]
) -> list[ForeignRecord]:
    """Let a peer answer the first ``num`` questions (None: all) and return a record of each, in their order.

    Each is a line of a file in ``folder``; what stands there of the same models and release is not asked again. Raises
    UsageError for a name that no peer has and without its package, and whatever a peer raises.
    """
    package = check_peer(name)
    peer, questions = PEERS[name], ground.questions[:num]
    files = [(path.name, path.stat().st_size) for path in (ground.local, ground.cloud)]
    digest = sha256(repr((version(peer.distribution), files)).encode()).hexdigest()[:12]
    make_folder(folder)
    with closing(LineFile(folder / f"{name}-{digest}.jsonl")) as file:
        found = _read(file)

        def keep(*fields: Any) -> None:
            record = ForeignRecord(name, *fields)
            file.append([msgspec.json.encode(record) + b"\n"])
            found[record.question] = record
            report_progress(f"{name}: {sum(each.text in found for each in questions)} of {len(questions)} questions")

        left = [each for each in questions if each.text not in found]
        if left:
            asyncio.run(_answer_all(peer, package, ground, left, keep))
    return [found[each.text] for each in questions]


def check_peer(name: str) -> Any:
    """Return a peer's module. Raises UsageError for a name that no peer has, and without its package."""
    if name not in PEERS:
        msg = f"there is no peer {name}: {', '.join(PEERS)}"
        raise UsageError(msg)
    try:
        return importlib.import_module(PEERS[name].module)
    except ModuleNotFoundError as error:
        msg = f"{name} needs the package {error.name}: pip install '.[peers]'"
        raise UsageError(msg) from None


def _read(file: LineFile) -> dict[str, ForeignRecord]:
    """Return the records of a file by their questions, pass over what is none, and end a line that was cut off."""
    found: dict[str, ForeignRecord] = {}
    raw = b"\n"
    for raw in file.lines():
        try:
            record = msgspec.json.decode(raw, type=ForeignRecord)
        except (msgspec.DecodeError, ValueError, RecursionError):
            continue
        found[record.question] = record
    if not raw.endswith(b"\n"):
        file.append([b"\n"])
    return found


async def _answer_all(
    peer: ForeignPeer, package: Any, ground: ProblemSet, left: Sequence[GradedQuestion], keep: Callable[..., None]
) -> None:
    """Start the servers and the peer, ask, and count what each question adds to the large model's charges."""
    async with AsyncExitStack() as stack:
        stack.enter_context(_without_proxies())
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="hybrid-peers-")))
        urls: dict[str, str] = {}
        for name in ("small", "large", "judge")[: 3 if peer.judges else 2]:
            path = folder / f"{name}.gguf"  # a server calls its model by the file
            await asyncio.to_thread(shutil.copyfile, ground.local if name == "small" else ground.cloud, path)
            flags = ("--dialect", "openai-chat", "--parallel", "1", *(JUDGE_FLAGS if name == "judge" else ()))
            urls[name] = await stack.enter_async_context(bundled_server(path, *flags))
        large = [(KINDS[name], await stack.enter_async_context(_wire(urls[name]))) for name in urls if name in KINDS]
        ask = await stack.enter_async_context(peer.start(package, urls, folder))
        before: dict[tuple[str, str], tuple[str, int, int]] = {}
        for question in left:
            began = time.monotonic()
            text, writer = await ask(question)
            seconds = round(time.monotonic() - began, 3)
            charged = {
                (kind, each["id"]): (kind, each["prompt_tokens"], each["completion_tokens"])
                for kind, wire in large
                for each in (await wire.get("/v1/charges"))["data"]
            }
            requests = tuple(told for key, told in charged.items() if key not in before)
            keep(question.text, question.grade(text), bool(requests), writer == "small", requests, seconds)
            before = charged


@contextmanager
def _without_proxies() -> Iterator[None]:
    """Hide the environment's proxies, which routers use for loopback, too."""
    hidden = {name: os.environ.pop(name) for name in tuple(os.environ) if name.upper().endswith("_PROXY")}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _wire(url: str) -> AbstractAsyncContextManager[Wire]:
    return aclosing(Wire(url, None, PATIENCE, through_proxies=False))


@asynccontextmanager
async def _start_cascadeflow(package: Any, urls: Mapping[str, str], _: Path) -> AsyncIterator[AskPeer]:
    """Start an agent as its documents do; the costs order the models."""
    logging.getLogger("cascadeflow").setLevel(logging.ERROR)  # it warns of every low score
    models = [
        package.ModelConfig(name=name, provider="vllm", base_url=f"{urls[name]}/v1", cost=cost)
        for name, cost in (("small", 0.0), ("large", 0.004))
    ]
    agent = package.CascadeAgent(models=models)

    async def ask(question: GradedQuestion) -> tuple[str, str]:
        answer = await agent.run(question.text, max_tokens=question.max_tokens, temperature=0)
        return answer.content, answer.model_used

    async with AsyncExitStack() as stack:
        for provider in agent.model_providers.values():
            await stack.enter_async_context(provider)
        yield ask


@asynccontextmanager
async def _start_switchyard(
    route: Sequence[str], package: Any, urls: Mapping[str, str], folder: Path
) -> AsyncIterator[AskPeer]:
    """Start its server with one route."""
    lines = ["schema_version = 1"]
    for name, url in urls.items():
        lines += [f"[llm_clients.{name}]", 'format = "openai_chat"', f'base_url = "{url}/v1"']
        lines += [f"[targets.{name}]", f'id = "{name}"', f'llm_client = "{name}"']
    settings = folder / "routes.toml"
    settings.write_text("\n".join([*lines, "[routes.peer]", 'id = "peer"', *route]), encoding="utf-8")
    os.environ.setdefault("RUST_LOG", "off")  # several lines a question
    with package.Server(settings) as server:
        async with _wire(server.base_url) as wire:

            async def ask(question: GradedQuestion) -> tuple[str, str]:
                said = [{"role": "user", "content": question.text}]
                body = {"model": "peer", "messages": said, "temperature": 0, "max_tokens": question.max_tokens}
                reply = await wire.post("/v1/chat/completions", body)
                return reply["choices"][0]["message"]["content"], reply["model"]

            yield ask


def _switchyard(route: Sequence[str], *, judges: bool = True) -> ForeignPeer:
    return ForeignPeer("nemo-switchyard", "switchyard_rust.server", partial(_start_switchyard, route), judges)


PEERS = {
    "cascadeflow": ForeignPeer("cascadeflow", "cascadeflow", _start_cascadeflow),
    "switchyard-auto": _switchyard(AUTO_ROUTE, judges=False),
    "switchyard-capability": _switchyard(CAPABILITY_ROUTE),
    "switchyard-escalation": _switchyard(ESCALATION_ROUTE),
}
