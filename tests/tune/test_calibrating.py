"""A pair from its labels to what is proposed, and what is told of it."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from bought_texts import questions
from cases import each_of
from rich.console import Console

from hybrid.cli.calibrate import page
from hybrid.defer import CriticNumbers
from hybrid.errors import UsageError
from hybrid.report import html
from hybrid.report.terminal import layout
from hybrid.spend import AskPrices, Price
from hybrid.tasks.statistics import Estimate
from hybrid.tune.buying import PairNames
from hybrid.tune.calibrating import EXCESS_JUDGE, calibrate_pair, choose_drafter, nats_left
from hybrid.tune.fit import fit
from hybrid.tune.labels import CERTIFICATES
from hybrid.tune.report import OF_CRITIC, drafters, proposals
from hybrid.tune.report import tables as report_tables

NAMES = PairNames("identity", "http://scripted", "<large> & co")
PRICES = AskPrices.of(Price.parse("1/0.1/4"))


@pytest.fixture(autouse=True)
def without_trees(monkeypatch):
    """What a calibration does with a score does not depend on its kind."""
    monkeypatch.setattr("hybrid.tune.calibrating.fit", partial(fit, trees=False))


@pytest.fixture(scope="module")
def easy():
    return questions(24, hard=0.3, length=6)


def calibrated(found, drafter="small", prices=PRICES, judge=None):
    return calibrate_pair(drafter, NAMES, found, prices, judge)


def test_a_pair_whose_drafts_are_often_kept_is_judged_by_its_verdict_and_proposes_what_the_curve_says(easy):
    pair = calibrated(easy)
    known = pair.calibration
    assert (known.local, known.cloud, known.loss) == (NAMES.local, NAMES.model, "verdict")
    assert known.judge == f"kl:{pair.threshold.nats:g}" == pair.kl_judge
    assert [each.turned_down for each in known.questions] == [
        each.draft.first_rejection(known.judge) is not None for each in easy
    ]
    assert pair.proposed.worth == known.worth
    assert pair.proposed in pair.curve
    told = " ".join(proposals(pair))
    assert f"worth {known.worth:.3g}: the bill would be {round(100 * pair.proposed.of_cloud)} %" in told
    assert "from exploratory tests" in told
    assert "What the task requires is not known here" in told


@pytest.mark.slow
def test_a_pair_whose_drafts_are_always_turned_down_is_judged_by_what_its_tokens_cost():
    pair = calibrated(questions(24, hard=1.0, length=6, hard_apart=2.5))
    assert (pair.calibration.judge, pair.calibration.loss) == (EXCESS_JUDGE, "nats")
    assert "over wording" in proposals(pair)[0]
    assert pair.kl_judge.startswith("kl:")
    named = calibrated(questions(24, hard=1.0, length=6), judge="kl:0.2")
    assert named.calibration.judge == "kl:0.2", "a judge that is asked for is taken"


@pytest.mark.slow
def test_a_score_that_was_fitted_with_a_critic_says_so(easy):
    read = [
        replace(each, critic=CriticNumbers(np.zeros(num), np.zeros(num)))
        for each in easy
        if (num := len(each.judged.signals))
    ]
    pair = calibrate_pair("small", NAMES, read, PRICES, critic="c1")
    assert pair.to_json()["critic"] == pair.calibration.critic == "c1"
    assert OF_CRITIC in proposals(pair)
    without = calibrated(read)
    assert without.to_json()["critic"] is None
    assert OF_CRITIC not in proposals(without)


def test_too_few_labels_and_another_judge_are_told_in_a_sentence(easy):
    with pytest.raises(UsageError, match="9 labelled questions"):
        calibrated(easy[:9])
    with pytest.raises(UsageError, match="kl:NATS, concept:NATS or excess:NATS"):
        calibrated(easy, judge="js:0.1")


@pytest.mark.slow
def test_the_drafter_to_take_is_the_one_that_leaves_least_and_only_what_is_told_apart_is_sure(easy):
    near, far = calibrated(easy, "near"), calibrated(questions(24, hard=1.0, length=6, hard_apart=3.0), "far")
    assert nats_left(near) < nats_left(far)
    for pairs in ([near, far], [far, near]):
        found = choose_drafter(pairs)
        assert (found.best, found.sure) == (near, True)
        shown = drafters(pairs)
        assert "Take near" in shown.notes[0]
        assert "for certain" not in shown.notes[0]
        assert {row[0] for row in shown.rows} == {"near *", "far"}
    like = [near, replace(near, drafter="the same")]
    assert not choose_drafter(like).sure
    assert "for certain" in drafters(like).notes[0]


def test_what_a_drafter_leaves_is_the_area_under_a_sum_over_every_number_of_sent_questions(easy):
    pair = calibrated(easy)
    known = pair.calibration.questions
    alone = [float(PRICES.write(each.prompt_tokens, each.cloud_tokens, 0)) for each in known]
    told = [each.excess_told / float(PRICES.write(each.prompt_tokens, each.draft_tokens, 0)) for each in known]
    ranked = sorted(range(len(known)), key=lambda i: -told[i])
    curve = [
        (sum(alone[i] for i in ranked[:num]), sum(known[i].excess for i in ranked[num:]))
        for num in range(len(known) + 1)
    ]
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(curve))
    assert nats_left(pair) == pytest.approx(area / sum(alone) / len(known))
    assert nats_left(pair, np.arange(24)) == nats_left(pair)


def test_a_rule_that_takes_more_than_the_cloud_alone_stands_beyond_it_in_the_chart(easy):
    pair = calibrated(easy)
    told, cloud = pair.forecasts, pair.forecasts.chosen["cloud"]
    dear = [replace(cloud, name=f"dear {x:g}", bill=Estimate(x, x, x), bills=x * cloud.bills) for x in (1.5, 4.0)]
    pair = replace(pair, forecasts=replace(told, rows=[cloud, *dear]))
    drawn = re.findall(r'<circle cx="([\d.]+)"', html.page("calibrated", page.document([pair])))[:3]
    one, half_more, four = map(float, drawn)
    assert one < half_more < four


@pytest.mark.slow
def test_terminal_page_and_json_hold_every_figure_and_nothing_becomes_markup(easy):
    pairs = [calibrated(easy, "<b>one</b>"), calibrated(easy, "two", AskPrices.of(None))]
    data = json.loads(json.dumps(page.to_json(pairs), allow_nan=False))
    assert [each["local"] for each in data["pairs"]] == ["<b>one</b>", "two"]
    first = data["pairs"][0]["policies"]["rows"][0]
    assert (first["policy"], first["share"], first["bill"]) == ("cloud", [1.0] * 3, [1.0] * 3)
    assert "in_force" not in data["pairs"][0]
    kept = [page.CalibrationInForce(used=False, in_force="the larger", before=None)]
    told = page.to_json(pairs[:1], kept)["pairs"][0]
    assert (told["used"], told["in_force"], told["lost"]) == (False, "the larger", data["pairs"][0]["lost"])
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(layout(page.document(pairs[:1], kept), colours=False))
    lines = console.export_text().splitlines()
    down = sum(each.turned_down for each in pairs[0].calibration.questions)
    assert lines[2] == f"Of 24 drafts of the local model the cloud would turn {down} down."
    assert f"about {round(100 * pairs[0].proposed.of_cloud)} % of the cloud's own bill" in lines[3]
    assert lines[4].startswith("In force stays the larger: "), "plain sentences come before the tables"
    shown = html.page("calibrated", page.document(pairs))
    assert "<b>one</b>" not in shown
    assert "&lt;b&gt;one&lt;/b&gt;" in shown
    assert "://" not in shown, "no host is named, and no endpoint need be"
    assert "nan" not in shown.partition("</style>")[2].replace("nanousd", "").lower()
    for pair in pairs:
        for table in each_of(report_tables(pair)):
            assert len({len(row) for row in table.rows} | {len(table.columns)}) == 1, table.heading
            assert f"<h3>{table.heading}</h3>" in shown
            for row in each_of(table.rows):
                assert all(f">{cell}<" in shown for cell in row[1:]), row
    assert shown.count("<svg") == 8
    assert all(rule in shown for rule in CERTIFICATES)
