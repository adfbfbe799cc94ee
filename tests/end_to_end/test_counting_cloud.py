"""What a cloud charges, told or not, is on record and within the cap: a real client, a real ledger, another's account.

``counting_cloud`` computes, charges and lies as its mode says; it was written by another hand than the client. Two
things nobody can count who does not compute, and they are not in the table: tokens that a server says were cached, and
tokens that it hides (``UNKNOWABLE``).
"""

from __future__ import annotations

import pytest
from acting import acting
from cases import each
from counted_account import CHARGEABLE, MODES, STATUSES
from counting_cloud import CountingCloud

import hybrid
from hybrid.errors import CloudRefusal
from hybrid.spend.durable import FileLedger, LedgerAdmin

PRICE = "1/0.1/4"
QUESTIONS = ("What is 47 + 86?", "Sort 42 17 99 23.")
# More than the worst case of one write and less than that of two: every ledger is asked for more than there is.
CAP_NANOUSD = 100_000
CHAT_CAP_NANOUSD = 2_000_000  # what a chat service may put before a conversation is reserved until it is seen
# It writes on to the limit for whoever has left: the most that a server charges for what nobody reads.
MANNER = {"run_ahead": -1, "delay_s": 5.0, "charge_errors": False, "retry_after": "0"}
SETTINGS = {
    "max_tokens": 12,
    "span": 4,
    "threshold": 0.1,
    "first_byte_timeout_s": 1.0,  # busy machines take half of it
    "cool_down_s": 0.001,
    "retries": 0,
}
POLICIES = {
    "kl": {"policy": "kl"},
    "cloud": {"policy": "cloud"},
    "checks": {"policy": "greedy-exact"},
    "doubt": {"policy": "doubt", "entropy": 0.2},
    "stop string": {"policy": "cloud", "stop": ("8",)},
    "text": {"policy": "cloud", "dialect": "text-completions"},
    "echo": {"policy": "greedy-exact", "dialect": "openai-completions"},
    "chat": {"policy": "cloud", "dialect": "openai-chat"},
}
# What is asked by default: one way of counting wrongly of each kind, of a policy that writes; some of one that checks.
OF_EACH_KIND = {
    "cloud": {"honest", "zero", "absent", "negative", "tenth", "usage-per-chunk", "cut", "slow"},
    "kl": {"honest", "zero", "tenth", "cut"},
}
IGNORED = {"max-tokens-ignored-told", "max-tokens-ignored-untold"}
# What a stream runs ahead beyond its limit once it was left; a preamble that is charged and not told, or in a tenth. Of
# what takes messages only it knows how many tokens a text has, so a tenth that is told is believed, and beyond a limit
# that is ignored nothing is known.
UNKNOWABLE = {
    ("max-tokens-ignored-untold", "chat"),
    *((mode, policy) for mode in IGNORED for policy in ("kl", "doubt", "stop string")),
    ("preamble-untold", "chat"),
    ("tenth", "chat"),
}
CASES = [
    (mode, policy)
    for policy in POLICIES
    for mode in MODES
    if (mode, policy) not in UNKNOWABLE and (policy == "chat" or not mode.startswith("preamble"))
]
SOME = [(mode, policy) for mode, policy in CASES if mode in OF_EACH_KIND.get(policy, ())]


def cap_of(policy):
    return CHAT_CAP_NANOUSD if policy == "chat" else CAP_NANOUSD


@pytest.fixture(scope="module")
def clouds():
    """One of each service for all cases."""
    with CountingCloud(price=PRICE) as vllm, CountingCloud(price=PRICE, service="openai") as openai:
        yield {"vllm": vllm, "openai": openai}


@pytest.fixture
def asked(clouds, tmp_path):
    """Ask a cloud in a mode under a cap; return what it charged, and what the ledger has of it."""

    def ask(mode, policy, questions=QUESTIONS, **manner):
        cloud = clouds["openai" if policy == "chat" else "vllm"]
        cloud.set(mode=mode, **MANNER | manner)
        before = cloud.account()["total_nanousd"]
        ledger = FileLedger(tmp_path / f"ledger-{len(list(tmp_path.iterdir()))}.sqlite")
        LedgerAdmin(ledger).set_cap("total", cap_of(policy))
        settings = acting(**SETTINGS | POLICIES[policy]) | {
            "local": "small",
            "cloud": cloud.url,
            "price": PRICE,
            "ledger": ledger.file.path,
        }
        try:
            with hybrid.open(**settings) as client:
                for question in questions:
                    client.generate(question)
        except CloudRefusal:
            pass  # before any text, what will never work is the user's to mend
        row = LedgerAdmin(ledger).rows()[-1]
        ledger.close()
        return cloud.account()["total_nanousd"] - before, row.spent_nanousd + row.reserved_nanousd

    return ask


@each(("mode", "policy"), SOME)
def test_what_is_charged_is_on_record_and_within_the_cap(asked, mode, policy):
    check_what_is_charged(asked, mode, policy)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_charged_is_on_record_and_within_the_cap_in_every_mode(asked, policy):
    each("mode", [mode for mode, its in CASES if its == policy and (mode, its) not in SOME])(
        lambda mode: check_what_is_charged(asked, mode, policy)
    )()


def check_what_is_charged(asked, mode, policy):
    charged, recorded = asked(mode, policy, QUESTIONS[: 1 if policy == "kl" else 2])  # kl asks often enough
    assert charged <= recorded
    assert charged <= cap_of(policy)
    assert (charged > 0) == (mode != "refusal-in-stream"), "it was asked"


@pytest.mark.slow
@each(("mode", "policy"), sorted(UNKNOWABLE))
def test_of_what_nobody_can_know_all_but_the_hidden_part_is_on_record(asked, mode, policy):
    charged, recorded = asked(mode, policy)
    assert recorded > 0
    assert charged / (12 if policy == "chat" else 4) < recorded  # a tenth of each request, rounded down


@pytest.mark.slow
@each("status", STATUSES)
def test_what_is_turned_away_is_free_and_what_may_have_been_computed_is_not(asked, status):
    computed = status in CHARGEABLE
    charged, recorded = asked(f"status={status}", "cloud", QUESTIONS[:1], charge_errors=computed)
    assert charged <= recorded <= CAP_NANOUSD
    assert bool(charged) == bool(recorded) == computed


@pytest.mark.slow
@each("policy", ["kl", "text", "chat"])
@each("status", STATUSES)
def test_of_what_is_turned_away_and_costs_nothing_only_what_might_have_is_kept(asked, status, policy):
    charged, recorded = asked(f"status={status}", policy)
    assert charged == 0
    assert recorded <= cap_of(policy)
    assert status in CHARGEABLE or recorded == 0
