"""The demonstration on real text: which questions are asked, what is shown of them, and what its JSON holds."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO

import pytest
from cases import each_of
from msgspec import structs
from rich.console import Console
from typer.testing import CliRunner

from hybrid.cli import app
from hybrid.cli.demo.report import real_demonstration
from hybrid.errors import UsageError
from hybrid.lab import real_demo as room
from hybrid.lab.arms import Trial
from hybrid.lab.real_demo import ARMS, RealComparison, pick_questions
from hybrid.record.answer import Token
from hybrid.report import Table, Tokens, html, terminal
from hybrid.tasks.assistant import KINDS, QUESTIONS

LOCAL, CHECKED = Token(1, "a", "local", "unchecked"), Token(2, "b", "local", "accepted")
CLOUD = Token(3, " c", "cloud", "recovered", why="excess loss 2 nats, above 0.5")


@pytest.fixture
def found(answer):
    """A comparison made by hand of two questions, the first of them graded."""
    graded = next(question for question in QUESTIONS if question.graded)
    right = graded.answer.reference
    open_text = next(question for question in QUESTIONS if not question.graded)
    texts = {
        "local": (answer(LOCAL), answer(LOCAL, LOCAL)),
        "kl": (answer(Token(9, right, "local", "accepted")), answer(CHECKED, CLOUD, requests=2, nanousd=300)),
        "excess": (answer(CHECKED), answer(CHECKED, *[CLOUD, CHECKED] * 5, requests=5, nanousd=100)),
        "cloud": (answer(structs.replace(CLOUD, text=right)), answer(CLOUD, CLOUD, requests=1, nanousd=200)),
    }
    losses = {
        name: tuple(tuple(0.0 if t.source == "cloud" else 0.5 for t in each.tokens) for each in answers)
        for name, answers in texts.items()
    }
    losses["kl"] = ((0.25,), (1.0, 0.0, 2.5))  # the end of the second costs most
    trials = {arm.name: Trial(arm, texts[arm.name], ()) for arm in ARMS}
    return RealComparison((graded, open_text), 3, False, trials, losses)


def test_the_questions_are_of_the_test_split_and_the_kinds_take_turns():
    test = [question for question in QUESTIONS if question.split == "test"]
    five = pick_questions(5, 0)
    assert tuple(question.kind for question in five) == room.FIRST
    turn = pick_questions(len(KINDS), 0)
    assert turn[:5] == five
    assert sorted(question.kind for question in turn) == sorted(KINDS)
    every = pick_questions(len(test), 0)
    assert Counter(every) == Counter(test)
    counts = Counter(question.kind for question in every[: 3 * len(KINDS)])
    assert set(counts.values()) == {3}


def test_a_seed_draws_the_same_questions_again_and_another_seed_others():
    assert pick_questions(20, 4) == pick_questions(20, 4)
    assert not set(pick_questions(5, 0)) & set(pick_questions(5, 1))


@pytest.mark.parametrize("number", [0, -1, 10**6])
def test_there_are_no_more_questions_than_there_are(number):
    with pytest.raises(UsageError, match=rf"^{number} questions: 1 is the fewest, and \d+ the most$"):
        pick_questions(number, 0)


def test_an_answer_is_right_or_wrong_only_where_it_is_graded(found):
    verdicts = {name: [found.is_right(name, n) for n in (0, 1)] for name in found.trials}
    assert verdicts == {"local": [False, None], "kl": [True, None], "excess": [False, None], "cloud": [True, None]}


def test_the_figures_are_over_tokens_and_over_the_clouds_own_bill(found):
    assert found.mean_excess_nats("local") == 0.5
    assert found.mean_excess_nats("kl") == pytest.approx(3.75 / 4)
    assert found.mean_excess_nats("cloud") == 0.0
    assert (found.bill_ratio("kl"), found.bill_ratio("excess"), found.bill_ratio("local")) == (1.5, 0.5, 0.0)
    silent = replace(found, excess_nats={"kl": ((), ())}, trials={**found.trials, "cloud": found.trials["local"]})
    assert (silent.mean_excess_nats("kl"), silent.bill_ratio("kl")) == (0.0, None)


def test_a_row_has_a_figure_for_each_column(found):
    (shown,) = [block for block in real_demonstration(found) if isinstance(block, Table)]
    assert [row[0] for row in shown.rows] == [arm.name for arm in ARMS]
    assert all(len(row) == len(shown.columns) for row in shown.rows)
    assert {name: figures for name, *figures in shown.rows}["kl"] == ["33.3 %", "2", "0.000000", "1.50", "0.938"]


def test_every_answer_of_every_arm_is_shown_with_its_verdict(found):
    shown = [block for block in real_demonstration(found) if isinstance(block, Tokens)]
    assert [question.heading for question in shown] == [f"{q.kind}: {q.text}" for q in found.questions]
    for number, question in each_of(enumerate(shown)):
        assert [each.name for each in question.answers] == [arm.name for arm in ARMS]
        written = [[text for text, _, _ in each.tokens] for each in question.answers]
        assert written == [[token.text for token in t.answers[number].tokens] for t in found.trials.values()]
    assert [each.verdict for each in shown[0].answers] == ["wrong", "right", "wrong", "right"]
    assert {each.verdict for each in shown[1].answers} == {""}


def test_a_terminal_of_80_columns_shows_every_figure(found):
    console = Console(file=StringIO(), width=80)
    console.print(terminal.layout(real_demonstration(found), colours=False))
    text = console.file.getvalue()
    assert "…" not in text
    assert "Apache-2.0" in " ".join(text.split())
    assert "b[ c]b[ c]b[ c]b[ c]b[ c]b" in text
    assert text.count("excess loss 2 nats, above 0.5 (1 token by the cloud)") == 1 + terminal.MOST_NOTES
    assert "and 2 more" in text
    assert "opens the text" not in text


class Hovers(HTMLParser):
    """Collects what is told of each token."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if "title" in dict(attrs):
            self.found.append(dict(attrs)["title"])


