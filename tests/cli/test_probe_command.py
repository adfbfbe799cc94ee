"""``hybrid probe``: its flags, its words and its exit codes; and that it writes nothing but what it found."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from arithmetic import rounds_by_shape, tolerance
from cases import each, each_of
from typer.testing import CliRunner

from hybrid.assemble import BUNDLED_LOCAL
from hybrid.assemble.probing import ProbeReport
from hybrid.cli import app
from hybrid.cli.probe import least_rejected, told, working
from hybrid.cloud import Capabilities
from hybrid.cloud.probe_result import OUTSIDE_NAMES, FlagAdvice, ProbeResult
from hybrid.engine.identity import LocalNoise, NoiseCache
from hybrid.engine.llama import Weights
from hybrid.policy.rules.divergence_threshold import DivergenceThreshold
from hybrid.prob import Dense, TopK, kl_divergence
from hybrid.settings.names import MODELS
from hybrid.spend import Price
from hybrid.spend.durable import FileLedger, LedgerAdmin
from hybrid.store.json_store import JsonStore

FOUND = ProbeResult(
    "http://there",
    "m",
    "sglang",
    same_words=True,
    max_context=512,
    round_trip_ms=1.5,
    takes_ids=True,
    rows=True,
    most_k=20,
    continues=True,
    raw_rows=True,
    scoring_method="one request",
    scoring_methods={"one request": "agrees"},
    noise_nats=0.01,
    grid=1e-4,
    keeps_cache=True,
    prefix_tokens=12,
    check_tokens=7,
    spent_tokens=99,
)
BESIDES = ["local_noise_nats", "local_noise_shift", "policies", "hints", "charged_nanousd", "first_words", "break_even"]
MEMORY = ["local_kv_type", "local_kv_bytes", "local_context", "local_layers_on_gpu", "local_layers", "local_gpus"]
BESIDES += [*MEMORY, "seen"]
WORKS = {"greedy": ["kl", "greedy-exact"], "sampled": ["kl"]}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def probe(*args):
    return CliRunner().invoke(app, ["probe", *map(str, args)], env={"COLUMNS": "200"})


def test_what_an_endpoint_calls_its_model_is_shown_and_not_obeyed(monkeypatch):
    """Its name is the endpoint's own words."""

    async def found(tell, **flags):
        return ProbeReport(replace(FOUND, model="m\u202egpj.\x1b[2J"), None, LocalNoise())

    monkeypatch.setattr("hybrid.assemble.probing.probe", found)
    monkeypatch.setattr(sys.modules["hybrid.cli.probe"], "working", lambda *_, **__: WORKS)
    assert "serves m\\u202egpj.\\x1b[2J in" in probe("http://there").stdout
    assert json.loads(probe("http://there", "--json").stdout)["model"] == "m\u202egpj.\x1b[2J"


def said(found, hints=(), price=None, charged=0, memory=None):
    return "\n".join(told(ProbeReport(found, None, LocalNoise(0.025), hints, price, charged, {}, memory), WORKS))


def test_what_was_found_is_told_in_words():
    text = said(FOUND, memory=Weights(BUNDLED_LOCAL, kv_type="bf16").memory())
    assert "\n  its KV cache            1 MiB for 1024 tokens in bf16\n" in text
    assert "http://there serves m in the dialect sglang, 1.5 ms away" in text
    assert "multiples of 0.0001" in text
    assert "scoring by one request  agrees" in text
    assert "7 tokens after a text of 12; the prefix cache is read" in text
    assert "policies at temperature 0: kl, greedy-exact\nat other temperatures: all but greedy-exact" in text
    assert "noise                   0.01 nats, typically, between two ways to ask" in text
    assert "local model's noise     0.025 nats, typically, between two ways to read" in text
    assert text.endswith("the probe took 99 tokens")


def test_noise_that_blinds_kl_is_told_with_what_is_left_of_its_threshold():
    """Told alone that a token may be off by a nat, a KL of 4 may be one of 0.4; the measured effect on a KL is less."""

    def line(noise):
        text = "\n".join(told(ProbeReport(FOUND, None, noise), WORKS))
        return next(line for line in text.splitlines() if "two ways to read" in line)

    assert line(LocalNoise(1.0)).endswith("between two ways to read, so kl:0.5 rejects nothing below 4.4 nats")
    assert line(LocalNoise(1.0, 0.229)).endswith("to read, so kl:0.5 rejects nothing below 0.77 nats")
    assert line(LocalNoise(1.0, 0.01)).endswith("1 nats, typically, between two ways to read")


