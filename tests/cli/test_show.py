"""An answer as it comes: on a terminal what would be obeyed is shown; where nobody looks the text is exact."""

from __future__ import annotations

from functools import partial

import pytest
from rich.console import Console

from hybrid.cli import show
from hybrid.record.answer import Token
from hybrid.record.events import Degraded, Finished, Flushed, TokenEmitted

NASTY = "a\u202eb\x1b[2J\x9b1mc\r\n\td\u2066"
VISIBLE = "a\\u202eb\\x1b[2J\\x9b1mc\\x0d\n\td\\u2066"


def happen(screen):
    screen.show(TokenEmitted(0, Token(1, NASTY, "local", "accepted")))
    screen.show(Flushed(NASTY))
    screen.show(Degraded(f"it said {NASTY}"))


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(show, "Console", partial(Console, force_terminal=True, color_system=None))


def test_a_terminal_is_shown_what_it_would_obey(terminal, capsys):
    """A model, or whoever it repeats, could hide a command in a harmless line."""
    happen(show.Screen())
    out, err = capsys.readouterr()
    assert out.replace("        ", "\t") == VISIBLE * 2
    assert VISIBLE.partition("\n")[0] in err
    assert not set("\u202e\x1b\x9b\u2066\r") & set(out + err)


def test_a_pipe_gets_the_text_as_it_is(capsys):
    happen(show.Screen())
    assert capsys.readouterr().out == NASTY * 2


def test_a_terminals_line_is_ended_however_the_answer_ends_and_a_pipe_gets_nothing_more(terminal, capsys, monkeypatch):
    """After Ctrl-C the shell's prompt had stood in the text."""
    monkeypatch.setattr(show, "summary", lambda _: "")

    def shown(*, begun, finished):
        screen = show.Screen()
        if begun:
            screen.show(TokenEmitted(0, Token(1, "ab", "local", "accepted")))
        if finished:
            screen.show(Finished(None))
        screen.close()
        return capsys.readouterr().out

    assert shown(begun=True, finished=False) == shown(begun=True, finished=True) == "ab\n"
    assert shown(begun=False, finished=False) == ""
    monkeypatch.setattr(show, "Console", Console)
    assert shown(begun=True, finished=False) == "ab"


def test_tokens_of_several_local_models_are_told_apart_and_the_last_line_is_the_legend(terminal, capsys, monkeypatch):
    monkeypatch.setattr(show, "Console", partial(Console, force_terminal=True, color_system="standard"))
    monkeypatch.setattr(show, "summary", lambda _: "by small 1, mid 2, large 1")
    screen = show.Screen()
    for text, source, model in [("a", "local", "small"), ("b", "local", "mid"), ("c", "cloud", "large")]:
        screen.show(TokenEmitted(0, Token(1, text, source, "accepted", model=model)))
    screen.show(Finished(None))
    out, err = capsys.readouterr()
    assert out == "\x1b[32ma\x1b[0m\x1b[4;32mb\x1b[0m\x1b[1;35mc\x1b[0m\n"
    assert err == "\x1b[2mby small 1, \x1b[0m\x1b[2;4mmid\x1b[0m\x1b[2m 2, large 1\x1b[0m\n"


THOUGHT = [
    TokenEmitted(0, Token(1, "", "local", "accepted", thought=True, thought_text=f"So {NASTY}")),
    TokenEmitted(1, Token(2, "", "local", "accepted", thought=True)),
    TokenEmitted(2, Token(3, "Yes", "local", "accepted")),
    Flushed(".", ""),
]


@pytest.mark.parametrize("wanted", [False, True])
def test_thoughts_are_shown_where_they_are_wanted_and_never_on_standard_output(capsys, wanted):
    screen = show.Screen(thoughts=wanted)
    for event in THOUGHT:
        screen.show(event)
    out, err = capsys.readouterr()
    assert out == "Yes."
    assert err.replace("        ", "\t") == (f"So {VISIBLE}\n" if wanted else "")


def test_thoughts_without_an_answer_end_their_line(capsys, monkeypatch):
    monkeypatch.setattr(show, "summary", lambda _: "")
    screen = show.Screen(thoughts=True)
    screen.show(TokenEmitted(0, Token(1, "", "local", "accepted", thought=True, thought_text="So")))
    screen.show(Flushed("", " it"))
    screen.show(Finished(None))
    assert capsys.readouterr() == ("\n", "So it\n")
