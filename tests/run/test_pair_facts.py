"""Facts of a pair: the model by its file, the endpoint by its last probe; what cannot be read is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybrid.cloud import Capabilities
from hybrid.cloud.probe_result import ProbeCache, ProbeResult
from hybrid.errors import UsageError
from hybrid.pairs.profile import PairIdentity, token_times
from hybrid.settings.names import MODELS
from hybrid.spend import TokenTimes

URL, CAN = "http://gpu:8000", Capabilities("big")
TIMED = ProbeResult(URL, "big", "vllm", written_ms=20.0, scored_ms=1.0, check_ms=30.0)


@pytest.fixture
def probes(tmp_path):
    return ProbeCache(tmp_path / "cache.json", "words")


def test_the_last_probe_of_this_model_at_this_endpoint_tells_the_times(probes):
    probes.write(replace(TIMED, model="other"))
    assert token_times(CAN, URL, lambda: probes) is None
    probes.write(TIMED)
    assert token_times(CAN, URL, lambda: probes) == TokenTimes(20.0, 1.0, None, 30.0)
    probes.write(replace(TIMED, dialect="vllm-tokens", reread_ms=0.1))
    assert token_times(CAN, URL, lambda: probes) == TokenTimes(20.0, 1.0, 0.1, 30.0)
    assert token_times(CAN, "http://other", lambda: probes) is None
    probes.write(replace(TIMED, dialect="vllm-tokens", check_ms=None))
    assert token_times(CAN, URL, lambda: probes) is None, "a time that was not measured"


def test_what_cannot_be_read_is_none(tmp_path, probes):
    def homeless():
        raise UsageError("no home")

    for kept in (homeless, lambda: None, lambda: probes):
        assert token_times(CAN, URL, kept) is None
    assert PairIdentity.of(tmp_path / "none.gguf", URL, homeless).local is None


def test_two_models_are_two_and_a_copy_is_the_same(tmp_path):
    copy = tmp_path / "copy.gguf"
    copy.write_bytes((MODELS / "small.gguf").read_bytes())
    small, large, again = (
        PairIdentity.of(path, None, lambda: None).local for path in (MODELS / "small.gguf", MODELS / "large.gguf", copy)
    )
    assert small == again != large
