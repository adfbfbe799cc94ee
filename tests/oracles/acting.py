"""One table of choices for many policies: what a policy has no use for is left out, as its user would leave it out."""

from __future__ import annotations

from hybrid.policy import choices_without_effect


def acting(policy, **choices):
    """The policy, and those of the choices that act in it."""
    idle = choices_without_effect(policy, choices)
    return {"policy": policy} | {name: value for name, value in choices.items() if name not in idle}
