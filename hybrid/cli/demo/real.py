"""What is shown of the real pair: no answer is right or wrong but for a few, so each token's excess loss is told."""

from __future__ import annotations

from hybrid.cli.demo import report
from hybrid.lab.arms import Trial
from hybrid.lab.real_demo import CLOUD, HYBRIDS, LOCAL, LOCAL_MODEL, MAX_TOKENS, PACKAGE, RealComparison
from hybrid.report import AnswerTokens, Block, Heading, Table, Text, Tokens

# Broken where a terminal of 80 columns needs it.
COLUMNS = ("", "by the\ncloud", "requests", "bill in\nUSD", "of the\ncloud's", "excess nats\na token")
VERDICTS = {True: "right", False: "wrong", None: ""}


def demonstration(found: RealComparison) -> list[Block]:
    """Return what is shown of the real pair."""

    def shown(name: str, number: int) -> AnswerTokens:
        answer, losses = found.trials[name].answers[number], found.excess_nats[name][number]
        return report.answer_tokens(name, VERDICTS[found.is_right(name, number)], answer, losses)

    def example(number: int) -> Tokens:
        question = found.questions[number]
        return Tokens(f"{question.kind}: {question.text}", tuple(shown(name, number) for name in found.trials))

    return [
        *report.introduction(found.trials, "questions of the test split, drawn by the seed, the kinds taking turns"),
        *map(example, range(len(found.questions))),
        Heading(f"All {len(found.questions)} questions", page_only=True),
        Table("", COLUMNS, [_row(found, trial) for trial in found.trials.values()]),
        *(Text(said, "faint") for said in _notes(found)),
    ]


def _row(found: RealComparison, trial: Trial) -> tuple[str, ...]:
    name, ratio = trial.arm.name, found.bill_ratio(trial.arm.name)
    return (
        name,
        f"{100 * trial.cloud_token_share:.1f} %",
        str(trial.num_requests),
        f"{trial.nanousd / 1e9:.6f}",
        report.UNDEFINED if ratio is None else f"{ratio:.2f}",
        f"{found.mean_excess_nats(name):.3f}",
    )


def _notes(found: RealComparison) -> tuple[str, ...]:
    """Return the sentences without which the figures cannot be read."""
    models = f"{CLOUD.name} is {PACKAGE}, {LOCAL.name} the same model rounded to 3 bits ({LOCAL_MODEL})"
    hybrids = " and ".join(arm.name for arm in HYBRIDS)
    excess = (
        "Excess loss of a token: how much less likely it is to the reference than the reference's best token there, "
        "in nats of log-probability, given the text so far; what the cloud alone writes costs nothing but near ties."
    )
    limits = (
        f"Answers at temperature 0 end after {MAX_TOKENS} tokens. The reference itself is small and often wrong: what "
        f"is shown is how near the others come to its text, on {len(found.questions)} questions, which prove nothing."
    )
    return (
        f"{models}. {hybrids} are at their defaults.",
        excess,
        limits,
        report.about_prices("the cloud's"),
        report.about_scoring(keeps_cache=found.scoring_keeps_cache),
    )
