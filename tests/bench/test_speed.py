"""The benchmarks measure what they say they measure; how fast anything is, no test asserts."""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
import time
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from arithmetic import tolerance
from cases import each, each_of
from recurrent_shapes import TINY_RECURRENT
from typer.testing import CliRunner

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.cli import app
from hybrid.engine.bare import BareContext
from hybrid.engine.llama import CHUNK, Weights
from hybrid.errors import EngineError, UsageError
from hybrid.lab import speed
from hybrid.lab.speed import answers, check, engine, money, serve, waiting
from hybrid.lab.speed import measure as load
from hybrid.lab.speed.measure import (
    BenchmarkLoad,
    BenchmarkReport,
    Measurement,
    NamedPair,
    Spread,
    ratio,
    run_in_turn,
    wait_in_turn,
)
from hybrid.lab.speed.random_model import HALF_BILLION, TINY, RandomModelShape, write_random_model
from server_stub.__main__ import parser


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A model as fast as can be, under the name of the one that the benchmarks would write."""
    return write_random_model(tmp_path_factory.mktemp("models") / "half-billion.gguf", TINY)


def test_two_works_take_turns_and_neither_always_goes_first():
    told = []
    first, second = run_in_turn(lambda i: told.append(("a", i)), lambda i: told.append(("b", i)), num=3, warm_up=1)
    assert (len(first), len(second)) == (3, 3)
    assert [i for _, i in told] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [name for name, _ in told] == ["b", "a", "a", "b", "b", "a", "a", "b"]


def test_three_ways_that_are_waited_for_take_turns_and_each_is_first_once():
    told = []

    async def way(name, i):
        told.append(name)
        return f"{name}{i}"

    found = asyncio.run(wait_in_turn(3, *(partial(way, name) for name in "abc"), warm_up=1))
    assert found == [[f"{name}{i}" for i in (1, 2, 3)] for name in "abc"]
    turns = ["".join(told[at : at + 3]) for at in range(0, 12, 3)]
    assert turns == ["bca", "cab", "abc", "bca"]


def test_a_ratio_is_the_median_of_the_pairs_not_of_the_sides():
    """A slow minute slows both of a pair, and is gone from their ratio."""
    assert ratio([2.0, 20.0, 200.0], [1.0, 10.0, 100.0]) == Spread(2.0, 2.0, 2.0, 3)
    assert ratio([1.0, 30.0, 4.0], [1.0, 10.0, 2.0]).median == 2.0


def test_the_random_model_has_the_parameters_it_says_and_the_same_seed_gives_the_same_file(tmp_path):
    import gguf

    shape = RandomModelShape(num_tokens=512, width=64, hidden=96, layers=2, heads=2, kv_heads=1)
    path = write_random_model(tmp_path / "a.gguf", shape)
    tensors = gguf.GGUFReader(path).tensors
    assert sum(int(np.prod(tensor.shape)) for tensor in tensors) == shape.num_parameters
    again = write_random_model(tmp_path / "b.gguf", shape).read_bytes()
    assert path.read_bytes() == again
    assert write_random_model(tmp_path / "c.gguf", shape, seed=1).read_bytes() != again


def test_the_load_is_half_a_billion_parameters_and_a_vocabulary_of_152k():
    assert math.isclose(HALF_BILLION.num_parameters, 0.5e9, rel_tol=0.02)
    assert HALF_BILLION.num_tokens == 151_936


def test_a_model_that_takes_a_vocabulary_reads_as_its_owner_does_and_never_ends_a_greedy_text(tmp_path):
    """So that it can be served beside the bundled models, and an answer has as many checks as were wanted."""
    shape = RandomModelShape(width=64, hidden=96, layers=2, heads=2, kv_heads=1, context=96)
    weights = Weights(write_random_model(tmp_path / "a.gguf", shape, vocabulary_of=BUNDLED_CLOUD))
    bundled = Weights(BUNDLED_CLOUD)
    engine = weights.context(0, 1)
    try:
        assert weights.vocabulary_digest == bundled.vocabulary_digest
        assert weights.num_parameters == replace(shape, num_tokens=bundled.num_tokens).num_parameters
        text = "What is 27 + 48? <|im_end|> é"
        ids = weights.tokenize(text, special=True)
        assert ids == bundled.tokenize(text, special=True)
        while len(engine.ids) + len(ids) < 96:
            ids = (int(engine.extend(ids)[0].argmax()),)
            assert ids[0] not in weights.end_ids
        engine.rewind(0)
        short = engine.extend((5, 200))[0]
        engine.rewind(0)
        assert np.allclose(engine.extend((7, 9, 100, 8, 200))[0], short, atol=tolerance().nats)
        assert not np.allclose(engine.extend((201,))[0], short, atol=1)
    finally:
        engine.close()
        weights.close()
        bundled.close()


def test_a_file_that_is_there_is_used_again(tmp_path):
    path = tmp_path / "kept.gguf"
    path.write_bytes(b"mine")
    assert write_random_model(path, TINY).read_bytes() == b"mine"


@pytest.mark.slow
def test_the_bare_loop_decodes_what_the_engine_decodes(tiny):
    """Else it would be no baseline: its numbers are the engine's, token by token, in a batch, and after a rewind."""
    weights = Weights(tiny)
    bare, engine = BareContext(weights, 1024, 1, num_rows=4), weights.context(1024, 1)
    try:
        bare.decode((300, 301, 302), rows=False)
        engine.extend((300, 301, 302), 0)
        assert bare.decode((303,)) == engine.extend((303,), 1)[0][0]
        bare.rewind(2)
        engine.rewind(2)
        assert bare.decode((9, 8, 7)) == engine.extend((9, 8, 7), 3)[0][0]
        long = tuple(300 + i for i in range(2 * CHUNK + 5))
        bare.rewind(0)
        engine.rewind(0)
        bare.read(long)
        engine.extend(long, 0)
        assert bare.decode((303,)) == engine.extend((303,), 1)[0][0]
    finally:
        bare.close()
        engine.close()
        weights.close()


