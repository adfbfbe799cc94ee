"""Decode a recorded answer again, under any policy, without a model call."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from hybrid.cloud import Capabilities
from hybrid.engine import Cursor, Worker
from hybrid.errors import UsageError
from hybrid.policy import SeededCoin, exact_stages, with_stages
from hybrid.policy.concepts import Concepts
from hybrid.policy.planning import Planner
from hybrid.record.answer import Answer
from hybrid.record.answer_builder import AnswerBuilder
from hybrid.record.events import Publish
from hybrid.run.cloud_verifier import CloudVerifier, Connection, WriteOptions
from hybrid.run.composition import Decoding, check_effect, most_tokens, policy_of, sampling_of
from hybrid.run.deferral import PlannerFactory, PlanningContext
from hybrid.run.drafting import Drafter
from hybrid.run.driver import AnswerLimits, Driver
from hybrid.run.experts import ExpertCursor
from hybrid.run.replay_trace import ReplayCloud, ReplayCritic, ReplayCursor, ReplayTrace
from hybrid.run.retrying import EndpointHealth, RetryingCaller
from hybrid.run.verifier import ChainReader, RenderedPrompt
from hybrid.settings.config import Settings
from hybrid.settings.policy_choices import PolicyChoices
from hybrid.settings.sources import choosing, load
from hybrid.spend import Account, MemoryLedger, Price


async def replay(path: Path, publish: Publish = lambda _: None, **chosen: Any) -> Answer:
    """Answer a trace's question from its rows; ``chosen`` are flags of ``hybrid.open``, else the recording's hold.

    What makes a policy (its numbers, gate, judge, ...) is the recording's where no ``policy`` is given.
    Raises UsageError for a file or settings that cannot be honoured, MissingRow where the policy asks for what was not
    recorded.
    """
    flags = {name: value for name, value in chosen.items() if value is not None}
    trace = ReplayTrace.read(path)
    recorded = {"policy": trace.policy, "max_tokens": trace.max_tokens, **asdict(trace.sampling)}
    of_policy = PolicyChoices.model_fields if "policy" in flags else {}
    kept = {name: value for name, value in trace.choices.items() if name not in of_policy}
    if kept.get("hold") == "priced":  # a handback that ``auto`` once weighed: it has the rest written now
        del kept["hold"]
    config = flags.pop("config", None)  # a trace names no file to read
    settings = load(config=config, **(recorded | kept))
    if "policy" not in flags:  # what the recording leaves to its policy is not this machine's to choose
        left = PolicyChoices.model_fields.keys() - (recorded | kept).keys()
        settings = settings.model_copy(update={name: getattr(Settings(), name) for name in left})
    settings = choosing(settings, flags)
    check_effect(settings, flags)
    sampling = sampling_of(settings)
    cursor, above = _cursors(trace)
    levels = [ChainReader(each, trace.prompt) for each in above]
    drafter = Drafter(cursor, trace.prompt, sampling, SeededCoin(sampling.seed), ReplayCritic(trace))
    cloud = ReplayCloud(trace)

    async def connect(asked_at: float) -> Connection:
        return cloud, await cloud.connect("", (), asked_at)

    budget = Account(Price.parse(settings.price) if settings.price else None, MemoryLedger(None)).open_budget()
    piece, began = cursor.engine.piece, time.monotonic()
    builder = AnswerBuilder(
        len(trace.prompt), piece, lambda: budget.price, began, publish, settings.stop, trace.thoughts
    )
    builder.local_models, builder.cloud_model = trace.models, lambda: trace.cloud_model
    if isinstance(cursor, ExpertCursor):
        builder.experts = lambda: cursor.weights
    caller = RetryingCaller(EndpointHealth(), publish)
    wanted = WriteOptions(sampling, settings.cloud_top_k, open_ended=not settings.max_tokens)
    verifier = CloudVerifier(connect, caller, budget, cursor.engine, builder, wanted)
    limits = AnswerLimits(most_tokens(settings, trace.max_tokens), overlap=False)
    worker = Worker("hybrid-replay")
    try:
        driver = Driver(RenderedPrompt(trace.prompt), drafter, worker, verifier, builder, limits, levels)
        concepts = None if trace.concepts is None else Concepts(trace.concepts, piece, trace.prompt)
        policy = policy_of(settings, room=trace.max_tokens, concepts=concepts)
        if policy.wants_concepts and concepts is None:
            msg = f"{path} does not hold which tokens say the same: record it where `hybrid concepts show` knows some"
            raise UsageError(msg)
        if policy.planner is not None:
            planner = await _planner(trace, settings, budget.price)
            policy = policy_of(settings, None, planner, trace.max_tokens, concepts)
        return await driver.answer(with_stages(policy, exact_stages(trace.chain, sampling)))
    finally:
        worker.close()


def _cursors(trace: ReplayTrace) -> tuple[Cursor | ExpertCursor, list[Cursor]]:
    """Return who drafts, and who reads above: rows by another road; a driver asks for nothing else."""
    if trace.mix is None:
        first, *above = (cast(Cursor, ReplayCursor(trace, below)) for below in reversed(range(len(trace.chain) + 1)))
        return first, above
    rows = {each.name: cast(Cursor, ReplayCursor(trace, i)) for i, each in enumerate(trace.experts)}
    return ExpertCursor(rows, trace.mix, [each.weight for each in trace.experts]), []


async def _planner(trace: ReplayTrace, settings: Settings, price: Price | None) -> Planner:
    """Return the planner that was recorded; of an answer without one, that of a pair of which nothing is known."""
    if trace.planner is not None:
        return trace.planner
    asked = PlanningContext((), trace.prompt, Decoding.of(settings), Capabilities("trace"), price)
    return (await PlannerFactory().bind(asked)).planner
