"""The named policies. Each is a line of data over the one loop; a new rule is one judge or gate and one line here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hybrid.errors import UsageError
from hybrid.policy.gates import ALWAYS, NEVER, Entropy
from hybrid.policy.judges import KlWithin, greedy_match
from hybrid.policy.loop import Policy

# Half a nat: on the prototype pair 8-token spans at this threshold recovered 0.97 of the gap between the models.
THRESHOLD = 0.5
SPAN = 8
# A check is paid by its prefix, whatever its span: on the bundled pair's calibration split, without a prefix cache,
# kl costs 1.06 times the cloud alone at spans of 16, 0.87 at 32 and 0.83 at 64, all right (`hybrid demo --calibrate`).
KL_SPAN = 32
LEAD = 8
# The first block the cloud writes after a rejection; doubled while it keeps the pen.
HOLD = 4
# On four draws of 120 calibration problems of the bundled pair: 473 of 480 right at 0.31 to 0.38 of the cloud's bill.
ENTROPY, CALM = 0.5, 0.02
# Tokens drafted before they are shown when nothing is asked.
UNASKED_SPAN = 1


@dataclass(frozen=True)
class Choices:
    """What a user may choose within a preset; None takes the preset's own value."""

    threshold: float | None = None
    entropy: float | None = None
    span: int | None = None
    lead: int | None = None
    hold: int | None = None
    greedy: bool = True
    strict: bool = False
    max_tokens: int = 512


@dataclass(frozen=True)
class Preset:
    """A name, what it does in a line, and how it is built."""

    name: str
    line: str
    build: Callable[[Choices], Policy]


def _local(_: Choices) -> Policy:
    return Policy("local", UNASKED_SPAN, NEVER)


def _cloud(choices: Choices) -> Policy:
    return Policy("cloud", UNASKED_SPAN, NEVER, lead=choices.max_tokens)


def _greedy_exact(choices: Choices) -> Policy:
    if not choices.greedy:
        msg = "greedy-exact reproduces the cloud model's greedy text: it needs --temperature 0"
        raise UsageError(msg)
    return Policy("greedy-exact", choices.span or SPAN, ALWAYS, greedy_match, bonus=True, lead=choices.lead or 0)


def _kl(choices: Choices) -> Policy:
    judge = _judge(choices, THRESHOLD)
    return Policy(
        "kl",
        choices.span or KL_SPAN,
        ALWAYS,
        judge,
        hold=choices.hold or HOLD,
        back=judge.agrees,
        patience=2,
        lead=choices.lead or 0,
    )


def _doubt(choices: Choices) -> Policy:
    limit = ENTROPY if choices.entropy is None else choices.entropy
    judge = _judge(choices, CALM)
    return Policy(
        "doubt",
        UNASKED_SPAN,
        Entropy(_nats("an entropy", limit)),
        hold=choices.hold or HOLD,
        back=judge.agrees,
        patience=2,
        lead=choices.lead or 0,
    )


def _paper(choices: Choices) -> Policy:
    span = choices.span or SPAN
    lead = LEAD if choices.lead is None else choices.lead
    number: Literal["lower", "upper"] = "upper" if choices.strict else "lower"
    # Not greedy in the judge's sense: nothing is recovered, the cloud writes the next k tokens itself.
    judge = KlWithin(_threshold(choices, THRESHOLD), number, greedy=False)
    return Policy("paper", span, ALWAYS, judge, scope=0, hold=span, lead=lead)


def _judge(choices: Choices, threshold: float) -> KlWithin:
    number: Literal["lower", "upper"] = "upper" if choices.strict else "lower"
    return KlWithin(_threshold(choices, threshold), number, greedy=choices.greedy)


def _threshold(choices: Choices, default: float) -> float:
    return _nats("a threshold", default if choices.threshold is None else choices.threshold)


def _nats(what: str, value: float) -> float:
    if math.isnan(value) or value < 0:
        msg = f"{what} is in nats, 0 or more or inf, not {value}"
        raise UsageError(msg)
    return value


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("kl", "check every span; the cloud takes the pen where KL exceeds the threshold", _kl),
        Preset(
            "doubt", "the local model writes until its entropy is high; then the cloud, until KL stays small", _doubt
        ),
        Preset("greedy-exact", "the cloud model's own greedy text, drafted locally and checked", _greedy_exact),
        Preset("paper", "the 2023 draft: every k tokens one KL, above it the cloud writes the next k", _paper),
        Preset("local", "the local model alone; no request is sent", _local),
        Preset("cloud", "the cloud model alone; the local one only finishes if it fails", _cloud),
    )
}


def preset(name: str, choices: Choices) -> Policy:
    """Build a named policy. Raises UsageError for an unknown name or choices that contradict it."""
    if name not in PRESETS:
        msg = f"no policy is called {name!r}; there are {', '.join(PRESETS)}"
        raise UsageError(msg)
    return PRESETS[name].build(choices)
