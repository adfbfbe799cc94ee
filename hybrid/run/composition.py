"""An answer's settings as what lower rooms take: the sampling, the policy, and what a trace keeps of both.

The law: a recording's settings, read back, build the policy that was recorded (``tests/run/test_replay_trace.py``).
"""

from __future__ import annotations

import secrets

from hybrid.cloud import Capabilities
from hybrid.config import PolicyChoices, Settings
from hybrid.policy import PRESETS, Choices, Policy, preset
from hybrid.sources import choosing
from hybrid.types import Sampling

# Endpoints take seeds of so many bits.
SEED_BITS = 31


def sampling_of(settings: Settings) -> Sampling:
    """Return how tokens are drawn, whoever draws them. Before an answer has its seed, nothing is drawn."""
    return Sampling(settings.temperature, settings.top_k, settings.top_p, settings.seed or 0, settings.min_p)


def policy_of(settings: Settings, measured: int | None = None) -> Policy:
    """Build the policy that the settings name; ``measured`` is ``auto``'s or ``cheap``'s span, None the policy's own.

    Raises UsageError where they contradict each other.
    """
    choices = Choices(
        **{name: getattr(settings, name) for name in PolicyChoices.model_fields}
        | {"span": settings.span if isinstance(settings.span, int) else measured},
        sampling=sampling_of(settings),
        max_tokens=settings.max_tokens,
        cloud_top_k=settings.cloud_top_k,
    )
    chosen = preset(settings.policy, choices)
    return PRESETS["local"].build(choices) if settings.offline else chosen


def choices_of(settings: Settings, policy: Policy) -> dict[str, str | tuple[str, ...]]:
    """Return what a trace keeps beside the sampling, so that it is replayed under what it was recorded under."""
    chosen = {} if settings.offline else {name: getattr(settings, name) for name in PolicyChoices.model_fields}
    chosen |= {"span": policy.span, "cloud_top_k": settings.cloud_top_k}  # ``auto`` was a number by then
    written = {name: str(value) for name, value in chosen.items() if value is not None}  # JSON has no infinity
    return {**written, "stop": settings.stop}


def seeded(settings: Settings) -> Settings:
    """Return settings that name a seed: a fresh one where none was given."""
    return settings if settings.seed is not None else choosing(settings, {"seed": secrets.randbits(SEED_BITS)})


def within_reach(settings: Settings, can: Capabilities) -> Settings:
    """Ask for no more log-probabilities than the endpoint gives: what a policy may draw from depends on it."""
    most = settings.cloud_top_k if can.most_k is None else min(can.most_k, settings.cloud_top_k)
    return settings.model_copy(update={"cloud_top_k": most})
