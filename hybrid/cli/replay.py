"""``hybrid replay``: a recorded answer, decoded again under another policy."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from hybrid.cli.exits import exit_codes
from hybrid.cli.show import Screen

EPILOG = """
A trace is replayed with the settings it was recorded with, but for those given here; a --policy that is given starts
from its own numbers, gate and judge, not from those of the recording. Where another policy needs a row
that was not recorded, the replay says which and stops: record along the text you want to compare, for instance with
--policy greedy-exact --span 64, which reads both models at every position.

Examples:

  hybrid ask --trace a.jsonl --trace-rows --policy greedy-exact "What is 47 + 86?"

  hybrid replay a.jsonl --policy kl --threshold 2

  hybrid replay a.jsonl --policy relaxed --json

Exit codes: 0 decoded, 1 a row is missing, 2 usage.
"""


def replay(
    trace: Annotated[Path, typer.Argument(help="A file that --trace and --trace-rows wrote.", metavar="TRACE")],
    policy: Annotated[str | None, typer.Option(help="How to decode; default: as recorded.", metavar="P")] = None,
    gate: Annotated[str | None, typer.Option(help="Another gate.", metavar="NAME[:X[:CALL]]")] = None,
    judge: Annotated[str | None, typer.Option(help="Another judge.", metavar="NAME[:X]")] = None,
    scope: Annotated[int | None, typer.Option(help="Trailing tokens that a check judges.", metavar="N")] = None,
    bonus: Annotated[bool | None, typer.Option("--bonus/--no-bonus", help="Take the token after a span.")] = None,
    threshold: Annotated[float | None, typer.Option(help="The policy's number.", metavar="T")] = None,
    entropy: Annotated[float | None, typer.Option(help="Policy doubt: entropy in nats.", metavar="H")] = None,
    strict: Annotated[bool | None, typer.Option("--strict/--no-strict", help="Judge by the upper end.")] = None,
    span: Annotated[int | None, typer.Option(help="Tokens drafted before a check.", metavar="K")] = None,
    lead: Annotated[int | None, typer.Option(help="Tokens the cloud opens with.", metavar="N")] = None,
    hold: Annotated[int | None, typer.Option(help="Tokens the cloud writes at once.", metavar="N")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens in the answer.", metavar="N")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End the text before this string.", metavar="TEXT")] = None,
    price: Annotated[str | None, typer.Option(help="USD per million tokens.", metavar="P/C/O")] = None,
    config: Annotated[
        Path | None, typer.Option(help="Read settings from FILE, not from your own hybrid.toml.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Decode a recorded answer under another policy, without a model call."""
    flags = {k: v for k, v in locals().items() if k not in {"trace", "as_json"} and v is not None}
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
