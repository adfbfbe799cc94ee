"""The peers' arms and tables: orders send the highest first, nobody reads the answers, equal bills are equal."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from cases import each_of
from typer.testing import CliRunner

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.cli import app
from hybrid.cli.bench_peers import peers_document
from hybrid.cli.peers_forecasts import add_forecasts, bought_grid
from hybrid.defer import Calibration, LabelledQuestion
from hybrid.errors import UsageError
from hybrid.lab.experiments.foreign_peers import ForeignRecord
from hybrid.lab.experiments.peers import (
    SHARES,
    TARIFFS,
    DialResults,
    PricedQuestions,
    order_arm,
    peer_arms,
    sent_whole,
    shortest_first,
    surprise,
)
from hybrid.lab.experiments.peers_report import CalibrationRecords, PeersTable, best_share
from hybrid.lab.experiments.questions import RUN_ARMS, bundled_ground
from hybrid.lab.experiments.trials import label_of_json
from hybrid.lab.experiments.world import open_world
from hybrid.report import terminal
from hybrid.tasks.statistics import Resamples
from hybrid.tune.fit import fit
from hybrid.tune.labels import CERTIFICATES, LabelledText

JUDGE = "kl:0.7"
PRICES = TARIFFS["1/0.1/4"]


def record(rng: np.random.Generator, number: int) -> dict[str, object]:
    """A question whose surprise says, with noise, whether the draft is wrong; the cloud is right nine times in ten."""
    wrong, num = bool(rng.random() < 0.5), int(rng.integers(3, 9))
    entropy = rng.uniform(0.0, 0.3, num) + (0.4 if wrong else 0.0) * rng.random(num)
    top = np.exp(-entropy)
    cloud_right, cloud_tokens = bool(rng.random() < 0.9), int(rng.integers(3, 9))
    place = int(rng.integers(num)) if wrong else None
    draft = {
        "words": rng.integers(0, 512, 4).tolist(),
        "prompt_tokens": int(rng.integers(10, 40)),
        "ended": True,
        "tokens": rng.integers(0, 50, num).tolist(),
        "entropy": entropy.tolist(),
        "top": top.tolist(),
        "second": ((1.0 - top) / 2).tolist(),
        "logprob": np.log(top).tolist(),
        "first_rejection": place,
        "excess": [1.0 if i == place else 0.0 for i in range(num)],
    }
    whole = [["check", draft["prompt_tokens"] + num, num, 0, 1]]
    arms = {arm.name: {"right": cloud_right if wrong else True, "tokens": num, "requests": whole} for arm in RUN_ARMS}
    return {
        "text": f"question {number}",
        "kind": "one",
        "cloud_tokens": cloud_tokens,
        "draft": draft,
        "written_turned_down": wrong,
        "local_right": not wrong,
        "cloud_right": cloud_right,
        "arms": arms,
        "text_drafted": "It is 3.",
        "checked": [],
        "texts_drawn": ["It is 3.", "That is 3", f"It is {rng.integers(9)}."],
    }


@pytest.fixture(scope="module")
def records() -> list[dict[str, object]]:
    rng = np.random.default_rng(5)
    return [record(rng, number) for number in range(240)]


def fitted(labelled: list[LabelledQuestion]) -> Calibration:
    return fit(labelled, local="bench", cloud="bench", judge=JUDGE, trees=False)


@pytest.fixture(scope="module")
def table(records):
    calibration = fitted(PricedQuestions(records[:100], PRICES).labelled)
    dialled = PricedQuestions(records[120:180], PRICES)
    return PeersTable(peer_arms({100: calibration}, dialled, JUDGE), PricedQuestions(records[180:], PRICES))


def test_an_order_sends_the_highest_first_and_a_lower_cut_off_no_fewer(records):
    questions = PricedQuestions(records[:100], PRICES)
    for score in each_of([surprise, shortest_first]):
        tried = order_arm("it", score, questions).tried(questions)
        scores = score(questions)
        for sent in each_of(tried.sent):
            assert scores[sent > 0].min() >= scores[sent == 0].max()
        assert (np.diff(tried.sent, axis=0) >= 0).all()
        if len(set(scores)) < len(scores):  # those of one score are sent together
            continue
        shares = (tried.paid.sum(axis=1) / questions.frame.alone.sum()).tolist()
        longest = questions.frame.alone.max() / questions.frame.alone.sum()
        assert all(share <= spent <= share + longest for share, spent in zip(SHARES, shares, strict=True))


def test_what_is_sent_whole_is_paid_as_the_cloud_alone_and_right_where_it_is(records):
    questions = PricedQuestions(records[:50], PRICES)
    every = sent_whole(questions, np.ones(50))
    none = sent_whole(questions, np.zeros(50))
    assert every[0].tolist() == questions.frame.cloud.tolist()
    assert every[1].tolist() == questions.frame.alone.tolist()
    assert none[0].tolist() == questions.frame.local.tolist()
    assert none[1].sum() == 0.0
    by_hand = [each["draft"]["prompt_tokens"] + 4.0 * each["cloud_tokens"] for each in records[:50]]
    assert questions.frame.alone.tolist() == by_hand


def test_no_arm_reads_who_is_right(records, table):
    turned = [dict(each) | {name: not each[name] for name in ("local_right", "cloud_right")} for each in records[180:]]
    other = PeersTable(table.arms, PricedQuestions(turned, PRICES))
    for arm in each_of(table.arms):
        assert np.array_equal(table.tried[arm.name].sent, other.tried[arm.name].sent), arm.name
        assert np.array_equal(table.tried[arm.name].paid, other.tried[arm.name].paid), arm.name


def test_every_arm_that_is_compared_is_there_and_asks_for_what_it_pays(table):
    names = {arm.name for arm in table.arms}
    assert {"random", "self-consistency of 3", "words, 100 labels", "draft and words, 100 labels"} <= names
    assert {"auto, nothing known", "auto, 100 labels", "route, 100 labels", "once", "kl", "excess", "doubt"} <= names
    for name, tried in each_of(table.tried.items()):
        assert isinstance(tried, DialResults)
        assert ((tried.paid > 0) == (tried.sent > 0)).all(), name
        assert (tried.requests >= tried.sent).all(), name


def test_an_arm_less_itself_at_its_own_bill_is_never_above_nothing(table):
    for arm in each_of(table.arms):
        less = [table.less(arm.name, dial, arm.name) for dial in range(len(arm.dials))]
        assert np.nanmax(less) <= 1e-9, arm.name


def test_the_share_at_a_bill_is_the_most_that_a_mixture_of_two_ways_has():
    rng = np.random.default_rng(1)
    for _ in range(20):
        shares, bills = rng.random((5, 1)), rng.random((5, 1))
        bill = np.array([rng.uniform(bills.min(), 1.0)])
        parts = np.linspace(0.0, 1.0, 501)
        mixed = [
            (part * shares[i, 0] + (1 - part) * shares[j, 0], part * bills[i, 0] + (1 - part) * bills[j, 0])
            for i in range(5)
            for j in range(5)
            for part in parts
        ]
        most = max(share for share, paid in mixed if paid <= bill[0])
        assert most <= best_share(shares, bills, bill)[0] + 1e-9
        assert best_share(shares, bills, bill)[0] <= most + 4e-3


def test_dials_that_were_set_are_tried_and_others_are_refused(records, monkeypatch):
    monkeypatch.setattr("hybrid.lab.experiments.frame.resampled", partial(Resamples, num=40))
    ground = CalibrationRecords("here", records[:150], fitted, num_labels=100)
    fixed = json.loads(json.dumps(ground.calibrated(print)["dials"]))
    report = ground.tried(records[200:230], fixed, print)
    rows = report["tariffs"]["1/0.1/4"]["rows"]
    assert report["facts"]["questions"] == 30
    assert {row["arm"] for row in rows} == set(fixed["1/0.1/4"]["arms"])
    best = fixed["1/0.1/4"]["best simple"]
    assert set(best) == {"no labels", "100 labels"}
    for row in each_of(rows):
        [chosen] = [each for each in row["dials"] if each["dial"] == row["dial"]][:1]
        assert (chosen["rpi"], chosen["bill"]) == (row["rpi"], row["bill"])
        own = {"no labels": best["no labels"]} | ({"labels": best["100 labels"]} if "labels" in row["arm"] else {})
        assert set(row["less"]) == {which for which, other in own.items() if other != row["arm"]}, row["arm"]
    shorter = json.loads(json.dumps(fixed))
    shorter["1/0.1/4"]["arms"]["random"]["dials"].pop()
    with pytest.raises(UsageError, match="the dials of random are not those that were fixed"):
        ground.tried(records[200:230], shorter, print)
    fixed["1/0.1/4"]["arms"]["random"]["dials"][0] += 1.0
    with pytest.raises(UsageError, match="the dials of random are not those that were fixed"):
        ground.tried(records[200:230], fixed, print)


def texts_of(of: dict[str, object]) -> dict[str, object]:
    """The labels of a record as they are bought: KL is where its draft is turned down, the cloud is sure."""
    draft = label_of_json(of["draft"])
    ones = np.ones(of["cloud_tokens"])
    rows = {"entropy": 0 * ones, "top": ones, "second": 0 * ones, "logprob": 0 * ones}
    written = replace(draft.signals, tokens=np.arange(100, 100 + len(ones)), **rows)

    def bought(signals, kl):
        nothing = np.zeros(len(kl))
        return LabelledText(signals, kl, kl, nothing, nothing, kl, dict.fromkeys(CERTIFICATES, nothing)).to_json()

    return {"local": bought(draft.signals, draft.excess), "cloud": bought(written, 0 * ones)}


def test_of_the_labels_themselves_is_told_what_was_paid_and_of_others_less_surely(records, monkeypatch):
    monkeypatch.setattr("hybrid.lab.experiments.frame.resampled", partial(Resamples, num=40))
    own = json.loads(json.dumps(records[:100]))
    for each in own:
        draft = each["draft"]
        num, place, prompt = len(draft["tokens"]), draft["first_rejection"], draft["prompt_tokens"]
        requests = [["check", prompt + num, num, 0, 1]]
        if place is not None:
            rest = max(1, each["cloud_tokens"] - place - 1)
            requests.append(["write", prompt + place + 1, 0, prompt + place, rest])
        for nats in ("0.3", "0.7", "2"):
            each["arms"][f"once:{nats}"]["requests"] = requests
    ground = CalibrationRecords("here", [*own, *records[100:150]], fitted, num_labels=100)
    dials = json.loads(json.dumps(ground.calibrated(print)["dials"]))
    for tariff in dials.values():
        tariff["arms"]["once"]["chosen"] = 1
    report, texts = ground.tried(own, dials, print), [texts_of(each) for each in own]
    add_forecasts(report, ground, texts)
    wide = json.loads(json.dumps(report))
    add_forecasts(report | {"facts": {"questions": 10**9}}, ground, texts)
    for tariff, found in each_of(report["tariffs"].items()):
        rows = {row["arm"]: row for row in found["rows"]}
        assert {"doubt", "kl", "excess", "auto, 100 labels", "route, 100 labels", "random"} <= {
            each["arm"] for each in found["forecasts"]
        }
        for one, other in each_of(zip(found["forecasts"], wide["tariffs"][tariff]["forecasts"], strict=True)):
            row = rows[one["arm"]]
            assert 0.0 <= one["share"]["low"] <= one["share"]["value"], row["arm"]
            for which in ("bill", "rpi"):
                assert one[which]["value"] == other[which]["value"]
                for end in ("low", "high"):
                    half, wider = (each[which][end] - each[which]["value"] for each in (one, other))
                    assert wider == pytest.approx(half * 2**0.5, abs=2e-4), (row["arm"], which)
                if row["arm"] == "once" or (row["simple"] and row["arm"] != "random"):
                    assert one[which]["value"] == row[which]["value"], (row["arm"], which)


def told(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["bench", "peers", *args])
    return done.exit_code, done.output


def test_dials_come_first_and_a_file_that_is_none_is_refused(tmp_path):
    missing, broken = tmp_path / "dials.json", tmp_path / "broken.json"
    assert told("--dials", str(missing)) == (
        2,
        f"hybrid: {missing} has no dials of bundled: run this with --split calibration first\n",
    )
    for text in each_of(["{", "[]", '"dials"', '{"bundled": 3}', '{"bundled": {"1/0.1/4": {}}}']):
        broken.write_text(text)
        code, said = told("--dials", str(broken))
        assert code == 2
        assert str(broken) in said
    assert told("--dials", str(missing), "--real", "--ladder", str(tmp_path))[0] == 2
    assert told("--dials", str(missing), "--split", "calibration", "--num", "3")[0] == 2
    assert "there is no peer nobody" in told("--dials", str(missing), "--router", "nobody")[1]
    assert told("--dials", str(missing), "--ladder", str(tmp_path))[0] == 2
    few = json.dumps({"split": "calibration", "kind": "sum", "question": "1 + 1?", "answer": "2"})
    (tmp_path / "problems.jsonl").write_text(few)
    code, said = told("--dials", str(missing), "--ladder", str(tmp_path), "--split", "calibration")
    assert (code, "no calibration question after its 1000 labels" in said) == (2, True)
    assert not missing.exists()


def test_both_reports_are_shown_whole(records, monkeypatch, capsys):
    monkeypatch.setattr("hybrid.lab.experiments.frame.resampled", partial(Resamples, num=40))
    ground = CalibrationRecords("here", records[:150], fitted, num_labels=100)
    report = ground.calibrated(print)
    terminal.show(peers_document(report))
    asked = [
        ForeignRecord("cascadeflow", each["text"], each["cloud_right"], True, False, (("write", 20, 5),), 0.1)
        for each in records[200:210]
    ]
    tried = ground.tried(records[200:220], report["dials"], print, [asked])
    add_forecasts(tried, ground, [texts_of(each) for each in records[:100]])
    for found in each_of(tried["tariffs"].values()):
        [row] = found["routers"]
        assert row["right"] == sum(each["cloud_right"] for each in records[200:210])
        assert (row["questions"], row["sent"], row["requests"], row["rpi"]["value"]) == (10, 1.0, 1.0, 1.0)
    terminal.show(peers_document(tried))
    shown = capsys.readouterr().out
    assert "…" not in shown
    for words in each_of(
        [
            "here, dials for an RPI of 0.9",
            "here: 20 questions",
            "auto, nothing known",
            "for 0.02",
            "told of drafts turned down",
            "the first 10 questions",
        ]
    ):
        assert words in shown


def test_problems_of_the_bundled_pair_are_recorded_with_every_arm():
    """Two problems over the real pair: the presets are recorded, answers are drawn, and a check is the preset's.

    The labels that are bought of them are of the same texts.
    """

    async def recorded():
        ground = bundled_ground(BUNDLED_LOCAL, BUNDLED_CLOUD, "test", 1)
        grid = replace(ground.grid, questions=ground.questions[:2])

        async def check(*_: object) -> None:
            pass

        async with open_world(BUNDLED_LOCAL, BUNDLED_CLOUD) as world:
            labels = bought_grid("labels", grid.questions)
            return [[json.loads(json.dumps(await of.answer(world, number, 0, check))) for number in (0, 1)]
                    for of in (grid, labels)]  # fmt: skip

    found, bought = asyncio.run(recorded())
    for each, texts in each_of(zip(found, bought, strict=True)):
        draft, written = (LabelledText.from_json(texts[writer]) for writer in ("local", "cloud"))
        assert draft.signals.tokens.tolist() == each["draft"]["tokens"]
        assert draft.first_rejection(JUDGE) == each["draft"]["first_rejection"]
        assert len(written.signals) == each["cloud_tokens"]
    questions = PricedQuestions(found, PRICES)
    for each, signals in each_of(zip(found, questions.signals, strict=True)):
        assert set(each["arms"]) == {arm.name for arm in RUN_ARMS}
        assert len(each["texts_drawn"]) == 3
        sent = signals.prompt_tokens + len(signals)
        assert each["arms"]["once:0.7"]["requests"][0] == ["check", sent, len(signals), 0, 1]
