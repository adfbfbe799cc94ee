"""What a token costs here does not grow with the text before it: a text is gone through once a check, if at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import each_of
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine

from hybrid.cloud import Chunk
from hybrid.engine import Cursor
from hybrid.errors import VocabularyMismatch
from hybrid.policy import SeededCoin
from hybrid.policy.gates import ALWAYS
from hybrid.policy.requests import Draft
from hybrid.run.drafting import Drafter
from hybrid.run.open_request import WriteStream
from hybrid.run.verifier import VocabularyCheck
from hybrid.types import Sampling

LONG = 100
WORDS = "abcdefgh"


class Text(tuple):
    """Token ids that count how often all of them are gone through, by whatever is made of them too."""

    __slots__ = ()
    looks = 0

    def _made(self, ids):
        if len(ids) < LONG:
            return tuple(ids)
        Text.looks += 1
        return tuple.__new__(Text, ids)

    def __add__(self, other):
        return self._made(tuple.__add__(self, other))

    def __radd__(self, other):
        return self._made(tuple.__add__(other, self))

    def __getitem__(self, key):
        found = tuple.__getitem__(self, key)
        return self._made(found) if isinstance(key, slice) else found

    def __eq__(self, other):
        Text.looks += 1
        return tuple.__eq__(self, other)

    __hash__ = tuple.__hash__

    def __iter__(self):
        Text.looks += 1
        return tuple.__iter__(self)


def plain(ids):
    """Return the same ids, counted no more: what a model does with them is no work of ours."""
    return tuple.__getitem__(ids, slice(None))


class Engine(ScriptedEngine):
    """Its text is counted when it is told, not when the table is read."""

    @property
    def ids(self):
        return tuple.__new__(Text, self._ids)

    def extend(self, ids, *more):
        return super().extend(plain(ids), *more)


def scores(prefix):
    return [0.0, 9.0 + prefix[-1] % 2, 8.0, 7.0, 0.0, 0.0, 0.0, -9.0]


@pytest.fixture
def prompt():
    """A prompt that counts, from now on."""
    Text.looks = 0
    return tuple.__new__(Text, (0, 1, 2, 3) * (LONG // 4))


def test_a_draft_goes_through_the_text_before_it_as_often_whatever_its_length(prompt):
    looks = []
    for limit in (2, 40):
        drafter = Drafter(Cursor(Engine(WORDS, scores)), prompt, Sampling(), SeededCoin(0))
        Text.looks = 0
        assert len(drafter.draft(Draft((), limit, ALWAYS, wants_next_row=True), limit, lambda: False).span) == limit
        looks.append(Text.looks)
    assert 0 < looks[0] == looks[1]


def test_so_does_all_that_happens_from_one_check_to_the_next(house, run, monkeypatch, prompt):
    looks = []
    for span in (2, 20):
        h = house(made=Engine, small=scores)
        score = h.cloud.score
        monkeypatch.setattr(h.engine, "tokenize", lambda *_, **__: prompt)
        monkeypatch.setattr(
            h.cloud, "score", lambda q, *attempt, score=score: score(replace(q, prefix=plain(q.prefix)), *attempt)
        )
        Text.looks = 0
        kept = {"policy": "kl", "threshold": float("inf"), "span": span, "overlap": False}
        answer = run(h.client.generate("x", raw=True, max_tokens=4 * span, **kept))
        assert (answer.usage.checks, len(answer.tokens)) == (4, 4 * span)
        looks.append(Text.looks)
    assert 0 < looks[0] == looks[1]


PIECES = {0: b" two", 1: b"\xc3", 2: b"\xa9t", 3: b" ", 4: "\N{LOWER ONE EIGHTH BLOCK}x".encode()}
SHOWN = {0: " two", 1: "", 2: "ét", 3: " ", 4: " x"}


class ChatVocabulary:
    num_tokens = len(PIECES)
    piece = staticmethod(PIECES.__getitem__)


def stream_of(check, chunks):
    """Compare chunks in a stream that has read them, and yield it after each."""
    stream = WriteStream((), None, None)
    for chunk in chunks:
        stream.cloud_text += chunk.text
        check.check_written(stream, chunk)
        yield stream


@given(tokens=st.lists(st.sampled_from([(0,), (1, 2), (3,), (4,)]), min_size=1, max_size=40), lag=st.integers(0, 3))
def test_what_a_stream_has_written_is_compared_once_however_the_endpoints_text_lags(tokens, lag):
    """Comparing all of it at every token, 8,000 of them would have been read 32 million times."""
    ids = [i for pair in tokens for i in pair]
    texts = [""] * lag + [SHOWN[i] for i in ids]
    chunks = [Chunk((i,), (None,), text) for i, text in zip(ids, texts, strict=False)]
    for number, stream in each_of(enumerate(stream_of(VocabularyCheck(ChatVocabulary()), chunks), start=1)):
        behind = b"".join(PIECES[i] for i in ids[max(0, number - lag - 2) : number])
        if any(chunk.text for chunk in chunks[max(0, number - 1) : number]):
            assert not stream.cloud_text or stream.local_text.endswith(b"\xc3")
            assert len(stream.local_text) <= len(behind)


@given(before=st.lists(st.sampled_from([0, 3, 4]), max_size=12), after=st.integers(0, 3), lag=st.integers(0, 2))
def test_a_text_that_differs_is_found_wherever_it_does(before, after, lag):
    told = [SHOWN[i] for i in before] + [" three"] + [" two"] * after
    ids = [*before, *[0] * (1 + after + lag)]
    chunks = [Chunk((i,), (None,), text) for i, text in zip(ids, [""] * lag + told, strict=True)]
    with pytest.raises(VocabularyMismatch, match="three"):
        list(stream_of(VocabularyCheck(ChatVocabulary()), chunks))
