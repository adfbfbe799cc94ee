"""How a text is decoded: the policy, what may be chosen within it, and what its planner is told of worth and waiting.

Floor 0, as ``settings/config.py``, which is all settings together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field, field_validator

from hybrid.settings.setting_info import ASKED, DIAL, DRAWN, KNOB, OPENED, SettingInfo, SettingScope, SettingsGroup

MOST_SPAN = 256
# A quote knows no branches: what is drawn decides how many are scored.
BRANCHED = DRAWN | SettingScope.REPLAY
# What is written behind an amount, to tell it from a multiple of a price.
USD = "usd"
Stream: TypeAlias = Literal["blocks", "whole", "early"]
"""What is decided at once, under ``auto``: what is drafted in the time of ``patience``; the whole answer; all of it
from the question alone. ``route`` has no blocks: without a choice the whole answer is decided."""


Choice: TypeAlias = Literal["logprob", "majority"] | Callable[[str], float]
"""How one of several branches is chosen; a callable grades a text, the higher the better."""


def span_limits(span: object) -> tuple[int | None, int | None]:
    """Return a span's first length and, where spans follow one another, its longest; None: of no such number.

    >>> span_limits(8), span_limits("4..32"), span_limits("auto"), span_limits("4..")
    ((8, None), (4, 32), (None, None), (None, None))
    """
    if isinstance(span, int):
        return span, None
    first, dots, most = span.partition("..") if isinstance(span, str) else ("", "", "")
    return (int(first), int(most)) if dots and first.isdecimal() and most.isdecimal() else (None, None)


class PolicyChoices(SettingsGroup):
    """The policy, and what may be chosen within it: what it is built from, and what a trace keeps of it."""

    policy: Annotated[
        str,
        SettingInfo("How to decode, such as kl:0.5 or kl:adaptive; `hybrid policies` lists them all", "NAME[:X]", KNOB),
    ] = "auto"
    gate: Annotated[
        str | None, SettingInfo("Another gate, such as entropy:0.6 or max-prob:0.5:check", "NAME[:X[:DECISION]]", KNOB)
    ] = None
    judge: Annotated[
        str | None, SettingInfo("Another judge, such as js:0.1 or multiplicative:0.3", "NAME[:X]", KNOB)
    ] = None
    scope: Annotated[
        int | None, Field(ge=0), SettingInfo("Trailing drafted tokens that a check judges", "N", KNOB, default="all")
    ] = None
    bonus: Annotated[bool | None, SettingInfo("Take the cloud's token after a span that stands", uses=KNOB)] = None
    threshold: Annotated[
        float | None,
        Field(ge=0),
        SettingInfo("The same as X in --policy NAME:X", "X", KNOB, "the policy's own"),
    ] = None
    entropy: Annotated[
        float | None,
        Field(ge=0),
        SettingInfo("Policy doubt: nats of local entropy above which it asks", "H", KNOB, default="0.5"),
    ] = None
    concept_threshold: Annotated[
        float | None,
        Field(ge=0),
        SettingInfo(
            "Policy concepts: nats of KL over concepts up to which a divergence is wording",
            "X",
            KNOB,
            "the policy's own number",
        ),
    ] = None
    strict: Annotated[bool, SettingInfo("Judge by the upper end of the KL interval", uses=KNOB)] = False
    span: Annotated[
        int | str | None,
        SettingInfo(
            "Tokens drafted before a check; 4..32: 4 first, twice as many after a draft that is kept, at most 32, half "
            "as many after another; auto: the most tokens a second; cheap: the fewest USD",
            "K",
            KNOB,
            default="by policy: 8; kl: 32; exact rules: 16..32",
        ),
    ] = None
    lead: Annotated[
        int | None, Field(ge=0), SettingInfo("Tokens the cloud opens the text with", "N", KNOB, default="0; paper: 8")
    ] = None
    hold: Annotated[
        int | Literal["rest"] | None,
        SettingInfo(
            "Tokens the cloud writes before it may hand back, then doubled; rest: to the end",
            "N",
            KNOB,
            default="4; auto: rest",
            flag="--handoff",
        ),
    ] = None
    branches: Annotated[
        int | None,
        Field(ge=1, le=64),
        SettingInfo("Instead of a policy: draw N local answers, show the best; a check each", "N", BRANCHED),
    ] = None
    choose: Annotated[
        Choice | None,
        SettingInfo("The best: logprob of the cloud a token; majority of final answers", "HOW", BRANCHED, "logprob"),
    ] = None

    @field_validator("span", mode="before")
    @classmethod
    def _is_length(cls, value: object) -> object:
        length = int(value) if isinstance(value, str) and value.isdecimal() else value
        if length is None or (isinstance(length, str) and length in {"auto", "cheap"}):
            return length
        first, most = span_limits(length)
        if first is None or not 1 <= first <= MOST_SPAN or not (most is None or first < most <= MOST_SPAN):
            msg = f"between 1 and {MOST_SPAN}, from one to another as in 4..32, auto or cheap"
            raise ValueError(msg)
        return length

    @field_validator("choose", mode="before")
    @classmethod
    def _is_choice(cls, value: object) -> object:
        if value is None or callable(value) or value in get_args(get_args(Choice)[0]):
            return value
        raise ValueError("logprob or majority; in Python a function of a text, too")

    @field_validator("hold", mode="before")
    @classmethod
    def _is_handoff(cls, value: object) -> object:
        tokens = int(value) if isinstance(value, str) and value.isdecimal() else value
        if tokens == "rest" or tokens is None or (isinstance(tokens, int) and tokens >= 1):
            return tokens
        raise ValueError("at least 1, or rest")


class DecodingSettings(PolicyChoices):
    """The policy, and what is drafted or told beside it."""

    overlap: Annotated[bool, SettingInfo("Draft on while a check is waited for", uses=DRAWN)] = True
    concepts: Annotated[
        str | None,
        SettingInfo(
            "Which tokens say the same: a file of `hybrid concepts build`, auto or off",
            "FILE",
            OPENED,
            "auto: the one kept for the local vocabulary",
        ),
    ] = None
    trace_rows: Annotated[
        bool,
        SettingInfo(
            "Tell every row that is read; `hybrid replay` needs them", uses=SettingScope.ANSWER | SettingScope.TRACE
        ),
    ] = False


class DeferralChoices(SettingsGroup):
    """What ``auto`` and ``route`` weigh a request against, what they may learn, and how long its reader waits."""

    worth: Annotated[
        str | None,
        SettingInfo(
            "What keeping a draft loses that the cloud would turn down: multiples of the cloud's price for the "
            "answer, or USD such as 0.001usd",
            "X",
            DIAL,
            default="the calibration's own",
        ),
    ] = None
    risk: Annotated[
        float | None,
        Field(gt=0, lt=1),
        SettingInfo(
            "Instead of a worth: the share of all questions that may be kept though the cloud would turn them down; "
            "drafts are then decided whole",
            "SHARE",
            DIAL,
        ),
    ] = None
    learn: Annotated[bool, SettingInfo("Learn from what the cloud says of drafts", uses=ASKED)] = True
    patience: Annotated[
        float,
        Field(gt=0, allow_inf_nan=False),
        SettingInfo("Seconds of drafting after which what was drafted is decided and shown", "S", DIAL),
    ] = 2.0
    second_usd: Annotated[
        float,
        Field(ge=0, le=1e6, allow_inf_nan=False),
        SettingInfo(
            "A second's price: where waiting for a draft costs more than it saves, the cloud writes", "USD", DRAWN
        ),
    ] = 0.0
    stream: Annotated[
        Stream,
        SettingInfo(
            "What is decided at once: blocks of --patience, the whole draft, or early by the question alone",
            "HOW",
            DIAL,
        ),
    ] = "blocks"

    @field_validator("worth", mode="before")
    @classmethod
    def _is_worth(cls, value: object) -> object:
        """Take a number of a TOML file or a program as it is written: amounts are read from text, exactly."""
        if value is None:
            return None
        text = str(value).strip().lower()
        try:
            number = math.nan if isinstance(value, bool) else float(text.removesuffix(USD))
        except ValueError:
            number = math.nan
        if not 0.0 < number < math.inf:
            raise ValueError("more than 0: multiples of the cloud's price such as 2.2, or an amount such as 0.001usd")
        return text