@pytest.mark.slow
def test_ratios_stand_the_right_way_up(tiny, monkeypatch):
    """The first work takes twice as long as the second: that is what is called two, not a half."""
    monkeypatch.setattr(engine, "run_in_turn", lambda *_: ([2.0, 2.0], [1.0, 1.0]))
    monkeypatch.setattr(engine, "peak_mib", lambda loop, _: {"bare": 100.0}.get(loop, 130.0))
    figures = {
        figure.name: figure.value.median for figure in speed.run("engine", tiny.parent, lambda _: None, 2).figures
    }
    assert figures["after 100 tokens: drafting step over bare llama_decode"] == 2.0
    assert figures["after 100 tokens: create_completion with log-probabilities over a drafting step"] == 2.0
    assert figures["peak memory above the bare loop, spans of 8"] == 30.0


def test_the_scheduler_that_is_timed_looks_at_every_chain_and_chooses_the_best():
    """Half of them without its largest model, one of them the cloud alone."""
    for num in range(1, 7):
        scheduler = answers.made_scheduler(num)
        every = [(each.ms_per_token, each.models) for each in scheduler.candidates(8, answers.MADE_COSTS, free=True)]
        assert len({models for _, models in every}) == len(every) == 2**num
        assert scheduler.choose("auto", 8, answers.MADE_COSTS, free=True).ms_per_token == min(every)[0]


def test_a_chain_of_each_depth_answers_in_a_process_of_its_own():
    """How much of it an allocator keeps is not promised."""
    own = "from hybrid.lab.speed.answers import watch_chain as watch"
    shallow, deep = (engine.alone(own, "a chain", depth) for depth in ("1", "4"))
    assert shallow > 0.0 < deep
    with pytest.raises(EngineError, match="a chain did not end well in a process of its own: ValueError"):
        engine.alone(own, "a chain", "x")


def test_a_rejection_is_counted_with_states_and_without(tmp_path, monkeypatch):
    """Without them it reads the prompt of 500 tokens and the answer again."""
    monkeypatch.setattr(engine, "SHAPES", [replace(TINY_RECURRENT[e], context=2048) for e in ("falcon-h1", "mamba2")])
    report = speed.run("recurrent", tmp_path, lambda _: None, 8)
    figures = [figure for figure in report.figures if figure.unit == "tokens"]
    assert [figure.value.high < 4 for figure in figures] == [True, False] * 2
    assert all(figure.value.low > 500 for figure in figures[1::2])


