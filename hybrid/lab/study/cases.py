"""Single answers, none picked by hand: troublesome cases by rules that are printed, and the first of each kind.

The law (``tests/bench/test_study_cases.py``): an answer is a case of one rule at most; every answer that was handed off
and is right, or that is wrong where the cloud's own is right, is a case of one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hybrid.lab.arms import estimate_to_json
from hybrid.lab.experiments.grid import CLOUD, LOCAL, Grid, Record
from hybrid.lab.experiments.questions import THRESHOLD
from hybrid.lab.study.answers import answers_grids, kl_arms
from hybrid.lab.study.design import Design, check_known
from hybrid.lab.study.own_questions import OwnQuestion
from hybrid.lab.study.section import Section
from hybrid.report import AnswerTokens, Axis, Block, Chart, Document, Heading, Table, Text, Tokens
from hybrid.report.tables import Cell, at, table_of, with_interval
from hybrid.tasks.statistics import wilson

RULES = {
    "saved": "the local model alone is wrong, the cloud took the pen, and the answer is right",
    "not needed": "the local model alone is right, and the cloud took the pen all the same",
    "too late": "the answer is wrong and the cloud's own right; the cloud took the pen after the token where they part",
    "missed": "the answer is wrong and the cloud's own right; the cloud did not take the pen after they parted",
}
# What is shown of a case: the first token of the cloud's, or the first where the answer is not the cloud's own.
PLACES = {"saved": "handoff", "not needed": "handoff", "too late": "parts", "missed": "parts"}
# A choice, about a quarter of what the small model of the real pair loses a token: 0.37 nats (q3, 7 questions).
GOOD_NATS = 0.1
# So many questions of a user's own are listed with their graders.
NUM_LISTED, NUM_SHOWN = 50, 60
UNGRADED = "Where nothing is graded, an answer counts as right up to a mean excess of {:g} nats a token."


def case_of(record: Record, arm: str, good_nats: float = GOOD_NATS) -> str | None:
    """Return the rule of which an arm's answer is a case; None: of none, or nobody knows what it is worth."""
    if not _is_known(record, arm):
        return None
    answers = [record["arms"][name] for name in (arm, LOCAL.name, CLOUD.name)]
    right, local_right, cloud_right = (_is_right(each, good_nats) for each in answers)
    handoff, parts, pieces = (answers[0][name] for name in ("handoff", "parts", "pieces"))
    if handoff is not None and (right or local_right):
        return "not needed" if local_right else "saved"
    if right or not cloud_right or parts is None:
        return None
    ended_by_cloud = handoff == len(pieces)
    written = any(writer == "cloud" for _, writer in pieces[parts + 1 :])
    return "too late" if written or (ended_by_cloud and parts < handoff) else "missed"


def _is_known(record: Record, arm: str) -> bool:
    """Whether somebody knows what an arm's answer is worth, and both models' own."""
    answers = (record["arms"][name] for name in (arm, LOCAL.name, CLOUD.name))
    return all(each["right"] is not None or "excess" in each for each in answers)


def _is_right(answer: Mapping[str, Any], good_nats: float) -> bool:
    if answer["right"] is None:
        return bool(answer["excess"] <= good_nats * max(1, answer["tokens"]))
    return bool(answer["right"])


