"""What ``hybrid probe`` tells of two models' habits: in words, and against servers with other chat templates."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cases import each
from gguf_mutants import STRING, Gguf
from typer.testing import CliRunner

from hybrid.assemble import BUNDLED_LOCAL
from hybrid.cli import app
from hybrid.cli.probe import chat_words, habit_words
from hybrid.cloud.probe_result import ChatDifference, ProbeResult

FOUND = ProbeResult("http://there", "m", "vllm", same_words=True, rows=True, most_k=20)
TEMPLATE = "tokenizer.chat_template"


@each(
    ("change", "words"),
    [
        ({}, "cannot be compared"),
        ({"chat_alike": True}, "the local model's: it writes the same tokens"),
        (
            {"chat_alike": False, "chat_difference": ChatDifference(5, "<|user|>", "user: ")},
            "another than the local model's: after 5 tokens it writes 'user: ' where the local model's writes '<|us",
        ),
        (
            {"chat_alike": False, "chat_difference": ChatDifference(5, "", "23 Nov", dates=True)},
            "model's but for a date: after 5 tokens it writes '23 Nov' where the local model's writes nothing more",
        ),
        (
            {"opening_kl": ((0.1, 0.4), (0.35, 0.352), (1.0, 1.5))},
            "begin their answers alike: median KL 0.35 to 0.4 nats at the first word of 3 answers, 1 to 1.5 at worst",
        ),
        (
            {"opening_kl": ((3.1, 3.14), (9.0, None), (2.5, 4.0))},
            "9 or more at worst: most drafts will be turned down; is one a base model, or the template another one?",
        ),
        ({"opening_kl": ((3.0, 3.0),), "same_words": None}, "the template another one, or the vocabulary?"),
        ({"opening_kl": ((0.0, 9.0),)}, "is not certain: median KL 0 to 9 nats at the first word of 1 answers"),
    ],
    ids=str,
)
def test_two_models_habits_are_told_in_words(change, words):
    found = replace(FOUND, **change)
    assert words in "\n".join((chat_words(found), *habit_words(found)))


def test_where_nothing_was_measured_of_first_words_nothing_is_said_of_them():
    assert [*habit_words(FOUND)] == []


@pytest.fixture(scope="module")
def rewritten(start_server, tmp_path_factory):
    """The small model behind other chat templates."""

    def serve(name, template):
        path = tmp_path_factory.mktemp(name) / f"{name}.gguf"
        path.write_bytes(Gguf.read(BUNDLED_LOCAL).set(TEMPLATE, STRING, template).dump())
        return start_server("--parallel", "1", model=path).url

    own = Gguf.read(BUNDLED_LOCAL).text(TEMPLATE)
    return {
        "bare": serve("bare", "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "),
        "closing": serve("closing", own.replace("<|im_end|>\n' }}{% endfor %}", "<|im_end|>' }}{% endfor %}")),
        "dated": serve("dated", "Today Date: 26 Jul 2024\n" + own),
    }


@pytest.mark.slow
def test_the_habits_of_a_pair_are_seen_before_money_is_spent(start_server, rewritten, tmp_path, monkeypatch):
    """The same model, another template, and a server that cannot be asked for one; paid for from the ledger."""

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def found(url, *args):
        asked = ["probe", url, "--json", "--price", "1/0.1/4", *map(str, args)]
        done = CliRunner().invoke(app, asked, env={"COLUMNS": "200"})
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    same, unasked = (found(start_server("--dialect", family).url) for family in ("vllm", "sglang"))
    assert (same["chat_alike"], same["chat_difference"], unasked["chat_alike"]) == (True, None, None)
    for told_of in (same, unasked):
        assert told_of["first_words"]["habits"] == "alike"
        assert len(told_of["opening_kl"]) == 5
        assert all(low == 0.0 for low, _ in told_of["opening_kl"])
    other = found(rewritten["bare"])
    difference = other["chat_difference"]
    assert (difference["position"], difference["dates"]) == (0, False)
    assert (difference["here"][:12], difference["there"][:5]) == ("<|im_start|>", "user:")
    assert other["first_words"]["habits"] == "alike", "it is asked in the local model's words, and is the same model"
    closing = found(rewritten["closing"])["chat_difference"]
    assert closing["here"].startswith("\n")
    dated = tmp_path / "dated.gguf"
    gguf = Gguf.read(BUNDLED_LOCAL)
    dated.write_bytes(gguf.set(TEMPLATE, STRING, f"Today Date: 5 May 2025\n{gguf.text(TEMPLATE)}").dump())
    assert found(rewritten["dated"], "--local", dated)["chat_difference"]["dates"] is True
