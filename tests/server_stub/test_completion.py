"""One completion without a process: the law tokens are drawn from, and where text is cut."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine

from hybrid.engine import Worker
from server_stub.ask import Ask
from server_stub.completion import Charge, Completion, Step, _Text
from server_stub.slots import Slot

PROBS = np.array([0.10, 0.40, 0.05, 0.30, 0.15])


def completion(engine=None, worker=None, token_s=0.0, prefill_s=0.0, **fields) -> Completion:
    engine = engine or ScriptedEngine("abcde", lambda _: np.log(PROBS).tolist())
    ask = Ask(**({"ids": (0,), "max_tokens": 16} | fields))
    return Completion(ask, Slot(engine, worker, 5), Charge(), token_s, prefill_s)


def draws(num: int, logits=None, **fields) -> Counter:
    work, rng = completion(**fields), np.random.default_rng(7)
    logits = np.log(PROBS) if logits is None else logits
    return Counter(work._draw(logits.astype(np.float32), rng)[0] for _ in range(num))


def law(temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """Temperature, then top-k, then top-p, written out."""
    weights = PROBS ** (1 / temperature)
    order = np.argsort(-weights)[: top_k if top_k > 0 else None]
    shares = weights[order] / weights[order].sum()
    before = np.cumsum(shares) - shares
    kept = order[before < top_p]
    probs = np.zeros_like(PROBS)
    probs[kept] = weights[kept] / weights[kept].sum()
    return probs


@pytest.mark.slow
@each(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (2.0, 0, 1.0), (0.5, 0, 1.0), (1.0, 3, 1.0), (1.0, -1, 0.8), (1.0, 3, 0.8), (2.0, 0, 0.75)],
)
def test_tokens_are_drawn_from_the_law_of_the_settings_in_vllms_order(temperature, top_k, top_p):
    """4,000 draws with a fixed seed; chi-square below its 1 - 1e-6 quantile at 4 degrees of freedom.

    (1, 3, 0.8) has two tokens when top-k comes first and three when top-p does; (2, 0, 0.75) has four when the
    temperature comes before the nucleus and three after.
    """
    expected = 4000 * law(temperature, top_k, top_p)
    found = draws(4000, temperature=temperature, top_k=top_k, top_p=top_p)
    assert set(found) == set(np.flatnonzero(expected).tolist())
    assert sum((found[i] - n) ** 2 / n for i, n in enumerate(expected) if n) < 33.4


def test_the_order_of_the_settings_shows_in_the_law():
    """The test above could not fail if the orders agreed."""
    assert np.count_nonzero(law(1.0, 3, 0.8)) == 2
    assert np.count_nonzero(law(2.0, 0, 0.75)) == 4
    assert np.count_nonzero(law(1.0, 0, 0.75)) == 3


def test_a_bias_comes_before_everything_and_is_not_reported():
    work, rng = completion(temperature=0.0, logit_bias={1: -100, 2: 50}), np.random.default_rng(0)
    token, row = work._draw(np.log(PROBS).astype(np.float32), rng)
    assert token == 2
    assert row.actual(2) == (pytest.approx(np.log(0.05)), 5)
    assert set(draws(200, top_k=1, logit_bias={1: -100})) == {3}


@each("temperature", [5e-324, 1e-300, 1e-9, 0.009])
def test_the_coldest_temperatures_take_the_best_token(temperature):
    """Far below vLLM's smallest, scores overflow; a client must not meet a 500 for asking."""
    assert set(draws(20, temperature=temperature)) == {1}


def test_an_extreme_temperature_or_bias_still_gives_a_token():
    assert len(draws(100, temperature=1e300)) > 1
    assert set(draws(20, logit_bias={4: 1e300})) == {4}


def steps(engine, **fields) -> tuple[list[Step], Completion]:
    """Run a completion to its end."""
    worker = Worker("slot")
    work = completion(engine, worker, **fields)

    async def run() -> list[Step]:
        return [step async for step in work.steps(await work.start())]

    try:
        return asyncio.run(run()), work
    finally:
        worker.close()


@each("seed", [0, 1, -1, 2**63, -(2**70)])
def test_a_seed_repeats(scripted, seed):
    first, second = ([step.token for step in steps(scripted(), seed=seed, max_tokens=20)[0]] for _ in range(2))
    assert first == second


def test_seeds_differ(scripted):
    written = {tuple(step.token for step in steps(scripted(), seed=seed, max_tokens=20)[0]) for seed in (0, 1, -1)}
    assert len(written) == 3


def test_the_charge_is_what_was_written(scripted):
    written, work = steps(scripted(), max_tokens=7)
    assert [step.finish for step in written] == [None] * 6 + ["length"]
    assert (work.charge.prompt_tokens, work.charge.completion_tokens) == (1, 7)


def test_every_token_after_the_first_takes_its_time(scripted):
    """The first comes with the prompt: a check that writes one token must not become slower."""
    took = []
    for num_written in (1, 5):
        started = time.monotonic()
        steps(scripted(), token_s=0.05, max_tokens=num_written)
        took.append(time.monotonic() - started)
    assert took[0] < 0.05 * 3
    assert took[1] >= 0.05 * 4


