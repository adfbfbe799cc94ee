"""What a probe found is used until an answer contradicts it, and what an answer shows is kept with it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from cases import each

from hybrid.cloud import Capabilities, WriteQuestion
from hybrid.cloud.bounds import QuestionDeadlines, Timeouts
from hybrid.cloud.dialects.completions import Completions
from hybrid.cloud.dialects.dialect import DialectConfig, tells_rows
from hybrid.cloud.dialects.sglang import Sglang
from hybrid.cloud.dialects.vllm import Vllm
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.probe_result import ProbeCache, ProbeResult, apply_result
from hybrid.errors import BadReply, MissingCapability
from hybrid.types import Sampling

KNOWN = ProbeResult(
    "http://there",
    "m",
    "sglang",
    rows=True,
    most_k=20,
    scoring_method="one request",
    scoring_methods={"one request": "agrees"},
)
WHERE = (KNOWN.url, "m", "sglang")
HERE = "0123"  # a local vocabulary


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache" / "cache.json"


class Line:
    """A wire that always gives the same answer."""

    url = "http://there"

    def __init__(self, answer):
        self.answer = answer

    def hide_key(self, error):
        pass

    def question_deadlines(self, asked_at=None, before_send=None):
        return QuestionDeadlines(Timeouts(), self.url, asked_at)

    async def stream(self, *_, **__):
        yield self.answer

    async def aclose(self):
        pass


def endpoint(path, answer, dialect):
    probe_cache = ProbeCache(path, HERE)
    probe_cache.write(KNOWN)
    made = Endpoint(Line(answer), "m", probe_cache=probe_cache)
    made.knowledge.dialect = dialect
    return made, probe_cache


def write(made, question):
    async def run():
        return [chunk async for chunk in made.write(question, "r")]

    return asyncio.run(run())


QUESTION = WriteQuestion((1,), 2, 5, Sampling())
ROWLESS = {"text": "a", "output_ids": [1], "meta_info": {"prompt_tokens": 1, "completion_tokens": 1}}


def test_what_an_answer_contradicts_is_forgotten(path):
    """A server that was restarted without log-probabilities is found out anew."""
    made, probe_cache = endpoint(path, ROWLESS, Sglang(DialectConfig("m")))
    with pytest.raises(MissingCapability):
        write(made, QUESTION)
    assert probe_cache.read(*WHERE) is None


SILENT = Capabilities(dialect="sglang", rows=False)


@each("told", [0, 1])
@each("probed", [True, False])
def test_that_an_endpoint_tells_its_cached_tokens_is_kept_for_the_next_client(path, told, probed):
    """Prices that depend on it stay as they were when this client connected."""
    meta = {"prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": told, "finish_reason": {"type": "length"}}
    made, probe_cache = endpoint(path, ROWLESS | {"meta_info": meta}, Sglang(DialectConfig("m"), SILENT))
    if not probed:
        probe_cache.forget(*WHERE)
    before = probe_cache.read(*WHERE)
    write(made, replace(QUESTION, limit=1, top_k=0))
    kept = probe_cache.read(*WHERE)
    if not told:
        assert kept == before
    elif probed:
        assert kept == replace(KNOWN, cached_usage=True)
    else:
        assert apply_result(SILENT, kept) == replace(SILENT, tells_cache=True)


@each("answer", [{"error": {"message": "worker died"}}, {"nonsense": 1}])
def test_a_bad_day_contradicts_nothing(path, answer):
    made, probe_cache = endpoint(path, answer, Sglang(DialectConfig("m")))
    with pytest.raises(BadReply):
        write(made, QUESTION)
    assert probe_cache.read(*WHERE) == KNOWN


def test_a_question_that_has_no_word_there_contradicts_nothing(path):
    """It was refused here; the endpoint was not asked."""
    from vocabularies import WORDS

    from hybrid.cloud.dialects.text_tokens import TextVocabulary

    made, probe_cache = endpoint(path, {}, Completions(DialectConfig("m", TextVocabulary(WORDS))))
    with pytest.raises(MissingCapability, match="--top-k"):
        write(made, replace(QUESTION, sampling=Sampling(1.0, top_k=3)))
    assert probe_cache.read(*WHERE) == KNOWN


def test_what_a_probe_has_shown_goes_before_what_documents_say():
    said = Sglang.can
    seen = replace(
        KNOWN, scoring_method=None, rows=False, continues=False, most_k=3, keeps_cache=False, candidates=False
    )
    can = apply_result(said, seen)
    assert can.abilities == {"open", "ids"}
    assert (can.scoring_method, can.most_k, can.keeps_cache, can.candidates, can.rows) == (None, 3, False, False, False)
    nothing = apply_result(said, replace(KNOWN, most_k=None))
    assert (nothing.most_k, nothing.keeps_cache, nothing.candidates) == (said.most_k, True, True)


# ---- rows that are not the model's own -----------------------------------------------------------------------------

WRITTEN = {
    "text": "a",
    "output_ids": [1],
    "meta_info": {
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "output_token_logprobs": [[-0.5, 1, None]],
        "output_top_logprobs": [[[-0.5, 1, None], [-1.5, 2, None]]],
    },
}


@each(("temperature", "told"), [(0.0, True), (1.0, True), (0.7, False), (2.0, False)])
def test_rows_that_the_temperature_has_altered_are_missing(path, temperature, told):
    """SGLang tells them after it; taken for the model's own they would be a wrong divergence."""
    made, _ = endpoint(path, WRITTEN, Sglang(DialectConfig("m")))
    chunk, *_ = write(made, replace(QUESTION, sampling=Sampling(temperature)))
    assert chunk.ids == (1,)
    assert (chunk.rows[0] is not None) is told


def test_what_a_probe_has_seen_of_rows_decides_which_are_missing():
    """A vLLM may tell rows after all that is done (``processed_logprobs``), and an SGLang the model's own."""

    def told(raw_rows, dialect, question):
        return tells_rows(apply_result(dialect.can, replace(KNOWN, raw_rows=raw_rows)), question)

    hot, cut, plain = (replace(QUESTION, sampling=s) for s in (Sampling(0.7), Sampling(1.0, top_p=0.9), Sampling(1.0)))
    banned = replace(QUESTION, ban=frozenset({3}))
    vllm, sglang = Vllm, Sglang
    assert [told(None, vllm, one) for one in (hot, cut, banned, plain)] == [True, True, True, True]
    assert [told(False, vllm, one) for one in (hot, cut, banned, plain)] == [False, False, False, True]
    assert [told(None, sglang, one) for one in (hot, cut, banned, plain)] == [False, True, False, True]
    assert [told(False, sglang, one) for one in (hot, cut, banned, plain)] == [False, True, False, True]
    assert [told(True, sglang, one) for one in (hot, cut, banned, plain)] == [True, True, False, True]
