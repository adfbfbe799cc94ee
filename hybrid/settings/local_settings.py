"""The settings of local models: the one whose law a draft has, and those that stand beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, field_validator

from hybrid.settings.setting_info import LOADED, OPENED, SettingInfo, SettingScope, SettingsGroup
from hybrid.types import TemplateArg

# What a chat template is given by name, however it was written: a table, JSON, or NAME=VALUE.
#
# The law (``tests/test_config.py``): the three ways say the same, and whatever is said is names with JSON's scalars, or
# a sentence. Which names a template reads is the engine's business (``engine.template``).

_WRONG = "names that the chat template reads, each with a text, a number, true, false or null"


def arguments_of(given: object) -> dict[str, TemplateArg]:
    """Return the arguments by their names. Raises ValueError with one sentence.

    >>> arguments_of(["enable_thinking=false", "reasoning_effort=low"])
    {'enable_thinking': False, 'reasoning_effort': 'low'}
    """
    if isinstance(given, str):
        given = _read(given)
    if isinstance(given, list | tuple):
        given = dict(map(_pair, given))
    if not isinstance(given, Mapping):
        raise ValueError(_WRONG)  # noqa: TRY004  (pydantic tells ValueErrors)
    for name, value in given.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(_WRONG)
        if not (value is None or isinstance(value, str | int | float)) or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            msg = f"{name} is not a text, a number, true, false or null"
            raise ValueError(msg)
    return dict(given)


def _read(text: str) -> object:
    """Read what a variable holds: a JSON object, or one NAME=VALUE."""
    if not text.lstrip().startswith("{"):
        return [text]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        msg = 'an object in JSON like {"enable_thinking": false}'
        raise ValueError(msg) from None


def _pair(written: object) -> tuple[str, object]:
    """Read NAME=VALUE: a value that is JSON is what it says, any other is a text."""
    if not isinstance(written, str) or "=" not in written:
        msg = "NAME=VALUE, like enable_thinking=false"
        raise ValueError(msg)
    name, _, value = written.partition("=")
    try:
        return name.strip(), json.loads(value)
    except (ValueError, RecursionError):
        return name.strip(), value


# Types that llama.cpp has for a KV cache; ``engine.local_memory`` has their sizes.
KvTypeName: TypeAlias = Literal["f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]


class LocalSettings(SettingsGroup):
    """The local model."""

    local: Annotated[
        Path | None,
        SettingInfo(
            "GGUF file of the local model, or its name as `hybrid models list` has it; given again, the smallest "
            "first, each drafts for the next",
            "GGUF",
            SettingScope.FLAG | SettingScope.PROBE | SettingScope.PRICE,
            "the bundled small model",
            several=True,
        ),
    ] = None
    ctx: Annotated[
        int,
        Field(ge=0, lt=2**31),
        SettingInfo("Local context in tokens; 0: what the model was trained with, 8192 at most", "N", OPENED),
    ] = 0
    threads: Annotated[
        int | None, Field(ge=1, le=256), SettingInfo("llama.cpp threads", "N", OPENED, "one core is left free")
    ] = None
    parallel: Annotated[
        int,
        Field(ge=1, le=64),
        SettingInfo("Questions answered at once, each in a context of its own", "N", SettingScope.FLAG),
    ] = 1
    max_queued: Annotated[
        int | None,
        Field(ge=0),
        SettingInfo("Questions that may wait for a context; one more is refused", uses=SettingScope.NONE),
    ] = None
    queue_timeout_s: Annotated[
        float | None, Field(gt=0), SettingInfo("Deadline of a wait for a context", uses=SettingScope.NONE)
    ] = None
    gpu_layers: Annotated[
        int | None,
        Field(ge=-1),
        SettingInfo("Layers to keep on a GPU; -1: all", "N", LOADED, "llama.cpp's own: all where one is found"),
    ] = None
    kv_type: Annotated[KvTypeName, SettingInfo("Type of the numbers in the KV cache", "TYPE", LOADED)] = "f16"


class SeveralModels(SettingsGroup):
    """Local models beside the one that answers: smaller ones that draft for it, experts, a critic."""

    drafters: Annotated[
        tuple[Path, ...],
        SettingInfo("Local models that draft for `local`, the smallest first", uses=SettingScope.NONE),
    ] = ()
    chain: Annotated[
        str,
        Field(min_length=1),
        SettingInfo(
            "Which local models draft for one another: auto, whichever is fastest; cheap, whichever costs least; or by "
            "name, like small>mid",
            "CHAIN",
            SettingScope.FLAG,
        ),
    ] = "auto"
    max_active: Annotated[
        int | None,
        Field(ge=1),
        SettingInfo("Local models of a chain that are loaded at once", "N", SettingScope.FLAG, "all that were named"),
    ] = None
    experts: Annotated[
        tuple[Path, ...],
        SettingInfo(
            "GGUF file or name of an expert; given again, for each: they write together in the local model's place",
            "GGUF",
            SettingScope.FLAG,
            flag="--expert",
        ),
    ] = ()
    mix: Annotated[
        Literal["mix", "select"],
        SettingInfo(
            "How experts write: select, each where it is the nearest to the cloud; mix, from the weighted sum of their "
            "laws",
            "HOW",
            SettingScope.FLAG,
        ),
    ] = "select"
    critic: Annotated[
        Path | None,
        SettingInfo(
            "GGUF file or name of a local model that reads each draft before `auto` decides about it",
            "GGUF",
            SettingScope.FLAG | SettingScope.CALIBRATE,
        ),
    ] = None

    @field_validator("drafters", "experts", mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        """Take one name or several with commas between, as a variable can hold them."""
        return [name.strip() for name in value.split(",")] if isinstance(value, str) else value
