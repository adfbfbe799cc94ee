"""Every setting, declared once: its type and range, its default, its sentence, and where it may be chosen.

A setting is a field of a group (connection, money, text, sampling; local models are in ``local_settings.py``, decoding
and what ``auto`` is told in ``policy_choices.py``), and ``Settings`` is all of them. What is derived from a field, and
where:

- the ``HYBRID_*`` variable and the TOML key: ``settings/sources.py``; the flags and their help: ``cli/command.py``
- what one answer, the working directory's file, ``replay``, ``probe`` and ``price`` may choose: ``SettingScope``
- what a policy is built from and what a trace keeps of it: the fields of ``policy_choices.PolicyChoices``

Type checkers want the keyword arguments of ``hybrid.open`` and ``generate`` in a form of their own: ``AnswerChoices``
and ``OpenArguments``, at the end. The law: nothing else lists settings (``tests/test_settings.py`` goes through every
field and each derived place). Where values come from is not known here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypedDict

from pydantic import Field, field_validator

from hybrid.settings.local_settings import KvTypeName, LocalSettings, SeveralModels, arguments_of
from hybrid.settings.names import NAMED, complete_address, is_address
from hybrid.settings.policy_choices import Choice, DecodingSettings, DeferralChoices
from hybrid.settings.setting_info import (
    ASKED,
    DRAWN,
    KNOB,
    OPENED,
    PRICED,
    PROBED,
    QUOTED,
    SettingInfo,
    SettingScope,
    SettingsGroup,
)
from hybrid.types import TemplateArg

# In the place of a ledger's name: what is spent is forgotten with the process, and the ledger's caps do not bind.
NO_LEDGER = "none"


def _address(value: str) -> str:
    """Return the complete address of an endpoint. Raises ValueError."""
    whole = complete_address(value)
    if not is_address(whole):
        msg = "an endpoint's address is http:// or https://, a host, and perhaps a port and a path"
        raise ValueError(msg if "://" in value else f"{msg}: write https:// or http:// before it")
    return whole


class ConnectionSettings(SettingsGroup):
    """The endpoint, and how long it is waited for."""

    cloud: Annotated[
        str | None, SettingInfo("URL of the endpoint, or a model's name", "URL", QUOTED, "the bundled large model")
    ] = None
    cloud_model: Annotated[str | None, SettingInfo("Model name at the endpoint", "M", QUOTED, "the one it serves")] = (
        None
    )
    cloud_vocabulary: Annotated[
        Path | None,
        SettingInfo("File of the cloud's model, for its vocabulary", "GGUF", PRICED, "the local one's"),
    ] = None
    dialect: Annotated[str | None, SettingInfo("The endpoint's dialect", "D", PRICED, default="found out")] = None
    api_key_env: Annotated[str, SettingInfo("Variable that holds the endpoint's key", "VAR", PROBED)] = "HYBRID_API_KEY"
    offline: Annotated[bool, SettingInfo("Send no request", uses=ASKED)] = False
    cloud_top_k: Annotated[
        int, Field(ge=1), SettingInfo("Log-probabilities asked for at each position", uses=SettingScope.NONE)
    ] = 20
    cache_salt: Annotated[
        str | None,
        Field(min_length=1),
        SettingInfo("Text that parts this client's prefix cache from others'", uses=SettingScope.NONE),
    ] = None
    connect_timeout_s: Annotated[
        float, Field(gt=0), SettingInfo("Deadline for a connection: the name, a proxy, TLS", uses=SettingScope.NONE)
    ] = 5.0
    first_byte_timeout_s: Annotated[
        float, Field(gt=0), SettingInfo("Deadline for the first byte of a reply", uses=SettingScope.NONE)
    ] = 20.0
    read_timeout_s: Annotated[
        float, Field(gt=0), SettingInfo("Deadline between two parts of a reply", uses=SettingScope.NONE)
    ] = 10.0
    request_timeout_s: Annotated[
        float, Field(gt=0), SettingInfo("Most waiting for one question, its retries included", uses=SettingScope.NONE)
    ] = 120.0
    cool_down_s: Annotated[
        float,
        Field(gt=0),
        SettingInfo("How long an endpoint that failed is left alone; doubled while it fails", uses=SettingScope.NONE),
    ] = 5.0
    retries: Annotated[
        int,
        Field(ge=0, le=9),
        SettingInfo("Requests more for a question that failed before anything came of it", uses=SettingScope.NONE),
    ] = 2

    @field_validator("cloud")
    @classmethod
    def _complete(cls, value: str | None) -> str | None:
        return value if value is None or value in NAMED else _address(value)


class RelaySettings(SettingsGroup):
    """Where ``hybrid serve`` sends what no hybrid can honour (tools, images): a chat route, perhaps of another service.

    A file has them in a table ``[relay]``: ``url``, ``model``, ``price``, ``api_key_env``, ``image_tokens``.
    """

    relay_url: Annotated[
        str | None,
        SettingInfo(
            "Chat endpoint that requests go to which only a cloud model can honour",
            uses=SettingScope.NONE,
            default="that of --cloud",
        ),
    ] = None
    relay_model: Annotated[
        str | None, Field(min_length=1), SettingInfo("Its model", uses=SettingScope.NONE, default="that of --cloud")
    ] = None
    relay_price: Annotated[
        str | None, SettingInfo("What it charges, as --price", uses=SettingScope.NONE, default="by the price file")
    ] = None
    relay_api_key_env: Annotated[
        str | None,
        Field(min_length=1),
        SettingInfo(
            "Variable that holds its key", uses=SettingScope.NONE, default="--api-key-env where the host is the same"
        ),
    ] = None
    relay_image_tokens: Annotated[
        int | None,
        Field(ge=1),
        SettingInfo("Most tokens that it charges for an image", uses=SettingScope.NONE, default="not known"),
    ] = None

    @field_validator("relay_url")
    @classmethod
    def _complete_relay(cls, value: str | None) -> str | None:
        return None if value is None else _address(value)

    @field_validator("relay_price", mode="before")
    @classmethod
    def _relay_price_as_text(cls, value: object) -> object:
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class MoneySettings(SettingsGroup):
    """What a request costs, how much may be spent, and where that is written."""

    price: Annotated[
        str | None,
        SettingInfo(
            "USD per million prompt/cached/completion tokens, P/C/W/O with cache writes, P/C/W/O/R with USD a request, "
            "perhaps :cached or :new; or free",
            "P/C/O",
            PRICED | SettingScope.REPLAY,
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
        SettingInfo("Name under which the cap counts over several runs", uses=SettingScope.NONE),
    ] = None
    conversation: Annotated[
        str | None,
        Field(min_length=1),
        SettingInfo(
            "Count the question to the conversation NAME",
            "NAME",
            ASKED | PROBED,
            default="this client's own",
        ),
    ] = None

    @field_validator("price", "cap", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        """Take numbers of a TOML file or a program as they are written: amounts are read from text, exactly."""
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class TextSettings(SettingsGroup):
    """What is put before and around the question, and where the text ends."""

    system: Annotated[str | None, SettingInfo("System message", "TEXT", ASKED | QUOTED)] = None
    raw: Annotated[bool, SettingInfo("No chat template: continue the prompt as it stands", uses=ASKED)] = False
    template_args: Annotated[
        Mapping[str, TemplateArg],
        SettingInfo(
            "Give the chat template a name that it reads, like enable_thinking=false; may be given again",
            "NAME=VALUE",
            ASKED | QUOTED,
            flag="--template-arg",
        ),
    ] = {}
    max_tokens: Annotated[
        int, Field(ge=0), SettingInfo("Most tokens in the answer; 0: the rest of the context", "N", KNOB | OPENED)
    ] = 512
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

    @field_validator("template_args", mode="before")
    @classmethod
    def _as_arguments(cls, value: object) -> object:
        """Take a table, JSON as a variable can hold it, or NAME=VALUE as flags are."""
        return arguments_of(value)


class SamplingSettings(SettingsGroup):
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


# Every group with the title of its flags, in the order of the help.
GROUPS: Mapping[str, type[SettingsGroup]] = {
    "Local model": LocalSettings,
    "Several local models": SeveralModels,
    "Connection": ConnectionSettings,
    "Relay": RelaySettings,
    "Money": MoneySettings,
    "Decoding": DecodingSettings,
    "Policies auto and route": DeferralChoices,
    "Text": TextSettings,
    "Sampling": SamplingSettings,
}


class Settings(
    SamplingSettings,
    TextSettings,
    DeferralChoices,
    DecodingSettings,
    MoneySettings,
    RelaySettings,
    ConnectionSettings,
    SeveralModels,
    LocalSettings,
):
    """What a user may choose."""


def setting(name: str) -> SettingInfo:
    """Return the description of a setting."""
    return next(each for each in Settings.model_fields[name].metadata if isinstance(each, SettingInfo))


def names_for(use: SettingScope) -> frozenset[str]:
    """Return the settings that may be chosen in a place."""
    return frozenset(name for name in Settings.model_fields if use in setting(name).uses)


# An amount: a number as a program has it, or text that is read exactly.
Amount: TypeAlias = str | float


class AnswerChoices(TypedDict, total=False):
    """What one answer may choose, for type checkers: the settings for ``SettingScope.ANSWER``. None: not chosen."""

    offline: bool | None
    conversation: str | None
    policy: str | None
    gate: str | None
    judge: str | None
    scope: int | None
    bonus: bool | None
    threshold: float | None
    entropy: float | None
    concept_threshold: float | None
    strict: bool | None
    span: int | str | None
    lead: int | None
    hold: int | Literal["rest"] | None
    branches: int | None
    choose: Choice | None
    overlap: bool | None
    trace_rows: bool | None
    worth: Amount | None
    risk: float | None
    learn: bool | None
    patience: float | None
    second_usd: float | None
    stream: Literal["blocks", "whole", "early"] | None
    system: str | None
    raw: bool | None
    template_args: Mapping[str, TemplateArg] | None
    max_tokens: int | None
    stop: Sequence[str] | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None


class OpenArguments(AnswerChoices, total=False):
    """What ``hybrid.open`` takes, for type checkers: every setting. None: not given."""

    local: Path | str | Sequence[Path | str] | None
    drafters: Sequence[Path | str] | None
    chain: str | None
    max_active: int | None
    experts: Sequence[Path | str] | None
    mix: Literal["mix", "select"] | None
    critic: Path | str | None
    concepts: str | None
    ctx: int | None
    threads: int | None
    parallel: int | None
    max_queued: int | None
    queue_timeout_s: float | None
    gpu_layers: int | None
    kv_type: KvTypeName | None
    cloud: str | None
    cloud_model: str | None
    cloud_vocabulary: Path | str | None
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
    relay_url: str | None
    relay_model: str | None
    relay_price: str | None
    relay_api_key_env: str | None
    relay_image_tokens: int | None
    price: Amount | None
    prices: Path | str | None
    cap: Amount | None
    ledger: Path | str | None
    spender: str | None
