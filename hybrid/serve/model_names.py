"""Models as callers name them: ``hybrid`` is the policy that was configured, ``hybrid:NAME[:NUMBER]`` another one.

A policy has one grammar, that of ``--policy``; a caller that can choose nothing but a model's name chooses it so.
"""

from __future__ import annotations

import difflib
from typing import Any

from hybrid.errors import UsageError
from hybrid.policy import PRESETS
from hybrid.policy.presets import parse_policy
from hybrid.serve.api_error import ApiError

HYBRID = "hybrid"
NAMES = (HYBRID, *(f"{HYBRID}:{name}" for name in PRESETS))


def policy_named(model: str) -> str | None:
    """Return the policy that a model's name asks for; None: the one that was configured. Raises ApiError.

    >>> policy_named("hybrid:kl:0.5")
    'kl:0.5'
    """
    head, colon, policy = model.partition(":")
    if head == HYBRID and not colon:
        return None
    try:
        if head == HYBRID:
            parse_policy(policy)
            return policy
        why = f"there is no model called {model!r}"
    except UsageError as error:
        why = f"there is no model called {model!r}: {error}"
    near = difflib.get_close_matches(model, NAMES, 3, 0.5) or [HYBRID, f"{HYBRID}:local", f"{HYBRID}:cloud"]
    said = f"{why}; there are {', '.join(near)} (GET /v1/models names all)"
    raise ApiError(404, said, code="model_not_found", param="model")


def model_card(name: str, created: int, longest: int | None) -> dict[str, Any]:
    """Return what is told of a model; ``longest``: the tokens of its context, None: not known yet."""
    card: dict[str, Any] = {"id": name, "object": "model", "created": created, "owned_by": HYBRID}
    return card if longest is None else card | {"max_model_len": longest}
