"""The table of named policies. A new rule is one file in ``rules/`` and one line here."""

from __future__ import annotations

from hybrid.errors import UsageError
from hybrid.policy.choices import Choices
from hybrid.policy.compose import composed
from hybrid.policy.loop import Policy
from hybrid.policy.rules.bild import BILD
from hybrid.policy.rules.block import BLOCK
from hybrid.policy.rules.cascade import CASCADE
from hybrid.policy.rules.divergence_threshold import DOUBT, FSD, KL, PAPER
from hybrid.policy.rules.exact import EXACT
from hybrid.policy.rules.greedy import GREEDY_EXACT
from hybrid.policy.rules.relaxed import CERTIFIED, RELAXED
from hybrid.policy.rules.single import CLOUD, LOCAL, RANDOM
from hybrid.policy.rules.u_hlm import U_HLM

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
    found = PRESETS[name]
    return composed(found, found.build(choices), choices)
