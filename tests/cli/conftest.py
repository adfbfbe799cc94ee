"""The comparisons that ``tests/bench`` makes by hand, for what shows them; a batch over scripted models."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from runpy import run_path

import pytest
from scripted_cloud import ScriptedCloud
from scripted_engine import ScriptedEngine
from scripted_house import END, LARGE, SMALL, WORDS
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.engine import Worker
from hybrid.run import AsyncClient, LocalModel
from hybrid.settings.config import Settings
from hybrid.spend import Account, MemoryLedger, Price, usd_to_nanousd

_BENCH = run_path(str(Path(__file__).parent.parent / "bench" / "conftest.py"))
answer, compared = _BENCH["answer"], _BENCH["compared"]

GIVEN = ("policy", "temperature", "seed", "parallel", "cap", "cloud_model", "offline")


class Opening:
    """What ``hybrid.open`` returns: settings, and a client like its own over tables, when it is entered."""

    def __init__(self, scripted, flags):
        self.scripted, self.price, self.cap = scripted, flags.get("price"), flags.get("cap")
        self.endpoint = flags.get("cloud") or "bundled"
        given = {name: flags[name] for name in GIVEN if flags.get(name) is not None}
        self.settings = Settings(cloud_top_k=8, max_tokens=6, **({"policy": "kl"} | given))
        ledger = MemoryLedger(usd_to_nanousd(self.cap) if self.cap else None)
        self._account = Account(Price.parse(self.price) if self.price else None, ledger)

    def account(self, _stack=None):
        return self._account

    async def __aenter__(self):
        self.scripted.opened += 1
        self.workers = [Worker(f"test {i}") for i in range(self.settings.parallel)]
        engines = [ScriptedEngine(WORDS, SMALL, end_ids=frozenset({END}), num_context=40) for _ in self.workers]
        cloud = ScriptedCloud(LARGE, end_ids=frozenset({END}))

        async def reach(_):
            if self.scripted.cloud_fault:
                raise self.scripted.cloud_fault
            return cloud, await cloud.connect("", ())

        local = LocalModel(list(zip(engines, self.workers, strict=True)))
        client = AsyncClient(local, reach, self.account(), self.settings)
        generate = client.generate

        async def counted(prompt, **choices):
            self.scripted.asked += 1
            if self.scripted.asked == self.scripted.before and self.scripted.fault:
                if isinstance(self.scripted.fault, signal.Signals):
                    await asyncio.sleep(0.2)  # the lines beside it are finished meanwhile, on a busy machine too
                    os.kill(os.getpid(), self.scripted.fault)
                    await asyncio.sleep(60)
                raise self.scripted.fault
            return await generate(prompt, **choices)

        client.generate = counted
        return client

    async def __aexit__(self, *_):
        for worker in self.workers:
            worker.close()


class Scripted:
    """What stands behind ``hybrid.open``: how often it was entered, what goes wrong, and before which answer."""

    def __init__(self):
        self.opened = 0
        self.asked = 0
        self.cloud_fault = None
        self.fault = None
        self.before = 0


@pytest.fixture
def scripted(monkeypatch):
    found = Scripted()
    monkeypatch.setattr(hybrid, "open", lambda **flags: Opening(found, flags), raising=False)
    return found


@pytest.fixture
def batch(scripted, tmp_path):
    """Run the command on these lines, in this folder's files."""

    def run(questions, *flags, again=False):
        if again:
            (tmp_path / "out").unlink()
        (tmp_path / "in").write_text("".join(f"{each}\n" for each in questions))
        return CliRunner().invoke(app, ["batch", str(tmp_path / "in"), str(tmp_path / "out"), *flags])

    return run


@pytest.fixture
def out(tmp_path):
    """What the output holds, without the time it took."""

    def read():
        found = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
        for line in found:
            line.pop("timing", None)
        return found

    return read
