"""What is said of a plan: its chance, its place, its prices in their unit, and the worths at which it would change."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from cases import each
from typer.testing import CliRunner

from hybrid.cli import app
from hybrid.cli.explaining import Explainer, told_plan
from hybrid.defer import DraftSignals, UninformedScore
from hybrid.policy.explanation import explain
from hybrid.policy.plan import Worth
from hybrid.policy.planning import Planner
from hybrid.record.events import Planned, to_json
from hybrid.spend import AskPrices, Price

FLOATS = np.full(10, 0.5)
DRAFT = DraftSignals((), 10, 3, np.arange(10), FLOATS, FLOATS, FLOATS / 2, -FLOATS, ended=True)
PRICES = AskPrices.of(Price.parse("1/0.1/4"))
PLANNER = Planner(score=UninformedScore("kl:0.7", chance=0.6), prices=PRICES, worth=Worth(1.0), prompt_tokens=10)


def told(planner, toss=None):
    return list(told_plan(explain(3, planner.plan(DRAFT, final=True, toss=toss))))


def test_a_plan_is_told_with_its_chance_its_place_its_prices_and_what_would_change_it():
    """Kept it loses 0.6 of 62,000 nano-dollars (13 tokens written after 10); written from here 13,000 + 40,000."""
    which, prices, change = told(PLANNER)
    assert (
        which == "draft of tokens 3 to 12: turned down by kl:0.7 with chance 0.60, likeliest at token 3; "
        "planned: kept unchecked"
    )
    assert prices.startswith("  expected: to keep it may lose 0.0000372 USD, a check 0.0000")
    assert prices.endswith("the cloud's writing 0.000053 USD (the cloud alone 0.000062 USD)")
    assert change.startswith("  would be ")
    assert change.endswith(" (it is 1)")
    found = explain(3, PLANNER.plan(DRAFT, final=True))
    assert f"above --worth {found.more.times:.2f}" in change


@each(
    ("prices", "says"),
    [(replace(PRICES, unit="ms", fresh=1.0, written=4.0), "62 ms"), (AskPrices.of(None), "62 times a token read")],
)
def test_prices_are_told_in_their_unit(prices, says):
    assert told(replace(PLANNER, prices=prices))[1].endswith(f"(the cloud alone {says})")


@each("factor", [0.5, 0.001])
def test_advice_under_pacing_is_in_the_unit_of_the_flag(factor):
    """``--worth 1.01`` was advised where only 1,010 would have changed anything, and "it is" told another number."""
    paced = replace(PLANNER, unpaced_worth=Worth(1.0 / factor))
    found = explain(3, paced.plan(DRAFT, final=True))
    plain = explain(3, PLANNER.plan(DRAFT, final=True))
    change = told(paced)[-1]
    assert change.endswith(f" (it is {1 / factor:.4g}, and the day's cap takes {factor:g} of it now)")
    for mine, other in ((found.less, plain.less), (found.more, plain.more)):
        assert mine == other
    assert found.more is not None
    worth = found.worth_at(found.more)
    assert worth * factor == pytest.approx(plain.worth_at(plain.more)), (
        "so much lowered it is the worth that changes it"
    )
    assert f"above --worth {worth:.{2 if worth < 100 else 0}f}" in change
    told_as = found.to_json()
    assert (told_as["worth"], told_as["paced_by"]) == (1.0 / factor, pytest.approx(factor))
    assert plain.to_json()["paced_by"] is None


def test_what_is_weighed_in_nats_is_told_in_nats_and_one_amount_for_all_as_so_many_times_it():
    by_nats = replace(PLANNER, mean_excess=0.5, worth=Worth(amount=1e6))
    which, _, change = told(by_nats)
    assert "expected to lose 0.69 nats a token" in which
    assert "chance" not in which
    assert "times its worth" in change
    assert "--worth" not in change


def test_a_level_of_risk_and_a_random_check_are_told():
    assert told(replace(PLANNER, keep_below=0.7))[-1] == "  --risk keeps a draft where that chance is at most 0.7"
    assert told(replace(PLANNER, keep_below=-1.0))[-1] == "  no draft is kept unasked, whatever it costs to ask"
    assert "checked in one request, by chance" in told(replace(PLANNER, floor=1.0), toss=lambda _: 0)[0]


def test_an_explainer_tells_each_plan_that_was_weighed():
    explainer = Explainer()
    assert explainer.lines()[0].startswith("nothing was weighed")
    for plan in (PLANNER.plan(DRAFT, final=True), PLANNER.plan(DRAFT, final=True, spans=True)):
        explainer.observe(Planned.of(3, plan))
    assert len(explainer.to_json()) == 1
    assert explainer.lines()[0].startswith("draft of tokens 3 to 12")


def test_a_trace_tells_a_plan_without_what_it_was_decided_from():
    line = to_json(Planned.of(3, PLANNER.plan(DRAFT, final=True)))
    assert json.loads(json.dumps(line)) == line
    assert not {"signals", "forecast", "case"} & line.keys()
    assert line["costs"]["keep"] == pytest.approx(37_200.0)


@each("flags", [["--policy", "kl"], ["--offline", "--policy", "auto"]])
def test_where_nothing_is_weighed_nothing_can_be_explained(flags):
    done = CliRunner().invoke(app, ["ask", "--explain", *flags, "What is 1 + 1?"])
    assert done.exit_code == 2
    assert "--explain tells what auto and route weigh" in done.stderr
    assert "--trace FILE, then hybrid trace show FILE, tells what it did" in done.stderr
