"""The real pair by its names, over real HTTP: text of a real model, and a bill that nobody sends."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.settings.sources import cache_file
from hybrid.store.json_store import JsonStore

QUESTION = "Why is the sky blue?"


@pytest.fixture(scope="module")
def answers(real_model):
    """Return the same question answered by the reference alone, and by the pair, from one client."""
    ledger = Path(os.environ["HYBRID_LEDGER"])
    before = ledger.exists() and ledger.stat()
    with hybrid.open(local="real:d2", cloud="real", price="1/0.1/4", max_tokens=12, ctx=512) as client:
        found = {policy: client.generate(QUESTION, policy=policy) for policy in ("local", "cloud", "greedy-exact")}
    assert (ledger.exists() and ledger.stat()) == before, "a server of our own is nothing to the ledger"
    return found


def test_the_pair_has_one_vocabulary_and_the_law_of_speculative_decoding_holds(answers):
    """Up to near ties, of which there is none in this text."""
    assert answers["greedy-exact"].text == answers["cloud"].text
    assert answers["local"].text != answers["cloud"].text, "two layers are missing"
    assert all(answer.degraded is None for answer in answers.values())


def test_a_stated_price_is_a_bill_and_no_spending(answers):
    usage, bill = answers["cloud"].usage, answers["cloud"].bill
    assert (usage.cloud_requests, usage.cloud_tokens) == (1, 12)
    assert bill.nanousd > 4000 * 12
    assert bill.nanousd == bill.cloud_only_nanousd


def test_a_command_and_a_variable_name_it(real_model, monkeypatch):
    monkeypatch.setenv("HYBRID_LOCAL", "real:d2")
    done = CliRunner().invoke(app, ["ask", QUESTION, "--offline", "--json", "--max-tokens", "12", "--ctx", "512"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["usage"]["cloud_requests"] == 0
    assert len(found["tokens"]) == 12


@pytest.mark.slow
def test_a_named_cloud_is_probed_and_nothing_is_kept_of_its_address(real_model):
    kept = JsonStore(cache_file(), "endpoints")
    before = kept.read_entries()  # other tests of this process may have written some
    done = CliRunner().invoke(app, ["probe", "real", "--local", "real:d2", "--json"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["dialect"], found["same_words"], found["model"]) == ("vllm", True, "SmolLM2-135M-Instruct.Q4_1")
    assert kept.read_entries() == before
