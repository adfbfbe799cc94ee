"""The sentences and numbers of a demonstration, as a document.

The laws (``tests/cli/test_report.py``): both models' raw scores stand beside every RPI, defined or not; a failing cloud
is reported first; an undefined number is a dash.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from hybrid.lab.arms import LARGE, PRICE, SMALL, Arm, Comparison, Trial
from hybrid.lab.demo import HOW_CHOSEN, HYBRIDS, pick_examples
from hybrid.record.answer import Answer, Token
from hybrid.report import AnswerTokens, Block, Heading, Table, Text, Tokens, provenance
from hybrid.tasks.statistics import Estimate
from hybrid.types import Divergence

# Broken where a terminal of 80 columns needs it.
COLUMNS = ("", "correct", "by the\ncloud", "requests", "bill in\nUSD", "of the large\nmodel's bill")
UNDEFINED = "-"
VERDICTS = {True: "right", False: "wrong", None: ""}
HEADLINE = "A small model writes here, a large one is asked where it would disagree"


def demonstration(comparison: Comparison) -> list[Block]:
    """Return what is shown of the bundled pair."""
    problems, names = comparison.problems, [arm.name for arm in HYBRIDS]

    def shown(name: str, number: int, heading: str) -> AnswerTokens:
        trial = comparison.trials[name]
        return answer_tokens(heading, VERDICTS[trial.correct[number]], trial.answers[number])

    def example(number: int) -> Tokens:
        heading = f"{problems[number].family}: {problems[number].question}"
        return Tokens(heading, tuple(shown(name, number, name) for name in (SMALL.name, *names)))

    def every(name: str) -> Tokens:
        right = f"{name}: {comparison.trials[name].num_correct} of {len(problems)} right"
        return Tokens(right, tuple(shown(name, n, each.question) for n, each in enumerate(problems)), folded=True)

    return [
        *introduction(comparison.trials, HOW_CHOSEN),
        *map(example, pick_examples(comparison)),
        Heading(f"All {len(problems)} problems", page_only=True),
        Table("", COLUMNS, [row(comparison, name) for name in comparison.trials]),
        Table("", (), [score for name in names for score in scores(comparison, name)]),
        *(Text(said, "faint") for said in (about_rpi(comparison), *notes(comparison), about_settings())),
        Heading("Every answer of the hybrids", page_only=True),
        *map(every, names),
    ]


def introduction(trials: Mapping[str, Trial], how_chosen: str) -> list[Block]:
    """Return what stands above the answers."""
    failed = warning(trials)
    alarm = [Text(failed, "alarm")] if failed else []
    return [Heading(HEADLINE, 1, page_only=True), *alarm, Text(f"Shown: {how_chosen}.", "faint")]


def row(comparison: Comparison, name: str) -> tuple[str, ...]:
    """Return an arm's figures, one for each of ``COLUMNS``."""
    trial, ratio = comparison.trials[name], comparison.bill_ratio(name)
    right = f"{trial.num_correct} of {len(trial.correct)}"
    return name, right, *figures(trial, None if ratio is None else ratio.value)


def figures(trial: Trial, ratio: float | None) -> tuple[str, ...]:
    """Return what the cloud wrote, was asked and charged, and that over what it charges alone."""
    share, usd = f"{100 * trial.cloud_token_share:.1f} %", f"{trial.nanousd / 1e9:.6f}"
    return share, str(trial.num_requests), usd, UNDEFINED if ratio is None else f"{ratio:.2f}"


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
    return [problems, about_prices(), scoring]


def about_prices() -> str:
    """Say what tokens cost, and whose bill the others are compared with."""
    return (
        f"Prices: {PRICE} USD per million prompt, cached prompt and completion tokens; bills are compared with that of "
        "the large model's own run (policy cloud) on the same problems."
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
        f"Settings: {arms}. Those of kl and doubt were chosen on the calibration split; doubt's threshold is the "
        "policy's own, and so is all of auto."
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


def answer_tokens(heading: str, verdict: str, answer: Answer) -> AnswerTokens:
    """Return an answer token by token."""
    why = reasons(answer)
    tokens = tuple(
        (token.text, provenance(token.source, token.how), hover(token, why.get(number)))
        for number, token in enumerate(answer.tokens)
    )
    return AnswerTokens(heading, verdict, tokens, tuple(handoffs(answer)))


def handoffs(answer: Answer) -> list[str]:
    """Say where the cloud took the pen, and why."""
    return [
        f"token {handoff.position + 1}: {handoff.reason} ({_counted(handoff.tokens)} by the cloud)"
        for handoff in answer.handoffs
    ]


def _counted(num_tokens: int) -> str:
    return "1 token" if num_tokens == 1 else f"{num_tokens} tokens"


def hover(token: Token, reason: str | None) -> str:
    """Say all that is known of a token; ``reason`` is that of the hand-off it belongs to."""
    said = [f"{token.source}, {token.how}", _divergence(token.kl), reason]
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
