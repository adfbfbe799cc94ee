"""What was measured of two models widens the verdicts over them; what was not is assumed."""

from __future__ import annotations

import pytest
from arithmetic import rounds_by_shape, tolerance
from cases import each

import hybrid
from hybrid.assemble import BUNDLED_LOCAL
from hybrid.cloud.probe_result import ProbeCache, ProbeResult
from hybrid.engine.identity import LocalNoise, NoiseCache
from hybrid.engine.llama import Weights
from hybrid.prob import UNMEASURED
from hybrid.settings.sources import cache_file

# The bundled models part by 0.13 nats at one of its tokens.
QUESTION = "Give 1978-04-24 07:12 in words."


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """An empty cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def ask(url, **choices):
    with hybrid.open(local="small", cloud=url, max_tokens=24, policy="kl", **choices) as client:
        return client.generate(QUESTION)


def found(stub, noise):
    """Keep what a probe would have found of the server, with this noise."""
    known = ProbeResult(stub.url, "large", "vllm", rows=True, scoring_method="one request", most_k=20, noise_nats=noise)
    ProbeCache(cache_file(), Weights(BUNDLED_LOCAL).vocabulary_digest).write(known)


def noise_of(answer):
    """The least noise of any divergence and the most: the local model's own is what its shift does at each."""
    found = {token.kl.noise for token in answer.tokens if token.kl}
    return min(found), max(found)


def test_the_noise_that_a_probe_measured_at_the_endpoint_is_taken_for_what_was_assumed(stub, caches):
    own = [noise - UNMEASURED for noise in noise_of(ask(stub.url))]
    # The bundled local model's, which is measured as it is opened; some builds have none.
    assert -1e-9 < own[0] <= own[1] < tolerance().nats
    assert 1e-4 < own[0] < own[1] or not rounds_by_shape()
    found(stub, 0.4)
    assert noise_of(ask(stub.url, threshold=0.05))[0] - 0.4 == pytest.approx(own[0], rel=0.5, abs=1e-9)


@each("noise", [-1.0, float("nan")])
def test_what_cannot_be_a_noise_is_not_believed(stub, caches, noise):
    before = noise_of(ask(stub.url))
    found(stub, noise)
    assert noise_of(ask(stub.url)) == before


def test_a_large_noise_at_the_endpoint_changes_a_verdict_and_none_at_threshold_0(stub, caches):
    """The first token that the cloud turned down may be the noise's doing."""
    found(stub, 0.0)
    answer, whole = ask(stub.url, threshold=0.05), ask(stub.url, threshold=0.0)
    first = next(i for i, token in enumerate(answer.tokens) if token.source == "cloud")
    found(stub, 3.0)
    noisy = ask(stub.url, threshold=0.05)
    assert noisy.tokens[first].source == "local"
    assert noisy.usage.certified == 0 < answer.usage.certified
    assert ask(stub.url, threshold=0.0).text == whole.text


def test_what_was_measured_of_the_local_model_is_read_before_it_is_measured_again(stub, caches):
    found(stub, 0.0)
    NoiseCache(cache_file()).write(BUNDLED_LOCAL, 0, LocalNoise(0.75))
    assert noise_of(ask(stub.url)) == (0.75, 0.75)
    NoiseCache(cache_file()).write(BUNDLED_LOCAL, 1, LocalNoise(0.25))
    assert noise_of(ask(stub.url)) == (0.75, 0.75)  # on a GPU it is another
    NoiseCache(cache_file()).write(BUNDLED_LOCAL, 0, LocalNoise(0.75, 0.5))
    least, most = noise_of(ask(stub.url))
    assert noise_of(ask(stub.url, gpu_layers=0)) == (least, most), "unset is 0 where there is no GPU"
    assert noise_of(ask(stub.url, kv_type="bf16"))[1] < 0.75, "another cache reads a text in another way"
    NoiseCache(cache_file()).write(BUNDLED_LOCAL, 0, LocalNoise(0.6, 0.5), "bf16")
    assert noise_of(ask(stub.url, kv_type="bf16"))[1] == 0.6
    assert least < 0.46 <= most <= 0.75  # half a root at most counts as 0.45, where a KL is not too large for it


def test_a_model_that_would_take_long_is_not_measured_while_somebody_waits(stub, caches, monkeypatch):
    monkeypatch.setattr("hybrid.assemble.local_models.MEASURED_AT_ONCE", 1)
    assert noise_of(ask(stub.url)) == (2 * UNMEASURED, 2 * UNMEASURED)
