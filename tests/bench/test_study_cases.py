"""Cases by rule, and the first outputs of each kind."""

from __future__ import annotations

import json
from itertools import product

from cases import each_of
from study_records import ARMS, design, drawn_records, made

from hybrid.lab.study.answers import answers_grids
from hybrid.lab.study.cases import RULES, answers_document, answers_report, case_of, cases_document, cases_report
from hybrid.report import Tokens, html


def test_an_answer_is_a_case_of_the_rule_that_is_printed_and_of_no_other():
    """The oracle reads the printed sentences: who is right, and where the cloud wrote."""
    counted = set()
    every = product(*[(False, True)] * 3, ("ll", "lc", "cl", "lcl"), (None, 0, 1, 2))
    for local, arm, cloud, writers, parts in each_of(every):
        record = made({"local": local, "cloud": cloud, "kl:1": arm}, dict.fromkeys(("local", "cloud", "kl:1"), 1))
        handoff = writers.find("c") if "c" in writers else None
        pieces = [["x", {"l": "checked", "c": "cloud"}[writer]] for writer in writers]
        record["arms"]["kl:1"] |= {"handoff": handoff, "parts": parts, "pieces": pieces}
        worse = not arm and cloud and parts is not None
        after = parts is not None and "c" in writers[parts + 1 :]
        holds = {
            "saved": not local and arm and handoff is not None,
            "not needed": local and handoff is not None,
            "too late": worse and after and not (local and handoff is not None),
            "missed": worse and not after and not (local and handoff is not None),
        }
        assert [case_of(record, "kl:1")] == ([rule for rule in RULES if holds[rule]] or [None])
        counted.add(case_of(record, "kl:1"))
    assert counted == {None, *RULES}


def test_a_text_that_the_cloud_ended_was_handed_off_at_its_end():
    record = made({"local": 0, "cloud": 1, "kl:1": 0}, dict.fromkeys(("local", "cloud", "kl:1"), 1))
    pieces = [["x", "checked"], ["y", "checked"]]
    record["arms"]["kl:1"] |= {"handoff": 2, "parts": 1, "pieces": pieces}
    assert case_of(record, "kl:1") == "too late"
    record["arms"]["kl:1"] |= {"parts": 2}
    assert case_of(record, "kl:1") == "missed"


def test_ungraded_answers_are_cases_by_their_excess():
    record = made({"local": 0, "cloud": 1, "kl:1": 1}, dict.fromkeys(("local", "cloud", "kl:1"), 1))
    for arm in record["arms"].values():
        arm["right"] = None
    assert case_of(record, "kl:1", 0.1) == "saved"
    assert case_of(record, "kl:1", 0.6) == "not needed"
    del record["arms"]["local"]["excess"]  # an endpoint's
    assert case_of(record, "kl:1", 0.6) is None


def test_a_share_of_cases_is_of_the_answers_that_somebody_can_judge():
    graded, unknown = drawn_records(60, 2), drawn_records(7, 3)
    for arm in (arm for record in unknown for arm in record["arms"].values()):
        arm["right"] = None
        arm.pop("excess", None)
    asked = design({0: {"bundled": ()}}, ARMS[:4])
    counts = [
        cases_report(asked, answers_grids(asked), [each])["counts"] for each in (graded, graded + unknown, unknown)
    ]
    assert counts[0] == counts[1] != counts[2]
    assert {row["questions"] for row in counts[2]} == {0}


def test_the_first_cases_and_answers_are_kept_in_the_designs_order_and_all_are_counted():
    asked = design({0: {"bundled": ()}}, ARMS[:4], options={"cases": 1, "answers": 2, "shown": ["once"]})
    records = drawn_records(60, 2)
    for number, record in enumerate(records):
        record["text"] = f"question {number}"
    report = json.loads(json.dumps(cases_report(asked, answers_grids(asked), [records])))
    first = {}
    for record in records:
        first.setdefault(case_of(record, "kl:0.7"), record["text"])
    assert {case["rule"]: case["question"] for case in report["cases"]} == {r: q for r, q in first.items() if r}
    for row in each_of(report["counts"]):
        cases = [case_of(record, row["arm"]) for record in records]
        assert [row[rule]["value"] for rule in RULES] == [round(cases.count(rule) / 60, 4) for rule in RULES]
    document = cases_document(report)
    assert [f"{rule}: {said}." for rule, said in RULES.items()] == [each.text for each in document[:4]]
    outputs = answers_report(asked, answers_grids(asked), [records])
    assert [each["question"] for each in outputs["answers"]] == [f"question {number}" for number in range(4)]
    assert {tuple(each["answers"]) for each in outputs["answers"]} == {("local", "cloud", "kl:0.7", "once")}
    shown = [*document, *answers_document(outputs)]
    assert sum(isinstance(block, Tokens) for block in shown) == len(report["cases"]) + 4
    html.page("Title", shown)
