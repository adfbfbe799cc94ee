"""A batch whose answers are given: what each question comes to, and who was asked; no model and no client behind it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.errors import UsageError
from hybrid.record.state import Spent

QUESTIONS = [f"question {i}" for i in range(1, 9)]


class Opening:
    """A client that is about to be opened."""

    def __init__(self, settings, client, endpoint):
        self.settings, self.client, self.endpoint = settings, client, endpoint

    async def __aenter__(self):
        return self.client

    async def __aexit__(self, *_):
        pass


class Answers:
    """What stands behind ``hybrid.open``: what each question comes to, and who was asked."""

    def __init__(self):
        self.asked, self.degraded, self.failing, self.faults, self.said = [], set(), set(), {}, "first"
        self.kinds, self.whys, self.flags, self.more, self.spent = {}, {}, None, {}, Spent()

    def open(self, **flags):
        self.spender, self.flags = flags["spender"], flags
        named = {"offline": bool(flags["offline"]), "cloud_model": flags["cloud_model"]}
        settings = SimpleNamespace(parallel=flags["parallel"] or 1, cap=None, seed=None, cloud=None, **named)
        client = SimpleNamespace(settings=settings, parallel=settings.parallel, spent=self.spent, notes=())
        client.generate, client.cap_statuses = self.generate, self.cap_statuses
        return Opening(settings, client, flags["cloud"] or "bundled")

    async def cap_statuses(self):
        return ()

    async def generate(self, prompt, **choices):
        number = int(prompt.split()[1])
        self.asked.append(number)
        await asyncio.sleep(0.001 * (number % 3))
        if fault := self.faults.get(number):
            if isinstance(fault, signal.Signals):
                await asyncio.sleep(0.05)  # the lines beside it are finished meanwhile
                os.kill(os.getpid(), fault)
                await asyncio.sleep(60)
            raise fault
        if number in self.failing:
            msg = f"{self.said} fails"
            raise UsageError(msg)
        degraded = self.whys.get(number, "the cap") if number in self.degraded else None
        kind = self.kinds.get(number, "budget") if degraded else None
        told = {"text": f"{self.said} {number}", "degraded": degraded, "degraded_kind": kind} | self.more
        return SimpleNamespace(policy=choices.get("policy", "kl"), to_json=lambda: told)


def batch_command(folder, answers):
    """Return what runs ``hybrid batch`` with flags on these questions, a blank line behind each, in a folder."""
    (folder / "in").write_text("".join(f"{json.dumps(each)}\n\n" for each in QUESTIONS))

    def run(*flags):
        answers.asked.clear()
        return CliRunner().invoke(app, ["batch", str(folder / "in"), str(folder / "out"), *flags])

    return run


@pytest.fixture
def answers(monkeypatch):
    found = Answers()
    monkeypatch.setattr(hybrid, "open", found.open, raising=False)
    return found


@pytest.fixture
def batch(tmp_path, answers):
    return batch_command(tmp_path, answers)
