"""What a user may choose within a policy, and what a named policy says of itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hybrid.config import PolicyChoices
from hybrid.errors import UsageError
from hybrid.policy.loop import Ability, Policy
from hybrid.types import Sampling

SPAN = 8
# The first block that the cloud writes where the pen is its own; doubled while it keeps it.
HOLD = 4


class Choices(PolicyChoices):
    """The user's choices within a policy, and what it must know beside them. None takes the policy's own value.

    ``threshold`` is the policy's one number, whatever it measures. ``lead``, ``hold``, ``scope``, ``bonus``, ``gate``
    and ``judge`` replace the policy's own (``compose.py``); the others are for the policy's builder. ``span`` is a
    number here: what ``auto`` stands for was measured before.
    """

    span: int | None = None
    sampling: Sampling = Sampling()
    max_tokens: int = 512
    cloud_top_k: int = 20

    def __init__(self, **values: Any) -> None:
        """Take values as they are: ``Settings`` has validated a user's, and a policy minds the range of its number."""
        trusted = self.model_construct(**values)
        for slot in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"):
            object.__setattr__(self, slot, getattr(trusted, slot))

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.sampling.greedy


@dataclass(frozen=True)
class Preset:
    """A named policy: what it does, where the rule comes from, what it guarantees, and how it is built.

    A rule of the literature is this project's implementation of it. ``exact``: the guarantee is a law of the text that
    a gate or a scope which lets tokens through would break.
    """

    name: str
    line: str
    source: str
    guarantee: str
    build: Callable[[Choices], Policy]
    exact: bool = False

    @property
    def needs(self) -> frozenset[Ability]:
        """What the endpoint must be able to do, drawing or not."""
        found: frozenset[Ability] = frozenset()
        for sampling in (Sampling(), Sampling(1.0)):
            with suppress(UsageError):  # a policy that is greedy only
                found |= self.build(Choices(sampling=sampling)).needs
        return found

    def works(self, abilities: Collection[Ability], sampling: Sampling) -> bool:
        """Whether an endpoint with these abilities is enough for it under a sampling."""
        try:
            return self.build(Choices(sampling=sampling)).needs <= frozenset(abilities)
        except UsageError:
            return False


def number(what: str, value: float | None, default: float, least: float = 0.0, most: float = math.inf) -> float:
    """Return a chosen number, or the default. Raises UsageError for one that is out of its range."""
    found = default if value is None else value
    if not least <= found <= most:
        span = f"{least:g} or more" if most == math.inf else f"between {least:g} and {most:g}"
        msg = f"{what} is {span}, not {found}"
        raise UsageError(msg)
    return found
