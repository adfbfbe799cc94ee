"""``hybrid chat``: what is said before is part of a question; Ctrl-C ends an answer and not the chat."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import chat_over_tables
import pytest
from chat_over_tables import Tables
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.errors import Unreachable

LATENCY_S = 20.0
PROGRAM = Path(chat_over_tables.__file__)


@pytest.fixture
def piped(monkeypatch):
    """Run the command with these lines on its standard input; returns the result and what stood behind it."""

    def run(*lines, flags=(), **tables):
        opened = []

        def opener(config=None, **given):
            opened.append(Tables(**tables, **given))
            return opened[-1]

        monkeypatch.setattr(hybrid, "open", opener, raising=False)
        said = lines[0] if isinstance(lines[0], bytes) else "".join(f"{line}\n" for line in lines)
        done = CliRunner().invoke(app, ["chat", *flags], input=said)
        return done, opened[0] if opened else None

    return run


def test_each_line_of_a_pipe_is_a_question_and_what_was_said_before_is_part_of_it(piped):
    done, tables = piped("a b", "", "  c  ", flags=["--policy", "cloud", "--max-tokens", "5"])
    assert (done.exit_code, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert tables.told()["turns"] == [
        [["user", "a b"]],
        [["user", "a b"], ["assistant", first], ["user", "c"]],
    ]
    assert second


def test_without_a_limit_an_answer_may_fill_the_context_and_it_is_said_what_to_do_then(piped):
    done, tables = piped("a", "b", "/new", "b", flags=["--policy", "cloud"], num_context=40)
    answers = done.stdout.splitlines()
    assert done.exit_code == 0
    assert "the context is full: /undo" in done.stderr
    assert "the local context holds 40" in done.stderr, "the second question does not fit, and the chat goes on"
    assert len(answers) == 2
    assert tables.told()["turns"][-1] == [["user", "b"]]


def test_a_line_without_an_end_ends_the_chat_in_a_sentence(piped):
    """``hybrid chat < /dev/zero`` read for ever, and no Ctrl-C ended it."""
    done, tables = piped(b"a\n" + b"b" * (2**20 + 1) + b"\nc\n", flags=["--policy", "cloud", "--max-tokens", "3"])
    assert done.exit_code == 2
    assert done.stderr.endswith("hybrid: a line of standard input is longer than 1 MiB: no question is\n")
    assert tables.told()["turns"] == [[["user", "a"]]], "what came before it was answered, and nothing after it"


def test_a_limit_that_was_chosen_is_kept(piped):
    done, _ = piped("a", flags=["--policy", "cloud", "--max-tokens", "3"])
    assert len(done.stdout.split()) == 3


def test_a_policy_is_changed_within_the_conversation_and_one_that_cannot_be_changes_nothing(piped):
    lines = ("a", "/policy nonsense", "/policy local", "b", "/policy", "/policy kl:0.2")
    done, tables = piped(*lines, flags=["--policy", "cloud", "--max-tokens", "4"])
    assert done.exit_code == 0
    assert [turns[-1][1] for turns in tables.told()["turns"]] == ["a"], "the second one was answered here"
    said = done.stderr.splitlines()
    assert said[0].startswith("no policy is called 'nonsense'; there are ")
    assert said[1:3] == ["policy local span=1 gate=never"] * 2
    assert "judge=kl:0.2" in said[3]


def test_the_last_question_is_taken_back_and_a_new_conversation_has_a_name_and_a_cap_of_its_own(piped):
    lines = ("a", "b", "/undo", "c", "/new", "d", "/undo", "/undo")
    done, tables = piped(*lines, flags=["--policy", "cloud", "--max-tokens", "4"])
    asked = [[text for role, text in turns if role == "user"] for turns in tables.told()["turns"]]
    assert asked == [["a"], ["a", "b"], ["a", "c"], ["d"]]
    assert done.stderr.splitlines()[-1] == "nothing was said yet"
    first, again, after, new = tables.account.conversations
    assert first == again == after != new
    named, tables = piped("a", "/new", "b", flags=["--policy", "cloud", "--max-tokens", "4", "--conversation", "mine"])
    assert named.exit_code == 0
    assert tables.account.conversations == ["mine", "mine"]


def test_the_cost_is_told_beside_the_cloud_alone_and_what_the_caps_leave(piped):
    flags = ["--policy", "cloud", "--max-tokens", "5", "--price", "1/0.1/4", "--cap", "0.001"]
    done, tables = piped("a b c", "/cost", flags=flags)
    assert done.stderr.splitlines() == [
        "0.000023 USD for 1 request in 1 answer (the cloud alone: 0.000023 USD)",
        "the cap of 0.001 USD: 0.000977 USD left",
    ]
    assert tables.told()["settled"] == 23_000


def test_what_goes_wrong_is_a_sentence_and_the_chat_goes_on(piped, monkeypatch):
    done, _ = piped("/nope", "/policy exact:3", "a", flags=["--max-tokens", "4"])
    assert done.exit_code == 0
    assert done.stderr.splitlines()[0] == "there is no command /nope: /help lists them"
    assert done.stdout.strip()
    done, _ = piped(b"\xff\xfe\na\n", flags=["--max-tokens", "4"])
    assert done.stderr.splitlines()[0] == "the line is not UTF-8 text"
    assert done.stdout.strip()


def test_a_cloud_that_is_away_is_told_and_the_local_model_answers(piped, monkeypatch):
    async def away(*_):
        raise Unreachable("cannot reach http://tables")

    monkeypatch.setattr(chat_over_tables.SlowCloud, "connect", away)
    done, _ = piped("a", "b", flags=["--policy", "cloud", "--max-tokens", "4"])
    assert done.exit_code == 0
    assert done.stderr.count("the local model goes on alone: cannot reach http://tables") == 2
    assert len(done.stdout.splitlines()) == 2


def test_a_line_of_divergence_stands_under_each_answer_if_it_is_watched(piped):
    done, _ = piped("a b", flags=["--policy", "kl:0.3", "--span", "4", "--max-tokens", "12", "--watch"])
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("KL ")]
    assert "threshold 0.3" in done.stderr
    assert "│" in line


def test_a_flag_that_does_nothing_in_a_conversation_is_refused_before_anything_is_said(piped):
    done, _ = piped("a", flags=["--raw"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "raw changes nothing in a chat" in done.stderr


def test_the_bundled_models_are_said_to_know_no_conversations_at_its_second_question(piped):
    done, _ = piped("a", "b", "c", flags=["--local", "small", "--max-tokens", "4"])
    assert done.stderr.count("the bundled models were trained on single questions") == 1
    assert "single questions" not in piped("a", "b", flags=["--max-tokens", "4"])[0].stderr


def test_help_lists_every_command(piped):
    done, _ = piped("/help", "/exit", "a")
    for command in ("/policy", "/cost", "/undo", "/new", "/clear", "/help", "/exit"):
        assert command in done.stderr
    assert done.stdout == "", "nothing is answered after /exit"


# ---- at a terminal ---------------------------------------------------------------------------------------------------


class Terminal:
    """A process at the other end of a terminal, and what it has shown."""

    def __init__(self, *flags, told, chunk_s):
        self.leader, follower = pty.openpty()
        self.told = told
        env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "CHUNK_S": str(chunk_s)}
        env["PYTHONPATH"] = os.pathsep.join([str(Path(hybrid.__file__).parent.parent), str(PROGRAM.parent)])
        command = [sys.executable, str(PROGRAM), str(told), *flags]
        pipes = {"stdin": follower, "stdout": follower, "stderr": follower}
        self.process = subprocess.Popen(command, **pipes, env=env, start_new_session=True)
        os.close(follower)
        self.seen = ""

    def type(self, text):
        os.write(self.leader, text.encode())

    def wait_for(self, words, after=0):
        """Read until something was shown beyond a place; returns the place after it."""
        deadline = time.monotonic() + LATENCY_S
        while (place := self.seen.find(words, after)) < 0:
            assert self.read(deadline), self.seen
        return place + len(words)

    def prompt(self, after=0):
        """Read until a line is waited for. Python's line editor misses a signal between its prompt and its waiting."""
        place = self.wait_for("> ", after)
        time.sleep(0.1)
        return place

    def read(self, deadline):
        ready, _, _ = select.select([self.leader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            part = os.read(self.leader, 4096)
        except OSError:  # what Linux says once the other end is closed
            return False
        self.seen += part.decode(errors="replace")
        return bool(part)

    def end(self):
        """Return the exit code and what the process told when everything was closed."""
        while self.read(time.monotonic() + LATENCY_S):
            pass
        return self.process.wait(LATENCY_S), json.loads(self.told.read_text())


@pytest.fixture
def terminal(tmp_path):
    """Begin a chat at a terminal; whatever happens its process ends with the test."""
    opened = []

    def begin(*flags, chunk_s=0.0):
        opened.append(Terminal(*flags, told=tmp_path / "told.json", chunk_s=chunk_s))
        return opened[-1]

    yield begin
    for each_one in opened:
        each_one.process.kill()
        each_one.process.wait()
        os.close(each_one.leader)


SLOWLY = ("--policy", "cloud", "--price", "1/0.1/4", "--cap", "1")
BY_CLOUD = "\x1b[1;35m"


def test_ctrl_c_ends_the_answer_settles_it_and_keeps_what_was_said(terminal):
    chat = terminal(*SLOWLY, chunk_s=0.02)
    chat.prompt()
    chat.type("a b\n")
    chat.wait_for(BY_CLOUD)
    chat.type("\x03")
    chat.prompt(chat.wait_for("what was said of it stays"))
    chat.type("c\n")
    chat.wait_for(BY_CLOUD, chat.wait_for("> c"))
    chat.type("\x03")
    chat.prompt(chat.wait_for("what was said of it stays", chat.wait_for("> c")))
    chat.type("\x04")
    code, told = chat.end()
    assert code == 0
    assert (told["open"], told["reserved"]) == (0, 0)
    assert told["reserved_before"] == [0, 0], "an answer is settled before the next question is read"
    first, second = told["turns"]
    assert first == [["user", "a b"]]
    assert [role for role, _ in second] == ["user", "assistant", "user"]
    assert 0 < len(second[1][1].split()) < 100, "a part of the answer"
    assert told["settled"] >= 2 * 4 * 100_000, "what the server may have run ahead counts"


@pytest.mark.slow
def test_ctrl_c_at_a_prompt_leaves_the_second_time(terminal):
    chat = terminal("--policy", "cloud", "--max-tokens", "3")
    chat.prompt()
    chat.type("half a line\x03")
    chat.prompt(chat.wait_for("Ctrl-C again leaves"))
    chat.type("a\n")
    place = chat.prompt(chat.wait_for("tokens,"))
    chat.type("\x03")
    chat.prompt(chat.wait_for("Ctrl-C again leaves", place))
    chat.type("\x03")
    code, told = chat.end()
    assert code == 130
    assert {turns[0][1] for turns in told["turns"]} == {"a"}, "half a line was no question"


def test_a_signal_to_end_ends_the_chat_and_settles_the_answer(terminal):
    chat = terminal(*SLOWLY, chunk_s=0.02)
    chat.prompt()
    chat.type("a b\n")
    chat.wait_for(BY_CLOUD)
    chat.process.send_signal(signal.SIGTERM)
    code, told = chat.end()
    assert code == 128 + signal.SIGTERM
    assert (told["open"], told["reserved"]) == (0, 0)
