"""What an answer says of itself: its policy, its guarantee, its bill, and of which kind its lack was."""

from __future__ import annotations

from dataclasses import replace

from hybrid.errors import AccessDenied, BadReply, MissingCapability, Unreachable
from hybrid.run.composition import policy_of
from hybrid.types import Sampling

PROMPT = "a b c"


def test_an_answer_says_which_policy_wrote_it_and_what_that_guarantees(house, run):
    for choices in (
        {},
        {"policy": "greedy-exact", "span": 3},
        {"policy": "certified", "judge": "tv:0.9"},
        {"offline": True},
    ):
        h = house()
        answer = run(h.client.generate(PROMPT, max_tokens=8, **choices))
        policy = policy_of(h.client.settings.model_copy(update=choices | {"cloud_top_k": 8, "max_tokens": 8}))
        assert answer.policy == str(policy), choices
        assert answer.guarantee == policy.guarantee(Sampling(), 8), choices
        told = answer.to_json()
        assert (told["policy"], told["guarantee"]) == (answer.policy, answer.guarantee), choices
    assert "the cloud model's own" in run(house().client.generate(PROMPT, policy="greedy-exact")).guarantee


def test_what_degraded_an_answer_has_a_kind_beside_its_sentence(house, run):
    endless = {"small": lambda _: [0, 9, 0, 0, 0, 0, 0, 0]}
    overcharged = {"tells": lambda charged: replace(charged, prompt_tokens=10**6)}
    for kind, built, why in (
        (None, {}, None),
        ("unreachable", {"fault": lambda _: Unreachable("gone")}, "gone"),
        ("unreachable", {"connect": Unreachable("no such host")}, "no such host"),
        ("bad reply", {"fault": lambda _: BadReply("NaN")}, "NaN"),
        ("bad reply", {"connect": BadReply("NaN")}, "NaN"),
        ("refused", {"fault": lambda n: AccessDenied("401") if n == 2 else None}, "401"),
        ("capability", {"fault": lambda n: MissingCapability("no rows") if n == 2 else None}, "no rows"),
        ("budget", {"cap": 0}, "cap of 0 USD"),
        ("budget", overcharged, "for a request that may cost"),
        ("context", {"cloud_context": 12, **endless}, "outgrown"),
    ):
        answer = run(house(**built).client.generate(PROMPT, policy="kl", max_tokens=40, span=2, threshold=0.05))
        assert answer.degraded_kind == kind, (kind, answer.degraded)
        assert answer.degraded is why is None or why in answer.degraded, kind
        assert answer.to_json()["degraded_kind"] == kind
    whole = run(house(**overcharged).client.generate(PROMPT, policy="cloud", max_tokens=8))
    assert (whole.degraded_kind, whole.usage.local_tokens) == ("charge", 0), "only what lacks nothing is of this kind"


def test_a_bill_in_usd_is_what_its_nano_dollars_say_and_unknown_where_they_are(house, run):
    bill = run(house().client.generate(PROMPT, max_tokens=20)).bill
    assert bill.usd == bill.nanousd / 1e9 > 0
    assert run(house(price=None).client.generate(PROMPT, policy="greedy-exact", max_tokens=20)).bill.usd is None
    assert run(house(price=None).client.generate(PROMPT, offline=True, max_tokens=20)).bill.usd == 0.0
