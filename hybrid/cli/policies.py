"""``hybrid policies``: the named decoding policies, and what compositions are made of."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hybrid.policy import Ability
    from hybrid.policy.choices import NumberRange

_WIDTH = 10  # of what stands before a fact

EPILOG = """
A policy is named NAME or NAME:NUMBER, wherever one is named: kl:0.5. A rule of the literature is this project's
implementation of it. Everything else is a composition, on the command line or in a hybrid.toml: another --gate,
--judge, --scope, --bonus, --span, --hold or --lead for a named policy. A choice that changes nothing in the policy is
refused beside it.

Examples:

  hybrid policies

  hybrid policies --json

  hybrid ask --policy kl:0.2 "What is 47 + 86?"

  hybrid ask --policy kl --gate entropy:0.6:check --judge js:0.1 "What is 47 + 86?"
"""


def policies(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """List the decoding policies: what each does, where it comes from, what it guarantees and what it needs."""
    from hybrid.policy import PRESETS  # noqa: PLC0415  (help needs no numpy)
    from hybrid.policy.compose import GATES, JUDGES  # noqa: PLC0415

    needs = {name: sorted(found.needs) for name, found in PRESETS.items()}
    if as_json:
        rows = [
            {"name": p.name, "does": p.summary, "source": p.source, "guarantee": p.guarantee, "needs": needs[p.name]}
            for p in PRESETS.values()
        ]
        typer.echo(json.dumps({"policies": rows, "gates": list(GATES), "judges": list(JUDGES)}))
        return
    _say("A rule of the literature is this project's implementation of it.")
    typer.echo()
    for p in PRESETS.values():
        _say(f"{p.name}: {p.summary}", indent="  ")
        _say(p.source, f"  {'from':<{_WIDTH}} ")
        if p.number.default is not None:
            _say(f"{p.name}:{p.number.default:g}, {p.number.what}", f"  {'number':<{_WIDTH}} ")
        _say(p.guarantee, f"  {'guarantees':<{_WIDTH}} ")
        _say(_needs(needs[p.name]), f"  {'needs':<{_WIDTH}} ")
        typer.echo()
    _tell(
        "gates: --gate NAME[:NUMBER[:DECISION]], DECISION is keep, check or write",
        {n: kind for n, (kind, _) in GATES.items()},
    )
    _tell("judges: --judge NAME[:NUMBER]", {name: kind for name, (kind, _) in JUDGES.items()})


policies.__doc__ = f"{policies.__doc__}\n{EPILOG}"


def _tell(title: str, kinds: Mapping[str, NumberRange]) -> None:
    """List what a composition may name, with its number's default and meaning."""
    _say(title, indent="  ")
    for name, kind in kinds.items():
        numbered = name if kind.default is None else f"{name}:{kind.default:g}"
        _say(kind.what, f"  {numbered:<18} ")


def _say(text: str, label: str = "", indent: str = "") -> None:
    """Write text behind a label, as wide as the terminal is; further lines begin under it, or behind ``indent``."""
    width = shutil.get_terminal_size().columns
    behind = indent or " " * len(label)
    typer.echo(
        textwrap.fill(label + text, width, subsequent_indent=behind, break_long_words=False, break_on_hyphens=False)
    )


def _needs(found: Sequence[Ability]) -> str:
    from hybrid.policy import ABILITY_TEXT  # noqa: PLC0415  (help needs no numpy)

    return "an endpoint that can " + " and ".join(ABILITY_TEXT[need] for need in found) if found else "no endpoint"
