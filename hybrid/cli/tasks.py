"""``hybrid tasks``: the families of problems with drawn ones, and the questions to an assistant, by kind."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybrid.cli.command import exit_codes
from hybrid.errors import UsageError
from hybrid.report import Table, terminal

if TYPE_CHECKING:
    from hybrid.tasks import Problem, TaskFamily
    from hybrid.tasks.assistant import AssistantQuestion

tasks = typer.Typer(
    name="tasks",
    help="List the families of problems and the questions to an assistant, or show some.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

LIST_EPILOG = """
A family has two or three levels, each with its share of the test split. The smaller reference models are not given
every level; --json says which, a list for each model. The families of the wordings pair (compare to arrival) are asked
in synonyms, and any of them is right. The questions to an assistant are written by hand, for models that know
more than these families.

Examples:

  hybrid tasks list

  hybrid tasks list --json
"""
SHOW_EPILOG = """
No two problems shown are twins: other phrasings, names or orders of the same. The same seed shows the same problems.
"assistant" instead of a family shows questions to an assistant, of every kind or of one.

Examples:

  hybrid tasks show gcd

  hybrid tasks show assistant --kind extraction --num 5

  hybrid tasks show facts --level 3 --num 10

  hybrid tasks show command --split train --seed 1 --json

Exit codes: 0 done, 2 usage.
"""


ASSISTANT = "assistant"


class SplitName(StrEnum):
    """Which part of the problems."""

    train = "train"
    calibration = "calibration"
    test = "test"


@tasks.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """List the families and their levels, and the kinds of questions to an assistant."""
    from hybrid.tasks import FAMILIES, wordings  # noqa: PLC0415

    with exit_codes():
        if as_json:
            families = [_family(family) | _given(family) for family in FAMILIES]
            worded = [_family(family) for family in wordings.FAMILIES]
            typer.echo(json.dumps({"families": families, "wordings": worded, "assistant": _kinds()}))
        else:
            terminal.show([_table((*FAMILIES, *wordings.FAMILIES)), _kinds_table()])


list_.__doc__ = f"{list_.__doc__}\n{LIST_EPILOG}"


@tasks.command("show")
def show(
    family: Annotated[str, typer.Argument(help="Name of the family, as listed, or: assistant.", metavar="FAMILY")],
    level: Annotated[int | None, typer.Option(help="Only this level, from 1.", metavar="L", min=1)] = None,
    kind: Annotated[str | None, typer.Option(help="Only this kind of questions to an assistant.", metavar="K")] = None,
    split: Annotated[SplitName, typer.Option(help="Of which split.")] = SplitName.test,
    num: Annotated[int, typer.Option("--num", "--n", help="How many problems.", metavar="N", min=1, max=1000)] = 3,
    seed: Annotated[int, typer.Option(help="Which problems.", metavar="S", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Show problems of a family with their worked answers, or questions to an assistant."""
    with exit_codes():
        if family == ASSISTANT:
            _refuse(level is not None, "the questions to an assistant have kinds (--kind), no levels")
            questions = [_question(question) for question in _sample(kind, split, num, seed)]
            printed = json.dumps({"family": family, "questions": questions})
            typer.echo(printed if as_json else "\n\n".join(map(_describe_question, questions)))
            return
        _refuse(kind is not None, f"the problems of {family} have levels (--level), no kinds")
        problems = _draw(family, level, split, num, seed)
        if as_json:
            typer.echo(json.dumps({"family": family, "problems": [asdict(problem) for problem in problems]}))
        else:
            typer.echo("\n\n".join(map(_describe, problems)))


show.__doc__ = f"{show.__doc__}\n{SHOW_EPILOG}"


