"""Flags that would help, and what each would save: said of what a probe has shown, never of a guess.

Only vLLM's are known here (0.32). What a flag would save follows from what was measured: the tokens of the longer text
and of a check after it, and the probability that lists left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from hybrid.cloud.probe_result import ProbeResult

# Opens vLLM's token-in route, which from 0.30 on answers 403 without it, and names it.
SCALE_OUT = "--enable-scale-out"
# vLLM caches whole blocks of a prefix: of 16 tokens on a GPU, of 128 on a CPU, unless --block-size says otherwise.
LONGEST_BLOCK = 128


@dataclass(frozen=True)
class FlagAdvice:
    """A flag of the server or of ``hybrid``, and what is gained with it."""

    of: Literal["server", "hybrid"]
    flag: str
    gain: str


def flag_advice(found: ProbeResult, wanted_k: int) -> tuple[FlagAdvice, ...]:
    """Return the flags that would help a client that wants ``wanted_k`` log-probabilities a token."""
    return tuple(_of_vllm(found, wanted_k)) if found.dialect in {"vllm", "vllm-tokens"} else ()


def _of_vllm(found: ProbeResult, wanted_k: int) -> Iterator[FlagAdvice]:
    if found.most_k is not None and found.most_k < wanted_k:
        gain = f"gives the {wanted_k} log-probabilities a token that cloud_top_k asks for, instead of {found.most_k}"
        mass = found.hidden_mass
        lost = "" if mass is None else f", which left out up to {100 * mass:.2g}% of the probability in what it wrote"
        yield FlagAdvice("server", f"--max-logprobs {wanted_k}", gain + lost)
    # So many tokens of that text are cached when it is sent again, whatever the block.
    text, cached = found.prefix_tokens or 0, (found.prefix_tokens or 0) // LONGEST_BLOCK * LONGEST_BLOCK
    if found.cached_usage is False and cached:
        gain = f"tells how many tokens were cached: {cached} or more of {text} that are sent again are billed as such"
        yield FlagAdvice("server", "--enable-prompt-tokens-details", gain)
    if found.keeps_cache or found.check_tokens is None or not cached:
        return
    reads = (
        f"candidates are scored by id, and of a check after {text} tokens about {found.check_tokens - cached} are "
        f"charged in full instead of {found.check_tokens}"
    )
    if found.candidates is False:  # what only that runner can
        yield FlagAdvice("server", "VLLM_USE_V2_MODEL_RUNNER=1", reads)
    elif found.token_route:
        yield FlagAdvice("hybrid", "--dialect vllm-tokens", f"where the server runs vLLM's V2 model runner, {reads}")
    elif found.token_route is False:
        gain = f"opens --dialect vllm-tokens: where the server runs vLLM's V2 model runner, {reads}"
        yield FlagAdvice("server", SCALE_OUT, gain)
