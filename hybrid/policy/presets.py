"""The table of named policies. A new rule is one file in ``rules/`` and one line here."""

from __future__ import annotations

from hybrid.errors import UsageError
from hybrid.policy.choices import Choices, NumberRange, Preset
from hybrid.policy.compose import compose
from hybrid.policy.gates import NEVER, RandomGate
from hybrid.policy.policy import Policy
from hybrid.policy.rules.bild import BILD
from hybrid.policy.rules.block import BLOCK
from hybrid.policy.rules.cascade import CASCADE
from hybrid.policy.rules.divergence_threshold import DOUBT, FSD, KL, PAPER
from hybrid.policy.rules.exact import EXACT, GREEDY_EXACT, U_HLM
from hybrid.policy.rules.relaxed import CERTIFIED, RELAXED

# One model alone, and a handoff at random: what every other policy is compared with.
LOCAL = Preset(
    "local",
    "the local model alone; no request is sent",
    source="plain decoding",
    make=lambda _, __: Policy("local", 1, NEVER),
)
CLOUD = Preset(
    "cloud",
    "the cloud model alone; the local one only finishes if it fails",
    source="plain decoding",
    make=lambda choices, _: Policy("cloud", 1, NEVER, lead=choices.max_tokens),
)
RANDOM = Preset(
    "random",
    "at each position the cloud takes the pen for a few tokens, by a coin",
    source="the baseline of every deferral curve",
    make=lambda choices, rate: Policy("random", 1, RandomGate(rate, choices.sampling.seed), handoff_tokens=4),
    number=NumberRange(0.1, "a chance", most=1.0),
)

PRESETS = {
    preset.name: preset
    for preset in (
        KL,
        DOUBT,
        GREEDY_EXACT,
        EXACT,
        BLOCK,
        CASCADE,
        RELAXED,
        CERTIFIED,
        BILD,
        FSD,
        U_HLM,
        PAPER,
        RANDOM,
        LOCAL,
        CLOUD,
    )
}


def preset(name: str, choices: Choices) -> Policy:
    """Build a named policy, with what the choices compose differently.

    Raises UsageError for an unknown name or choices that contradict it.
    """
    if name not in PRESETS:
        msg = f"no policy is called {name!r}; there are {', '.join(PRESETS)}"
        raise UsageError(msg)
    return compose(PRESETS[name].build(choices), choices)