@pytest.mark.slow
@pytest.mark.parametrize("name", speed.BENCHMARKS)
def test_every_benchmark_runs_and_reports_finite_figures(tiny, name, monkeypatch):
    """On a model that is nobody's load: here only the measuring is tested."""
    monkeypatch.setattr(answers, "ROUND_TRIPS_MS", (0,))
    monkeypatch.setattr(answers, "PROBLEMS_A_FAMILY", 1)
    monkeypatch.setattr(serve, "WAIT_MS", 10)
    monkeypatch.setattr(serve, "LINES", 4)
    monkeypatch.setattr(answers, "SPANS_AN_ANSWER", 4)
    monkeypatch.setattr(check, "LENGTHS", (20, 40))
    monkeypatch.setattr(engine, "SHAPES", tuple(TINY_RECURRENT.values()))
    monkeypatch.setattr(money, "BUNDLED", {"sglang": money.BUNDLED["sglang"]})
    monkeypatch.setattr(money, "ARMS", money.ARMS[:2])
    monkeypatch.setattr(waiting, "CELLS", (waiting._Cell(1, 1, 0),))
    few = {"FAMILIES": answers.FAMILIES[:2], "CHOICES": 2, "NUMS_OF_MODELS": (1, 2), "LADDER": answers.LADDER[:2]}
    for setting, value in {"CHAIN_MS": 0, "AT_ONCE": (1, 2), **few}.items():
        monkeypatch.setattr(answers, setting, value)
    monkeypatch.setattr(money, "ENTRIES", (8, 40))
    monkeypatch.setattr(money, "OUTCOMES", (5, 30))
    told = []
    assert_reported(name, speed.run(name, tiny.parent, told.append, repetitions=2))
    assert told, "nothing was said while it ran"
    assert not list(tiny.parent.glob("*ledger-*")), "what grows would have grown by the next run"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["engine", "kl", "check", "overlap"])
def test_a_named_pair_is_measured_at_every_length_that_fits(name, tmp_path, monkeypatch):
    monkeypatch.setattr(load, "NEAR", 20)
    monkeypatch.setattr(load, "LONG", (60, 100_000))
    monkeypatch.setattr(answers, "CONTEXT", 128)
    monkeypatch.setattr(answers, "QUESTIONS_OF_NAMED", 1)
    monkeypatch.setattr(answers, "SPANS_AN_ANSWER", 3)
    local, cloud = BUNDLED_LOCAL, BUNDLED_CLOUD
    if name == "overlap":  # the bundled models end a text that is not in the form of a question
        shape = RandomModelShape(width=64, hidden=96, layers=2, heads=2, kv_heads=1, context=1024)
        local = write_random_model(tmp_path.with_name("drafter.gguf"), shape, vocabulary_of=cloud)
    report = speed.run(name, tmp_path, lambda _: None, 2, pair=NamedPair(local, cloud))
    assert_reported(name, report)
    said = " ".join(figure.name for figure in report.figures) + report.setting
    assert [f"after {length} tokens" in said for length in (20, 60)] == [name != "kl"] * 2
    assert local.name in report.setting
    assert (cloud.name in report.setting) is (name in {"kl", "overlap"})
    assert not list(tmp_path.iterdir()), "a random model was written"


def test_a_slow_drafter_takes_its_time_for_a_token_that_it_decodes_alone(monkeypatch):
    slept = []
    monkeypatch.setattr(waiting.time, "sleep", slept.append)
    with closing(Weights(BUNDLED_LOCAL)) as weights, closing(waiting._PacedEngine(weights, 64, 1)) as engine:
        engine.token_s = 1000.0
        engine.extend((1, 2, 3))
        assert not slept
        engine.extend((4,))
    [seconds] = slept
    assert 500.0 < seconds <= 1000.0


