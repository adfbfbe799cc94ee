"""The options that ``ask`` and ``batch`` share, declared once: the settings of ``hybrid.open`` that are flags.

``config`` is the one that is no setting: the file that holds settings instead of the user's own.

The law: a command that takes these flags has every one of them, with one name and one help text
(``tests/cli/test_batch.py``). What a flag does stands in ``hybrid.config``. None has a default here: what is not given
comes from the environment or a file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypedDict, TypeVar, get_type_hints

import typer

Command = TypeVar("Command", bound=Callable[..., None])


class Flags(TypedDict, total=False):
    """What was given on the command line; None where it was not."""

    local: Annotated[Path | None, typer.Option(help="GGUF file of the local model.", metavar="GGUF")]
    cloud: Annotated[str | None, typer.Option(help="Base URL of the endpoint.", metavar="URL")]
    cloud_model: Annotated[str | None, typer.Option(help="Model name at the endpoint.", metavar="M")]
    dialect: Annotated[str | None, typer.Option(help="The endpoint's dialect (found out).", metavar="D")]
    api_key_env: Annotated[str | None, typer.Option(help="Variable that holds the endpoint's key.", metavar="VAR")]
    price: Annotated[
        str | None,
        typer.Option(
            help="USD per million prompt/cached/completion tokens, perhaps /USD per request; or free.", metavar="P/C/O"
        ),
    ]
    prices: Annotated[Path | None, typer.Option(help="Price file; see `hybrid ask --help`.", metavar="FILE")]
    cap: Annotated[
        str | None, typer.Option(help="Most USD to spend, besides the caps of `hybrid budget`.", metavar="USD")
    ]
    ledger: Annotated[Path | None, typer.Option(help="File that keeps what is spent; none: no file.", metavar="FILE")]
    conversation: Annotated[
        str | None, typer.Option(help="Count this question to the conversation NAME.", metavar="NAME")
    ]
    policy: Annotated[
        str | None, typer.Option(help="How to decode (kl); `hybrid policies` lists them all.", metavar="P")
    ]
    gate: Annotated[
        str | None, typer.Option(help="Another gate: entropy:0.6, max-prob:0.5:check, ...", metavar="NAME[:X[:CALL]]")
    ]
    judge: Annotated[
        str | None, typer.Option(help="Another judge: js:0.1, multiplicative:0.3, ...", metavar="NAME[:X]")
    ]
    scope: Annotated[int | None, typer.Option(help="Trailing tokens of a span that a check judges (all).", metavar="N")]
    bonus: Annotated[
        bool | None, typer.Option("--bonus/--no-bonus", help="Take the cloud's token after a span that stands.")
    ]
    threshold: Annotated[
        float | None,
        typer.Option(
            help="The policy's number. kl: nats of KL tolerated (0.5); doubt: 0.02, to hand back.", metavar="T"
        ),
    ]
    entropy: Annotated[
        float | None, typer.Option(help="Policy doubt: entropy above which it asks, in nats (0.5).", metavar="H")
    ]
    strict: Annotated[bool | None, typer.Option("--strict/--no-strict", help="Judge by the KL interval's upper end.")]
    span: Annotated[
        str | None, typer.Option(help="Tokens drafted before a check (8; kl: 32), auto or cheap.", metavar="K")
    ]
    lead: Annotated[int | None, typer.Option(help="Tokens the cloud opens with (0; paper: 8).", metavar="N")]
    hold: Annotated[
        int | None, typer.Option(help="kl, doubt: tokens the cloud writes before it may hand back (4).", metavar="N")
    ]
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens in the answer (512).", metavar="N")]
    stop: Annotated[
        list[str] | None, typer.Option(help="End the text before this string; may be given again.", metavar="TEXT")
    ]
    temperature: Annotated[float | None, typer.Option(help="0 (the default): always the most likely token.")]
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling (1: all).")]
    top_k: Annotated[int | None, typer.Option(help="Draw from the K best tokens (0: all).")]
    min_p: Annotated[float | None, typer.Option(help="Drop tokens below this share of the best one's chance.")]
    seed: Annotated[int | None, typer.Option(help="Seed of all draws (another for every answer).", metavar="S")]
    system: Annotated[str | None, typer.Option(help="System message.", metavar="TEXT")]
    raw: Annotated[
        bool | None, typer.Option("--raw/--no-raw", help="No chat template: continue the prompt as it stands.")
    ]
    offline: Annotated[bool | None, typer.Option("--offline/--no-offline", help="Send no request.")]
    overlap: Annotated[
        bool | None, typer.Option("--overlap/--no-overlap", help="Draft on while a check is waited for (on).")
    ]
    ctx: Annotated[
        int | None,
        typer.Option(help="Local context in tokens; default: the model's own, 8192 at most.", metavar="N"),
    ]
    threads: Annotated[int | None, typer.Option(help="llama.cpp threads; default: one core is left free.", metavar="N")]
    config: Annotated[
        Path | None, typer.Option(help="Read settings from FILE, not from your own hybrid.toml.", metavar="FILE")
    ]
    gpu_layers: Annotated[int | None, typer.Option(help="Layers to keep on a GPU; -1: all.", metavar="N")]


def takes_flags(*names: str) -> Callable[[Command], Command]:
    """Let a command's signature name the options of ``Flags``, or these, where it has ``**flags``.

    Typer reads signatures. They stand after the arguments and before the options that are the command's own, which are
    keyword-only.
    """
    hints = get_type_hints(Flags, include_extras=True)
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hints[name])
        for name in names or hints
    ]

    def named(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        arguments = [each for each in own if each.kind is each.POSITIONAL_OR_KEYWORD]
        options = [each for each in own if each.kind is each.KEYWORD_ONLY]
        command.__signature__ = inspect.Signature([*arguments, *shared, *options])  # type: ignore[attr-defined]
        return command

    return named
