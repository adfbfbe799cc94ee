"""The bill of checks that read vLLM's prefix cache: what the server has charged, to the token, and never above a cap.

The question is longer than a block, and is asked twice: the second time its drafts are cached, so that checks lack
their first rows and are asked again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import each

import hybrid
from hybrid.record.events import Finished, RequestSettled
from hybrid.spend import Price
from hybrid.spend.durable import FileLedger, LedgerAdmin
from hybrid.types import CloudUsage

MODELS = Path(hybrid.__file__).parent / "models"
PRICE = "1/0.1/4"
QUESTION = "Tom has 53 apples. Tom buys 8 more. Tom gives away 7. How many apples does Tom have now?"
FLAGS = ("--enable-scale-out", "--enable-prompt-tokens-details", "--v2-runner", "--block-size", "16")


@pytest.fixture(scope="module")
def v2(start_server):
    return start_server(*FLAGS, model=MODELS / "large.gguf")


def charged(server):
    """Return what every question was charged, whatever requests it took."""
    told = server.client.get("/v1/charges").json()["data"]
    return [CloudUsage(one["prompt_tokens"], one["completion_tokens"], one["cached_tokens"]) for one in told]


@pytest.fixture
def ask(v2, tmp_path):
    """Ask twice under a cap; return the answers, what checks were told to cost, what was charged and is on record."""

    def asking(cap_nanousd, **choices):
        before, price, answers, checks = len(charged(v2)), Price.parse(PRICE), [], []
        ledger = FileLedger(tmp_path / f"{cap_nanousd}.sqlite")
        LedgerAdmin(ledger).set_cap("total", cap_nanousd)
        settings = {"cloud": v2.url, "dialect": "vllm-tokens", "price": PRICE, "ledger": ledger.file.path, "seed": 0}
        with hybrid.open(**settings, local=MODELS / "small.gguf", threshold=0.3, span=12, **choices) as client:
            for event in (event for _ in range(2) for event in client.stream(QUESTION)):
                if isinstance(event, Finished):
                    answers.append(event.answer)
                if isinstance(event, RequestSettled) and event.kind == "check":
                    checks.append(event.usage)
        row = LedgerAdmin(ledger).rows()[-1]
        ledger.close()
        return answers, checks, sum(map(price.cost, charged(v2)[before:])), row.spent_nanousd + row.reserved_nanousd

    return asking


def test_a_bill_is_what_the_server_has_charged_for_proofs_checks_and_checks_asked_again(ask):
    answers, checks, cost, recorded = ask(10**9, cache_salt="all")
    assert cost == recorded == sum(answer.bill.nanousd for answer in answers)
    assert [answer.degraded for answer in answers] == [None, None]
    assert {check.requests for check in checks} >= {1, 2}, "some took a proof, or were asked again"
    assert sum(check.cached_tokens for check in checks) > 100


@each("share", [0.5, 0.7, 0.9])
def test_no_cap_is_exceeded_by_checks_that_are_asked_again(ask, share):
    _, _, whole, _ = ask(10**9, cache_salt=f"whole {share}")
    cap = int(whole * share)
    answers, _, cost, recorded = ask(cap, cache_salt=f"part {share}")
    assert 0 < cost <= recorded <= cap
    assert any(answer.degraded for answer in answers)
    assert not any("charged" in (answer.degraded or "") for answer in answers), "nothing above what was reserved"