def test_what_the_interval_costs_is_told_with_the_mass_that_was_unseen(tmp_path, monkeypatch):
    """Of rows of two models: an interval is no point where the reference has shown 20 of its tokens."""
    monkeypatch.setattr(engine, "TOP_K", 2)
    report = speed.run("kl", tmp_path, lambda _: None, 12, pair=NamedPair(BUNDLED_LOCAL, BUNDLED_CLOUD))
    notes = {figure.name: figure.note for figure in report.figures}
    assert float(notes["KL interval"].split()[2]) > 0
    least, most = (
        [float(word) for word in notes[f"KL interval, the quarter of {which} unseen mass"].split()[2::2]]
        for which in ("least", "most")
    )
    assert 0 <= least[0] <= least[1] <= most[0] <= most[1] <= 1


def test_a_pair_is_named_as_everywhere(monkeypatch):
    """By the names of models, or by files; what has no reference is measured against itself."""
    asked, report = [], BenchmarkReport("kl", "a setting", (Measurement("a", Spread(1.0, 1.0, 1.0, 1), "ms"),))
    monkeypatch.setattr(speed, "run", lambda *given: asked.append(given[-1]) or report)
    for flags in (["--local", "small", "--cloud", "large"], ["--local", str(BUNDLED_LOCAL)], []):
        assert CliRunner().invoke(app, ["bench", "kl", *flags]).exit_code == 0
    assert asked == [NamedPair(BUNDLED_LOCAL, BUNDLED_CLOUD), NamedPair(BUNDLED_LOCAL, BUNDLED_LOCAL), None]


def test_a_model_that_cannot_be_measured_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(UsageError, match="needed to measure it"):
        BenchmarkLoad.of(BUNDLED_LOCAL, 100_000)
    with closing(Weights(BUNDLED_CLOUD)) as weights:  # as many words, other ones
        shape = RandomModelShape(num_tokens=weights.num_tokens, width=64, hidden=64, layers=1, heads=1, kv_heads=1)
    alien = write_random_model(tmp_path / "alien.gguf", shape)
    for name in ("kl", "overlap"):
        with pytest.raises(UsageError, match="different vocabularies"):
            speed.run(name, tmp_path, lambda _: None, 2, pair=NamedPair(alien, BUNDLED_CLOUD))


def test_the_text_of_a_named_model_is_one_and_the_same_at_any_length():
    weights = Weights(BUNDLED_LOCAL)
    try:
        named = BenchmarkLoad(BUNDLED_LOCAL, named=True)
        long = named.text(weights, 20_000)
        assert len(long) == 20_000
        assert named.text(weights, 500) == long[:500]
    finally:
        weights.close()


def assert_reported(name, report):
    """Every figure is a finite number, and all of it can be printed as JSON."""
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert data["benchmark"] == name
    assert data["machine"]
    assert data["figures"]
    for figure in report.figures:
        assert math.isfinite(figure.value.median)
        assert figure.value.low <= figure.value.median <= figure.value.high
        # Two repetitions of a difference may come out on either side of nothing.
        if figure.unit not in {"MiB", "tokens"} and not {"above", "over"} & set(re.findall(r"\w+", figure.name)):
            assert figure.value.median > 0


@pytest.mark.slow
def test_what_a_check_receives_does_not_grow_with_the_text_where_rows_are_sent_from_the_draft_on(tmp_path, monkeypatch):
    """SGLang sends the rows of the draft, vLLM's token-in route those that its cache lacks, its completions all."""
    monkeypatch.setattr(check, "LENGTHS", (40, 160))
    figures = {figure.name: figure.value for figure in speed.run("prefix", tmp_path, lambda _: None, 1).figures}

    def median(dialect: str, what: str) -> float:
        return figures[f"{dialect}: after 160 tokens, {what}"].median

    received = "received over that after 40"
    assert 0.95 <= median("sglang", received) <= 1.05
    assert 0.5 <= median("vllm-tokens", received) <= 1.2
    assert 2 <= median("vllm", received) <= 160 / 40
    assert median("sglang", "a check sends") >= 160 * 2 / 1000  # a digit's id has two or three digits
    for dialect in each_of(check.BUNDLED):  # one is a part of the other
        assert 0 < median(dialect, "CPU of a check alone") < median(dialect, "CPU from check to check")


