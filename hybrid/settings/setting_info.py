"""What is said of a setting beside its type and default: a sentence, and the places where it may be chosen.

The settings themselves stand in ``settings/config.py`` and ``settings/policy_choices.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, auto

from pydantic import BaseModel, ConfigDict


class SettingScope(Flag):
    """Where a setting may be chosen, beside ``hybrid.open``, variables and the user's own files, which take all."""

    NONE = 0
    FLAG = auto()
    """A flag of ``hybrid ask``, ``chat``, ``batch`` and ``serve``."""
    ANSWER = auto()
    """``generate`` and ``stream``, and a line of a batch. All else is fixed when a client is opened."""
    PROJECT = auto()
    """``hybrid.toml`` in the working directory, which may come with a folder that somebody else wrote.

    It says how the text is decoded and drawn, and nothing by which it could send data to another place, lift a bound
    on spending or on what is sent, load a file, or put words into a question: neither ``system`` nor ``raw`` (special
    tokens read from the prompt), ``offline`` (whether anything is sent), ``conversation`` (whose cap counts), ``ctx``
    (how long a text may get at all), ``trace_rows`` (what a trace gives away) nor ``learn`` (what is kept of the user's
    questions). The caps bound what this costs.
    """
    REPLAY = auto()
    PROBE = auto()
    PRICE = auto()
    TRACE = auto()
    CALIBRATE = auto()
    """A flag of ``hybrid replay``, of ``hybrid probe``, of ``hybrid price``, of commands that write a trace, of
    ``hybrid calibrate``."""


# How tokens are drawn: a replay draws as it was recorded.
DRAWN = SettingScope.FLAG | SettingScope.ANSWER | SettingScope.PROJECT
# What a policy is told of its endpoint's prices and of waiting: a trace keeps what followed from it.
DIAL = DRAWN | SettingScope.PRICE
# A knob of the policy, and all the places that decide how a text is decoded.
KNOB = DIAL | SettingScope.REPLAY
ASKED = SettingScope.FLAG | SettingScope.ANSWER
PROBED = SettingScope.FLAG | SettingScope.PROBE | SettingScope.CALIBRATE
PRICED = PROBED | SettingScope.PRICE
QUOTED = SettingScope.FLAG | SettingScope.PRICE | SettingScope.CALIBRATE
# Which model, and how it is run: a client is opened with it.
OPENED = SettingScope.FLAG | SettingScope.CALIBRATE
LOADED = OPENED | SettingScope.PROBE


@dataclass(frozen=True)
class SettingInfo:
    """A sentence about a setting, what a flag's value is called, and where it may be chosen.

    ``default``: what None stands for, where the field's own default does not say it. ``flag``: a second name of its
    flag. ``several``: the flag may be given again, though the field holds one value (``sources``).
    """

    help: str
    metavar: str | None = None
    uses: SettingScope = SettingScope.FLAG
    default: str = ""
    flag: str | None = None
    several: bool = False


class SettingsGroup(BaseModel):
    """Settings that belong together; None means: the bundled model, the policy's own value, no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)
