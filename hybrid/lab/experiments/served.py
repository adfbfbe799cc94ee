"""A sample of a world's answers, written again by the client over the bundled server.

The two may part where two tokens, a divergence and its threshold, or a draw and the edge of a probability are so near
that how a prefix was decoded decides: a server reads the whole text for a check, a world what it does not know. So what
is told of a difference is how near the two likeliest tokens were where the texts part, and who wrote there, and why.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybrid.assemble import PROBE, bundled_server
from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.wire import Wire
from hybrid.engine import Engine, Worker, num_shared
from hybrid.engine.llama import Weights
from hybrid.lab.arms import PRICE, Arm
from hybrid.lab.experiments.world import (
    NUM_CONTEXT,
    ArmPlanners,
    World,
    WorldAnswer,
    answer_choices,
    with_critic,
    world_settings,
)
from hybrid.record.answer import Answer
from hybrid.run import AsyncClient, Finished, RequestSent, RequestSettled
from hybrid.run.cloud_verifier import Connection
from hybrid.settings.config import AnswerChoices
from hybrid.spend import Account, MemoryLedger, Price
from hybrid.types import CloudUsage, Sampling

# One answer in twenty is written again by the client.
SHARE = 0.05
# Between two ways to decode one prefix, a likely token differs by 0.3 nats at the median position (q3).
NEAR_TIE_NATS = 0.3


def is_sampled(question: str, arm: Arm, share: float = SHARE) -> bool:
    """Whether an answer is among those that are checked: by its words, so that a run that goes on checks the same."""
    digest = hashlib.sha256(f"{arm.name}: {question}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < share * 2**32


@dataclass(frozen=True)
class ServedClient:
    """The client over the bundled server, and its local engines."""

    client: AsyncClient
    engines: tuple[Engine, ...]
    planners: ArmPlanners

    async def answer(self, question: str, arm: Arm, choices: AnswerChoices) -> tuple[Answer, list[tuple[Any, ...]]]:
        """Answer from an empty cache; return each request's kind, position, and tokens read and written, too.

        What a cache held before decides how a prompt is decoded, and a model of few bits reads it a little differently.
        """
        for engine in self.engines:
            engine.rewind(0)
        self.planners.planner = arm.planner
        sent: list[tuple[Any, ...]] = []
        async for event in self.client.stream(question, **choices):
            match event:
                case RequestSent():
                    sent.append((event.kind, event.position))
                case RequestSettled() if event.usage:
                    sent[-1] += _charged(event.usage)
                case Finished():
                    return event.answer, sent
        msg = "an answer ended without being finished"
        raise RuntimeError(msg)


@asynccontextmanager
async def open_driver(
    local: Path, cloud: Path, critic: Path | None = None, num_context: int = NUM_CONTEXT
) -> AsyncIterator[ServedClient]:
    """Open a client over a bundled server of the reference, with the world's settings and its idea of noise."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(bundled_server(cloud, "--dialect", "vllm"))
        worker = Worker("hybrid-driver")
        stack.callback(worker.close)
        engines: list[Engine] = []
        for path in (local, *([] if critic is None else [critic])):
            weights = Weights(path)
            stack.callback(weights.close)
            engines.append(weights.context(min(num_context, weights.longest_context or num_context), threads=1))
            stack.callback(engines[-1].close)
        engine, reads = engines[0], engines[1] if critic else None
        endpoint = Endpoint(Wire(url, None, Timeouts(), through_proxies=False), None, None, engine, "vllm")
        stack.push_async_callback(endpoint.aclose)

        async def connect(asked_at: float) -> Connection:
            return endpoint, await endpoint.connect(PROBE, engine.tokenize(PROBE), asked_at)

        account = Account(Price.parse(PRICE), MemoryLedger())
        planners = ArmPlanners()
        client = AsyncClient(
            with_critic([(engine, worker)], reads), connect, account, world_settings(), planners=planners
        )
        stack.push_async_callback(client.aclose)
        yield ServedClient(client, tuple(engines), planners)


async def compare_with_client(
    served: ServedClient, world: World, question: str, arm: Arm, sampling: Sampling, answered: WorldAnswer, limit: int
) -> dict[str, Any]:
    """Write an answer again and say whether text, requests and bill are the same; where not, how near a tie it was."""
    found, sent = await served.answer(question, arm, answer_choices(arm, sampling, limit))
    ids, expected = tuple(token.id for token in found.tokens), answered.ids
    ours = [
        (each.kind, len(each.sent) - each.num_scored - len(answered.prompt), *_charged(each.usage))
        for each in answered.requests
    ]
    same_text = ids == expected
    report = {
        "arm": arm.name,
        "text": same_text,
        "requests": sent == ours,
        "bill": found.bill.nanousd == answered.answer.bill.nanousd,
    }
    if not same_text:
        shared = num_shared(ids, expected)
        sides = {"world": answered.answer.tokens, "client": found.tokens}
        at = {side: (t[shared].how, t[shared].why) if shared < len(t) else None for side, t in sides.items()}
        report |= {"parts_at": shared, "gap": _gap(world, answered, shared), "greedy": sampling.greedy, **at}
    return report


def _charged(usage: CloudUsage) -> tuple[int, int]:
    return usage.prompt_tokens, usage.completion_tokens


def _gap(world: World, answered: WorldAnswer, length: int) -> float:
    """Return how near the two likeliest tokens are after some tokens of the answer, to the model that is least sure."""
    at = answered.prompt + answered.ids[:length]
    rows = (world.local_row(at), world.cloud_row(at))
    return min(first - second for (_, first), (_, second) in (row.top(2) for row in rows))