def test_the_bundled_server_knows_every_family_that_a_benchmark_asks_it_to_be():
    """It was asked for one that it does not have, after three that were measured."""
    for flags in each_of([*money.BUNDLED.values(), *check.BUNDLED.values(), *check.FAMILIES_OF_NAMED.values()]):
        assert parser().parse_args(["--model", "a.gguf", "--port", "0", *flags]).dialect


@pytest.mark.slow
def test_a_bill_behind_a_shared_prefix_is_higher_where_checks_read_no_cache(monkeypatch):
    """The same requests, the same tokens: what they cost is the server's word alone."""
    monkeypatch.setattr(money, "ARMS", money.ARMS[:2])
    monkeypatch.setattr(money, "BUNDLED", {name: money.BUNDLED[name] for name in ("vllm", "vllm-tokens")})
    figures = speed.run("bill", None, lambda _: None, 1).figures
    vllm, tokens = (figure.value.median for figure in figures)
    assert vllm > 1.5 * tokens
    assert [", 0 % of their prompt cached" in figure.note for figure in figures] == [True, False]


@pytest.mark.slow
def test_decoding_is_not_counted_as_the_clients_work(tmp_path, monkeypatch):
    """An engine that burns a second of CPU while decoding changes no figure by it."""
    monkeypatch.setattr(check, "LENGTHS", (40,))
    decode = check.LlamaEngine.extend

    def slowly(*given):
        ends = time.thread_time() + 0.05
        while time.thread_time() < ends:
            pass
        return decode(*given)

    monkeypatch.setattr(check.LlamaEngine, "extend", slowly)
    monkeypatch.setattr(check, "BUNDLED", {"sglang": check.BUNDLED["sglang"]})
    figures = {figure.name: figure.value for figure in speed.run("prefix", tmp_path, lambda _: None, 1).figures}
    decoded = 1000 * 0.05 * check.SPAN  # ms, in each draft
    assert 0 < figures["sglang: after 40 tokens, CPU from check to check"].median < decoded / 4


def test_the_command_prints_a_table_or_one_json_object(monkeypatch):
    one = Measurement("a name", Spread(1.0, 0.5, 2.0, 3), "ratio", "<= 1.2", "a note")
    report = BenchmarkReport("kl", "a setting", (one, replace(one, bound=">= 1"), replace(one, bound=">= 1.2")))
    monkeypatch.setattr(speed, "run", lambda *_: report)
    table = CliRunner().invoke(app, ["bench", "kl"])
    assert table.exit_code == 0
    assert all(word in table.stdout for word in ("a name", "0.5 to 2", "<= 1.2", "a note", "a setting"))
    assert [line.count(", missed") for line in table.stdout.splitlines() if "a name" in line] == [0, 0, 1]
    assert json.loads(CliRunner().invoke(app, ["bench", "kl", "--json"]).stdout)["figures"][0]["value"]["median"] == 1.0


def test_without_the_extra_the_command_says_what_to_install(monkeypatch):
    for module in [name for name in sys.modules if name.startswith("hybrid.lab.speed")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delattr("hybrid.lab.speed", raising=False)
    monkeypatch.setitem(sys.modules, "gguf", None)
    result = CliRunner().invoke(app, ["bench", "kl"])
    assert result.exit_code == 2
    assert "pip install '.[bench]'" in result.stderr


@each(
    "flags",
    [
        ["nothing"],
        [],
        ["kl", "--repetitions", "0"],
        ["kl", "--dir", "/dev/null/x"],
        ["kl", "--cloud", "http://127.0.0.1:9"],
        ["prefix", "--local", "a.gguf"],
        ["check", "--local", "a.gguf", "--cloud", "b.gguf"],
        ["prefix", "--lengths", "100"],
        ["bill", "--cloud", "http://127.0.0.1:9", "--lengths", "100"],
        *(
            ["prefix", "--cloud", "http://127.0.0.1:9", "--lengths", wrong]
            for wrong in ("x", "100,", "8", "8193", "-100")
        ),
    ],
)
def test_wrong_words_are_refused_before_anything_is_measured(flags):
    assert CliRunner().invoke(app, ["bench", *flags]).exit_code == 2