@each("noise", [LocalNoise(0.3), LocalNoise(1.0, 0.229), LocalNoise(0.02, 0.006)])
def test_the_least_kl_that_is_told_is_where_the_judge_begins_to_reject(noise):
    """Found by moving a reference away until a token is turned down."""
    local, rejects = Dense.from_logits(np.log([0.5, 0.5]), noise.nats, noise.shift), DivergenceThreshold(0.5).exceeds
    low, high = 0.5, 1.0 - 1e-12
    while high - low > 1e-9:
        middle = (low + high) / 2
        row = TopK(np.arange(2), np.log([middle, 1.0 - middle]), 1.0, 2, FOUND.noise_nats)
        low, high = (low, middle) if rejects(kl_divergence(row, local)) else (middle, high)
    at = low * np.log(2.0 * low) + (1.0 - low) * np.log(2.0 - 2.0 * low)
    if at < 0.69:  # two even tokens are no farther from anything
        assert least_rejected(0.5, FOUND.noise_nats, noise) == pytest.approx(at, abs=1e-5)


def test_what_the_probe_was_charged_is_told_where_it_was_charged():
    def end(price):
        return said(FOUND, price=price and Price.parse(price), charged=123_000).splitlines()[-1]

    assert end(None) == end("free") == "the probe took 99 tokens"
    assert end("1/0.1/4") == "the probe took 99 tokens: 0.000123 USD"


@each(
    ("change", "words"),
    [
        ({"keeps_cache": False}, "every check costs the whole text so far, so long spans pay (--span 64)"),
        ({"keeps_cache": None}, "nothing is said of a cache"),
        ({"scoring_method": None}, "this endpoint cannot score a draft"),
        ({"check_tokens": None}, "what a check costs: not found out"),
        ({"rows": False}, "only the local model's own doubt can decide"),
        ({"raw_rows": False}, "changed by the temperature"),
        ({"same_words": False}, "another than the local model's"),
        ({"same_words": False}, "--local names a model of its vocabulary, --cloud-vocabulary"),
        ({"same_words": None}, "cannot be compared"),
        ({"candidates": None}, "cannot be asked for"),
        ({"candidates": True}, "scored by id"),
        ({"candidates": True, "same_words": None}, "and not asked for: the vocabulary cannot be compared"),
        ({"continues": False}, "not continued"),
        ({"continues": None}, "not found out"),
        ({"grid": 0.0}, "float32"),
        ({"max_context": None}, "not told"),
        ({"takes_ids": False}, "by text"),
    ],
    ids=str,
)
def test_what_is_not_so_is_told_as_plainly(change, words):
    assert words in said(replace(FOUND, **change))


def test_a_flag_that_would_help_is_named_with_what_it_saves():
    ours, theirs = FlagAdvice("hybrid", "--dialect d", "more is told"), FlagAdvice("server", "--flag 3", "less is paid")
    assert "would help: --dialect d (hybrid): more is told\nwould help: --flag 3 (server): less is paid" in said(
        FOUND, (ours, theirs)
    )


def test_where_no_cached_token_was_seen_the_length_of_the_text_is_told():
    """Servers cache whole blocks: a text may have been shorter than one."""
    assert "not seen, in a text of 12 tokens" in said(replace(FOUND, cached_usage=False))


def test_nothing_is_said_of_usage_in_a_stream_that_was_not_seen():
    assert "with every event" not in said(FOUND)
    assert "at its end" not in said(FOUND)


@each(
    ("args", "code", "words"),
    [
        ((), 2, "Missing argument"),
        (("not a url",), 2, "an endpoint's address is http:// or https://"),
        (("http://127.0.0.1:9",), 4, "hybrid: cannot reach http://127.0.0.1:9"),
        (("http://127.0.0.1:9", "--dialect", "nonsense"), 2, "no dialect is called 'nonsense'"),
        (("http://127.0.0.1:9", "--local", "nowhere.gguf"), 3, "nowhere.gguf"),
        (("http://127.0.0.1:9", "--price", "cheap"), 2, "P/C/O"),
        (("http://127.0.0.1:9", "--cap", "lots"), 2, "amount of USD"),
        (("http://127.0.0.1:9", "--nonsense"), 2, "No such option"),
    ],
    ids=str,
)
def test_what_cannot_be_probed_is_one_sentence_and_a_code(cache, args, code, words):
    done = probe(*args)
    assert done.exit_code == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not list(cache.parent.rglob("*.json"))


@each(("change", "unsaid"), [({"rows": False}, "they are"), ({"same_words": False}, "log-prob")], ids=str)
def test_nothing_is_said_of_what_is_not_there(change, unsaid):
    assert unsaid in said(FOUND)
    assert unsaid not in said(replace(FOUND, **change))


