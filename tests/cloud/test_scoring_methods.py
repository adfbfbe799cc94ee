"""The law of the ways: their rows are those that scoring in one request gives, for as many positions as they answer.

A model that is a table answers as llama-server does: it writes greedily or as a grammar holds it, with the rows of the
unmodified model, and keeps what a grammar cannot name from being forced.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st
from wordlist import WordList, able, drive

from hybrid.cloud import ScoreQuestion
from hybrid.cloud.dialects.dialect import DialectConfig, WritingScorer
from hybrid.cloud.dialects.llama_server import LlamaServer
from hybrid.cloud.dialects.text_tokens import TextVocabulary
from hybrid.errors import BadReply, MissingCapability
from hybrid.prob import Dense, TopK

END, PART = 6, 4
WORDS = WordList([b"a", b"b", b"c", b"\xc3\xa9", b"\xc3", b"\xa9", b"<end>"], (END,))
NUM_TOKENS = WORDS.num_tokens


def table(seed, prefix):
    """The model: rows that depend on the whole prefix."""
    return Dense.from_logits(np.random.default_rng([seed, len(prefix), *prefix]).normal(scale=2, size=NUM_TOKENS))


class Server:
    """``/completion`` over a table. ``leaves_out``: positions at which it tells of a token without its row.

    ``tells``: how many tokens it says that it wrote, whatever it did.
    """

    def __init__(self, seed, leaves_out=(), tells=None):
        self.seed = seed
        self.tells = tells
        self.leaves_out = frozenset(leaves_out)

    def __call__(self, body):
        prompts = body["prompt"]
        if isinstance(prompts[0], int):
            return self._complete(0, tuple(prompts), body)
        return [self._complete(i, tuple(prompt), body) for i, prompt in reversed(list(enumerate(prompts)))]

    def _complete(self, index, prompt, body):
        forced = [int(token) for token in re.findall(r"<\[(\d+)\]>", body.get("grammar", ""))]
        assert all(WORDS.piece(token) not in {b"\xc3", b"\xa9"} and token != END for token in forced), "error 500"
        ids, rows, ended = [], [], False
        while len(ids) < body["n_predict"] and not ended:
            row = table(self.seed, prompt + tuple(ids))
            token = END if forced and len(ids) == len(forced) else forced[len(ids)] if forced else row.best
            listed = [{"id": i, "logprob": logprob} for i, logprob in row.top(body["n_probs"])]
            told = {"id": token, "logprob": float(row.logprobs[token]), "top_logprobs": listed}
            rows.append(told if len(prompt) + len(ids) not in self.leaves_out else told | {"top_logprobs": []})
            ids.append(token)
            ended = token == END
        return {
            "index": index,
            "content": "",
            "tokens": ids,
            "stop": True,
            "stop_type": "eos" if ended else "limit",
            "tokens_evaluated": len(prompt),
            "tokens_predicted": len(ids) if self.tells is None else self.tells,
            "completion_probabilities": rows,
        }


def scored(way, question, server):
    dialect = able(LlamaServer(DialectConfig("m", TextVocabulary(WORDS))), scoring_method=way)
    (asked,), _ = drive(dialect.score(question))
    return drive(dialect.score(question), server(asked.body))[1], dialect.max_usage(question)


ids = st.lists(st.integers(0, NUM_TOKENS - 1), max_size=7).map(tuple)
questions = st.builds(
    ScoreQuestion,
    prefix=st.lists(st.integers(0, NUM_TOKENS - 2), min_size=1, max_size=4).map(tuple),
    span=ids,
    after=st.booleans(),
    top_k=st.integers(1, NUM_TOKENS),
).filter(lambda question: question.num_rows)
seeds = st.integers(0, 999)
WAYS = LlamaServer.can.scoring_methods


def greedy_draft(seed, prefix, length):
    span = ()
    while len(span) < length and END not in span:
        span += (table(seed, prefix + span).best,)
    return span


def assert_is_the_row(row, expected, top_k):
    """What one request would show: the best k, and perhaps one token more, that does not lower the cap."""
    one_request = TopK.from_dense(expected, top_k)
    assert row.ids[: row.num_listed].tolist() == one_request.ids.tolist()
    assert row.logprobs == pytest.approx(expected.logprobs[row.ids])
    assert row.tail_max == pytest.approx(one_request.tail_max)
    assert len(row.ids) <= top_k + 1


@each("way", WAYS)
@given(question=questions, seed=seeds, agreed=st.integers(0, 7))
def test_the_rows_of_each_way_are_those_of_one_request_for_as_many_positions_as_it_answers(way, question, seed, agreed):
    """For drafts of any tokens, and for drafts that begin as the model itself would."""
    span = greedy_draft(seed, question.prefix, agreed) + question.span
    question = ScoreQuestion(question.prefix, span, question.after, question.top_k)
    scores, worst = scored(way, question, Server(seed))
    assert 1 <= len(scores.rows) <= question.num_rows
    for i, row in each_of(enumerate(scores.rows)):
        assert_is_the_row(row, table(seed, question.prefix + span[:i]), question.top_k)
    assert scores.usage.prompt_tokens <= worst.prompt_tokens
    assert scores.usage.completion_tokens <= worst.completion_tokens


@given(question=questions, seed=seeds)
def test_prefixes_and_replay_answer_every_position_that_they_can_name(question, seed):
    assert len(scored("prefixes", question, Server(seed))[0].rows) == question.num_rows
    unnamed = (i for i, token in enumerate(question.span) if token in {PART, PART + 1, END})
    expected = min(question.num_rows, next(unnamed, len(question.span)) + 1)
    assert len(scored("forced", question, Server(seed))[0].rows) == expected


@given(question=questions, seed=seeds, agreed=st.integers(0, 7))
def test_a_comparison_answers_up_to_the_first_token_where_the_texts_part(question, seed, agreed):
    span = greedy_draft(seed, question.prefix, agreed) + question.span
    question = ScoreQuestion(question.prefix, span, question.after, question.top_k)
    written = greedy_draft(seed, question.prefix, question.num_rows)
    same = next(
        (i for i, (a, b) in enumerate(zip(written, span, strict=False)) if a != b), min(len(written), len(span))
    )
    assert len(scored("generate", question, Server(seed))[0].rows) == min(same + 1, len(written))


@each("way", WAYS)
@given(question=questions, seed=seeds, at=st.integers(0, 7))
def test_a_row_that_is_missing_is_never_taken_for_a_certain_one(way, question, seed, at):
    """A server that drafts by itself says "probability 1" and shows no list; that position was not answered."""
    left_out = len(question.prefix) + at
    told = scored(way, question, Server(seed))[1].completion_tokens > at  # it comes as far at most
    whole, _ = scored(way, question, Server(seed))
    try:
        scores, _ = scored(way, question, Server(seed, leaves_out=[left_out]))
    except BadReply:
        assert told
    else:
        assert len(whole.rows) <= at, "the position was not among those that were answered"
        assert len(scores.rows) == len(whole.rows)


@each("way", ["prefixes", "generate"])
def test_a_server_that_writes_without_rows_cannot_score_and_one_that_writes_nothing_may_another_time(way):
    question = ScoreQuestion((1, 2), (0, 1), True, 3)

    class Silent(WritingScorer):
        tokens = (0,)

        def _write(self, question):
            pytest.fail("no text is asked for by itself")

        check_usage = _write

        def post_completions(self, asked):
            return tuple(asked)

        def read_completions(self, asked, _):
            from hybrid.cloud import Chunk
            from hybrid.types import CloudUsage

            return [Chunk(self.tokens, (None,) * len(self.tokens), usage=CloudUsage(2, 1)) for _ in asked]

    silent = able(Silent(DialectConfig(vocabulary=TextVocabulary(WORDS))), scoring_method=way)
    with pytest.raises(MissingCapability, match="without log-probabilities"):
        drive(silent.score(question), None)
    Silent.tokens = ()
    _, scores = drive(silent.score(question), None)
    assert scores.rows == ()


@each("way", WAYS)
@given(question=questions, seed=seeds, told=st.integers(0, 1))
def test_a_server_that_tells_too_little_is_charged_for_what_it_wrote(way, question, seed, told):
    """A token it wrote was computed; the one that ended it too, where a text does not show it."""
    honest, _ = scored(way, question, Server(seed))
    scores, worst = scored(way, question, Server(seed, tells=told))
    assert honest.usage.completion_tokens <= scores.usage.completion_tokens <= worst.completion_tokens


@each("way", WAYS)
@given(question=questions, seed=seeds)
def test_the_least_is_what_an_honest_server_charges_at_the_least(way, question, seed):
    scores, worst = scored(way, question, Server(seed))
    least = able(LlamaServer(DialectConfig("m", TextVocabulary(WORDS))), scoring_method=way).min_usage(question)
    assert least.prompt_tokens <= scores.usage.prompt_tokens <= worst.prompt_tokens
    assert least.completion_tokens <= scores.usage.completion_tokens <= worst.completion_tokens
