"""What the noise of two models changes in an answer, and that an answer and its trace say how much there was."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from cases import each

from hybrid.record.answer import Token
from hybrid.record.events import TRACE_VERSION, Finished, TokenEmitted, to_json
from hybrid.run import LocalModel
from hybrid.run.client import AsyncClient
from hybrid.run.replay import replay
from hybrid.types import Divergence

PROMPT = "a b c"


async def answered(client, **choices):
    return await client.generate(PROMPT, raw=True, max_tokens=24, **choices)


def with_local_noise(house, noise, shift=None):
    """The same client, but that its local model's noise was measured."""
    client = house.client
    again = AsyncClient(
        LocalModel([(house.engine, house.worker)], noise, shift),
        client._connection._connect,
        client._account,
        client._settings,
    )
    return replace(house, client=again)


def test_the_noise_of_both_models_is_told_with_every_divergence(house, run):
    answer = run(answered(with_local_noise(house(noise=0.25), 0.125).client, policy="kl", threshold=0.3))
    found = {token.kl.noise for token in answer.tokens if token.kl}
    assert found == {0.375}
    kl = next(token["kl"] for token in answer.to_json()["tokens"] if token["kl"])
    assert list(kl) == ["estimate", "lower", "upper", "noise"]


@each("whose", ["cloud", "local"])
def test_a_verdict_that_the_noise_may_have_made_is_none(house, run, whose):
    """A threshold just below the first token's divergence: without noise the cloud takes the pen there."""
    every = run(answered(house().client, policy="kl", threshold=float("inf")))
    threshold = every.tokens[0].kl.lower * 0.999
    assert run(answered(house().client, policy="kl", threshold=threshold)).tokens[0].source == "cloud"
    noisy = house(noise=0.02) if whose == "cloud" else with_local_noise(house(), 0.02)
    assert run(answered(noisy.client, policy="kl", threshold=threshold)).tokens[0].source == "local"


def test_a_token_counts_as_certified_by_its_upper_end_and_the_noise_beyond_it():
    """Not by the estimate, not by what the numbers alone allow."""

    def certified(kl, certificate=0.1):
        return Token(1, "x", "local", "accepted", kl, certificate=certificate).certified

    assert certified(Divergence(0.01, 0.02, 0.099))
    assert not certified(Divergence(0.01, 0.02, 0.1))
    assert not certified(Divergence(0.01, 0.02, 0.099, noise=0.01))
    assert certified(Divergence(0.01, 0.02, 0.08, noise=0.01))
    assert not certified(None)
    assert not certified(Divergence(0.01, 0.02, 0.03), None)


def test_usage_counts_the_certified_tokens_and_noise_leaves_fewer(house, run):
    """From three shown tokens: some have their estimate below the certificate, and their upper end above."""
    counts, doubtful = {}, 0
    for noise in (0.0, 0.1, 0.5):
        h = house(noise=noise)
        h.client._settings = h.client._settings.model_copy(update={"cloud_top_k": 3})
        answer = run(h.client.generate(PROMPT, raw=True, max_tokens=200, policy="kl", threshold=float("inf")))
        known = [token for token in answer.tokens if token.kl and token.certificate is not None]
        counts[noise] = answer.usage.certified
        doubtful += sum(token.kl.estimate < token.certificate <= token.kl.upper for token in known)
        if not noise:
            assert answer.usage.certified == sum(token.kl.upper < token.certificate for token in known)
    assert doubtful
    assert counts[0.0] > counts[0.1] > counts[0.5]


async def recorded(client, path, **choices):
    """Answer, and write every event as the command line does."""
    with path.open("w") as file:
        print(json.dumps({"trace": TRACE_VERSION}), file=file)
        async for event in client.stream(PROMPT, raw=True, trace_rows=True, max_tokens=24, **choices):
            print(json.dumps(to_json(event)), file=file)
            if isinstance(event, Finished):
                answer = event.answer
    return answer


def told(answer):
    return [(t.id, t.source, t.how, t.why, t.kl, t.certificate) for t in answer.tokens], answer.usage


@each("shift", [None, 0.05])
def test_a_recording_is_replayed_with_its_noise(house, run, tmp_path, shift):
    """Its verdicts are others than those of the numbers alone."""
    path = tmp_path / "trace.jsonl"
    h = with_local_noise(house(noise=0.2), 0.1, shift)
    answer = run(recorded(h.client, path, policy="kl", threshold=0.2, span=4))
    again = run(replay(path))
    assert told(again) == told(answer)
    found = {t.kl.noise for t in again.tokens if t.kl}
    assert (found == {0.1 + 0.2}) if shift is None else (max(found) < 0.1 + 0.2)
    silent = run(answered(house().client, policy="kl", threshold=0.2, span=4))
    assert [t.source for t in silent.tokens] != [t.source for t in answer.tokens]


def test_a_recording_of_an_earlier_version_is_replayed_without_noise(house, run, tmp_path):
    path = tmp_path / "trace.jsonl"
    answer = run(recorded(house().client, path, policy="kl", threshold=0.2, span=4))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line.pop("noise", None)
        (line.get("cloud") or {}).pop("noise", None)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert told(run(replay(path))) == told(answer)


def test_an_event_of_a_shown_token_tells_the_noise():
    event = TokenEmitted(0, Token(1, "x", "local", "accepted", Divergence(0.1, 0.1, np.inf, 0.25)))
    assert to_json(event)["token"]["kl"] == {"estimate": 0.1, "lower": 0.1, "upper": None, "noise": 0.25}
