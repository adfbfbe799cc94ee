"""Decode a recorded answer again, under any policy, without a model call."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from hybrid.config import PolicyChoices
from hybrid.engine import Cursor, Worker
from hybrid.policy import SeededCoin
from hybrid.run.answer import Answer
from hybrid.run.client import policy_of, sampling_of
from hybrid.run.drafting import Drafter
from hybrid.run.driver import AnswerLimits, Driver, Side
from hybrid.run.replay_trace import ReplayCloud, ReplayCursor, ReplayTrace
from hybrid.run.request_billing import Tell
from hybrid.sources import load
from hybrid.spend import Account, MemoryLedger, Price


async def replay(path: Path, tell: Tell = lambda _: None, **chosen: Any) -> Answer:
    """Answer a trace's question from its rows; ``chosen`` are flags of ``hybrid.open``, else the recording's hold.

    What makes a policy (its numbers, gate, judge, ...) is the recording's where no ``policy`` is given.
    Raises UsageError for a file or settings that cannot be honoured, MissingRow where the policy asks for what was not
    recorded.
    """
    flags = {name: value for name, value in chosen.items() if value is not None}
    tape = ReplayTrace.read(path)
    recorded = {"policy": tape.policy, "max_tokens": tape.max_tokens, **asdict(tape.sampling)}
    of_policy = PolicyChoices.model_fields if "policy" in flags else {}
    kept = {name: value for name, value in tape.choices.items() if name not in of_policy}
    settings = load(**(recorded | kept | {"config": None} | flags))  # a trace names no file to read
    sampling = sampling_of(settings)
    account = Account(Price.parse(settings.price) if settings.price else None, MemoryLedger(None))
    cursor = cast(Cursor, ReplayCursor(tape))  # rows by another road; a driver asks for nothing else
    drafter = Drafter(cursor, tape.prompt, sampling, SeededCoin(sampling.seed))
    limits = AnswerLimits(
        settings.max_tokens, settings.cloud_top_k, time.monotonic(), overlap=False, stops=settings.stop
    )
    worker = Worker("hybrid-replay")
    try:
        driver = Driver(drafter, worker, Side(ReplayCloud(tape), account.open_budget()), limits, tell)
        return await driver.answer(policy_of(settings))
    finally:
        worker.close()
