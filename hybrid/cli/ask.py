"""``hybrid ask``: one question, one answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import aclosing, closing, nullcontext
from pathlib import Path
from typing import Annotated, Any, Unpack

import typer

from hybrid.cli.command import Flags, exit_codes, run_until_interrupted, takes_flags
from hybrid.cli.show import Screen, tell_assumed
from hybrid.cli.trace import TraceWriter
from hybrid.errors import UsageError, escape_controls
from hybrid.policy.explanation import PlanExplanation, PlanSwitch, explain
from hybrid.record.events import Event, Finished, Planned
from hybrid.settings.setting_info import SettingScope
from hybrid.settings.sources import CONFIG_FILE
from hybrid.spend import as_usd
from hybrid.spend.ask_prices import AskUnit

# What ``hybrid ask --explain`` says of each draft: chance, place, prices, and what would change the choice.

# What was planned; whether the cloud then answered is told by the answer itself.
_DONE = {
    "keep": "kept unchecked",
    "check": "checked in one request",
    "write": "written by the cloud",
    "spans": "checked in short spans",
}
_UNITS = {"ms": "ms", "tokens": "times a token read"}


class Explainer:
    """Hears an answer's events, and explains its plans once it is over."""

    def __init__(self) -> None:
        """Nothing was planned yet."""
        self._plans: list[Planned] = []

    def observe(self, event: Event) -> None:
        """Keep a plan."""
        if isinstance(event, Planned):
            self._plans.append(event)

    def explained(self) -> list[PlanExplanation]:
        """Explain each plan that was weighed."""
        return [found for each in self._plans if (found := explain(each.position, each.plan))]

    def lines(self) -> list[str]:
        """Say it."""
        told = [line for found in self.explained() for line in told_plan(found)]
        return told or ["nothing was weighed: the cloud was not asked for, or nothing was drafted"]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the same for ``--json``."""
        return [found.to_json() for found in self.explained()]


def told_plan(found: PlanExplanation) -> Iterator[str]:
    """Say why one draft was kept, checked or written; a line each."""
    yield f"{_which(found)}: {_chance(found)}; planned: {_done(found)}"
    yield f"  {_prices(found)}"
    cutoff = found.planner.keep_below
    if cutoff is not None and cutoff < 0.0:
        yield "  no draft is kept unasked, whatever it costs to ask"
    elif cutoff is not None:
        yield f"  --risk keeps a draft where that chance is at most {cutoff:.2g}"
    else:
        yield f"  {_changes(found)}"


def amount(value: float, unit: AskUnit) -> str:
    """Return what something costs, in USD where that is charged."""
    return as_usd(round(value)) if unit == "nanousd" else f"{value:.4g} {_UNITS[unit]}"


def _which(found: PlanExplanation) -> str:
    if not found.num_tokens:
        return "by the question alone"
    first, last = found.position, found.position + found.num_tokens
    return f"draft of tokens {first} to {last - 1}" if found.num_tokens > 1 else f"draft of token {first}"


def _chance(found: PlanExplanation) -> str:
    costs = found.costs
    if found.by_nats:
        return f"expected to lose {found.excess:.2g} nats a token"
    said = f"turned down by {found.planner.score.judge} with chance {costs.turned_down:.2f}"
    return said if costs.place is None else f"{said}, likeliest at token {found.position + costs.place}"


def _done(found: PlanExplanation) -> str:
    done = _DONE[found.action]
    if found.action == "write" and found.at:
        done += f" from token {found.position + found.at}"
    if found.floor:
        done += ", by chance: one in so many that would be kept is, to learn from"
    return done


def _prices(found: PlanExplanation) -> str:
    costs, unit = found.costs, found.planner.prices.unit
    asked = {"a check": costs.check, "the cloud's writing": costs.write, "short spans": costs.spans}
    told = [f"{name} {amount(cost, unit)}" for name, cost in asked.items() if cost is not None]
    told.insert(0, f"to keep it may lose {amount(costs.keep, unit)}")
    return f"expected: {', '.join(told)} (the cloud alone {amount(costs.alone, unit)})"


def _changes(found: PlanExplanation) -> str:
    told = [
        f"{_DONE[change.becomes]} {where} {_worth(found, change)}"
        for change, where in ((found.less, "below"), (found.more, "above"))
        if change is not None
    ]
    worth, factor = found.named_worth, found.paced_by
    paced = "" if factor is None else f", and the day's cap takes {factor:.3g} of it now"
    at = f" (it is {worth.multiple:.4g}{paced})" if worth.amount is None else ""
    return f"would be {', '.join(told)}{at}" if told else "at any worth it would be the same"


def _worth(found: PlanExplanation, change: PlanSwitch) -> str:
    worth = found.worth_at(change)
    return f"{change.times:.3g} times its worth" if worth is None else f"--worth {worth:.{2 if worth < 100 else 0}f}"


EPILOG = f"""
Without --local and --cloud the bundled pair answers: the small model here, the large one behind a server started for
the question. An endpoint wants a --local model of its vocabulary. Settings may also stand in HYBRID_* variables, in
FILE (--config), or else in {CONFIG_FILE} in your configuration folder; flags win. A {CONFIG_FILE} in the working
directory may choose how to decode, and nothing else.

