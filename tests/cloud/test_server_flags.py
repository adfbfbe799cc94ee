"""Flags that would help: named where a probe has shown it, with what its own numbers say they save."""

from __future__ import annotations

from dataclasses import replace

from cases import each

from hybrid.cloud.probe_result import ProbeResult, flag_advice

# As vLLM starts by itself: 20 log-probabilities, nothing said of the cache, the token-in route closed.
PLAIN = ProbeResult(
    "http://there",
    "m",
    "vllm",
    rows=True,
    most_k=20,
    hidden_mass=0.0312,
    scoring_method="one request",
    cached_usage=False,
    keeps_cache=None,
    prefix_tokens=152,
    check_tokens=158,
    token_route=False,
)
# Where nothing is left to wish.
BEST = replace(
    PLAIN, dialect="vllm-tokens", most_k=50, cached_usage=True, keeps_cache=True, check_tokens=30, token_route=None
)


def flags(found, wanted_k=20):
    return [hint.flag for hint in flag_advice(found, wanted_k)]


def gain(found, wanted_k=20):
    [hint] = flag_advice(found, wanted_k)
    return hint.gain


def test_of_a_server_that_does_all_it_can_nothing_is_said():
    assert [*flag_advice(BEST, 20)] == []


@each("dialect", ["sglang", "llama-server", "openai-completions", "ollama"])
def test_no_flag_is_named_to_another_family(dialect):
    assert [*flag_advice(replace(PLAIN, dialect=dialect, most_k=5), 20)] == []


@each(("given", "wanted", "named"), [(5, 20, True), (20, 20, False), (20, 50, True), (50, 20, False)])
def test_a_longer_list_is_named_where_the_client_wants_one(given, wanted, named):
    assert flags(replace(BEST, most_k=given), wanted) == ([f"--max-logprobs {wanted}"] if named else [])


def test_what_a_short_list_left_out_is_told():
    assert "instead of 5, which left out up to 3.1% of the probability" in gain(replace(BEST, most_k=5))
    assert "up to 0.0019% of" in gain(replace(BEST, most_k=5, hidden_mass=1.9e-05))
    assert "left out" not in gain(replace(BEST, most_k=5, hidden_mass=None))


def test_a_server_without_log_probabilities_is_not_told_to_give_more():
    assert (
        flags(replace(PLAIN, rows=False, most_k=None, scoring_method=None, check_tokens=None, cached_usage=True)) == []
    )


def test_untold_cached_tokens_are_named_with_as_many_as_are_sure_to_be_cached():
    """Of 152 tokens one whole block of 128 is cached, whatever the block is, or more."""
    assert "128 or more of 152 that are sent again" in gain(replace(BEST, cached_usage=False))
    assert "256 or more of 300" in gain(replace(BEST, cached_usage=False, prefix_tokens=300))


@each("change", [{"prefix_tokens": None}, {"prefix_tokens": 100}, {"cached_usage": None}])
def test_what_no_text_could_show_is_not_missed(change):
    assert flags(replace(BEST, **{"cached_usage": False} | change)) == []


@each(
    ("dialect", "token_route", "of", "flag"),
    [
        ("vllm", False, "server", "--enable-scale-out"),
        ("vllm", True, "hybrid", "--dialect vllm-tokens"),
        ("vllm-tokens", None, "server", "VLLM_USE_V2_MODEL_RUNNER=1"),
    ],
)
def test_checks_that_read_no_cache_are_told_the_next_step(dialect, token_route, of, flag):
    candidates = None if dialect == "vllm" else False
    found = replace(PLAIN, dialect=dialect, token_route=token_route, candidates=candidates, cached_usage=True)
    [hint] = flag_advice(found, 20)
    assert (hint.of, hint.flag) == (of, flag)
    assert "of a check after 152 tokens about 30 are charged in full instead of 158" in hint.gain


def test_a_runner_that_scores_candidates_is_not_asked_for():
    assert flags(replace(BEST, keeps_cache=False, check_tokens=158, candidates=True)) == []


def test_a_route_of_which_nothing_is_known_is_not_named():
    assert flags(replace(PLAIN, token_route=None)) == ["--enable-prompt-tokens-details"]


def test_a_plain_vllm_is_told_both():
    assert flags(PLAIN) == ["--enable-prompt-tokens-details", "--enable-scale-out"]
