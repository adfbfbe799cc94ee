"""``hybrid ask``: one question, one answer."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing, closing
from pathlib import Path
from typing import Annotated, Any

import typer

from hybrid.cli.exits import exit_codes
from hybrid.cli.show import Screen
from hybrid.cli.trace import Trace
from hybrid.config import CONFIG_FILE
from hybrid.errors import UsageError
from hybrid.run.events import Finished

EPILOG = f"""
Without --local and --cloud the bundled pair answers: the small model here, the large one behind a server started for
the question. Settings may also stand in HYBRID_* variables or {CONFIG_FILE}; flags win.

Examples:

  hybrid ask "What is 47 + 86?"

  echo "Sort 42 17 99 23." | hybrid ask - --policy greedy-exact

  hybrid ask --local qwen.gguf --cloud http://gpu:8000 --price 1/0.1/4 --cap 0.02 "Why is the sky blue?"

Exit codes: 0 answered (also when only the local model could), 1 output lost, 2 usage, 3 local model unusable, 4
endpoint unusable, 130 interrupted.
"""


def ask(
    prompt: Annotated[str, typer.Argument(help="The question; - reads it from standard input.", show_default=False)],
    local: Annotated[Path | None, typer.Option(help="GGUF file of the local model.", metavar="GGUF")] = None,
    cloud: Annotated[str | None, typer.Option(help="Base URL of the endpoint.", metavar="URL")] = None,
    cloud_model: Annotated[str | None, typer.Option(help="Model name at the endpoint.", metavar="M")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Variable that holds the endpoint's key.", metavar="VAR")
    ] = None,
    price: Annotated[
        str | None, typer.Option(help="USD per million prompt/cached/completion tokens, or free.", metavar="P/C/O")
    ] = None,
    cap: Annotated[str | None, typer.Option(help="Most USD to spend.", metavar="USD")] = None,
    policy: Annotated[
        str | None, typer.Option(help="How to decode (kl); `hybrid policies` lists them all.", metavar="P")
    ] = None,
    gate: Annotated[
        str | None, typer.Option(help="Another gate: entropy:0.6, max-prob:0.5:check, ...", metavar="NAME[:X[:CALL]]")
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="Another judge: js:0.1, multiplicative:0.3, ...", metavar="NAME[:X]")
    ] = None,
    scope: Annotated[
        int | None, typer.Option(help="Trailing tokens of a span that a check judges (all).", metavar="N")
    ] = None,
    bonus: Annotated[
        bool | None, typer.Option("--bonus/--no-bonus", help="Take the cloud's token after a span that stands.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="The policy's number. kl: nats of KL tolerated (0.5); doubt: 0.02, to hand back.", metavar="T"
        ),
    ] = None,
    entropy: Annotated[
        float | None, typer.Option(help="Policy doubt: entropy above which it asks, in nats (0.5).", metavar="H")
    ] = None,
    strict: Annotated[
        bool | None, typer.Option("--strict/--no-strict", help="Judge by the KL interval's upper end.")
    ] = None,
    span: Annotated[
        str | None, typer.Option(help="Tokens drafted before a check (8; kl: 32), or auto.", metavar="K")
    ] = None,
    lead: Annotated[int | None, typer.Option(help="Tokens the cloud opens with (0; paper: 8).", metavar="N")] = None,
    hold: Annotated[
        int | None, typer.Option(help="kl, doubt: tokens the cloud writes before it may hand back (4).", metavar="N")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens in the answer (512).", metavar="N")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End the text before this string; may be given again.", metavar="TEXT")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 (the default): always the most likely token.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling (1: all).")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the K best tokens (0: all).")] = None,
    min_p: Annotated[float | None, typer.Option(help="Drop tokens below this share of the best one's chance.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all draws (0).", metavar="S")] = None,
    system: Annotated[str | None, typer.Option(help="System message.", metavar="TEXT")] = None,
    raw: Annotated[
        bool | None, typer.Option("--raw/--no-raw", help="No chat template: continue the prompt as it stands.")
    ] = None,
    offline: Annotated[bool | None, typer.Option("--offline/--no-offline", help="Send no request.")] = None,
    overlap: Annotated[
        bool | None, typer.Option("--overlap/--no-overlap", help="Draft on while a check is waited for (on).")
    ] = None,
    ctx: Annotated[
        int | None,
        typer.Option(help="Local context in tokens; default: the model's own, 8192 at most.", metavar="N"),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="llama.cpp threads; default: one core is left free.", metavar="N")
    ] = None,
    gpu_layers: Annotated[int | None, typer.Option(help="Layers to keep on a GPU; -1: all.", metavar="N")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write every event to FILE, one JSON object a line.", metavar="FILE")
    ] = None,
    trace_rows: Annotated[
        bool | None, typer.Option("--trace-rows/--no-trace-rows", help="Rows into the trace: see `hybrid replay`.")
    ] = None,
) -> None:
    """Answer one question."""
    flags = {k: v for k, v in locals().items() if k not in {"prompt", "as_json", "trace"} and v is not None}
    with exit_codes():
        asyncio.run(_ask(_text(prompt), flags, as_json=as_json, trace=trace))


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


async def _ask(prompt: str, flags: dict[str, Any], *, as_json: bool, trace: Path | None) -> None:
    import hybrid  # noqa: PLC0415  (help and usage errors need no llama.cpp)

    with closing(Trace(trace)) as file:
        screen = None if as_json else Screen()
        async with hybrid.open(**flags) as client, aclosing(client.stream(prompt)) as events:
            async for event in events:
                file.write(event)
                if screen:
                    screen.show(event)
                elif isinstance(event, Finished):
                    typer.echo(json.dumps(event.answer.to_json(), ensure_ascii=False))