def test_with_another_vocabulary_no_policy_that_asks_is_said_to_work():
    """They used to be named, and every one of them was then refused."""
    can = Capabilities("m", same_words=True)
    assert {"kl", "cloud"} <= set(working(can)["greedy"])
    assert working(replace(can, same_words=False)) == {"greedy": ["local"], "sampled": ["local"]}


@each("flag", ["--cloud-model", "--model"])
def test_a_model_is_named_as_everywhere_else_or_by_the_shorter_name(monkeypatch, flag):
    """An endpoint of several models says: choose one with --cloud-model."""
    asked = {}

    async def found(tell, **flags):
        asked.update(flags)
        return ProbeReport(FOUND, None, LocalNoise())

    monkeypatch.setattr("hybrid.assemble.probing.probe", found)
    monkeypatch.setattr(sys.modules["hybrid.cli.probe"], "working", lambda *_, **__: WORKS)
    assert probe("http://there", flag, "large").exit_code == 0
    assert (asked["cloud"], asked["cloud_model"]) == ("http://there", "large")


def test_its_help_names_the_exit_codes():
    assert "Exit codes: 0 found out, 2 usage, 3 local model unusable, 4 endpoint unusable" in probe("--help").stdout


# ---- against the server here ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(start_server):
    """The small model in two families' words, and behind a key."""
    flags = ("--parallel", "1")
    return {
        "vllm": start_server(*flags, "--enable-scale-out", "--v2-runner", "--enable-prompt-tokens-details"),
        "sglang": start_server(*flags, "--dialect", "sglang"),
        "locked": start_server(*flags, "--api-key", "secret"),
        "mute": start_server(*flags, "--no-logprobs"),
        "closed": start_server(*flags),
        "v1": start_server(*flags, "--enable-scale-out"),
    }


def kept(cache):
    file = cache / "hybrid-llm" / "cache.json"
    assert {path for path in cache.parent.rglob("*") if path.is_file()} == {file, file.with_suffix(".json.lock")}
    return JsonStore(file, "endpoints").read_entries()


@pytest.mark.slow
@each(
    ("name", "dialect", "keeps"), [("vllm", "vllm", False), ("sglang", "sglang", True), ("vllm", "vllm-tokens", True)]
)
def test_the_json_object_holds_what_was_found_and_what_works(served, cache, name, dialect, keeps):
    done = probe(served[name].url, "--json", *(["--dialect", dialect] if dialect == "vllm-tokens" else []))
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found) == [*(OUTSIDE_NAMES.get(part.name, part.name) for part in fields(ProbeResult)), *BESIDES]
    assert found["scored_ms"] >= 0.0 < found["written_ms"]
    assert set(found["break_even"]) == {"100", "1000"}
    noise = NoiseCache(cache / "hybrid-llm" / "cache.json").read(BUNDLED_LOCAL, 0)
    assert (found["local_noise_nats"], found["local_noise_shift"]) == (noise.nats, noise.shift)
    assert 0.0 < noise.shift < noise.nats or not rounds_by_shape()  # of the bundled one
    assert [found[name] for name in MEMORY] == ["f16", 2 * 3 * 4 * 32 * 1024, 1024, 0, 4, []]
    assert (found["dialect"], found["way"], found["ways"]) == (dialect, "one request", {"one request": "agrees"})
    assert (found["rows"], found["continues"], found["keeps_cache"], found["cached_usage"]) == (True, True, keeps, True)
    assert found["raw_rows"] is (dialect != "sglang")
    assert found["candidates"] is (None if dialect == "vllm" else True)
    assert found["most_k"] == (100 if dialect == "sglang" else 20)  # no limit there: the longest list that is tried
    assert found["noise_nats"] <= tolerance().nats
    assert "exact" in found["policies"]["sampled"]
    assert "greedy-exact" not in found["policies"]["sampled"]
    kept_now = kept(cache)
    key = f"{served[name].url} {found['model']} {dialect} {Weights(BUNDLED_LOCAL).vocabulary_digest}"
    assert kept_now[key] == {k: v for k, v in found.items() if k not in BESIDES}


@pytest.mark.slow
def test_a_probe_with_another_local_model_does_not_refuse_the_right_one(start_server, cache):
    """Without --local it asks with the bundled vocabulary; what it finds then is true of that one alone."""
    import hybrid

    alien = MODELS / "alien.gguf"
    url = start_server("--parallel", "1", model=alien).url
    wrong = json.loads(probe(url, "--json").stdout)
    assert (wrong["same_words"], wrong["way"]) == (False, None)
    with hybrid.open(local=alien, cloud=url, policy="greedy-exact", max_tokens=4) as client:
        assert client.generate("What is 47 + 86?").degraded is None
    assert json.loads(probe(url, "--json", "--local", alien).stdout)["same_words"] is True
    assert len(kept(cache)) == 2
    assert "it is asked in that of alien.gguf" in probe(url, "--cloud-vocabulary", alien).stdout


