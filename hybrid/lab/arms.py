"""Run arms: ways of answering, tried on the same problems over one pair of models, against one server.

The laws, tested in ``tests/bench/test_arms.py`` and ``tests/end_to_end/test_demo.py``: all arms answer the same
problems in the same order; an arm's settings are its own (neither ``HYBRID_*`` nor ``hybrid.toml`` nor what a user's
questions taught change a measurement); an arm's cache salt is its own, so that no arm profits from another's requests;
a bill is that of the requests that were sent. This file interprets no number (``hybrid.tasks.statistics`` does) and
prints nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL, ClientOpener, bundled_server
from hybrid.engine.real_models import sha256_of
from hybrid.errors import UsageError
from hybrid.policy.planning import Planner
from hybrid.record.answer import Answer
from hybrid.settings.config import NO_LEDGER, AnswerChoices, Settings
from hybrid.tasks import FAMILIES, MAX_TOKENS, Problem, Split, distinct
from hybrid.tasks.statistics import Estimate, bill_ratio, rpi

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
        answers = {arm.name: await _answer_all(arm, questions, url, report_answer) for arm in arms}
    return {
        arm.name: Trial(
            arm,
            answers[arm.name],
            tuple(GRADERS[p.family](p, answer.text) for p, answer in zip(problems, answers[arm.name], strict=True)),
        )
        for arm in arms
    }


async def _answer_all(arm: Arm, questions: Sequence[str], url: str, report_answer: ReportAnswer) -> tuple[Answer, ...]:
    """Let one arm answer all questions, one after the other; ``url``: the server's address."""
    answers: list[Answer] = []
    async with ClientOpener(_settings(arm, url), shipped_only=True) as client:
        for question in questions:
            answers.append(await client.generate(question))
            report_answer(arm, len(answers))
    return tuple(answers)


def _settings(arm: Arm, url: str) -> Settings:
    """Return an arm's settings over the defaults. They are constructed, not loaded: the user's own do not count."""
    own: dict[str, Any] = {
        "local": BUNDLED_LOCAL,
        "cloud": url,
        "api_key_env": "",  # the user's key is for another server
        "cache_salt": f"arm {arm.name}",
        "policy": arm.policy,
        "price": PRICE,
        "ledger": Path(NO_LEDGER),  # nobody is charged: this is no spending of the user's
        "max_tokens": MAX_TOKENS,
        "seed": 0,
        "learn": False,
        "threads": 1,  # as the server: two that spin for one core stand still
        **arm.choices,
    }
    return Settings.model_construct(**own)


# Compare several arms on the same problems, the small and the large model alone among them.
#
# The laws, tested in ``tests/bench/test_comparison.py``: every ratio is over runs of this comparison; a bill's ratio is
# over the large model's own run on the same problems; an undefined number is None. The arms worth comparing are named
# in ``demo.py``.

# The smallest family, facts, has at least one problem a fact in either split that is not trained on.
MOST_PROBLEMS = 150 * len(FAMILIES)


@dataclass(frozen=True)
class Plan:
    """The problems of a comparison, and whether the server's scoring reads its prefix cache."""

    num_problems: int
    split: Split
    seed: int = 0
    scoring_keeps_cache: bool = False


@dataclass(frozen=True)
class Comparison:
    """What the arms did. ``trials`` by the arms' names, in their order; always with ``SMALL`` and ``LARGE``."""

    plan: Plan
    problems: tuple[Problem, ...]
    trials: Mapping[str, Trial]

    def rpi(self, name: str) -> Estimate | None:
        """Return the share of the gap between the models that an arm recovered; None where there is no clear gap."""
        small, hybrid, large = (self.trials[arm].correct for arm in (SMALL.name, name, LARGE.name))
        return rpi(small, hybrid, large)

    def bill_ratio(self, name: str) -> Estimate | None:
        """Return an arm's bill over the large model's own, with its interval; None where that one is zero."""
        bills, alone = self.trials[name].bills, self.trials[LARGE.name].bills
        return bill_ratio(bills, alone) if all(alone) else None


async def compare(arms: Sequence[Arm], plan: Plan, report_answer: ReportAnswer) -> Comparison:
    """Run the arms. Raises UsageError for fewer problems than families, or more than the split has."""
    problems = draw_balanced(plan.num_problems, plan.split, plan.seed)
    return Comparison(
        plan, problems, await run_arms(arms, problems, keep_cache=plan.scoring_keeps_cache, report_answer=report_answer)
    )


def draw_balanced(num_problems: int, split: Split, seed: int) -> tuple[Problem, ...]:
    """Draw problems, equally many of each family (the first ones get what is left over), the families taking turns.

    Raises UsageError for fewer than one of each family, or more than a split has.
    """
    if not len(FAMILIES) <= num_problems <= MOST_PROBLEMS:
        msg = f"{num_problems} tasks: {len(FAMILIES)}, one of each family, are the fewest, and {MOST_PROBLEMS} the most"
        raise UsageError(msg)
    share, more = divmod(num_problems, len(FAMILIES))
    drawn = [distinct(family, split, share + (i < more), seed) for i, family in enumerate(FAMILIES)]
    return tuple(problems[turn] for turn in range(share + 1) for problems in drawn if turn < len(problems))


def fingerprints() -> dict[str, dict[str, str]]:
    """Return the bundled models' file names and SHA-256, by the names of the arms that are those models alone."""
    return {SMALL.name: fingerprint(BUNDLED_LOCAL), LARGE.name: fingerprint(BUNDLED_CLOUD)}


def fingerprint(path: Path) -> dict[str, str]:
    """Return a model's file name and SHA-256 for JSON."""
    stat = path.stat()
    return {"file": path.name, "sha256": _digest(path, stat.st_size, stat.st_mtime_ns)}


@lru_cache
def _digest(path: Path, *_: int) -> str:
    """Return a file's SHA-256, read anew where size or time are others."""
    return sha256_of(path)


def estimate_to_json(estimate: Estimate | None, digits: int = 4) -> dict[str, float | None]:
    """Round an estimate for JSON; an undefined value and an unbounded end are null."""
    if estimate is None:
        return dict.fromkeys(("value", "low", "high"))
    numbers = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {name: round(number, digits) if math.isfinite(number) else None for name, number in numbers.items()}


def bill_to_json(comparison: Comparison, name: str) -> dict[str, float | None]:
    """Return an arm's bill for JSON, its ratio and that one's interval."""
    ratio = estimate_to_json(comparison.bill_ratio(name))
    ends = {"low": ratio["low"], "high": ratio["high"]}
    return {"nanousd": comparison.trials[name].nanousd, "ratio": ratio["value"], **ends}
