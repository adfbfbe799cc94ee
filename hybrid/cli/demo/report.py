"""The sentences and numbers of a demonstration, shared by terminal, picture and page. No colour, no markup.

``DemoReport`` is all that is shown; this file makes that of the bundled pair, ``real.py`` that of the real one. The
laws (``tests/cli/test_report.py``): both models' raw scores stand beside every RPI, defined or not; a failing cloud is
reported first; an undefined number is a dash.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hybrid.lab.arms import LARGE, PRICE, SMALL, Arm, Comparison, Trial
from hybrid.lab.calibration import choose_arms, is_shipped
from hybrid.lab.demo import HOW_CHOSEN, HYBRIDS, pick_examples
from hybrid.record.answer import Answer, Token
from hybrid.tasks.statistics import Estimate
from hybrid.types import Divergence

LEGEND = {
    "checked": "drafted here, checked by the cloud",
    "local": "written here, nobody asked",
    "cloud": "written by the cloud",
}
# Broken where a terminal of 80 columns needs it.
COLUMNS = ("", "correct", "by the\ncloud", "requests", "bill in\nUSD", "of the large\nmodel's bill")
UNDEFINED = "-"
# More reasons than these are not read beside an answer; the page has them all.
MOST_HANDOFFS = 3


@dataclass(frozen=True)
class ShownAnswer:
    """An answer under a heading, what is said of it, and each token's excess loss in nats where that was measured."""

    heading: str
    verdict: str
    answer: Answer
    excess_nats: tuple[float, ...] = ()


@dataclass(frozen=True)
class ShownQuestion:
    """A question, and its answers by the arms' names."""

    heading: str
    answers: tuple[ShownAnswer, ...]


@dataclass(frozen=True)
class DemoReport:
    """All that a demonstration shows. ``scores``: a label and a value each; ``every``: what the page alone holds."""

    headline: str
    warning: str | None
    how_chosen: str
    examples: tuple[ShownQuestion, ...]
    about_table: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    scores: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    every: tuple[ShownQuestion, ...] = ()


def demonstration(comparison: Comparison) -> DemoReport:
    """Return what is shown of the bundled pair."""
    problems, names = comparison.problems, [arm.name for arm in HYBRIDS]

    def shown(name: str, number: int, heading: str) -> ShownAnswer:
        trial = comparison.trials[name]
        return ShownAnswer(heading, "right" if trial.correct[number] else "wrong", trial.answers[number])

    def example(number: int) -> ShownQuestion:
        heading = f"{problems[number].family}: {problems[number].question}"
        return ShownQuestion(heading, tuple(shown(name, number, name) for name in (SMALL.name, *names)))

    def every(name: str) -> ShownQuestion:
        right = f"{name}: {comparison.trials[name].num_correct} of {len(problems)} right"
        return ShownQuestion(right, tuple(shown(name, n, problem.question) for n, problem in enumerate(problems)))

    return DemoReport(
        headline="A small model writes here, a large one is asked where it would disagree",
        warning=warning(comparison.trials),
        how_chosen=HOW_CHOSEN,
        examples=tuple(map(example, pick_examples(comparison))),
        about_table=f"All {len(problems)} problems",
        columns=COLUMNS,
        rows=tuple(row(comparison, name) for name in comparison.trials),
        scores=tuple(score for name in names for score in scores(comparison, name)),
        notes=(about_rpi(comparison), *notes(comparison), about_settings()),
        every=tuple(map(every, names)),
    )


def row(comparison: Comparison, name: str) -> tuple[str, ...]:
    """Return an arm's figures, one for each of ``COLUMNS``."""
    trial, ratio = comparison.trials[name], comparison.bill_ratio(name)
    return (
        name,
        f"{trial.num_correct} of {len(trial.correct)}",
        f"{100 * trial.cloud_token_share:.1f} %",
        str(trial.num_requests),
        f"{trial.nanousd / 1e9:.6f}",
        UNDEFINED if ratio is None else f"{ratio.value:.2f}",
    )


def interval(found: Estimate | None) -> str:
    """Return a value and, in brackets, its 95 % interval."""
    if found is None:
        return UNDEFINED
    low, high = (f"{end:.2f}" if math.isfinite(end) else "unbounded" for end in (found.low, found.high))
    return f"{found.value:.2f} ({low} to {high})"


def scores(comparison: Comparison, name: str) -> tuple[tuple[str, str], ...]:
    """Return a hybrid's RPI and its bill's ratio, each with its 95 % interval, behind what they are called."""
    return (
        (f"RPI of {name} (95 % interval)", interval(comparison.rpi(name))),
        ("  its bill, of the large model's", interval(comparison.bill_ratio(name))),
    )


