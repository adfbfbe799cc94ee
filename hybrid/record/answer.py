"""What a question comes back as: the text, who wrote each token and why, what it cost. Frozen values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import msgspec

from hybrid.prob import kl_with_noise
from hybrid.spend import Bill, CapScope
from hybrid.types import DegradedKind, Divergence, FinishReason, TokenOutcome, TokenSource

Mixing: TypeAlias = Literal["mix", "select"]


@dataclass(frozen=True)
class RecordedExpert:
    """One of several models that write as one: what its rows may be off by, as ``prob.Dense`` has it, and its start."""

    name: str
    noise: float = 0.0
    shift: float | None = None
    weight: float = 1.0


class Token(msgspec.Struct, frozen=True):
    """One token of the answer. ``text`` is what became readable with it: a split character comes with its last part.

    ``thought``: it was written before the answer itself, in the model's thoughts or as one of their marks (of a first
    mark that is several tokens, the last one). ``thought_text`` is what became readable of the thoughts.
    ``concept_kl``: KL over concepts, where that of tokens was above a threshold and concepts are known.
    ``certificate``: the least KL(cloud || local), in nats, at which the local model's favourite may not be the cloud's,
    whatever the noise in the cloud's row. ``model``: which model wrote it, by its name; None where no name is known.
    """

    id: int
    text: str
    source: TokenSource
    how: TokenOutcome
    kl: Divergence | None = None
    why: str | None = None
    certificate: float | None = None
    thought: bool = False
    thought_text: str = ""
    model: str | None = None
    concept_kl: Divergence | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``; an infinite divergence is null."""
        data = plain(self)
        for kl in filter(None, (data["kl"], data["concept_kl"])):
            kl |= {name: None for name, value in kl.items() if not math.isfinite(value)}
        return data

    @property
    def is_wording(self) -> bool:
        """Whether it stands because it says what the cloud would have said, in other words."""
        return self.source == "local" and self.concept_kl is not None

    @property
    def certified(self) -> bool:
        """Whether the two models' favourites are one, by the most that their divergence can be, noise included."""
        if self.kl is None or self.certificate is None:
            return False
        return kl_with_noise(self.kl.upper, self.kl.noise) < self.certificate


@dataclass(frozen=True)
class Handoff:
    """The cloud took the pen at token ``position`` for ``tokens`` tokens."""

    position: int
    reason: str
    tokens: int


@dataclass(frozen=True)
class Usage:
    """Tokens and requests of one answer. End-of-text tokens are in no token count but the cloud's own.

    ``certified``: tokens of the local model at which the largest KL(cloud || local) that the rows and their noise allow
    is below the least at which the two models' most likely tokens can differ. ``thought_tokens`` are among the local
    and the cloud tokens. ``bytes_sent``: of the bodies of all requests that left this machine, or may have.
    ``written_by``: how many tokens each model wrote, by its name. ``wording``: tokens of the local model at which KL
    over tokens alone would have handed over, and KL over concepts did not. ``cloud_cache_write_tokens``: those of the
    prompts that the cloud wrote to its cache (None: some reply did not tell). ``cloud_reasoning_tokens``: the cloud's
    thoughts, among its completion.

    Of ``cloud_prompt_tokens`` and ``cloud_completion_tokens``, ``cloud_told_...`` are what the server told,
    ``cloud_known_...`` what was counted here beyond that, and ``cloud_assumed_...`` what is charged because nothing
    told how much it was: of a reply that broke off, or came without a usage, up to the most that it can be.
    """

    local_tokens: int
    cloud_tokens: int
    drafted: int
    rejected: int
    checks: int
    cloud_requests: int
    cloud_prompt_tokens: int
    cloud_cached_tokens: int
    cloud_completion_tokens: int
    certified: int = 0
    thought_tokens: int = 0
    bytes_sent: int = 0
    written_by: Mapping[str, int] = field(default_factory=dict)
    wording: int = 0
    cloud_cache_write_tokens: int | None = None
    cloud_reasoning_tokens: int = 0
    cloud_told_prompt_tokens: int = 0
    cloud_told_completion_tokens: int = 0
    cloud_known_prompt_tokens: int = 0
    cloud_known_completion_tokens: int = 0
    cloud_assumed_prompt_tokens: int = 0
    cloud_assumed_completion_tokens: int = 0


@dataclass(frozen=True)
class Timing:
    """Milliseconds from the question to the first shown token (None: none was) and to the end.

    ``critic_ms``: what the critic's reading took of them; None: there was none.
    """

    ttft_ms: float | None
    total_ms: float
    critic_ms: float | None = None


@dataclass(frozen=True)
class Answer:
    """A finished answer. ``text`` is without the model's thoughts, which are ``thoughts``.

    ``degraded`` says why the cloud was not asked where it should have been, even if it was again later; None if it was
    always. ``degraded_kind`` is that reason as one of a few words, and ``degraded_cap`` the cap that decided it; None
    where none did. ``notes``: what else is not as the policy would have
    it. ``seed``: what all draws of this answer came from; the same question with it is the same answer. ``policy``: the
    composed policy, in the grammar of the command line. ``guarantee``: what it guarantees of the text while the cloud
    answers. ``experts``: at the end, the weight of each of several local models that wrote as one, by its name.
    """

    text: str
    finish_reason: FinishReason
    tokens: tuple[Token, ...]
    usage: Usage
    bill: Bill
    handoffs: tuple[Handoff, ...]
    degraded: str | None
    degraded_kind: DegradedKind | None
    notes: tuple[str, ...]
    timing: Timing
    seed: int
    policy: str
    guarantee: str
    thoughts: str = ""
    experts: Mapping[str, float] = field(default_factory=dict)
    degraded_cap: CapScope | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``; an infinite divergence is null."""
        data = plain(replace(self, tokens=())) | {"tokens": [token.to_json() for token in self.tokens]}
        for token in data["tokens"]:
            del token["why"]  # said once, in handoffs
        return data


def plain(value: Any) -> dict[str, Any]:
    """Return a value as plain data for ``json.dumps``."""
    data: dict[str, Any] = msgspec.to_builtins(value, enc_hook=float)
    return data
