"""Every setting, declared once: its type and range, its default, its sentence, and where it may be chosen.

A setting is a field of a group (connection, money, decoding, text, sampling, local model), and ``Settings`` is all of
them. What is derived from a field, and where:

- the ``HYBRID_*`` variable and the TOML key: ``sources.py``; the flags and their help: ``cli/flags.py``
- what one answer, the working directory's file, ``replay``, ``probe`` and ``price`` may choose: ``SettingPlace``
- what a policy is built from and what a trace keeps of it: the fields of ``PolicyChoices``

Type checkers want the keyword arguments of ``hybrid.open`` and ``generate`` in a form of their own: ``AnswerChoices``
and ``OpenArguments``, at the end. The law: nothing else lists settings (``tests/test_settings.py`` goes through every
field and each derived place). Where values come from is not known here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypedDict
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from hybrid.model_names import NAMED

# In the place of a ledger's name: what is spent is forgotten with the process, and the ledger's caps do not bind.
NO_LEDGER = "none"
MOST_SPAN = 256


class SettingPlace(Flag):
    """Where a setting may be chosen, beside ``hybrid.open``, variables and the user's own files, which take all."""

    NONE = 0
    FLAG = auto()
    """A flag of ``hybrid ask`` and ``hybrid batch``."""
    ANSWER = auto()
    """``generate`` and ``stream``, and a line of a batch. All else is fixed when a client is opened."""
    PROJECT = auto()
    """``hybrid.toml`` in the working directory, which may come with a folder that somebody else wrote.

    It says how the text is decoded and drawn, and nothing by which it could send data to another place, lift a bound
    on spending or on what is sent, load a file, or put words into a question: neither ``system`` nor ``raw`` (special
    tokens read from the prompt), ``offline`` (whether anything is sent), ``conversation`` (whose cap counts), ``ctx``
    (how long a text may get at all) nor ``trace_rows`` (what a trace gives away). The caps bound what this costs.
    """
    REPLAY = auto()
    PROBE = auto()
    PRICE = auto()
    TRACE = auto()
    """A flag of ``hybrid replay``, of ``hybrid probe``, of ``hybrid price``, of commands that write a trace."""


# A knob of the policy, and all the places that decide how a text is decoded.
KNOB = SettingPlace.FLAG | SettingPlace.ANSWER | SettingPlace.PROJECT | SettingPlace.REPLAY | SettingPlace.PRICE
# How tokens are drawn: a replay draws as it was recorded.
DRAWN = SettingPlace.FLAG | SettingPlace.ANSWER | SettingPlace.PROJECT
ASKED = SettingPlace.FLAG | SettingPlace.ANSWER
PROBED = SettingPlace.FLAG | SettingPlace.PROBE
PRICED = PROBED | SettingPlace.PRICE
QUOTED = SettingPlace.FLAG | SettingPlace.PRICE


@dataclass(frozen=True)
class SettingInfo:
    """A sentence about a setting, what a flag's value is called, and where it may be chosen.

    ``default``: what None stands for, where the field's own default does not say it.
    """

    help: str
    metavar: str | None = None
    uses: SettingPlace = SettingPlace.FLAG
    default: str = ""


