"""What a run is made of: a section is some questions over one pair of models, and what is kept of each of them.

A kind of section is a class of its own: real text (``trial.py``), problems with right answers (``auto_trial.py``).
The run (``section_run.py``) shares its questions among processes and knows nothing else of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

from hybrid.bench.arms import Arm
from hybrid.bench.experiments.tariffs import counted
from hybrid.bench.experiments.world import World, WorldAnswer
from hybrid.types import Sampling

LOCAL, CLOUD = Arm("local", "local"), Arm("cloud", "cloud")
CheckAnswer: TypeAlias = Callable[[Arm, Sampling, WorldAnswer], Awaitable[None]]
"""Called with every answer, before its rows are forgotten."""


class TrialQuestion(Protocol):
    """A question, and how many tokens an answer may have."""

    @property
    def text(self) -> str:
        """What is asked."""
        ...

    @property
    def max_tokens(self) -> int:
        """The most tokens of an answer."""
        ...


class Section(Protocol):
    """Questions over a pair of models, and what is tried with each. Pickled: every process has its own."""

    @property
    def name(self) -> str:
        """What a report calls it."""
        ...

    @property
    def pair(self) -> str:
        """The name of its pair of models."""
        ...

    @property
    def questions(self) -> Sequence[TrialQuestion]:
        """Its questions."""
        ...

    @property
    def num_arms(self) -> int:
        """About how many answers a question takes."""
        ...

    def content(self) -> list[Any]:
        """Return all that a record depends on beside models, question and seed, for ``json.dumps``."""
        ...

    async def answer(self, world: World, number: int, seed: int, check: CheckAnswer) -> dict[str, Any]:
        """Try one question and return its record; the world forgets it afterwards."""
        ...


def arms_to_json(arms: Sequence[Arm]) -> list[Any]:
    """Return arms as what a record depends on."""
    return [(arm.name, arm.policy, dict(arm.choices)) for arm in arms]


def spent_record(answered: WorldAnswer) -> dict[str, Any]:
    """Return what an answer cost, whatever it is worth: who wrote how much, and every request in numbers."""
    return {
        "cloud_tokens": answered.answer.usage.cloud_tokens,
        "degraded": answered.answer.degraded,
        "requests": [
            (each.kind, each.num_sent, each.num_scored, each.num_known, each.num_completion)
            for each in counted(answered.requests)
        ],
    }
