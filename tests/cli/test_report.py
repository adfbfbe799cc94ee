"""The words around the numbers: nothing that would be misread is left unsaid."""

from __future__ import annotations

import re
from dataclasses import replace

from cases import each
from msgspec import structs

from hybrid.cli.demo import report
from hybrid.lab.demo import ARMS, DOUBT, KL
from hybrid.record.answer import Token
from hybrid.report import LEGEND, provenance
from hybrid.types import Divergence

HERE, THERE = Token(1, "a", "local", "unchecked"), Token(2, "b", "cloud", "written", why="doubt")
CLEAR = {"small": "0" * 10, "auto": "1" * 7 + "000", "kl": "1" * 8 + "00", "doubt": "1" * 10, "large": "1" * 10}
UNCLEAR = dict.fromkeys(CLEAR, "1010101010")


def test_a_row_has_a_figure_for_each_column(compared, answer):
    answers = {"kl": (answer(HERE, HERE, THERE, requests=2, nanousd=123_456),) * 10}
    answers["large"] = (answer(THERE, requests=1, nanousd=500_000),) * 10
    found = compared(CLEAR, answers=answers)
    assert report.row(found, "kl") == ("kl", "8 of 10", "33.3 %", "20", "0.001235", "0.25")
    assert all(len(report.row(found, name)) == len(report.COLUMNS) for name in CLEAR)


def test_what_is_not_defined_is_a_dash(compared):
    found = compared(UNCLEAR)
    assert report.row(found, "kl")[-1] == "-"
    assert report.interval(found.rpi("kl")) == "-"


def test_an_rpi_stands_with_its_interval(compared):
    found = compared(CLEAR)
    assert report.interval(found.rpi("kl")) == "0.80 (0.50 to 1.00)"
    assert report.interval(found.rpi("doubt")) == "1.00 (1.00 to 1.00)"


def test_an_interval_without_an_end_says_so(compared):
    right = {"small": "0" * 40 + "1" * 24, "kl": "1" * 64, "doubt": "0" * 64, "large": "1" * 40 + "0" * 24}
    assert report.interval(compared(right).rpi("kl")).endswith("(unbounded to unbounded)")


def test_both_raw_scores_are_told_with_and_without_an_rpi(compared):
    assert "here over 0 and 10 of 10" in report.about_rpi(compared(CLEAR))
    said = report.about_rpi(compared(UNCLEAR))
    assert "here over 5 and 5 of 10" in said
    assert "not defined" in said


def test_an_interval_without_width_is_explained(compared):
    assert "without width" in report.about_rpi(compared(CLEAR))
    assert "without width" not in report.about_rpi(compared(CLEAR | {"doubt": "1" * 8 + "00"}))


def test_a_failing_cloud_is_told_loudly_with_counts_and_a_reason(compared, answer):
    well = answer(HERE)
    answers = {"kl": (well, answer(HERE, degraded="it is gone")) * 5, "large": (answer(HERE, degraded="late"),) * 10}
    said = report.warning(compared(CLEAR, answers=answers).trials)
    assert said.startswith("THE CLOUD FAILED in 15 answers (5 by kl, 10 by large)")
    assert said.endswith("First reason: it is gone")
    assert report.warning(compared(CLEAR).trials) is None


@each(("keeps", "words"), [(False, "pays for its whole prompt"), (True, "Checks read the server's")])
def test_the_notes_tell_problems_prices_and_whether_scoring_is_cached(compared, keeps, words):
    found = compared(CLEAR)
    said = " ".join(report.notes(replace(found, plan=replace(found.plan, scoring_keeps_cache=keeps))))
    assert words in said
    assert (
        "10 problems of the test split (2 arithmetic, 2 multiplication, 2 word_problem, 2 equation, 2 integration)"
        in said
    )
    assert "seed 7" in said
    assert "1/0.1/4 USD per million" in said


def test_the_settings_are_told_as_the_flags_that_hybrid_ask_takes():
    from typer.testing import CliRunner

    from hybrid.cli import app

    said = report.about_settings()
    known = CliRunner().invoke(app, ["ask", "--help"], env={"COLUMNS": "200"}).stdout
    for arm in (KL, DOUBT):
        assert report.settings(arm) in said
        assert all(re.search(rf"--{name}[ ,]", known) for name in arm.choices)
    assert "calibration split" in said


@each(
    ("token", "key"),
    [
        (Token(1, "", "local", "unchecked"), "local"),
        (Token(1, "", "local", "accepted"), "checked"),
        (Token(1, "", "cloud", "recovered"), "cloud"),
        (Token(1, "", "cloud", "bonus"), "cloud"),
        (Token(1, "", "cloud", "written"), "cloud"),
    ],
)
def test_who_wrote_a_token_is_one_of_the_legends_three(token, key):
    assert provenance(token.source, token.how) == key
    assert key in LEGEND


def test_a_hover_text_tells_source_how_interval_and_why():
    token = Token(1, "x", "cloud", "recovered", Divergence(0.12345, 0.1, float("inf")))
    assert report.hover(token, "KL above") == (
        "cloud, recovered; KL(cloud || local) about 0.123 nats, between 0.1 and infinity; KL above"
    )
    assert report.hover(HERE, None) == "local, unchecked"


def test_each_token_of_a_handoff_has_its_reason(answer):
    next_ = Token(3, "c", "cloud", "written")
    found = answer(HERE, THERE, next_, HERE, THERE, structs.replace(THERE, why="more doubt"), HERE)
    assert report.reasons(found) == {1: "doubt", 2: "doubt", 4: "doubt", 5: "more doubt"}
    assert report.handoffs(found) == [
        "token 2: doubt (2 tokens by the cloud)",
        "token 5: doubt (1 token by the cloud)",
        "token 6: more doubt (1 token by the cloud)",
    ]
    assert set(report.reasons(found).values()) <= {each.reason for each in found.handoffs}
    assert {arm.name for arm in ARMS} == set(CLEAR)