class _SettingsGroup(BaseModel):
    """Settings that belong together; None means: the bundled model, the policy's own value, no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ConnectionSettings(_SettingsGroup):
    """The endpoint, and how long it is waited for."""

    cloud: Annotated[
        str | None, SettingInfo("URL of the endpoint, or a model's name", "URL", QUOTED, "the bundled large model")
    ] = None
    cloud_model: Annotated[str | None, SettingInfo("Model name at the endpoint", "M", QUOTED, "the one it serves")] = (
        None
    )
    dialect: Annotated[str | None, SettingInfo("The endpoint's dialect", "D", PROBED, default="found out")] = None
    api_key_env: Annotated[str, SettingInfo("Variable that holds the endpoint's key", "VAR", PROBED)] = "HYBRID_API_KEY"
    offline: Annotated[bool, SettingInfo("Send no request", uses=ASKED)] = False
    cloud_top_k: Annotated[
        int, Field(ge=1), SettingInfo("Log-probabilities asked for at each position", uses=SettingPlace.NONE)
    ] = 20
    cache_salt: Annotated[
        str | None,
        Field(min_length=1),
        SettingInfo("Text that parts this client's prefix cache from others'", uses=SettingPlace.NONE),
    ] = None
    connect_timeout_s: Annotated[
        float, Field(gt=0), SettingInfo("Deadline for a connection: the name, a proxy, TLS", uses=SettingPlace.NONE)
    ] = 5.0
    first_byte_timeout_s: Annotated[
        float, Field(gt=0), SettingInfo("Deadline for the first byte of a reply", uses=SettingPlace.NONE)
    ] = 20.0
    read_timeout_s: Annotated[
        float, Field(gt=0), SettingInfo("Deadline between two parts of a reply", uses=SettingPlace.NONE)
    ] = 10.0
    request_timeout_s: Annotated[
        float, Field(gt=0), SettingInfo("Most waiting for one question, its retries included", uses=SettingPlace.NONE)
    ] = 120.0
    cool_down_s: Annotated[
        float,
        Field(gt=0),
        SettingInfo("How long an endpoint that failed is left alone; doubled while it fails", uses=SettingPlace.NONE),
    ] = 5.0
    retries: Annotated[
        int,
        Field(ge=0, le=9),
        SettingInfo("Requests more for a question that failed before anything came of it", uses=SettingPlace.NONE),
    ] = 2

    @field_validator("cloud")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        if value is not None and value not in NAMED and not _is_address(value):
            msg = "an endpoint's address is http:// or https://, a host, and perhaps a port and a path"
            raise ValueError(msg)
        return value


class MoneySettings(_SettingsGroup):
    """What a request costs, how much may be spent, and where that is written."""

    price: Annotated[
        str | None,
        SettingInfo(
            "USD per million prompt/cached/completion tokens, perhaps /USD a request, perhaps :cached or :new; or free",
            "P/C/O",
            PRICED | SettingPlace.REPLAY,
        ),
    ] = None
    prices: Annotated[
        Path | None, SettingInfo("Price file", "FILE", PRICED, default="prices.toml in your configuration folder")
    ] = None
    cap: Annotated[
        str | None, SettingInfo("Most USD this client may spend, besides the caps of `hybrid budget`", "USD", PROBED)
    ] = None
    ledger: Annotated[
        Path | None,
        SettingInfo("File that keeps what is spent; none: no file", "FILE", PROBED, default="in your state folder"),
    ] = None
    spender: Annotated[
        str | None,
        Field(min_length=1),
        SettingInfo("Name under which the cap counts over several runs", uses=SettingPlace.NONE),
    ] = None
    conversation: Annotated[
        str | None,
        Field(min_length=1),
        SettingInfo(
            "Count the question to the conversation NAME",
            "NAME",
            ASKED | SettingPlace.PROBE,
            default="this client's own",
        ),
    ] = None

    @field_validator("price", "cap", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        """Take numbers of a TOML file or a program as they are written: amounts are read from text, exactly."""
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class PolicyChoices(_SettingsGroup):
    """The policy, and what may be chosen within it: what it is built from, and what a trace keeps of it."""

    policy: Annotated[
        str,
        SettingInfo("How to decode, such as kl:0.5 or doubt:0.03; `hybrid policies` lists them all", "NAME[:X]", KNOB),
    ] = "kl"
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
    strict: Annotated[bool, SettingInfo("Judge by the upper end of the KL interval", uses=KNOB)] = False
    span: Annotated[
        int | Literal["auto", "cheap"] | None,
        SettingInfo(
            "Tokens drafted before a check; auto: the most tokens a second; cheap: the fewest USD",
            "K",
            KNOB,
            default="8; kl: 32",
        ),
    ] = None
    lead: Annotated[
        int | None, Field(ge=0), SettingInfo("Tokens the cloud opens the text with", "N", KNOB, default="0; paper: 8")
    ] = None
    hold: Annotated[
        int | None,
        Field(ge=1),
        SettingInfo("Tokens the cloud writes before it may hand back; then doubled", "N", KNOB, default="4"),
    ] = None

    @field_validator("span", mode="before")
    @classmethod
    def _is_length(cls, value: object) -> object:
        length = int(value) if isinstance(value, str) and value.isdecimal() else value
        if isinstance(length, str) and length in {"auto", "cheap"}:
            return length
        if length is None or (isinstance(length, int) and 1 <= length <= MOST_SPAN):
            return length
        msg = f"between 1 and {MOST_SPAN}, auto or cheap"
        raise ValueError(msg)


class DecodingSettings(PolicyChoices):
    """The policy, and what is drafted or told beside it."""

    overlap: Annotated[bool, SettingInfo("Draft on while a check is waited for", uses=DRAWN)] = True
    trace_rows: Annotated[
        bool,
        SettingInfo(
            "Tell every row that is read; `hybrid replay` needs them", uses=SettingPlace.ANSWER | SettingPlace.TRACE
        ),
    ] = False


class TextSettings(_SettingsGroup):
    """What is put before and around the question, and where the text ends."""

    system: Annotated[str | None, SettingInfo("System message", "TEXT", ASKED | SettingPlace.PRICE)] = None
    raw: Annotated[bool, SettingInfo("No chat template: continue the prompt as it stands", uses=ASKED)] = False
    max_tokens: Annotated[int, Field(ge=1), SettingInfo("Most tokens in the answer", "N", KNOB)] = 512
    stop: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...],
        SettingInfo("End the text before this string; may be given again", "TEXT", KNOB),
    ] = ()

    @field_validator("stop", mode="before")
    @classmethod
    def _from_json(cls, value: object) -> object:
        """Take a list as a variable can hold it."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            msg = 'a list of texts, in a variable one in JSON like ["END"]'
            raise ValueError(msg) from None


