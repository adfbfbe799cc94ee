"""``hybrid policies``: the named decoding policies, and what compositions are made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hybrid.report import Block, Table, Text, terminal

if TYPE_CHECKING:
    from hybrid.policy import Ability

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
    shown: list[Block] = [Text("A rule of the literature is this project's implementation of it."), Text()]
    for p in PRESETS.values():
        number = None if p.number.default is None else f"{p.name}:{p.number.default:g}, {p.number.what}"
        facts = {"from": p.source, "number": number, "guarantees": p.guarantee, "needs": _needs(needs[p.name])}
        told = [(name, said) for name, said in facts.items() if said is not None]
        shown.append(Table(f"{p.name}: {p.summary}", (), told))
    kinds = {
        "gates: --gate NAME[:NUMBER[:DECISION]], DECISION is keep, check or write": {n: g[0] for n, g in GATES.items()},
        "judges: --judge NAME[:NUMBER]": {name: judge[0] for name, judge in JUDGES.items()},
    }
    for title, each in kinds.items():
        named = [(n if kind.default is None else f"{n}:{kind.default:g}", kind.what) for n, kind in each.items()]
        shown.append(Table(title, (), named))
    terminal.show(shown)


policies.__doc__ = f"{policies.__doc__}\n{EPILOG}"


def _needs(found: Sequence[Ability]) -> str:
    from hybrid.policy import ABILITY_TEXT  # noqa: PLC0415  (help needs no numpy)

    return "an endpoint that can " + " and ".join(ABILITY_TEXT[need] for need in found) if found else "no endpoint"