def _draw(name: str, level: int | None, split: SplitName, num: int, seed: int) -> list[Problem]:
    from hybrid.tasks import BY_NAME, distinct, wordings  # noqa: PLC0415

    families = {**BY_NAME, **{family.name: family for family in wordings.FAMILIES}}
    if name not in families:
        msg = f"no family {name}: {', '.join(families)}"
        raise UsageError(msg)
    family = families[name]
    if level is not None and level not in family.numbers:
        msg = f"{name} has the levels 1 to {len(family.levels)}, not {level}"
        raise UsageError(msg)
    try:
        return distinct(family, split.value, num, seed, level)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _family(family: TaskFamily) -> dict[str, Any]:
    return {
        "name": family.name,
        "group": family.group,
        "wordings": family.wordings,
        "levels": [{"level": number, **asdict(family.levels[number - 1])} for number in family.numbers],
    }


def _given(family: TaskFamily) -> dict[str, Any]:
    from hybrid.tasks.families import MIXES, levels_given  # noqa: PLC0415

    return {"given": {model: list(levels_given(model, family)) for model in MIXES}}


def _table(families: tuple[TaskFamily, ...]) -> Table:
    rows = [
        (*((family.name, family.group) if number == 1 else ("", "")), str(number), f"{level.share:.0%}", level.holds)
        for family in families
        for number, level in zip(family.numbers, family.levels, strict=True)
    ]
    return Table("", ("family", "group", "level", "share", "what it holds"), rows, words=("group", "what it holds"))


def _sample(kind: str | None, split: SplitName, num: int, seed: int) -> list[AssistantQuestion]:
    """Draw different questions in a seeded order."""
    from hybrid.tasks.assistant import KINDS, QUESTIONS  # noqa: PLC0415

    _refuse(kind is not None and kind not in KINDS, f"no kind {kind}: {', '.join(KINDS)}")
    _refuse(split is SplitName.train, "nothing is trained on the questions to an assistant: calibration or test")
    found = [each for each in QUESTIONS if kind in {None, each.kind} and each.split == split]
    _refuse(num > len(found), f"there are only {len(found)} such {split} questions, not {num}")
    return random.Random(seed).sample(found, num)


def _question(question: AssistantQuestion) -> dict[str, Any]:
    answer = question.answer
    return {
        "kind": question.kind,
        "split": question.split,
        "max_tokens": question.max_tokens,
        "text": question.text,
        "right": answer and answer.reference,
        "wrong": list(answer.wrong) if answer else [],
    }


def _describe_question(question: dict[str, Any]) -> str:
    text = question["text"].replace("\n", "\n  ")
    wrong = f"; wrong: {', '.join(question['wrong'])}" if question["wrong"] else ""
    graded = "not graded" if question["right"] is None else f"right: {question['right']}{wrong}"
    return f"{question['kind']}, up to {question['max_tokens']} tokens:\n  {text}\n  ({graded})"


def _kinds() -> list[dict[str, Any]]:
    from hybrid.tasks.assistant import KINDS, QUESTIONS  # noqa: PLC0415

    by_kind = {kind: [question for question in QUESTIONS if question.kind == kind] for kind in KINDS}
    return [
        {
            "kind": kind,
            "graded": questions[0].graded,
            "max_tokens": [min(each.max_tokens for each in questions), max(each.max_tokens for each in questions)],
            **{split: sum(each.split == split for each in questions) for split in ("calibration", "test")},
        }
        for kind, questions in by_kind.items()
    ]


def _kinds_table() -> Table:
    rows = []
    for kind in _kinds():
        tokens = "-".join(map(str, sorted(set(kind["max_tokens"]))))
        counts = (str(kind["calibration"]), str(kind["test"]))
        rows.append((kind["kind"], "graded" if kind["graded"] else "open", tokens, *counts))
    return Table("", (ASSISTANT, "answers", "tokens", "calibration", "test"), rows, words=("answers",))


def _refuse(condition: bool, sentence: str) -> None:
    if condition:
        raise UsageError(sentence)


def _describe(problem: Problem) -> str:
    return f"level {problem.level}: {problem.question}\n  {problem.worked}\n  final: {problem.final}"
