"""``hybrid replay``: a recorded answer, decoded again under another policy."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Unpack

import typer

from hybrid.cli.exits import exit_codes
from hybrid.cli.flags import Flags, takes_flags
from hybrid.cli.show import Screen
from hybrid.setting_info import SettingPlace

EPILOG = """
A trace is replayed with the settings it was recorded with, but for those given here; a --policy that is given starts
from its own numbers, gate and judge, not from those of the recording. Where another policy needs a row
that was not recorded, the replay says which and stops: record along the text you want to compare, for instance with
--policy greedy-exact --span 64, which reads both models at every position.

Examples:

  hybrid ask --trace a.jsonl --trace-rows --policy greedy-exact "What is 47 + 86?"

  hybrid replay a.jsonl --policy kl:2

  hybrid replay a.jsonl --policy relaxed --json

Exit codes: 0 decoded, 1 a row is missing, 2 usage.
"""


@takes_flags(SettingPlace.REPLAY)
def replay(
    trace: Annotated[Path, typer.Argument(help="A file that --trace and --trace-rows wrote.", metavar="TRACE")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    **flags: Unpack[Flags],
) -> None:
    """Decode a recorded answer under another policy, without a model call."""
    with exit_codes():
        from hybrid.run.replay import replay as decode  # noqa: PLC0415  (help and usage errors need no llama.cpp)
        from hybrid.run.replay_trace import MissingRow  # noqa: PLC0415

        try:
            answer = asyncio.run(decode(trace, (lambda _: None) if as_json else Screen().show, **flags))
        except MissingRow as missing:
            if as_json:
                typer.echo(json.dumps({"missing": missing.what, "position": len(missing.at), "after": missing.at}))
            else:
                typer.echo(f"hybrid: {missing}", err=True)
            raise typer.Exit(1) from None
        if as_json:
            typer.echo(json.dumps(answer.to_json(), ensure_ascii=False))


replay.__doc__ = f"{replay.__doc__}\n{EPILOG}"
