"""``hybrid calibrate``: what it asks, what it refuses, and what it forgets."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from cases import each
from typer.testing import CliRunner

from hybrid.cli import app
from hybrid.cli.calibrate import _kept
from hybrid.cli.calibrate.labels import BUNDLED_NAME, asked_by, own_questions
from hybrid.defer import Calibration, CalibrationQuestion, UninformedScore
from hybrid.errors import UsageError
from hybrid.pairs.store import calibration_for
from hybrid.tasks import FAMILIES, wordings
from hybrid.tune.buying import bundled_families
from hybrid.types import Message


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Call the command with folders of its own."""
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, ["calibrate", *words])


def test_a_line_is_the_question_itself_or_what_a_batch_reads():
    lines = ['What is "this"?', '"What is 2 + 2?"', "", '{"prompt": "Sort.", "max_tokens": 9, "policy": "kl"}']
    lines += ['{"messages": [{"role": "user", "content": "Hi."}], "system": "Be kind.", "id": 3}']
    found = own_questions(io.BytesIO("\n".join(lines).encode()), None)
    assert [each.prompt for each in found] == [
        'What is "this"?',
        "What is 2 + 2?",
        "Sort.",
        (Message("user", "Hi."),),
    ]
    assert [each.choices for each in found] == [{}, {}, {"max_tokens": 9}, {"system": "Be kind."}]
    assert own_questions(io.BytesIO(b"a"), 5)[0].choices == {"max_tokens": 5}


@each("line", [b'{"prompt": 3}', b'{"policy": "kl"}', b'{"nothing": 1}', b'"open', b"\xff"])
def test_a_line_that_is_no_question_is_named(line):
    with pytest.raises(UsageError, match="line 2: "):
        own_questions(io.BytesIO(b"a\n" + line), None)


def test_without_a_file_the_calibration_splits_are_asked():
    bundled = asked_by(None, 28, {}, FAMILIES)
    assert len({each.name for each in bundled}) == 28
    assert bundled == asked_by(None, 30, {}, FAMILIES)[:28], "more are the same and some more"
    other = asked_by(None, None, {"max_tokens": 7}, None)
    assert len(other) == 200
    assert {each.choices["max_tokens"] for each in other} == {7}
    with pytest.raises(UsageError, match="bring your own"):
        asked_by(None, 9999, {}, None)


def test_a_bundled_pair_is_asked_what_its_models_were_trained_on():
    assert bundled_families(None) == bundled_families("mid") == FAMILIES
    assert bundled_families("wordings-large") == wordings.FAMILIES
    assert bundled_families("real") is bundled_families("https://host") is None
    asked = asked_by(None, 5, {}, wordings.FAMILIES)
    assert "who" in asked[0].prompt


@each(
    "words",
    [
        ("--forget", "--n", "3"),
        ("--judge", "js:0.1"),
        ("--questions", "missing.txt"),
        ("--report", "no/such/folder/page.html"),
        ("--n", "0"),
    ],
)
def test_what_cannot_be_is_refused_before_a_model_is_loaded(call, words):
    result = call(*words)
    assert result.exit_code == 2, result.output


def test_too_few_questions_are_refused_before_their_labels_are_bought(call):
    result = call("--n", "9")
    assert (result.exit_code, result.output) == (
        2,
        "hybrid: 9 questions: a calibration needs 10 at the least, so none was asked\n",
    )


def test_of_nothing_nothing_is_forgotten(call):
    result = call("--forget", "--cloud", "mid", "--cloud-model", "large-1")
    assert (result.exit_code, result.output) == (0, f"{BUNDLED_NAME}: nothing was kept\n")
    result = call("--forget", "--local", "small", "--cloud", "http://127.0.0.1:9", "--cloud-model", "large-1")
    assert (result.exit_code, result.output) == (0, "small: nothing was kept\n")


def test_no_calibration_takes_the_place_of_one_by_more_questions_unless_that_is_said(call):
    """Thirty questions of one kind stood in the place of 1,120 for good, unasked."""

    def pair(num, judge="kl:0.7", worth=1.0):
        row = CalibrationQuestion(20, 40, 50, 0.9, turned_down=True, excess_told=1.0, excess=1.0, first_rejection=3)
        score = UninformedScore(judge)
        return SimpleNamespace(calibration=Calibration("abc", "big", judge, "verdict", worth, score, (row,) * num))

    first = _kept(pair(5), use=False)
    assert (first.used, first.before) == (True, None)
    assert str(first) == "In force is your calibration of 5 questions (judge kl:0.7)."
    for num, use, used in ((4, False, False), (5, False, True), (3, True, True), (4, False, True), (9, False, True)):
        for judge in ("kl:0.7", "excess:0.5"):
            before = calibration_for("abc", "big")
            found = _kept(pair(num, judge, worth=num + 0.5), use=use)
            now = calibration_for("abc", "big")
            assert found.used is used, (num, judge)
            assert (now == before) is not used
            assert ("--use" in str(found)) is not used
            assert f"of {len(now.questions)} questions (judge {now.judge})" in found.in_force
            assert ("--back" in str(found)) is used
