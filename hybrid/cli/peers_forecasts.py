"""What ``hybrid calibrate`` tells of policies from labels, beside what ``hybrid bench peers`` then paid for them.

Labels of the first calibration questions are bought in this process, and each policy is priced from them as the
calibrator does it, at the dial that was set; intervals are the labels' own, widened by that of so many other questions.
RPI is told by who is right: an answer counts as the cloud's where a part of its draft was replaced and nothing is shown
that the judge turns down. The law (``tests/bench/test_peers.py``): of the labels themselves is told what was paid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from hybrid.defer import Calibration
from hybrid.lab.arms import estimate_to_json
from hybrid.lab.experiments.grid import CheckAnswer, GradedQuestion, Grid, Record
from hybrid.lab.experiments.peers import TARIFFS, PricedQuestions
from hybrid.lab.experiments.peers_report import CalibrationRecords
from hybrid.lab.experiments.questions import KL_HOLD, KL_SPAN
from hybrid.lab.experiments.world import World
from hybrid.prob import Floats
from hybrid.record.conversation import words_of
from hybrid.run.text_rows import Writer
from hybrid.tasks.statistics import Resamples, estimate, ratio
from hybrid.tune.forecasts import left_by, lost_by, order_scores, plan_all
from hybrid.tune.labels import LabelledAnswers, LabelledText
from hybrid.tune.play import Play, greedy_policy
from hybrid.types import Sampling

NUM_BOUGHT = 300  # as many as a user may well buy


def bought_grid(name: str, questions: Sequence[GradedQuestion]) -> Grid:
    """Return problems whose labels are bought, as ``hybrid calibrate`` does."""
    return Grid(name, name, tuple(questions), try_buying, ("labels",), 3)


async def try_buying(world: World, question: GradedQuestion, _: Sampling, __: CheckAnswer) -> Record:
    """Buy one problem's labels."""
    found = {each: await world.text_rows(question.text, each, question.max_tokens) for each in get_args(Writer)}
    return {each: LabelledText.of_rows(words_of(question.text), rows).to_json() for each, rows in found.items()}


def add_forecasts(report: dict[str, Any], ground: CalibrationRecords, texts: Sequence[Mapping[str, Any]]) -> None:
    """Add what is told from labels to the report of a test half. ``texts``: those of the ground's first questions."""
    num = max(each for each in ground.fitted if each <= len(texts))
    read, wider = LabelledText.from_json, (1.0 + num / report["facts"]["questions"]) ** 0.5
    questions, resamples = [LabelledAnswers(read(e["local"]), read(e["cloud"])) for e in texts[:num]], Resamples(num)
    most = resamples.sums(lost_by(questions, ground.fitted[num]))
    for tariff, tried in report["tariffs"].items():
        of, tried["forecasts"] = PricedQuestions(ground.records[:num], TARIFFS[tariff]), []
        dials = {row["arm"]: row["dial"] for row in tried["rows"]}
        for name, left, paid, mended in _followed(questions, ground.fitted[num], of, dials):
            frame = of.frame
            right = frame.local + mended * (frame.cloud - frame.local)
            columns = {
                "bill": ratio(resamples.sums(paid), resamples.sums(frame.alone)),
                "share": 1.0 - ratio(resamples.sums(left), most),
                "rpi": resamples.shares(frame.local, right, frame.cloud),
            }
            ends = {which: estimate(each[0] + wider * (each - each[0])) for which, each in columns.items()}
            tried["forecasts"].append({"arm": name} | {which: estimate_to_json(each) for which, each in ends.items()})


def _followed(
    questions: Sequence[LabelledAnswers], calibration: Calibration, of: PricedQuestions, dials: Mapping[str, float]
) -> Iterator[tuple[str, Floats, Floats, Floats]]:
    """Yield each policy, what it leaves of each question's loss, what it pays, and whether it mends it; shapes (N,)."""
    policies = {
        "doubt": greedy_policy("doubt", entropy=dials["doubt"]),
        "once": greedy_policy("once", threshold=dials["once"]),
        "kl": greedy_policy("kl", threshold=dials["kl"], span=KL_SPAN, hold=KL_HOLD),
        "excess": greedy_policy("excess", threshold=dials["excess"]),
    }
    for name, policy in policies.items():
        plays = [Play(policy, each) for each in questions]
        mended = [len(each.drafted) < len(each.question.judged) and not each.shows(calibration.judge) for each in plays]
        yield name, left_by(calibration, plays), np.array([e.price(of.ask) for e in plays]), 1.0 * np.array(mended)
    lost, num = lost_by(questions, calibration), len(questions)
    for name in (f"auto, {num} labels", f"route, {num} labels"):
        plans = plan_all(calibration, of.ask, dials[name], whole=name.startswith("route"))
        left = np.array([one.excess_left if calibration.loss == "nats" else one.left for one in plans])
        pairs = zip(plans, calibration.questions, strict=True)
        mended = [one.left == 0.0 and (one.action == "write" or each.turned_down) for one, each in pairs]
        yield name, left * lost, np.array([one.paid for one in plans]), 1.0 * np.array(mended)
    orders = {name: 1.0 * (score >= dials[name]) for name, score in order_scores(questions, of.ask).items()}
    for name, sent in (orders | {"random": np.full(num, 1.0 - dials["random"])}).items():
        yield name, (1.0 - sent) * lost, sent * of.frame.alone, sent