def test_the_page_tells_each_tokens_excess_loss_and_no_handoff_is_left_out(found):
    text = html.page("hybrid demo", real_demonstration(found))
    hovers = Hovers(text).found
    assert len(hovers) == sum(len(a.tokens) for t in found.trials.values() for a in t.answers)
    nats = [f"{x:.2f} nats less likely than the reference" for x in (0.5, 0.25, 1.0, 0.0)]
    assert all(any(said in hover for hover in hovers) for said in nats)
    handoffs = sum(len(answer.handoffs) for trial in found.trials.values() for answer in trial.answers)
    assert text.count(", above 0.5 (") == handoffs == 9
    assert "<h2>Every answer" not in text


def test_the_json_holds_the_questions_the_answers_and_no_time(found, monkeypatch):
    monkeypatch.setattr(room, "model_file", lambda _: room.__file__)
    monkeypatch.setattr(room, "fingerprint", lambda path: {"file": str(path)})
    said = room.real_to_json(found)
    assert json.loads(json.dumps(said, allow_nan=False)) == said
    assert list(said) == [
        "seed", "questions", "answers", "right", "cloud_token_share", "requests", "bill", "excess_nats", "models",
        "scoring_keeps_cache", "settings", "degraded",
    ]  # fmt: skip
    assert said["bill"] == {
        "kl": {"nanousd": 300, "ratio": 1.5}, "excess": {"nanousd": 100, "ratio": 0.5}, "cloud_nanousd": 200
    }  # fmt: skip
    assert said["answers"]["excess"][1] == "b" + " cb" * 5
    assert said["excess_nats"]["kl"] == 0.9375


@pytest.mark.parametrize("flags", [(), ("--json",), ("--tasks", "3", "--scoring-keeps-cache")])
def test_without_the_package_a_sentence_says_how_to_get_it(flags, monkeypatch):
    monkeypatch.setattr("hybrid.engine.real_models.PACKAGE", "no_such_package")
    done = CliRunner().invoke(app, ["demo", "--real", *flags])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("hybrid: the real models are made of a package that is not installed")
    assert done.stderr.count("\n") == 1


def test_what_cannot_be_shown_is_refused():
    done = CliRunner().invoke(app, ["demo", "--real", "--tasks", "0"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "0 questions: 1 is the fewest" in done.stderr