def cases_report(design: Design, grids: Sequence[Grid], found: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """Count the cases of each rule at each threshold, and keep the first of each at the one nearest to 0.7 nats.

    Options: ``cases``, so many of a rule and pair; ``good_nats``.
    """
    good, most = float(design.options.get("good_nats", GOOD_NATS)), int(design.options.get("cases", 2))
    counts, shown, kl = list[dict[str, Any]](), list[dict[str, Any]](), kl_arms(design)
    for pair in design.pairs:
        records = [each for grid, own in zip(grids, found, strict=True) if grid.pair == pair for each in own]
        for nats, arm in kl:
            cases = [case_of(each, arm.name, good) for each in records]
            num = sum(_is_known(each, arm.name) for each in records)
            shares = {rule: estimate_to_json(wilson(cases.count(rule), num)) for rule in RULES}
            counts.append({"pair": pair, "arm": arm.name, "questions": num} | shares)
            if [arm.name] == _shown_arm(design):
                for rule in RULES:
                    some = [each for each, case in zip(records, cases, strict=True) if case == rule]
                    own = {"pair": pair, "rule": rule}
                    shown += [own | _case(each, arm.name, nats, PLACES[rule]) for each in some[:most]]
    ungraded = any(each["arms"][CLOUD.name]["right"] is None for own in found for each in own)
    return {"good_nats": good, "ungraded": ungraded, "counts": counts, "cases": shown}


def _shown_arm(design: Design) -> list[str]:
    """Return the KL hand-off whose threshold is the nearest to 0.7 nats; none without one."""
    return [arm.name for _, arm in sorted(kl_arms(design), key=lambda each: abs(each[0] - THRESHOLD))[:1]]


def _case(record: Record, arm: str, threshold: float, place: str) -> dict[str, Any]:
    answer = record["arms"][arm]
    sides = dict(zip((LOCAL.name, CLOUD.name), answer["candidates"][str(answer[place])], strict=True))
    own = {"arm": arm, "threshold": threshold, "position": answer[place], "candidates": sides}
    return own | _answers(record, [arm])


def answers_report(design: Design, grids: Sequence[Grid], found: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """Keep the first answers of each kind, in the design's order, by both models and the KL hand-off nearest to 0.7.

    Options: ``answers``, so many of a kind and pair; ``shown``, the names of more arms. Raises UsageError for others.
    """
    named = [check_known(name, [arm.name for arm in design.arms], "arm") for name in design.options.get("shown", ())]
    arms = [*dict.fromkeys([*_shown_arm(design), *named])]
    num, shown, seen = int(design.options.get("answers", 1)), list[dict[str, Any]](), Counter[tuple[str, str]]()
    own = list[dict[str, Any]]()
    for grid, records in zip(grids, found, strict=True):
        for asked, record in zip(grid.questions, records, strict=False):
            if isinstance(asked, OwnQuestion) and asked.graded:
                right = {name: each["right"] for name, each in record["arms"].items()}
                wanted = asked.answer if isinstance(asked.answer, str) else json.dumps(asked.answer)
                said = {"pair": grid.pair, "right": right, "said": record["arms"][CLOUD.name]["answer"][:NUM_SHOWN]}
                own.append({"text": asked.text, "grader": asked.grader, "answer": wanted} | said)
        for record in records:
            seen[grid.pair, record["kind"]] += 1
            if seen[grid.pair, record["kind"]] <= num:
                shown.append({"pair": grid.pair, "kind": record["kind"]} | _answers(record, arms))
    return {"each": num, "answers": shown, "own": own}


def _answers(record: Record, arms: Sequence[str]) -> dict[str, Any]:
    kept = {name: record["arms"][name] for name in (LOCAL.name, CLOUD.name, *arms)}
    shown = {name: {key: each[key] for key in ("right", "pieces", "trace")} for name, each in kept.items()}
    return {"question": record["text"], "answers": shown}


def _tokens(told: Mapping[str, Any]) -> Tokens:
    """Return answers token by token, with KL where it was measured."""
    answers = []
    for name, answer in told["answers"].items():
        kl = {each[0]: f"KL {each[1]:.3g} nats or more, {each[3]}" for each in answer["trace"]}
        pieces = tuple((text, writer, kl.get(i, "")) for i, (text, writer) in enumerate(answer["pieces"]))
        grade = {None: "not graded", True: "right", False: "wrong"}[answer["right"]]
        answers.append(AnswerTokens(name, grade, pieces))
    return Tokens(told["question"], tuple(answers))


def answers_document(report: dict[str, Any]) -> Document:
    """Show answers token by token."""
    blocks: list[Block] = []
    for pair in dict.fromkeys(each["pair"] for each in report["own"]):
        own = [each for each in report["own"] if each["pair"] == pair]
        columns: dict[str, Cell] = {name: at(name) for name in ("text", "grader", "answer", "said")}
        columns |= {arm: lambda row, arm=arm: "right" if row["right"][arm] else "wrong" for arm in own[0]["right"]}
        titles = ("question", "grader", "expected", "the cloud's answer", *own[0]["right"])
        few = f"the first {NUM_LISTED} of {len(own)}" if len(own) > NUM_LISTED else f"all {len(own)}"
        listed = table_of(f"{pair}: your own graded questions, {few}", own[:NUM_LISTED], columns, titles)
        blocks.append(replace(listed, words=titles[:4]))
        if none := [repr(each["text"]) for each in own if not any(each["right"].values())]:
            blocks.append(
                Text(f"No arm was right on these {len(none)}: check the grader of {', '.join(none)}.", "strong")
            )
    said = f"Answers token by token, in the order in which they were asked: of each kind the first {report['each']}."
    shown = [(Heading(f"{each['pair']}, {each['kind']}", 3), _tokens(each)) for each in report["answers"]]
    return [*blocks, Text(said), *(block for both in shown for block in both)]


def cases_document(report: dict[str, Any]) -> Document:
    """Print the rules, count their cases, and show some."""
    columns = {"pair": at("pair"), "arm": at("arm"), "n": at("questions")} | {e: with_interval(e) for e in RULES}
    blocks: list[Block] = [Text(f"{rule}: {said}.") for rule, said in RULES.items()]
    blocks += [Text(UNGRADED.format(report["good_nats"]))] if report["ungraded"] else []
    blocks += [table_of("Cases by threshold", report["counts"], columns)]
    for case in report["cases"]:
        rows = [(side, *(f"{text!r} {chance}" for text, chance in row)) for side, row in case["candidates"].items()]
        titles = ("next token there", *(f"{number}." for number in range(1, max(map(len, rows)))))
        blocks += [Heading(f"{case['pair']}: {case['rule']}, token {case['position']}", 3), _tokens(case)]
        blocks += [Table("Both models' likeliest, with their probabilities", titles, rows), *_trace(case)]
    return blocks


def _trace(case: Mapping[str, Any]) -> Iterator[Chart]:
    """Draw KL along an answer, where it was measured, and the threshold."""
    points = [(float(each[0]), each[1]) for each in case["answers"][case["arm"]]["trace"]]
    if points:
        place, limit, most = case["position"], case["threshold"], max(1.0, *(nats for _, nats in points))
        across = Axis("token", 0.0, max(1.0, place, points[-1][0]), [(place, str(place))])
        line = ("threshold", [(0.0, limit), (across.most, limit)])
        up = Axis("nats, at least", 0.0, most, [(0.0, "0"), (most, f"{most:.1f}")])
        yield Chart("KL(cloud || local) along the answer", across, up, [("KL", points), line])


CASES_SECTION = Section(
    "cases", "Troublesome cases", answers_grids, cases_report, cases_document, ("cases", "good_nats"), needs_rows=False
)
ANSWERS_SECTION = Section(
    "answers",
    "Individual outputs",
    answers_grids,
    answers_report,
    answers_document,
    ("answers", "shown"),
    needs_rows=False,
)
