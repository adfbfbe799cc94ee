"""``hybrid price``: it sends nothing, counts a question's tokens, and says whether checking pays here."""

from __future__ import annotations

import json
import os
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
from cases import each
from typer.testing import CliRunner

from hybrid.assemble import BUNDLED_LOCAL
from hybrid.cli import app
from hybrid.cloud.probe_result import ProbeCache, ProbeResult
from hybrid.engine.llama import Weights
from hybrid.pairs.profile import JudgedTokens, pair_record, seen_of_pair
from hybrid.run.deferral import PlannerFactory
from hybrid.settings.sources import cache_file
from hybrid.types import Message

QUESTION = "What is 47 + 86?"
THERE = "http://127.0.0.1:9"  # where nobody listens
ENTRY = f"""
[[price]]
endpoint = "{THERE}"
model = "large"
prompt = 1
cached_prompt = 0.1
completion = 4
repeated = "cached"
source = "a page"
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Folders of this test's own, and none of them a place to send to."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def price(*args):
    return CliRunner().invoke(app, ["price", *map(str, args)], env={"COLUMNS": "200"})


def quoted(*args):
    done = price(*args, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_a_question_is_counted_as_the_local_model_reads_it_and_none_is_a_hundred_tokens(own):
    with closing(Weights(BUNDLED_LOCAL)) as weights:
        tokens = len(weights.render((Message("user", QUESTION),)))
        longer = len(weights.render((Message("system", "Be brief."), Message("user", QUESTION))))
    assert quoted("--price", "1/0.1/4", QUESTION)["prompt_tokens"] == tokens
    assert quoted("--price", "1/0.1/4", QUESTION, "--system", "Be brief.")["prompt_tokens"] == longer > tokens
    found = quoted("--price", "1/0.1/4", "--max-tokens", "64")
    assert (found["prompt_tokens"], found["answer_tokens"], found["tokens_before_a_draft"]) == (100, 64, 132)
    assert found["cloud_only_nanousd"] == 100_000 + 64 * 4000
    found = quoted("--price", "1/0.1/4", "--max-tokens", "0")
    assert (found["prompt_tokens"], found["answer_tokens"]) == (100, 1024 - 100), "the rest of the context"


def test_nothing_is_written_and_nobody_is_asked(own):
    """At the named address nobody listens: a request would fail. What identifies the model's file may be remembered."""
    done = price("--cloud", THERE, "--price", "1/0.1/4", QUESTION)
    assert (done.exit_code, done.stderr) == (0, "")
    assert {path.name for path in own.rglob("*") if path.is_file()} <= {"cache.json", "cache.json.lock"}


def test_the_price_file_s_tariff_is_read_for_the_model_that_is_named_or_was_seen(own):
    (own / "prices.toml").write_text(ENTRY)
    named = ("--cloud", THERE, "--prices", own / "prices.toml")
    assert quoted(*named, "--cloud-model", "large")["price"] == "1/0.1/4:cached"
    unnamed = price(*named)
    assert unnamed.exit_code == 2
    assert f"no price is known for {THERE}: state --price" in unnamed.stderr
    pair_record(THERE, BUNDLED_LOCAL).add("large", "kl:0.5", JudgedTokens(70, 100))
    assert quoted(*named)["price"] == "1/0.1/4:cached"


def test_what_was_seen_of_the_pair_decides_and_only_under_the_same_judge(own):
    pair_record(THERE, BUNDLED_LOCAL).add("large", "kl:0.5", JudgedTokens(70, 100))
    asked = ("--cloud", THERE, "--price", "1/0.1/4", "--max-tokens", 64, QUESTION, "--policy", "kl")
    found = quoted(*asked)
    assert (found["kept"], found["judged"], found["judge"], found["checking"]) == (70, 100, "kl:0.5", "more")
    assert price(*asked).stdout.splitlines()[-1] == "checking costs more than the cloud here"
    assert quoted(*asked[:-1], "kl:0.2")["checking"] is None
    assert quoted(*asked[:-1], "greedy-exact")["judged"] == 0
    assert quoted("--cloud", "http://127.0.0.1:10", *asked[2:])["judged"] == 0


def test_what_a_probe_has_found_there_is_taken_for_granted(own):
    """A check that reads the cache is charged as such; where nothing is charged, time counts."""
    with closing(Weights(BUNDLED_LOCAL)) as weights:
        cache = ProbeCache(cache_file(), weights.vocabulary_digest)
    found = ProbeResult(THERE, "large", "vllm", scoring_method="one request", keeps_cache=True)
    asked = ("--cloud", THERE, "--price", "1/0.1/4", "--policy", "kl")
    cold = quoted(*asked)
    cache.write(found)
    warm = quoted(*asked)
    assert warm["check_nanousd"] == cold["check_nanousd"] - 900 * warm["tokens_before_a_draft"]
    assert (cold["break_even"], warm["break_even"] is None) == (None, False), "drafts of 32 tokens"
    assert warm["break_even_at_best_span"] < cold["break_even_at_best_span"]
    timed = ProbeResult(
        THERE, "other", "vllm", scoring_method="one request", written_ms=10.0, scored_ms=2.0, check_ms=30.0
    )
    cache.write(timed)
    free = quoted("--cloud", THERE, "--price", "free", "--cloud-model", "other", "--policy", "kl")
    assert (free["break_even_of"], free["cloud_only_nanousd"]) == ("time", 0)
    assert (
        quoted("--cloud", THERE, "--price", "free", "--cloud-model", "large", "--policy", "kl")["break_even_of"] is None
    )


