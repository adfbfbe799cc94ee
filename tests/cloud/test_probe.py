"""Probing endpoints that are not what they say: nothing is believed that an answer did not show."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from cases import each, each_of
from probed_server import Server, V, probed
from wordlist import able

from hybrid.cloud.dialects.dialect import LENGTHS, DialectConfig
from hybrid.cloud.dialects.vllm import Vllm
from hybrid.cloud.dialects.vllm_tokens import GENERATE
from hybrid.cloud.probe import LONGER, WRITTEN
from hybrid.errors import AccessDenied, BadReply, MissingCapability, NotAnApi, Unreachable, UsageError


def failing(server, fault):
    async def write(question, request_id):
        server.questions.append(question)
        raise fault
        yield

    return write


def test_what_a_good_endpoint_can_do_is_found():
    found, heard, settled = probed(Server())
    assert found.most_k == V
    assert (found.rows, found.continues, found.raw_rows, found.cached_usage) == (True, True, True, True)
    assert (found.scoring_method, found.scoring_methods) == ("one request", {"one request": "agrees"})
    assert (found.noise_nats, found.grid, found.keeps_cache, found.candidates) == (0.0, 0.0, False, True)
    assert (found.takes_ids, found.max_context, found.chunk_usage) == (True, 1000, False)
    assert found.prefix_tokens == LONGER
    assert found.check_tokens == LONGER + WRITTEN - 1 + 1  # the span, and the one written
    assert found.spent_tokens == sum(usage.prompt_tokens + usage.completion_tokens for usage in settled)
    assert len(heard) >= 6


def test_rows_that_are_off_by_one_are_found_out():
    """llama-cpp-python without BOS, strands-sglang #34: every number is a probability, of another position."""
    found, _, _ = probed(Server(shift=1))
    assert found.scoring_method is None
    assert "its rows are not those that it writes by" in found.scoring_methods["one request"]
    assert found.check_tokens is None


def test_rows_of_another_computation_are_found_out_and_noise_is_not():
    assert probed(Server(drift=0.3))[0].scoring_method is None
    found, _, _ = probed(Server(drift=0.05))
    assert found.scoring_method == "one request"
    assert found.noise_nats == pytest.approx(0.05)


def test_a_score_without_rows_is_none():
    found, _, _ = probed(Server(cut=0))
    assert (found.scoring_method, found.scoring_methods) == (None, {"one request": "gave no row"})


def test_fewer_rows_than_asked_for_are_enough():
    assert probed(Server(cut=2))[0].scoring_method == "one request"


@each(
    "server",
    [Server(most=20), Server(most=20, refuses_more=True), Server(most=20, refuses_more="500")],
    ids=["cut", "refused", "refused by a proxy"],
)
def test_the_longest_list_is_what_it_gives_and_not_what_was_asked_for(server):
    found, _, _ = probed(server)
    assert found.most_k == 20


def test_a_server_that_fails_whatever_is_asked_ends_the_probe():
    for fault in (Unreachable("500", trouble="busy"), Unreachable("gone", sent=False), Unreachable("silent")):
        server = Server()
        server.write = failing(server, fault)
        with pytest.raises(Unreachable):
            probed(server)
        assert len(server.questions) == (len(LENGTHS) + 1 if fault.trouble else 1)


def test_streams_that_lack_what_whole_answers_have_are_found_out():
    found, _, _ = probed(Server(bare_streams=True))
    assert (found.streams, found.rows, found.scoring_method) == (False, True, "one request")
    assert probed(Server())[0].streams is True


def test_between_two_lengths_a_cut_list_tells_the_limit_itself():
    assert probed(Server(most=7))[0].most_k == 7
    assert probed(Server(most=7, refuses_more=True))[0].most_k == max(k for k in LENGTHS if k <= 7)


def test_the_documents_limit_is_not_exceeded():
    server = Server(dialect=able(Vllm(DialectConfig()), most_k=5))
    assert probed(server)[0].most_k == 5
    assert max(question.top_k for question in server.questions) == 5


@each(("decimals", "grid"), [(None, 0.0), (4, 1e-4), (2, 1e-2), (1, 1e-1)])
def test_a_grid_of_rounded_values_is_found(decimals, grid):
    assert probed(Server(decimals=decimals))[0].grid == pytest.approx(grid)


def test_rows_after_the_temperature_are_found_out():
    """``logprobs_mode: processed_*``, or llama-server's post_sampling_probs: invisible but at another temperature."""
    assert probed(Server(sampled_rows=True))[0].raw_rows is False


def test_rows_that_are_raw_are_found_so_whatever_the_documents_say():
    """An SGLang can be set to tell them before the temperature; and what was asked for that leaves no trace."""
    documented = able(Vllm(DialectConfig()), rows_altered_by=frozenset({"temperature"}))
    for sampled in (False, True):
        server = Server(dialect=documented, sampled_rows=sampled)
        assert probed(server)[0].raw_rows is not sampled
        assert server.dialect.can.rows_altered_by == {"temperature"}


def test_an_endpoint_that_starts_anew_does_not_go_on():
    assert probed(Server(forgets=True))[0].continues is False


def test_what_is_said_of_the_cache_is_told_apart():
    assert probed(Server(scores_cold=False))[0].keeps_cache is True
    silent = probed(Server(cached=False))[0]
    assert (silent.cached_usage, silent.keeps_cache) == (False, None)