What an endpoint charges stands in --price or in the price file (--prices, or prices.toml in the user's configuration
folder):

\b
  [[price]]
  endpoint = "https://api.example.com/v1"
  model = "large-1"
  prompt = 1
  cached_prompt = 0.1
  completion = 4
  source = "https://example.com/pricing, 2026-11-20"

A price may have more: cache_write, cache_min_tokens, cache_lifetime_s, long_context and batch; hybrid price --tariffs
lists a file with today's tariffs of some providers.

Examples:

  hybrid ask "What is 47 + 86?"

  echo "Sort 42 17 99 23." | hybrid ask - --policy greedy-exact

  hybrid ask --policy auto --worth 4 --explain "What is 47 + 86?"

  hybrid ask --policy auto --stream whole "What is 47 + 86?"

  hybrid ask --policy route --stream early --explain "What is 47 + 86?"

  hybrid ask --branches 4 --temperature 0.7 "What is 47 + 86?"

  hybrid ask --policy kl:0.2 --span 64 --handoff rest "What is 47 + 86?"

  hybrid ask --policy kl:adaptive --price 1/0.1/4 "What is 47 + 86?"

  hybrid ask --local qwen.gguf --cloud http://gpu:8000 --price 1/0.1/4 --cap 0.02 "Why is the sky blue?"

  hybrid ask --expert maths.gguf --expert prose.gguf --cloud http://gpu:8000 --policy once "Why is the sky blue?"

Exit codes: 0 answered (also when only the local model could), 1 output lost, 2 usage, 3 local model unusable, 4
endpoint unusable, 130 interrupted (143 terminated).
"""


@takes_flags(SettingScope.FLAG, SettingScope.TRACE)
def ask(
    prompt: Annotated[str, typer.Argument(help="The question; - reads it from standard input.", show_default=False)],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Tell why auto or route kept, checked or gave up each draft, and what would change it."
        ),
    ] = False,
    thoughts: Annotated[
        bool, typer.Option("--thoughts", help="Show what the model thinks before it answers, on standard error.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write every event to FILE, in the place of an older trace.", metavar="FILE")
    ] = None,
    **flags: Unpack[Flags],
) -> None:
    """Answer one question."""
    with exit_codes():
        if flags.get("trace_rows") and trace is None:
            raise UsageError("--trace-rows writes into a trace: add --trace FILE")
        screen = None if as_json else Screen(thoughts=thoughts)
        question = _text(prompt)
        run_until_interrupted(lambda: _ask(question, flags, screen, explained=explain, trace=trace))


ask.__doc__ = f"{ask.__doc__}\n{EPILOG}"


def _text(prompt: str) -> str:
    """Return the question. Raises UsageError where there is none, or none that is text."""
    if prompt == "-" and sys.stdin is None:
        raise UsageError("standard input is closed")
    try:
        raw = sys.stdin.buffer.read() if prompt == "-" else prompt.encode("utf-8", "surrogateescape")
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError("the prompt is not UTF-8 text") from None
    if not text.strip():
        raise UsageError("the prompt is empty")
    return text.rstrip("\n") if prompt == "-" else text


async def _ask(prompt: str, flags: Flags, screen: Screen | None, *, explained: bool, trace: Path | None) -> None:
    import hybrid  # noqa: PLC0415  (help and usage errors need no llama.cpp)
    from hybrid.policy import PRESETS  # noqa: PLC0415
    from hybrid.run.composition import check_effect, weighs  # noqa: PLC0415

    opener = hybrid.open(**flags)
    check_effect(opener.settings, flags)  # one answer and no other: its flags are held against whatever policy it has
    branches = opener.settings.branches is not None
    policy = "branches" if branches else "local" if opener.settings.offline else opener.settings.policy
    if explained and (branches or not weighs(policy)):
        acting = " and ".join(filter(weighs, PRESETS))
        instead = "--trace FILE, then hybrid trace show FILE, tells what it did"
        msg = f"--explain tells what {acting} weigh, and the policy is {policy}: {instead}"
        raise UsageError(msg)
    explainer = Explainer() if explained else None
    with closing(TraceWriter(trace)) as file, closing(screen) if screen else nullcontext():
        async with opener as client:
            for note in client.notes:
                typer.echo(f"hybrid: {escape_controls(note)}", err=True)
            try:
                async with aclosing(client.stream(prompt)) as events:
                    async for event in events:
                        file.write(event)
                        if explainer:
                            explainer.observe(event)
                        if screen:
                            screen.show(event)
                        elif isinstance(event, Finished):
                            plans = {} if explainer is None else {"plans": explainer.to_json()}
                            typer.echo(json.dumps(event.answer.to_json() | plans, ensure_ascii=False))
            finally:
                tell_assumed(client.spent.assumed_nanousd, client.settings.cloud)
        if screen and explainer:
            typer.echo("\n".join(explainer.lines()), err=True)