def test_every_token_of_a_prompt_that_no_cache_gives_takes_its_time(scripted):
    started = time.monotonic()
    written, _ = steps(scripted(), prefill_s=0.02, ids=(0,) * 10, max_tokens=1)
    assert time.monotonic() - started >= 0.02 * 10
    assert len(written) == 1


def test_rows_are_told_after_bias_and_temperature_where_the_family_does_so():
    """SGLang's are; a greedy request has no temperature. A divergence computed from them is another one."""
    for temperature, scale, bias in [(2.0, 2.0, 0.0), (0.0, 1.0, 0.0), (2.0, 2.0, 2.5), (0.0, 1.0, 2.5)]:
        work = completion(temperature=temperature, processed_rows=True, watched=(3,), logit_bias={3: bias})
        token, row = work._draw(np.log(PROBS).astype(np.float32), np.random.default_rng(0))
        expected = (PROBS * np.exp(np.eye(len(PROBS))[3] * bias)) ** (1 / scale)
        expected /= expected.sum()
        assert row.actual(token)[0] == pytest.approx(np.log(expected[token]), abs=1e-6)
        assert row.watched == ((3, pytest.approx(np.log(expected[3]), abs=1e-6)),)


def test_an_end_token_is_one_like_any_other_where_the_ask_ignores_it():
    engine = ScriptedEngine(["w0", "<end>"], lambda _: [0.0, 5.0], end_ids=frozenset({1}))
    written, _ = steps(engine, temperature=0.0, max_tokens=3, ignores_end=True)
    assert [step.token for step in written] == [1, 1, 1]
    assert written[-1].finish == "length"


def test_an_end_token_stops_without_text_and_is_charged():
    """Words 1, 2, then the end."""
    best = {1: 1, 2: 2, 3: 3}
    engine = ScriptedEngine(
        ["w0", "w1", "w2", "<end>"],
        lambda ids: [5.0 * (i == best[len(ids)]) for i in range(4)],
        end_ids=frozenset({3}),
    )
    written, work = steps(engine, temperature=0.0, max_tokens=50)
    assert [step.token for step in written] == [1, 2, 3]
    assert "".join(step.text for step in written) == "w1 w2 "
    assert [step.finish for step in written] == [None, None, "stop"]
    assert written[-1].stopped_by is None
    assert work.charge.completion_tokens == 3


@dataclass
class Bytes:
    """A vocabulary of given pieces."""

    pieces: list[bytes]

    def piece(self, token: int) -> bytes:
        return self.pieces[token]


def naive(pieces: list[bytes], stops: list[str]) -> tuple[str, str | None]:
    """Decode everything anew after every token and look for a stop string."""
    for count in range(1, len(pieces) + 1):
        whole = b"".join(pieces[:count])
        text = whole.decode("utf-8", "ignore" if is_unfinished(whole) else "replace")
        found = [(text.find(stop), stop) for stop in stops if stop in text]
        if found:
            return text[: min(found)[0]], min(found)[1]
    return b"".join(pieces).decode("utf-8", "replace"), None


def is_unfinished(whole: bytes) -> bool:
    """Whether text ends within a character. The pieces below make no other invalid UTF-8."""
    return whole.endswith(b"\xc3")


PIECES = st.lists(st.sampled_from([b"a", b"b", b"ab", b"ba", b"aab", "\u00e9".encode(), b"a\xc3", b""]), max_size=14)
STOPS = st.lists(st.text("ab\u00e9", min_size=1, max_size=4), max_size=3)


@given(pieces=PIECES, stops=STOPS)
def test_text_is_cut_at_the_first_stop_string_and_nothing_beyond_it_is_shown(pieces, stops):
    """A stream cannot take back what it has shown, so what may become a stop string is held back until it cannot."""
    # An accent that was begun is finished, so that the naive decoder need not guess.
    pieces = [part for piece in pieces for part in ([piece, b"\xa9"] if piece.endswith(b"\xc3") else [piece])]
    text, shown, stopped_by = _Text(stops, Bytes(pieces)), "", None
    expected, stop = naive(pieces, stops)
    for token in each_of(range(len(pieces)), least=0):
        piece, stopped_by = text.add(token)
        shown += piece
        assert expected.startswith(shown)
        if stopped_by is not None:
            break
    else:
        shown += text.flush()
    assert (shown, stopped_by) == (expected, stop)


def test_an_unfinished_character_is_shown_as_such_only_at_the_end():
    text = _Text([], Bytes([b"a\xe2\x82", b"\xac", b"\xe2"]))
    assert [text.add(0)[0], text.add(1)[0], text.add(2)[0], text.flush()] == ["a", "\u20ac", "", "\ufffd"]


def test_an_empty_stop_string_stops_nothing():
    text = _Text(["", "b"], Bytes([b"a"]))
    assert text.add(0) == ("a", None)
