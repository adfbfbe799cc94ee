"""``hybrid bench parallel``: what questions that are answered at once cost one another, and what they save.

Ten questions over an endpoint that takes 600 ms a reply are waiting most of the time, so four contexts should answer
them in the time that three take one after another. An offline question should hardly notice one that waits for the
cloud. And conversations that take turns should find what was read of them: what is read again is counted in tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from typing import NoReturn

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL, ClientOpener, bundled_server
from hybrid.engine import Worker
from hybrid.engine.llama import Weights
from hybrid.errors import EngineError, Unreachable
from hybrid.lab.speed.measure import BenchmarkReport, Measurement, Spread, milliseconds, ratio
from hybrid.run import Answer, AsyncClient, Finished, LocalModel, RequestSent, Started
from hybrid.settings.config import AnswerChoices, Settings
from hybrid.spend import Account, MemoryLedger
from hybrid.tasks import BY_NAME, distinct
from hybrid.types import Message

LATENCY_MS, QUESTIONS, CONTEXTS = 600, 10, 4
FAMILY, MAX_TOKENS = "arithmetic", 48
# Every question takes the same requests: two checks, which keep what was drafted.
CHECKED: AnswerChoices = {"policy": "kl", "threshold": float("inf"), "max_tokens": MAX_TOKENS}
# How much longer an offline question may take beside another, whatever it takes alone.
GRACE_S = 0.02
# Of each conversation: a beginning that all of them share, of some 400 tokens, and its turns.
BEGINNING = "You sort numbers. " + " ".join(str(number) for number in range(1000, 1075))
CONVERSATIONS, TURNS = 3, 6


def run(report_progress: Callable[[str], None], repetitions: int) -> BenchmarkReport:
    """Measure all three in one run; each repetition asks one question alone and many at once."""
    return asyncio.run(_run(report_progress, repetitions))


async def _run(report_progress: Callable[[str], None], repetitions: int) -> BenchmarkReport:
    server = f"an endpoint that takes {LATENCY_MS} ms for a reply"
    setting = f"the bundled pair, {CONTEXTS} contexts, {server}, two checks a question"
    async with _client() as client:
        figures = [
            *await _many(client, report_progress, repetitions),
            *await _offline(client, report_progress, repetitions),
        ]
    return BenchmarkReport("parallel", setting, (*figures, await _conversations(report_progress)))


@asynccontextmanager
async def _client() -> AsyncIterator[AsyncClient]:
    """Open a client whose settings are constructed, not loaded: the user's own have no say in a measurement."""
    async with bundled_server(BUNDLED_CLOUD, "--latency-ms", str(LATENCY_MS)) as url:
        settings = Settings.model_construct(
            local=BUNDLED_LOCAL,
            cloud=url,
            api_key_env="",
            price="free",
            threads=1,
            seed=0,
            policy="kl",
            parallel=CONTEXTS,
        )
        async with ClientOpener(settings) as client:
            yield client


def _questions(num: int) -> list[str]:
    return [each.question for each in distinct(BY_NAME[FAMILY], "test", num, seed=0)]


async def _many(client: AsyncClient, report_progress: Callable[[str], None], repetitions: int) -> Sequence[Measurement]:
    """Take one question alone, then ten at once, each time."""
    questions, alone, together = _questions(QUESTIONS), list[Answer](), list[tuple[float, float]]()
    await client.generate(questions[0], **CHECKED)  # the connection, and a warm server
    for turn in range(repetitions):
        report_progress(f"{QUESTIONS} questions at once, and one alone: {turn} of {repetitions}")
        alone.append(await client.generate(questions[turn % QUESTIONS], **CHECKED))
        answers = await asyncio.gather(*(client.generate(each, **CHECKED) for each in questions))
        together.append((max(map(_first_s, answers)), max(answer.timing.total_ms / 1000 for answer in answers)))
    first, whole = [_first_s(answer) for answer in alone], [answer.timing.total_ms / 1000 for answer in alone]
    firsts, wholes = [each[0] for each in together], [each[1] for each in together]
    note = (
        f"one alone: first token after {milliseconds(first).median:.0f} ms, done after {milliseconds(whole).median:.0f}"
    )
    return (
        Measurement(
            f"{QUESTIONS} at once: the last first token over one alone", ratio(firsts, first), "ratio", "<= 5.6"
        ),
        Measurement(f"{QUESTIONS} at once: all done over one alone", ratio(wholes, whole), "ratio", "<= 3.7", note),
    )