@pytest.mark.slow
def test_a_probe_of_one_dialect_says_nothing_of_another(served, cache):
    """One of a dialect that scores nothing used to write over what was found of the same server's vllm."""
    url = served["vllm"].url
    assert json.loads(probe(url, "--json").stdout)["most_k"] == 20
    assert json.loads(probe(url, "--json", "--dialect", "text-completions").stdout)["way"] is None
    assert sorted(found["dialect"] for found in kept(cache).values()) == ["text-completions", "vllm"]


@pytest.mark.slow
def test_the_text_says_the_same(served, cache):
    done = probe(served["sglang"].url)
    assert done.exit_code == 0
    assert done.stdout.startswith(f"{served['sglang'].url} serves small in the dialect sglang")
    assert "scoring by one request  agrees" in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
def test_a_wrong_key_or_model_is_one_sentence(served, cache, monkeypatch):
    done = probe(served["locked"].url)
    assert (done.exit_code, done.stdout) == (4, "")
    assert "answered 401" in done.stderr
    monkeypatch.setenv("HYBRID_API_KEY", "wrong-secret")
    done = probe(served["locked"].url)
    assert done.exit_code == 4
    assert "wrong-secret" not in done.stderr
    done = probe(served["vllm"].url, "--model", "other")
    assert done.exit_code == 4
    assert "does not serve 'other'; it serves small" in done.stderr
    monkeypatch.setenv("OTHER_KEY", "secret")
    assert probe(served["locked"].url, "--api-key-env", "OTHER_KEY", "--json").exit_code == 0


@pytest.mark.slow
def test_a_closed_route_is_told_in_the_servers_words_and_not_as_a_matter_of_keys(served, cache):
    done = probe(served["closed"].url, "--dialect", "vllm-tokens")
    assert (done.exit_code, done.stdout) == (4, "")
    assert "answered 403: Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out" in done.stderr
    assert "key" not in done.stderr


@pytest.mark.slow
def test_the_next_step_to_cheaper_checks_is_named_where_the_server_stands(served, cache):
    """A closed route, an open one that is not used, and one whose runner scores no candidates."""

    def flags(name, *args):
        return {hint["flag"] for hint in json.loads(probe(served[name].url, "--json", *args).stdout)["hints"]}

    assert "--enable-scale-out" in flags("closed")
    assert "--dialect vllm-tokens" in flags("v1")
    assert "VLLM_USE_V2_MODEL_RUNNER=1" in flags("v1", "--dialect", "vllm-tokens")
    assert flags("sglang") == set()


@pytest.mark.slow
def test_a_cap_ends_the_probe_with_its_sentence(served, cache):
    done = probe(served["vllm"].url, "--price", "1/1/1", "--cap", "0")
    assert done.exit_code == 2
    assert "cap" in done.stderr
    assert not cache.exists()


@pytest.mark.slow
def test_what_it_was_charged_is_what_the_ledger_says(served, cache, tmp_path):
    ledger = FileLedger(tmp_path / "ledger.sqlite")
    price = ("--price", "1/0.1/1/4/0.001", "--ledger", ledger.file.path)
    found = json.loads(probe(served["vllm"].url, "--json", *price).stdout)
    entries = LedgerAdmin(ledger).log(99)
    assert found["charged_nanousd"] == sum(entry.charged_nanousd for entry in entries) > 1_000_000 * len(entries)
    assert len(entries) > 5
    ledger.close()


@pytest.mark.slow
def test_without_log_probabilities_the_policies_that_it_names_work(served, cache):
    """They used to be named and then refused: the dialect went on asking for rows."""
    import hybrid

    done = probe(served["mute"].url, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["rows"], found["way"], found["continues"]) == (False, None, True)
    assert set(found["policies"]["greedy"]) == {"auto", "route", "doubt", "random", "local", "cloud"}
    with hybrid.open(local="small", cloud=served["mute"].url, max_tokens=8) as client:
        for policy in each_of(found["policies"]["greedy"]):
            assert client.generate("What is 47 + 86?", policy=policy).text


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_no_failure(served, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert probe(served["vllm"].url, "--json").exit_code == 0
    assert [path.name for path in tmp_path.rglob("*")] == ["file"]


def test_the_cache_of_these_tests_is_not_the_users():
    from hybrid.settings.sources import cache_file

    assert Path(os.environ["XDG_CACHE_HOME"]) in cache_file().parents