class SamplingSettings(_SettingsGroup):
    """How tokens are drawn, whoever draws them."""

    temperature: Annotated[
        float, Field(ge=0, allow_inf_nan=False), SettingInfo("0: always the most likely token", "T", DRAWN)
    ] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1), SettingInfo("Nucleus sampling; 1: all", "P", DRAWN)] = 1.0
    top_k: Annotated[int, Field(ge=0), SettingInfo("Draw from the K best tokens; 0: all", "K", DRAWN)] = 0
    min_p: Annotated[
        float, Field(ge=0, lt=1), SettingInfo("Drop tokens below this share of the best one's chance", "P", DRAWN)
    ] = 0.0
    seed: Annotated[
        int | None, Field(ge=0), SettingInfo("Seed of all draws", "S", DRAWN, default="another for every answer")
    ] = None


class LocalSettings(_SettingsGroup):
    """The local model."""

    local: Annotated[
        Path | None, SettingInfo("GGUF file of the local model, or its name", "GGUF", PRICED, "the bundled small model")
    ] = None
    ctx: Annotated[
        int,
        Field(ge=0, lt=2**31),
        SettingInfo("Local context in tokens; 0: what the model was trained with, 8192 at most", "N"),
    ] = 0
    threads: Annotated[
        int | None, Field(ge=1, le=256), SettingInfo("llama.cpp threads", "N", default="one core is left free")
    ] = None
    gpu_layers: Annotated[int, Field(ge=-1), SettingInfo("Layers to keep on a GPU; -1: all", "N")] = 0


# Every group with the title of its flags, in the order of the help.
GROUPS: Mapping[str, type[_SettingsGroup]] = {
    "Local model": LocalSettings,
    "Connection": ConnectionSettings,
    "Money": MoneySettings,
    "Decoding": DecodingSettings,
    "Text": TextSettings,
    "Sampling": SamplingSettings,
}


class Settings(SamplingSettings, TextSettings, DecodingSettings, MoneySettings, ConnectionSettings, LocalSettings):
    """What a user may choose."""


def setting(name: str) -> SettingInfo:
    """Return the description of a setting."""
    return next(each for each in Settings.model_fields[name].metadata if isinstance(each, SettingInfo))


def names_for(use: SettingPlace) -> frozenset[str]:
    """Return the settings that may be chosen in a place."""
    return frozenset(name for name in Settings.model_fields if use in setting(name).uses)


def _is_address(value: str) -> bool:
    try:
        parts = urlsplit(value)
        is_http = parts.scheme in {"http", "https"} and not re.search(r"[\s\x00-\x1f]", value)
        return is_http and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False


# An amount: a number as a program has it, or text that is read exactly.
Amount: TypeAlias = str | float


class AnswerChoices(TypedDict, total=False):
    """What one answer may choose, for type checkers: the settings for ``SettingPlace.ANSWER``. None: not chosen."""

    offline: bool | None
    conversation: str | None
    policy: str | None
    gate: str | None
    judge: str | None
    scope: int | None
    bonus: bool | None
    threshold: float | None
    entropy: float | None
    strict: bool | None
    span: int | Literal["auto", "cheap"] | None
    lead: int | None
    hold: int | None
    overlap: bool | None
    trace_rows: bool | None
    system: str | None
    raw: bool | None
    max_tokens: int | None
    stop: Sequence[str] | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None


class OpenArguments(AnswerChoices, total=False):
    """What ``hybrid.open`` takes, for type checkers: every setting. None: not given."""

    local: Path | str | None
    ctx: int | None
    threads: int | None
    gpu_layers: int | None
    cloud: str | None
    cloud_model: str | None
    dialect: str | None
    api_key_env: str | None
    cloud_top_k: int | None
    cache_salt: str | None
    connect_timeout_s: float | None
    first_byte_timeout_s: float | None
    read_timeout_s: float | None
    request_timeout_s: float | None
    cool_down_s: float | None
    retries: int | None
    price: Amount | None
    prices: Path | str | None
    cap: Amount | None
    ledger: Path | str | None
    spender: str | None