@each(
    ("args", "code", "words"),
    [
        (("--price", "cheap"), 2, "P/C/O"),
        (("--price", "1/0.1/4:warm"), 2, ":uncached, :cached, :new"),
        (("--price", "1/0.1/4", ""), 2, "the prompt is empty"),
        (("--price", "1/0.1/4", "--local", "nowhere.gguf"), 3, "nowhere.gguf"),
        (("--price", "1/0.1/4", "--policy", "nonsense"), 2, "nonsense"),
        (("--price", "1/0.1/4", "--cap", "1"), 2, "No such option"),
    ],
    ids=str,
)
def test_what_cannot_be_quoted_is_one_sentence_and_a_code(own, args, code, words):
    done = price(*args)
    assert (done.exit_code, done.stdout) == (code, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_its_help_has_examples_and_the_exit_codes():
    told = price("--help").stdout
    assert 'hybrid price --price 1/0.1/4:cached --max-tokens 64 "Why is the sky blue?"' in told
    assert "Exit codes: 0 told, 2 usage, 3 local model unusable" in told


def test_answers_over_http_are_counted_and_quoted_and_a_dear_pair_is_warned_of_once(start_server, own):
    """The whole way: answers over HTTP, the file in the state folder, the quote, the note."""
    import hybrid

    url = start_server("--parallel", "1").url
    choices = {"policy": "greedy-exact", "span": 8, "max_tokens": 40}
    with hybrid.open(local="small", cloud=url, price="1/0.1/4", **choices) as client:
        answers = [client.generate(f"What is {n} + 86?") for n in range(47, 51)]
    seen = seen_of_pair(url, BUNDLED_LOCAL, "small")["greedy"]
    assert seen == sum(map(JudgedTokens.of, answers), JudgedTokens())
    assert quoted("--cloud", url, "--price", "1/0.1/4", "--policy", "greedy-exact")["judged"] == seen.judged
    with hybrid.open(local="small", cloud=url, price="4/4/4", **choices) as client:
        notes = [client.generate(QUESTION).notes for _ in range(2)]
    assert [len(each) for each in notes] == [1, 0]
    assert notes[0][0].startswith("its checks made this answer cost ")
    assert [path.name for path in Path(os.environ["XDG_STATE_HOME"]).rglob("*.json")] == ["counts.json"]


def test_under_auto_it_tells_what_is_expected_of_the_question_and_still_sends_nothing(own):
    """The bundled pair is calibrated; of a pair with another endpoint nothing is known."""
    found = quoted("--price", "1/0.1/4", "--policy", "auto", "What is 475 * 86?")["auto"]
    assert 0.0 < found["asks"] <= 1.0
    assert found["expected_nanousd"] > 0
    assert found["calibration_questions"] > 1000
    dearer = quoted("--price", "1/0.1/4", "--policy", "auto", "--worth", "9", "What is 475 * 86?")["auto"]
    assert dearer["of_cloud"] > found["of_cloud"]
    elsewhere = ("--cloud", THERE, "--price", "1/0.1/4", "--policy", "auto")
    assert quoted(*elsewhere, "What is 475 * 86?")["auto"]["asks"] is None
    assert price(*elsewhere, "What is 475 * 86?").stdout.splitlines()[-1].startswith("nothing is known of this pair")
    assert quoted(*elsewhere)["auto"] is None, "no question"
    assert quoted("--price", "1/0.1/4", "--policy", "kl", QUESTION)["auto"] is None


@pytest.fixture(scope="module")
def stub_with(start_server):
    """The address of a server with these flags: one for all tests that want such a one."""
    return lru_cache(lambda *flags: start_server(*flags).url)


@each("flags", [(), ("--enable-prompt-tokens-details",)])
@each("dialect", [None, "sglang", "vllm"])
def test_a_quote_and_the_answer_price_a_question_alike(stub_with, own, monkeypatch, flags, dialect):
    """A cache that is told in one and not in the other would be two bills."""
    import hybrid

    bound, bind = [], PlannerFactory.bind

    async def noted(source, asked):
        bound.append((await bind(source, asked)).planner.prices)
        return await bind(source, asked)

    monkeypatch.setattr(PlannerFactory, "bind", noted)
    url = stub_with(*flags)
    named = {} if dialect is None else {"dialect": dialect}
    with hybrid.open(cloud=url, local="small", price="1/0.1/4", max_tokens=4, policy="route", **named) as client:
        client.generate(QUESTION)
    flag = () if dialect is None else ("--dialect", dialect)
    quoted("--cloud", url, "--local", "small", "--price", "1/0.1/4", "--policy", "route", *flag, QUESTION)
    answered, told = bound
    assert answered == replace(told, in_one_request=answered.in_one_request)
    assert answered.cached == (100 if dialect == "sglang" else 1000)
