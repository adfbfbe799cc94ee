"""What a user may choose within a policy, and what a named policy says of itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import InstanceOf

from hybrid.errors import UsageError
from hybrid.policy.concepts import Concepts
from hybrid.policy.planning import Planner
from hybrid.policy.policy import Policy
from hybrid.settings.policy_choices import PolicyChoices
from hybrid.types import Ability, Sampling

SPAN = 8
# Of an exact rule spans follow what came of the last (``Policy.next_span``): the first, and the most tokens, whose rows
# take 20 MB over a vocabulary of 150,000, and as much again for what is decoded ahead. Measured in lab/NOTES.md.
FIRST_SPAN, LONGEST_SPAN = 16, 32
# The first block that the cloud writes after a handoff; doubled while it keeps the pen.
HANDOFF_TOKENS = 4
# A draft keeps the whole row of each of its tokens: so many of them are 0.3 GB over a vocabulary of 150,000. A rule
# that drafts the whole answer drafts a longer one in parts.
LONGEST_DRAFT = 512


class PolicyOptions(PolicyChoices):
    """The user's choices within a policy, and what it must know beside them. None takes the policy's own value.

    ``threshold`` is the policy's one number, whatever it measures (``Preset.number``). ``lead``, ``hold``, ``scope``,
    ``bonus``, ``gate`` and ``judge`` replace the policy's own (``compose.py``); the others are for its builder.
    ``span`` is a number here: what ``auto`` stands for was measured before. ``most_span``: later spans follow it, up to
    so many tokens; None: the policy's own way. ``planner`` is bound to the question; None:
    one that knows nothing of the pair, the prices and the question. ``known_concepts``: which tokens say the same;
    None: nobody knows.
    """

    span: int | None = None
    most_span: int | None = None
    sampling: Sampling = Sampling()
    max_tokens: int = 512
    cloud_top_k: int = 20
    planner: InstanceOf[Planner] | None = None
    known_concepts: InstanceOf[Concepts] | None = None

    def __init__(self, **values: Any) -> None:
        """Take values as they are: ``Settings`` has validated a user's, and a policy minds the range of its number."""
        trusted = self.model_construct(**values)
        for slot in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"):
            object.__setattr__(self, slot, getattr(trusted, slot))

    @property
    def longest_span(self) -> int | None:
        """The most tokens of an exact rule's spans, which follow one another; None: a number was chosen, and stays."""
        return LONGEST_SPAN if self.span is None else self.most_span

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.sampling.greedy


@dataclass(frozen=True)
class NumberRange:
    """The number that a policy, a gate or a judge takes: its default (None: it takes none), unit and range.

    ``what`` names it with its unit: ``a threshold in nats``. ``least`` and ``most`` are both allowed.
    """

    default: float | None
    what: str = ""
    least: float = 0.0
    most: float = math.inf
    is_integer: bool = False

    def value(self, given: float | None, name: str) -> float:
        """Return the number, or the default; 0 where there is none. Raises UsageError for one that cannot be."""
        if self.default is None:
            if given is not None:
                msg = f"{name} takes no number"
                raise UsageError(msg)
            return 0.0
        value = self.default if given is None else given
        if not self.least <= value <= self.most:
            between = (
                f"{self.least:g} or more" if self.most == math.inf else f"between {self.least:g} and {self.most:g}"
            )
            msg = f"{name}: {self.what} is {between}, not {value}"
            raise UsageError(msg)
        if self.is_integer and value != int(value):
            msg = f"{name}: {self.what} is whole, not {value}"
            raise UsageError(msg)
        return value


NO_NUMBER = NumberRange(None)


@dataclass(frozen=True)
class Preset:
    """A named policy: what it does, where the rule comes from, the number it takes, and how it is built.

    A rule of the literature is this project's implementation of it. ``make`` takes the choices and the number.
    """

    name: str
    summary: str
    source: str
    make: Callable[[PolicyOptions, float], Policy]
    number: NumberRange = NO_NUMBER

    def build(self, choices: PolicyOptions) -> Policy:
        """Return its own policy for the choices, nothing composed. Raises UsageError."""
        given = None if self.number.default is None else choices.threshold
        return self.make(choices, self.number.value(given, self.name))

    def _each_sampling(self) -> dict[str, PolicyOptions]:
        """Return default choices by how tokens are drawn, as far as the policy allows it."""
        found = {}
        for how, sampling in {"greedy": Sampling(), "sampled": Sampling(1.0)}.items():
            with suppress(UsageError):  # a policy that is greedy only
                self.build(choices := PolicyOptions(sampling=sampling))
                found[how] = choices
        return found

    @property
    def needs(self) -> frozenset[Ability]:
        """What the endpoint must be able to do, whether tokens are sampled or not."""
        return frozenset[Ability]().union(*(self.build(choices).needs for choices in self._each_sampling().values()))

    @property
    def guarantee(self) -> str:
        """What it guarantees with no other choices: one sentence, or one for greedy decoding and one for sampling."""
        said = {
            how: self.build(choices).guarantee(choices.sampling, choices.max_tokens)
            for how, choices in self._each_sampling().items()
        }
        if len(set(said.values())) == 1:
            return next(iter(said.values()))
        return "; ".join(f"{how}: {sentence}" for how, sentence in said.items())

    def works(self, abilities: Collection[Ability], sampling: Sampling, *, same_words: bool = True) -> bool:
        """Whether an endpoint with these abilities is enough for it under a sampling.

        ``same_words`` False: its vocabulary is another.
        """
        try:
            policy = self.build(PolicyOptions(sampling=sampling))
        except UsageError:
            return False
        return policy.needs <= frozenset(abilities) and (same_words or policy.reads_text)