def about_rpi(comparison: Comparison) -> str:
    """Explain RPI, with the scores it is over and the limits of these."""
    small, large = (comparison.trials[arm.name].num_correct for arm in (SMALL, LARGE))
    said = f"RPI is (hybrid - small) / (large - small), here over {small} and {large} of {len(comparison.problems)}."
    found = [comparison.rpi(name) for name in comparison.trials if name not in {SMALL.name, LARGE.name}]
    if None in found:
        return f"{said} It is not defined: the gap between the models is not above two of its standard errors."
    if any(each and each.low == each.high for each in found):
        said += (
            " An interval without width says that these problems do not tell hybrid and large model apart, "
            "not that no problem would."
        )
    return said


def notes(comparison: Comparison) -> list[str]:
    """Return the sentences without which the figures cannot be read."""
    plan = comparison.plan
    families = ", ".join(f"{n} {name}" for name, n in Counter(p.family for p in comparison.problems).items())
    scoring = about_scoring(keeps_cache=plan.scoring_keeps_cache)
    problems = (
        f"{len(comparison.problems)} problems of the {plan.split} split ({families}), seed {plan.seed}, "
        "answered at temperature 0."
    )
    return [problems, about_prices("the large model's"), scoring]


def about_prices(whose: str) -> str:
    """Say what tokens cost, and whose bill the others are compared with."""
    return (
        f"Prices: {PRICE} USD per million prompt, cached prompt and completion tokens; bills are compared with that of "
        f"{whose} own run (policy cloud) on the same problems."
    )


def about_scoring(*, keeps_cache: bool) -> str:
    """Say whether checks read the server's prefix cache."""
    if keeps_cache:
        return "Checks read the server's prefix cache (as with SGLang; --scoring-keeps-cache)."
    return (
        "Checks do not read the server's prefix cache, and it tells nothing of that cache (as vLLM by default), so "
        "that every request pays for its whole prompt."
    )


def about_settings() -> str:
    """Say what the demonstration's arms were set to, and why."""
    arms = "; ".join(f"{arm.name}: {settings(arm)}" for arm in HYBRIDS)
    return (
        f"Settings: {arms}. Chosen on the calibration split, those of kl and doubt among those of hybrid demo "
        "--calibrate; doubt's threshold is the policy's own, and so is all of auto."
    )


def settings(arm: Arm) -> str:
    """Return an arm's choices as flags."""
    return " ".join(f"--{name} {value:g}" for name, value in arm.choices.items()) or "none"


def warning(trials: Mapping[str, Trial]) -> str | None:
    """Say how many answers the cloud failed in; None where it did not."""
    failed = {name: trial.num_degraded for name, trial in trials.items() if trial.num_degraded}
    if not failed:
        return None
    counts = ", ".join(f"{n} by {name}" for name, n in failed.items())
    reason = next(a.degraded for name in failed for a in trials[name].answers if a.degraded)
    return (
        f"THE CLOUD FAILED in {sum(failed.values())} answers ({counts}): the local model finished them, "
        f"and these figures are not what the arms can do. First reason: {reason}"
    )


def choice(comparison: Comparison) -> list[str]:
    """Say what a calibration would choose, and whether the demonstration does."""
    return [
        f"{policy}: {settings(arm)} has the highest RPI below the large model's bill; "
        + ("the demonstration has these." if is_shipped(arm) else "THE DEMONSTRATION HAS OTHERS.")
        for policy, arm in choose_arms(comparison).items()
    ]


def handoffs(answer: Answer) -> list[str]:
    """Say where the cloud took the pen, and why."""
    return [
        f"token {handoff.position + 1}: {handoff.reason} ({_counted(handoff.tokens)} by the cloud)"
        for handoff in answer.handoffs
    ]


def main_handoffs(answer: Answer) -> list[str]:
    """Return the first hand-offs, and how many more there are; none where nobody but the cloud wrote."""
    said = handoffs(answer) if any(token.source == "local" for token in answer.tokens) else []
    left = len(said) - MOST_HANDOFFS
    return said if left <= 1 else [*said[:MOST_HANDOFFS], f"and {left} more"]


def _counted(num_tokens: int) -> str:
    return "1 token" if num_tokens == 1 else f"{num_tokens} tokens"


def hover(token: Token, reason: str | None, excess_nats: float | None = None) -> str:
    """Say all that is known of a token; ``reason`` is that of the hand-off it belongs to."""
    excess = None if excess_nats is None else f"{excess_nats:.2f} nats less likely than the reference's best token"
    said = [f"{token.source}, {token.how}", _divergence(token.kl), excess, reason]
    return "; ".join(part for part in said if part)


def _divergence(kl: Divergence | None) -> str | None:
    if kl is None:
        return None
    estimate, low, high = (f"{x:.3g}" if math.isfinite(x) else "infinity" for x in (kl.estimate, kl.lower, kl.upper))
    return f"KL(cloud || local) about {estimate} nats, between {low} and {high}"


def reasons(answer: Answer) -> dict[int, str]:
    """Return the reason of the hand-off that each token belongs to, by position."""
    return {
        position: handoff.reason
        for handoff in answer.handoffs
        for position in range(handoff.position, handoff.position + handoff.tokens)
    }