def _first_s(answer: Answer) -> float:
    if answer.timing.ttft_ms is None:
        msg = "an answer of the benchmark has no token"
        raise EngineError(msg)
    return answer.timing.ttft_ms / 1000


async def _offline(
    client: AsyncClient, report_progress: Callable[[str], None], repetitions: int
) -> Sequence[Measurement]:
    """Take an offline question alone, and while one that the cloud writes is under way."""
    asked, other = _questions(2)
    alone, beside = list[float](), list[float]()
    choices: AnswerChoices = {"offline": True, "max_tokens": MAX_TOKENS}
    for turn in range(repetitions):
        report_progress(f"an offline question alone, and beside one of the cloud's: {turn} of {repetitions}")
        alone.append(await _seconds(client, asked, choices))
        under_way = asyncio.Event()
        writing = asyncio.create_task(_write(client, other, under_way))
        await under_way.wait()
        beside.append(await _seconds(client, asked, choices))
        await writing
    return (
        Measurement("an offline question alone", milliseconds(alone), "ms"),
        Measurement(
            "an offline question beside one of the cloud's, less 20 ms, over alone",
            ratio([max(0.0, each - GRACE_S) for each in beside], alone),
            "ratio",
            "<= 1.5",
        ),
    )


async def _seconds(client: AsyncClient, question: str, choices: AnswerChoices) -> float:
    began = time.perf_counter()
    await client.generate(question, **choices)
    return time.perf_counter() - began


async def _write(client: AsyncClient, question: str, under_way: asyncio.Event) -> None:
    async for event in client.stream(question, policy="cloud", max_tokens=MAX_TOKENS):
        if isinstance(event, RequestSent):
            under_way.set()


async def _conversations(report_progress: Callable[[str], None]) -> Measurement:
    """Count the tokens that conversations in turn read again: those decoded beyond what is new in a turn."""
    report_progress(f"{CONVERSATIONS} conversations in turn")
    reread: list[float] = []
    async with _counted() as (client, num_decoded):
        talks = [_Talk([Message("system", BEGINNING)]) for _ in range(CONVERSATIONS)]
        questions = iter(_questions(CONVERSATIONS * TURNS))
        for turn in range(TURNS):
            for talk in talks:
                before = num_decoded()
                new = await talk.ask(client, next(questions))
                if turn:
                    reread.append(max(0, num_decoded() - before - new))
    name = f"{CONVERSATIONS} conversations in turn behind one beginning: tokens read again in a turn"
    return Measurement(name, Spread.of(reread), "tokens", "<= 16", f"{max(reread):.0f} at most")


@dataclass
class _Talk:
    """A conversation, and how many tokens of it were read or written in its last turn."""

    turns: list[Message]
    num_held: int = 0

    async def ask(self, client: AsyncClient, question: str) -> int:
        """Put the next question, and return how many tokens were new: its own and the answer's."""
        self.turns.append(Message("user", question))
        num_before, num_prompt = self.num_held, 0
        async for event in client.stream(self.turns, max_tokens=MAX_TOKENS):
            match event:
                case Started(prompt=prompt):
                    num_prompt = len(prompt)
                case Finished(answer):
                    self.num_held = num_prompt + len(answer.tokens)
                    self.turns.append(Message("assistant", answer.text))
        return self.num_held - num_before


@asynccontextmanager
async def _counted() -> AsyncIterator[tuple[AsyncClient, Callable[[], int]]]:
    """Open an offline client over contexts whose decoded tokens can be counted."""

    async def connect(_: float) -> NoReturn:
        msg = "an offline client asks nobody"
        raise Unreachable(msg)

    with ExitStack() as stack:
        weights = Weights(BUNDLED_LOCAL)
        stack.callback(weights.close)
        engines = [stack.enter_context(closing(weights.context(0, 1))) for _ in range(CONTEXTS)]
        workers = [stack.enter_context(closing(Worker(f"bench-engine-{i}"))) for i in range(CONTEXTS)]
        settings = Settings.model_construct(policy="local", offline=True, seed=0)
        local = LocalModel(list(zip(engines, workers, strict=True)))
        client = AsyncClient(local, connect, Account(None, MemoryLedger()), settings)
        try:
            yield client, lambda: sum(engine.num_decoded for engine in engines)
        finally:
            await client.aclose()
