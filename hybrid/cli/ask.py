"""``hybrid ask``: one question, one answer."""

from __future__ import annotations

import json
import sys
from contextlib import aclosing, closing, nullcontext
from pathlib import Path
from typing import Annotated, Unpack

import typer

from hybrid.cli.command import Flags, exit_codes, run_until_interrupted, takes_flags
from hybrid.errors import UsageError, escape_controls
from hybrid.settings.setting_info import SettingScope
from hybrid.settings.sources import CONFIG_FILE

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
        question = _text(prompt)
        told = {"as_json": as_json, "thoughts": thoughts, "explained": explain}
        run_until_interrupted(lambda: _ask(question, flags, trace, **told))


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


async def _ask(
    prompt: str, flags: Flags, trace: Path | None, *, as_json: bool, thoughts: bool, explained: bool
) -> None:
    import hybrid  # noqa: PLC0415  (help and usage errors need no llama.cpp)
    from hybrid.cli.explaining import Explainer  # noqa: PLC0415
    from hybrid.cli.show import Screen, tell_assumed  # noqa: PLC0415
    from hybrid.cli.trace import TraceWriter  # noqa: PLC0415
    from hybrid.policy import PRESETS  # noqa: PLC0415
    from hybrid.record.events import Finished  # noqa: PLC0415
    from hybrid.run.composition import check_effect, weighs  # noqa: PLC0415

    screen = None if as_json else Screen(thoughts=thoughts)
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