@each("block", [1, 16, 32, 64, 128])
def test_a_cache_of_whole_blocks_is_seen_in_a_text_that_holds_one(block):
    """The probe's question has twenty tokens; vLLM on a CPU caches 128 at a time."""
    cold, warm = probed(Server(block=block))[0], probed(Server(block=block, scores_cold=False))[0]
    assert (cold.cached_usage, cold.keeps_cache) == (True, False)
    assert (warm.cached_usage, warm.keeps_cache) == (True, True)
    assert cold.check_tokens - warm.check_tokens == (LONGER - 1) // block * block


def test_the_text_is_not_sent_a_third_time_where_a_short_one_has_told():
    """A block of 16 may be full before the longer text."""
    short, long = Server(block=1), Server(block=128)
    assert {probed(server)[0].cached_usage for server in (short, long)} == {True}
    assert len(short.questions) == len(long.questions) - 1


CLOSED = NotAnApi("answered 403: Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out")


@each(
    ("knocking", "open_"),
    [
        (BadReply("400: token_ids is required"), True),
        (CLOSED, False),
        (AccessDenied(str(CLOSED)), False),
        (NotAnApi("404"), None),
        (AccessDenied("403: not yours"), None),
        (None, True),
    ],
    ids=str,
)
def test_whether_the_token_in_route_is_open_is_found_out_for_nothing(knocking, open_):
    server = Server(knocking=knocking)
    assert probed(server)[0].token_route is open_
    assert server.knocked == [GENERATE]


def test_no_other_family_is_asked_for_vllms_token_in_route():
    server = Server()
    said = replace(server.dialect.can, model="m", max_context=1000, dialect="sglang", same_words=True)
    assert probed(server, said=said)[0].token_route is None
    assert server.knocked == []


def test_a_block_that_no_text_of_the_probe_fills_is_nothing_seen():
    found, _, _ = probed(Server(block=1024, scores_cold=False))
    assert (found.cached_usage, found.keeps_cache, found.prefix_tokens) == (False, None, LONGER)


def test_a_text_that_does_not_fit_is_not_sent():
    server = Server(block=16)
    said = replace(server.dialect.can, model="m", max_context=100, same_words=True)
    found, _, _ = probed(server, said=said)
    assert max(len(question.prefix) for question in server.questions) < 100
    assert (found.scoring_method, found.cached_usage, found.check_tokens) == ("one request", None, None)


def test_a_cached_check_costs_what_is_new():
    found, _, _ = probed(Server(scores_cold=False))
    assert found.check_tokens == WRITTEN - 1 + 1 + 1  # the span, the last token of the prefix, the one written


def test_candidates_that_are_dropped_in_silence_are_found_out():
    assert probed(Server(drops_candidates=True))[0].candidates is False
    assert probed(Server(dialect=Vllm(DialectConfig())))[0].candidates is None


def test_candidates_that_were_refused_before_they_were_asked_about_are_none():
    """A refusal may teach it earlier: vLLM's V1 runner is told from V2 by the first check that would read the cache."""
    server = Server()
    score = server.score

    async def refusing(question, request_id):
        server.dialect = able(server.dialect, candidates=False)
        return await score(question, request_id)

    server.score = refusing
    assert probed(server)[0].candidates is False


def test_usage_with_every_event_is_found():
    assert probed(Server(usage_in_chunks=True))[0].chunk_usage is True


def test_without_log_probabilities_nothing_is_scored_and_the_text_is_still_found():
    server = Server(dialect=able(Vllm(DialectConfig()), rows=False))
    found, _, _ = probed(server)
    assert (found.rows, found.most_k, found.scoring_method, found.scoring_methods) == (False, None, None, {})
    assert found.continues is True
    assert all(question.top_k == 0 for question in server.questions)


def test_another_vocabulary_is_not_asked_anything_that_costs():
    server = Server()
    said = replace(server.dialect.can, same_words=False)
    found, _, _ = probed(server, said=said)
    assert (found.same_words, found.scoring_method, found.spent_tokens, server.questions) == (False, None, 0, [])


@each("fault", [MissingCapability("no rows here"), BadReply("rows of nobody"), AccessDenied("not for you")])
def test_a_way_that_is_refused_is_told_in_the_servers_words(fault):
    found, _, _ = probed(Server(fault=fault))
    assert (found.scoring_method, found.scoring_methods) == (None, {"one request": str(fault)})


def test_an_endpoint_that_is_gone_ends_the_probe():
    with pytest.raises(Unreachable):
        probed(Server(fault=Unreachable("gone", sent=False)))


def test_a_cap_that_is_reached_ends_the_probe_before_the_question_leaves():
    server = Server()

    @asynccontextmanager
    async def denied(_):
        raise UsageError("the cap of 0 USD is reached")
        yield

    with pytest.raises(UsageError, match="cap"):
        probed(server, leave=denied)
    assert server.questions == []


def test_every_question_leaves_with_its_worst_case_and_settles_to_what_it_cost():
    most, told = [], []

    @asynccontextmanager
    async def granted(reserved):
        most.append(reserved)
        yield told.append

    probed(Server(), leave=granted)
    assert len(most) == len(told)
    for reserved, usage in each_of(zip(most, told, strict=True)):
        assert usage.prompt_tokens <= reserved.prompt_tokens
        assert usage.completion_tokens <= reserved.completion_tokens
