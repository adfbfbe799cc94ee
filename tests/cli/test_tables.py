"""A comparison on a terminal, without one, and as a picture."""

from __future__ import annotations

import re
from io import StringIO
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from hybrid.cli.demo import report
from hybrid.lab.demo import HYBRIDS
from hybrid.record.answer import Token
from hybrid.report import Table, terminal

RIGHT = {"small": "0" * 10, "kl": "1" * 10, "doubt": "1" * 9 + "0", "large": "1" * 10}
TOKENS = (
    Token(1, "checked", "local", "accepted"),
    Token(2, " by\x1b[2J", "cloud", "recovered", why="KL [bold]too[/bold] high"),
    Token(3, " cloud", "cloud", "written"),
    Token(4, " [red]here", "local", "unchecked"),
    Token(5, "&<end>", "cloud", "written", why="doubt"),
)


@pytest.fixture
def shown(compared, answer):
    return report.demonstration(compared(RIGHT, answers={arm.name: (answer(*TOKENS),) * 10 for arm in HYBRIDS}))


def drawn(shown, **kind):
    console = Console(file=StringIO(), **{"width": 100} | kind)
    console.print(shown, crop=False)
    return console.file.getvalue()


def test_without_colours_the_clouds_words_stand_in_brackets(shown):
    text = drawn(terminal.layout(shown, colours=False))
    assert "checked[ by\\x1b[2J cloud] [red]here[&<end>]" in text
    assert "[written by the cloud], all else here" in text
    assert "KL [bold]too[/bold] high (2 tokens by the cloud)" in text
    assert "\x1b" not in text


def test_with_colours_each_token_has_the_style_of_who_wrote_it(shown):
    text = drawn(terminal.layout(shown, colours=True), force_terminal=True, color_system="standard", no_color=False)
    assert (
        "\x1b[32mchecked\x1b[0m\x1b[1;35m by\\x1b[2J\x1b[0m\x1b[1;35m cloud\x1b[0m [red]here\x1b[1;35m&<end>\x1b[0m"
        in text
    )


def test_the_answers_come_first_and_the_figures_after_them(shown):
    text = drawn(terminal.layout(shown, colours=False))
    assert "…" not in drawn(terminal.layout(shown, colours=False), width=80)
    order = [text.index(words) for words in ("What is 0?", "What is 4?", "correct", "RPI of kl", "Prices", "Settings")]
    assert order == sorted(order)
    assert "9 of 10" in text
    assert "0.90 (0.70 to 1.00)" in text


def test_a_failing_cloud_is_told_first_and_last(compared, answer):
    failed = answer(Token(1, "x", "local", "unchecked"), degraded="gone [red]")
    found = compared(RIGHT, answers={"kl": (failed,) * 10})
    text = drawn(terminal.layout(report.demonstration(found), colours=False))
    assert text.startswith("THE CLOUD FAILED in 10 answers (10 by kl)")
    assert text.count("THE CLOUD FAILED") == 2
    assert "gone [red]" in text


def test_a_table_is_shown_as_it_is_and_no_figure_is_cut_off_on_a_narrow_terminal():
    """A name in brackets is no markup of rich's."""
    table = Table("a [b]heading[/b]", ("", "column [i]"), (("[red]name", "1234567890" * 5),), ("a [u]note",))
    text = drawn(terminal.layout([table], colours=False), width=20)
    for words in ("a [b]heading[/b]", "column [i]", "[red]name", "a [u]note"):
        assert words in text
    assert "1234567890" * 5 in text.replace("\n", "")


def test_a_picture_leaves_out_fonts_and_no_word_of_an_answer():
    drawing = terminal.picture("hybrid demo", [Table("", ("a", "b"), [("x", "@font-face{y}")])])
    assert "@font-face{y}" in drawing
    assert drawing.count("font-face") == 1
    assert "https://" not in drawing.replace('xmlns="http://www.w3.org/2000/svg"', "")


def test_a_columns_name_is_text_too():
    shown = drawn(terminal.layout([Table("", ("name", "by\x1b[2J"), [("a", "1")])], colours=False))
    assert "by\\x1b[2J" in shown
    assert "\x1b" not in shown


def test_a_column_of_words_wraps_so_that_the_figures_beside_it_stand_on_one_line():
    table = Table("", ("", "num", "said"), [("a name", "1234567", "some words that are long")], words=("said",))
    lines = drawn(terminal.layout([table], colours=False), width=30).splitlines()
    (line,) = [line for line in lines if "1234567" in line]
    assert "a name" in line
    assert max(map(len, lines)) == 30
    assert " ".join("".join(line[20:] for line in lines[3:]).split()) == "some words that are long"


def test_a_picture_is_sound_and_names_no_other_host(shown):
    svg = terminal.picture("hybrid demo", shown)
    ET.fromstring(svg)
    assert set(re.findall(r"\w+://[^\"')\s]+", svg)) == {"http://www.w3.org/2000/svg"}, "the format's own name"
    assert set(re.findall(r"url\((.)", svg)) == {"#"}
    assert "&amp;&lt;end&gt;" in svg


def test_a_picture_has_its_colours_wherever_it_is_made(shown, monkeypatch):
    expected = terminal.picture("hybrid demo", shown)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "30")
    assert terminal.picture("hybrid demo", shown) == expected
    assert "#4fcfa4" in expected
    assert "#f490cb" in expected
