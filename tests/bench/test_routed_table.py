"""What a planner does with recorded drafts, against the rule written a second time."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import each_of

from hybrid.defer import Calibration, CalibrationQuestion, UninformedScore
from hybrid.lab.experiments.frame import SETTINGS
from hybrid.lab.experiments.orders import CURVE, HALF, at_bill, order_rows
from hybrid.lab.experiments.routed import RoutedTable, action_of
from hybrid.policy.plan import DraftPlan

# Prompt tokens, draft tokens, the favourite's probability, excess of the draft in nats a token, tokens of the cloud's.
DRAFTS = [
    (30, 8, 0.9, 0.1, 8),
    (40, 20, 0.5, 0.9, 24),
    (35, 40, 0.3, 1.5, 30),
    (50, 5, 0.2, 2.0, 6),
    (30, 30, 0.7, 0.2, 33),
]
BY_NAME = {setting.name: setting for setting in SETTINGS}


def record(prompt: int, tokens: int, top: float, excess: float, clouds: int, *, right: bool | None = None) -> Any:
    sums = {"logprob": tokens * math.log(top), "entropy": tokens * top}
    arms = {
        "local": {"ids": [1] * tokens, "tokens": tokens, "excess": excess * tokens, "nll": 2.0 * excess * tokens}
        | sums,
        "cloud": {"ids": [2] * clouds, "tokens": clouds, "excess": 0.0, "nll": 0.5 * clouds},
    }
    for name, arm in arms.items():
        arm |= {"right": right if name == "local" or right is None else True}
        arm["requests"] = [("write", prompt, 0, 0, clouds)] if name == "cloud" else []
    told = {"tokens": [1] * tokens, "entropy": [1.0] * tokens, "top": [top] * tokens, "second": [0.05] * tokens}
    signals = {**told, "logprob": [math.log(top)] * tokens, "ended": True}
    return {"text": f"{prompt} {tokens}?", "prompt_tokens": prompt, "spans": None, "signals": signals, "arms": arms}


def calibration(*drafts: tuple[int, int, float, float, int]) -> Calibration:
    rows = tuple(
        CalibrationQuestion(prompt, tokens, clouds, 0.9, True, -math.log(top), excess, 0, tokens // 2)
        for prompt, tokens, top, excess, clouds in drafts
    )
    return Calibration("local", "cloud", "excess:0.5", "nats", 1.4, UninformedScore("excess:0.5", chance=0.999), rows)


def table(name: str = "U", **more: Any) -> RoutedTable:
    return RoutedTable([record(*each, **more) for each in DRAFTS], calibration(*DRAFTS), BY_NAME[name])


def test_no_worth_keeps_every_draft_and_endless_worth_sends_every_question() -> None:
    for name in ("U", "C", "S", "SU"):
        whole = table(name)
        for amount, action, share in ((0.0, "keep", 0.0), (1e9, "write", 1.0)):
            actions = whole.actions(amount)
            assert actions == [action] * len(DRAFTS)
            point = whole._point(actions)
            assert point == pytest.approx({"bill": share, "excess": share, "nll": share})


def test_each_question_is_sent_where_its_loss_is_worth_more_than_its_price_under_the_tariff() -> None:
    """The rule a second time: V times the surprise beside the mean excess, against the prompt and four a token."""
    mean = sum(draft[3] for draft in DRAFTS) / len(DRAFTS)
    for name, in_front in (("U", 0.0), ("S", 50.0)):
        whole = table(name)
        for amount in (20.0, 60.0, 120.0, 250.0):
            naive = [
                "write" if amount * -math.log(top) / mean > in_front + prompt + 4 * tokens else "keep"
                for prompt, tokens, top, _, _ in DRAFTS
            ]
            assert whole.actions(amount) == naive


def test_the_dials_are_read_off_the_calibration_and_told_with_what_came_of_them() -> None:
    """The same questions on both sides: what is asked for is what is had, as far as whole questions go."""
    rows = {row["dial"]: row for row in table().rows()}
    sent = {name: row["actions"]["write"] for name, row in rows.items()}
    assert sent["asked for 0.5"] <= sent["asked for 0.8"] <= sent["asked for 0.95"]
    excess = {name: row["recovered"]["excess per_token"]["value"] for name, row in rows.items()}
    assert excess["asked for 0.5"] == pytest.approx(2.0 / 4.7, abs=1e-4), "one question more would be further away"
    assert excess["asked for 0.95"] == pytest.approx(4.4 / 4.7, abs=1e-4)
    for row in each_of(rows.values()):
        gain = row["recovered"]["excess per_token"]["value"] - row["bill"]["value"]
        assert row["advantage"]["excess"]["value"] == pytest.approx(gain, abs=2e-4)


def test_the_swept_bill_rises_with_the_share_and_never_passes_the_diagonal_of_a_good_order() -> None:
    bills = table().swept()["excess"]
    told = {float(share): bill for share, bill in bills.items() if bill is not None}
    assert list(told) == [0.5, 0.8, 0.95]
    assert list(told.values()) == sorted(told.values())
    assert all(bill < share for share, bill in told.items())


def test_right_answers_are_those_of_the_text_that_is_shown() -> None:
    rows = {row["dial"]: row for row in table(right=False).right_answers()}
    sent = {row["dial"]: row["actions"]["write"] for row in table().rows()}
    for dial, row in each_of(rows.items()):
        assert (row["questions"], row["local"]["value"], row["cloud"]["value"]) == (len(DRAFTS), 0.0, 1.0)
        assert row["right"]["value"] == pytest.approx(sent[dial], abs=1e-4)
    assert table().right_answers() == []


def test_only_what_a_record_tells_is_told_of_it() -> None:
    """A write from within the draft, a part that is checked, spans of another length: none of these was run."""
    cases = {
        "keep": DraftPlan("keep", 9),
        "write": DraftPlan("write", 0),
        "spans": DraftPlan("check", 3, 0),
    }
    assert {name: action_of(plan, 3) for name, plan in cases.items()} == {name: name for name in cases}
    others = [DraftPlan("write", 2), DraftPlan("write", 0, 4), DraftPlan("check", 9), DraftPlan("check", 2, 0)]
    assert [action_of(plan, 3) for plan in others] == ["other"] * 4
    assert action_of(cases["spans"], None) == "other"


def test_where_only_new_tokens_are_paid_the_recorded_checks_are_taken() -> None:
    """Three of four tokens are kept: then spans are cheaper than writing."""
    drafts = [(40, 40, 0.3, 1.5, 40)] * 4
    known = calibration(*drafts)
    known = replace(known, questions=tuple(replace(each, kept_tokens=30) for each in known.questions))
    records = [record(*each) for each in drafts]
    for each in records:
        each["arms"]["spans"] = each["arms"]["cloud"] | {"requests": [("check", 60, 2, 0, 1)]}
    whole = RoutedTable(records, known, BY_NAME["new"])
    probe = whole.planner.plan(whole._signals[0], final=True)
    assert (probe.action, probe.limit) == ("check", 0)
    records = [each | {"spans": probe.at} for each in records]
    chosen = RoutedTable(records, known, BY_NAME["new"])
    assert chosen.actions(150.0) == ["spans"] * 4
    assert chosen.actions(1e6) == ["write"] * 4, "checks let a little through"
    assert chosen._point(["spans"] * 4)["bill"] == pytest.approx(60 / (40 + 160))


def test_a_client_that_knows_nothing_of_the_pair_spends_half_the_bill_on_what_it_is_least_sure_of() -> None:
    rng = random.Random(5)
    drafts = [
        (rng.randint(20, 60), tokens := rng.randint(5, 64), rng.uniform(0.2, 0.9), rng.uniform(0.1, 2.0), tokens)
        for _ in range(150)
    ]
    whole = RoutedTable([record(*each) for each in drafts], calibration(*DRAFTS), BY_NAME["U"])
    actions = whole.unknown_actions()
    assert set(actions) == {"keep", "write"}
    assert 0.4 < whole._point(actions)["bill"] < 0.6
    surprises = {
        action: [-math.log(d[2]) / (d[0] + 4 * d[1]) for d, a in zip(drafts, actions, strict=True) if a == action]
        for action in set(actions)
    }
    assert sum(surprises["write"]) / len(surprises["write"]) > 2 * sum(surprises["keep"]) / len(surprises["keep"])
    row = whole.rows()[-1]
    assert (row["dial"], row["worth"]) == ("nothing known", None)


# ---- orders of whole questions -------------------------------------------------------------------------------------


def test_at_half_the_bill_half_is_spent_and_on_the_highest_scores() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        order, paid = rng.normal(size=7), rng.uniform(1, 9, size=7)
        sent = at_bill(order, paid, 0.5)
        assert sent @ paid == pytest.approx(paid.sum() / 2)
        assert np.sum((sent > 0) & (sent < 1)) <= 1
        assert order[sent > 0].min() >= order[sent < 1].max()


SCORES = {
    "mean log-probability / price": lambda draft: -math.log(draft[2]) / (draft[0] + 4 * draft[1]),
    "mean log-probability": lambda draft: -math.log(draft[2]),
    "mean entropy / price": lambda draft: draft[2] / (draft[0] + 4 * draft[1]),
    "shortest first": lambda draft: -draft[0] - 4 * draft[1],
    "oracle: gap / price": lambda draft: draft[3] / (draft[0] + 4 * draft[4]),
}


def test_an_order_sends_its_best_questions_until_the_bill_is_reached_walked_a_second_time() -> None:
    total, gap = sum(d[0] + 4 * d[4] for d in DRAFTS), sum(d[3] for d in DRAFTS)

    def recovered(score: Any, share: float) -> float:
        left, gained = share * total, 0.0
        for draft in sorted(DRAFTS, key=score, reverse=True):
            price = draft[0] + 4 * draft[4]
            part = min(1.0, left / price)
            left, gained = left - part * price, gained + part * draft[3]
        return gained / gap

    rows = {row["rule"]: row for row in order_rows([record(*each) for each in DRAFTS])}
    assert rows.keys() == SCORES.keys()
    for name, row in each_of(rows.items()):
        half, curve = recovered(SCORES[name], HALF), [recovered(SCORES[name], share) for share in CURVE]
        assert row["recovered"]["excess per_token"]["value"] == pytest.approx(half, abs=1e-4)
        assert row["bill"]["1/0.1/4 U"]["value"] == HALF
        assert row["advantage"]["1/0.1/4 U"]["excess"]["value"] == pytest.approx(half - HALF, abs=1e-4)
        for share, bill in each_of(row["bill_at"]["excess"].items()):
            assert bill == pytest.approx(np.interp(float(share), curve, CURVE), abs=1e-4)
