"""Run arms: ways of answering, tried on the same problems over one pair of models, against one server.

The laws, tested in ``tests/bench/test_arms.py`` and ``tests/end_to_end/test_demo.py``: all arms answer the same
problems in the same order; an arm's settings are its own (neither ``HYBRID_*`` nor ``hybrid.toml`` nor what a user's
questions taught change a measurement); an arm's cache salt is its own, so that no arm profits from another's requests;
a bill is that of the requests that were sent. This file interprets no number (``hybrid.tasks.statistics`` does) and
prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL, ClientOpener, bundled_server
from hybrid.config import NO_LEDGER, AnswerChoices, Settings
from hybrid.policy.planning import Planner
from hybrid.run.answer import Answer
from hybrid.tasks import FAMILIES, MAX_TOKENS, Problem

# The ratios of what hosted large models cost in 2025: a cached token a tenth of a read one, a written one four.
PRICE = "1/0.1/4"
GRADERS = {family.name: family.grade for family in FAMILIES}


@dataclass(frozen=True)
class Arm:
    """A way of answering: a policy and the settings that differ from its defaults.

    ``planner``: what ``auto`` decides by, bound to one question; None: what a client binds by itself.
    """

    name: str
    policy: str
    choices: AnswerChoices = field(default_factory=AnswerChoices)
    planner: Planner | None = None


@dataclass(frozen=True)
class ServedPair:
    """What arms run over: a local model's file, a server's address, and how long answers and texts may get in tokens.

    ``num_context`` 0: what the local model was trained with, 8192 at most.
    """

    local: Path
    cloud: str
    max_tokens: int
    num_context: int = 0


# Called after every answer with the arm and the number of problems it has answered.
ReportAnswer: TypeAlias = Callable[[Arm, int], None]

SMALL, LARGE = Arm("small", "local"), Arm("large", "cloud")


@dataclass(frozen=True)
class Trial:
    """An arm's answers, in the order of the problems, and which of them are right."""

    arm: Arm
    answers: tuple[Answer, ...]
    correct: tuple[bool, ...]

    @property
    def num_correct(self) -> int:
        """Problems answered rightly."""
        return sum(self.correct)

    @property
    def cloud_token_share(self) -> float:
        """Share of the shown tokens that the cloud wrote; 0 where none was shown."""
        cloud = sum(answer.usage.cloud_tokens for answer in self.answers)
        return cloud / max(1, sum(len(answer.tokens) for answer in self.answers))

    @property
    def num_requests(self) -> int:
        """Requests sent."""
        return sum(answer.usage.cloud_requests for answer in self.answers)

    @property
    def bills(self) -> tuple[int, ...]:
        """What the requests of each answer cost. Every arm's price is known."""
        return tuple(answer.bill.nanousd or 0 for answer in self.answers)

    @property
    def nanousd(self) -> int:
        """What they cost together."""
        return sum(self.bills)

    @property
    def num_degraded(self) -> int:
        """Answers in which the cloud failed, so that they show less than the arm can do."""
        return sum(answer.degraded is not None for answer in self.answers)


async def run_arms(
    arms: Sequence[Arm], problems: Sequence[Problem], *, keep_cache: bool, report_answer: ReportAnswer
) -> dict[str, Trial]:
    """Let every arm answer every problem, one arm after the other, and return the trials by the arms' names.

    ``keep_cache``: the server scores from its prefix cache and tells what was cached. Without, it does what vLLM does
    by default: neither.
    """
    flags = ["--scoring-keeps-cache", "--enable-prompt-tokens-details"] if keep_cache else []
    questions = [problem.question for problem in problems]
    async with bundled_server(BUNDLED_CLOUD, *flags) as url:
        pair = ServedPair(BUNDLED_LOCAL, url, MAX_TOKENS)
        answers = {arm.name: await answer_all(arm, questions, pair, report_answer) for arm in arms}
    return {
        arm.name: Trial(
            arm,
            answers[arm.name],
            tuple(GRADERS[p.family](p, answer.text) for p, answer in zip(problems, answers[arm.name], strict=True)),
        )
        for arm in arms
    }


async def answer_all(
    arm: Arm, questions: Sequence[str], pair: ServedPair, report_answer: ReportAnswer
) -> tuple[Answer, ...]:
    """Let one arm answer all questions, one after the other."""
    answers: list[Answer] = []
    async with ClientOpener(_settings(arm, pair), shipped_only=True) as client:
        for question in questions:
            answers.append(await client.generate(question))
            report_answer(arm, len(answers))
    return tuple(answers)


def _settings(arm: Arm, pair: ServedPair) -> Settings:
    """Return an arm's settings over the defaults. They are constructed, not loaded: the user's own do not count."""
    own: dict[str, Any] = {
        "local": pair.local,
        "cloud": pair.cloud,
        "ctx": pair.num_context,
        "api_key_env": "",  # the user's key is for another server
        "cache_salt": f"arm {arm.name}",
        "policy": arm.policy,
        "price": PRICE,
        "ledger": Path(NO_LEDGER),  # nobody is charged: this is no spending of the user's
        "max_tokens": pair.max_tokens,
        "seed": 0,
        "learn": False,
        "threads": 1,  # as the server: two that spin for one core stand still
        **arm.choices,
    }
    return Settings.model_construct(**own)
