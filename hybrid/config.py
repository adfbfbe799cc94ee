"""Settings, and where they come from. Wires nothing.

Every field is a parameter of ``hybrid.open``; all but the deadlines, ``retries``, ``cool_down_s``, ``cloud_top_k`` and
``cache_salt`` are flags of ``hybrid ask``. ``--max-tokens 64``, ``HYBRID_MAX_TOKENS=64`` and ``max_tokens = 64`` say
the same. The first source that names a setting wins:

1. flags, and the parameters of ``hybrid.open``
2. ``HYBRID_*`` variables
3. the file of ``--config`` or ``HYBRID_CONFIG``
4. ``hybrid.toml`` in the working directory
5. without 3, the user's own: ``hybrid.toml`` in their configuration folder

The law: the fourth may come from whoever wrote the folder, so it sets what stands in ``PROJECT_SETTINGS`` and nothing
else; a file that says more is refused as a whole (``tests/test_config.py`` goes through every field). The fifth may
say everything, so nobody else may be able to write it.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from platformdirs import user_cache_path, user_config_path, user_state_path
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from hybrid.errors import UsageError, one_line

CONFIG_FILE = "hybrid.toml"
PREFIX = "HYBRID_"
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
# What a file in the working directory may set: how the text is decoded and drawn. Such a file may come with a folder
# that somebody else wrote, so nothing is on this list by which it could send data to another place, lift a bound on
# spending or on what is sent, load a file, or put words into a question. Not on it, for example: ``system`` and ``raw``
# (other words, special tokens read from the prompt), ``offline`` (whether anything is sent), ``conversation`` (whose
# cap counts), ``ctx`` (how long a text may get at all), ``trace_rows`` (what a trace gives away). What is on it changes
# what an answer costs: the caps, which are not on it, bound that.
PROJECT_SETTINGS = frozenset({
    "policy", "gate", "judge", "scope", "bonus", "threshold", "entropy", "strict", "span", "lead", "hold", "max_tokens",
    "stop", "temperature", "top_p", "top_k", "min_p", "seed", "overlap",
})  # fmt: skip
# The name of this program's folders among the user's own; without an author, which only Windows would show.
APP = "hybrid-llm"
# In the place of a ledger's name: what is spent is forgotten with the process, and the ledger's caps do not bind.
NO_LEDGER = "none"
MOST_SPAN = 256
# What pydantic finds wrong with a value, as a user reads it; {} is the bound.
_WORDS = (
    dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "must be a whole number")
    | dict.fromkeys(("float_type", "float_parsing"), "must be a number")
    | dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false")
    | dict.fromkeys(("string_type", "path_type"), "must be text")
    | {
        "finite_number": "must be a finite number",
        "string_too_short": "must not be empty",
        "tuple_type": "must be a list of texts",
        "greater_than": "must be more than {gt}",
        "greater_than_equal": "must be at least {ge}",
        "less_than": "must be less than {lt}",
        "less_than_equal": "must be at most {le}",
    }
)
_SPACE = re.compile(r"[\s\x00-\x1f]")


class Settings(BaseModel):
    """What a user may choose; None means: the bundled model, the preset's own value, no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    local: Path | None = Field(None, description="GGUF file of the local model")
    cloud: str | None = Field(None, description="base URL of the cloud endpoint")
    cloud_model: str | None = Field(None, description="model name at the endpoint")
    dialect: str | None = Field(
        None, description="the endpoint's dialect, where it cannot be found out; see hybrid probe"
    )
    api_key_env: str = Field("HYBRID_API_KEY", description="environment variable that holds the endpoint's key")
    price: str | None = Field(
        None, description="USD per million prompt/cached/completion tokens (and per request), or free"
    )
    prices: Path | None = Field(None, description="price file; default: prices.toml in the user's configuration")
    cap: str | None = Field(None, description="most USD this client may spend, besides the ledger's caps")
    ledger: Path | None = Field(
        None, description="file that keeps what was spent; none: no file; default: in the user's state folder"
    )
    spender: str | None = Field(None, min_length=1, description="name under which --cap counts over several runs")
    conversation: str | None = Field(
        None, min_length=1, description="whose cap a question counts against; default: this client's own"
    )
    policy: str = Field("kl", description="decoding policy; see hybrid policies")
    gate: str | None = Field(None, description="another gate for the policy, NAME or NAME:NUMBER[:CALL]")
    judge: str | None = Field(None, description="another judge for the policy, NAME or NAME:NUMBER")
    scope: int | None = Field(None, ge=0, description="trailing drafted tokens that a check judges; the others stand")
    bonus: bool | None = Field(None, description="take the cloud's own token after a span that stands")
    threshold: float | None = Field(None, ge=0, description="the policy's number; kl: nats of KL(cloud || local)")
    entropy: float | None = Field(None, ge=0, description="nats of local entropy above which doubt asks")
    strict: bool = Field(default=False, description="judge by the upper end of the KL interval")
    span: int | Literal["auto", "cheap"] | None = Field(
        None, description="tokens drafted before a question; auto: the most tokens a second; cheap: the fewest USD"
    )
    lead: int | None = Field(None, ge=0, description="tokens the cloud opens the text with")
    hold: int | None = Field(None, ge=1, description="tokens the cloud writes before it may hand back; then doubled")
    max_tokens: int = Field(512, ge=1, description="most tokens in an answer")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="strings that end the text before them"
    )
    temperature: float = Field(0.0, ge=0, allow_inf_nan=False, description="0: always the most likely token")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus sampling")
    top_k: int = Field(0, ge=0, description="0: all tokens")
    min_p: float = Field(0.0, ge=0, lt=1, description="least probability beside the best token's")
    seed: int | None = Field(None, ge=0, description="seed of all draws; default: another for every answer")
    system: str | None = Field(None, description="system message")
    raw: bool = Field(default=False, description="send the prompt as it stands, without the chat template")
    overlap: bool = Field(default=True, description="draft on while a check is waited for")
    trace_rows: bool = Field(default=False, description="tell every row that is read; a trace can then be replayed")
    offline: bool = Field(default=False, description="send no request")
    ctx: int = Field(
        0, ge=0, lt=2**31, description="local context in tokens; 0: what the model was trained with, 8192 at most"
    )
    threads: int | None = Field(None, ge=1, le=256, description="llama.cpp threads; default: one core is left free")
    gpu_layers: int = Field(0, ge=-1, description="layers to keep on a GPU; -1: all")
    cloud_top_k: int = Field(20, ge=1, description="log-probabilities asked for at each position")
    cache_salt: str | None = Field(None, min_length=1, description="parts this client's prefix cache from others'")
    connect_timeout_s: float = Field(5.0, gt=0, description="deadline for a connection: the name, a proxy, TLS")
    first_byte_timeout_s: float = Field(20.0, gt=0, description="deadline for the first byte of an answer")
    read_timeout_s: float = Field(10.0, gt=0, description="deadline between two parts of an answer")
    request_timeout_s: float = Field(120.0, gt=0, description="most waiting for one question, its retries included")
    cool_down_s: float = Field(
        5.0, gt=0, description="how long an endpoint that failed is left alone; doubled while it fails"
    )
    retries: int = Field(
        2, ge=0, le=9, description="requests more for a question that failed before anything came of it"
    )

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

    @field_validator("cloud")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        if value is not None and not _is_address(value):
            msg = "an endpoint's address is http:// or https://, a host, and perhaps a port and a path"
            raise ValueError(msg)
        return value

    @field_validator("price", "cap", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        """Take numbers of a TOML file or a program as they are written: amounts are read from text, exactly."""
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value

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

    def choosing(self, choices: Mapping[str, object]) -> Settings:
        """Return these settings with some replaced; None replaces none. No source is read again.

        Raises UsageError with one sentence.
        """
        given = {name: value for name, value in choices.items() if value is not None}
        return _validated(self.model_dump() | given, {})


def price_file(settings: Settings) -> Path | None:
    """Return the price file to read: the one that was named, or the user's own if there is one."""
    if settings.prices is not None:
        return settings.prices
    return _own_file("prices.toml")


def ledger_file(settings: Settings) -> Path | None:
    """Return the file that keeps what was spent; None where no file is wanted. Raises UsageError without a home."""
    if settings.ledger is None:
        return _home(user_state_path) / "ledger.sqlite"
    return None if settings.ledger == Path(NO_LEDGER) else settings.ledger


def findings_file() -> Path:
    """Return the file that keeps what probes have found about endpoints. Raises UsageError without a home."""
    return _home(user_cache_path) / "endpoints.json"


def models_file() -> Path:
    """Return the file that keeps what was measured of local models. Raises UsageError without a home."""
    return _home(user_cache_path) / "models.json"


def _is_address(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return (
            parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0 and not _SPACE.search(value)
        )
    except ValueError:  # a port that is no number
        return False


def load(*, config: Path | str | None = None, **flags: object) -> Settings:
    """Read all sources; flags that are None were not given. ``config``: a file to read instead of the user's own.

    Raises UsageError with one sentence, which names the file and the line where one is to be mended.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    values: dict[str, object] = {}
    origins: dict[str, _Source] = {}
    try:
        sources = [_Source(given), _environment(), *_files(config)]
    except OSError as error:
        msg = f"{error.filename} cannot be read: {error.strerror}"
        raise UsageError(msg) from None
    for source in reversed(sources):
        values |= source.values
        origins |= dict.fromkeys(source.values, source)
    return _validated(values, origins)


@dataclass(frozen=True)
class _Source:
    """Settings from one place. ``name``: that of a file, or what variables begin with; ``text``: what a file holds."""

    values: Mapping[str, object]
    name: str = ""
    text: str = ""

    def place(self, setting: str) -> str:
        """Say which variable it is, or where in a file it stands; empty for a flag."""
        if self.name in {"", PREFIX}:
            return f"{self.name}{setting.upper()}" if self.name else ""
        number = self.line(setting)
        return self.name if number is None else f"{self.name}, line {number}"

    def line(self, setting: str) -> int | None:
        """Return the number of the first line that begins with a setting's name."""
        key = re.compile(rf"""\s*\[*\s*["']?{re.escape(setting)}["']?\s*[\].=]""")
        return next((n for n, line in enumerate(self.text.splitlines(), start=1) if key.match(line)), None)


def _validated(values: Mapping[str, object], origins: Mapping[str, _Source]) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        origin = origins.get(str(first["loc"][0]))
        where = origin.place(str(first["loc"][0])) if origin else ""
        if first["type"] == "extra_forbidden":
            msg = f"there is no setting called {one_line(name)}" + (f" ({where})" if where else "")
        else:
            given = f"it is {first['input']!r}" + (f" in {where}" if where else "")
            words = _WORDS.get(first["type"])
            told = words.format_map(first.get("ctx", {})) if words else first["msg"].removeprefix("Value error, ")
            msg = f"{one_line(name)}: {told} ({given})"
        raise UsageError(msg) from None


def _environment() -> _Source:
    said = {name.upper(): value for name, value in os.environ.items()}
    named = {setting: f"{PREFIX}{setting.upper()}" for setting in Settings.model_fields}
    return _Source({setting: said[name] for setting, name in named.items() if name in said}, PREFIX)


def _files(config: Path | str | None) -> Iterator[_Source]:
    """Yield what the files say, the first to win first. Raises UsageError for one that cannot be read or trusted."""
    named, here, own = config or os.environ.get(CONFIG_VARIABLE), Path(CONFIG_FILE), _own_file(CONFIG_FILE)
    trusted = Path(named) if named else own
    if named:
        yield _read(Path(named), str(named))
    if here.is_file() and not (trusted and trusted.exists() and here.samefile(trusted)):
        yield _only_decoding(_read(here, f"./{CONFIG_FILE}"))
    if own and not named:
        _mind_writers(own)
        yield _read(own, str(own))


def _read(path: Path, name: str) -> _Source:
    try:
        text = path.read_bytes().decode()
        return _Source(tomllib.loads(text), name, text)
    except ValueError as error:  # not UTF-8, or not TOML
        msg = f"{name}: {one_line(error)}"
        raise UsageError(msg) from None
    except RecursionError:
        msg = f"{name} is nested too deeply"
        raise UsageError(msg) from None


def _only_decoding(here: _Source) -> _Source:
    """Return what a file of the working directory says. Raises UsageError where it says what it may not."""
    if beyond := [name for name in here.values if name in Settings.model_fields and name not in PROJECT_SETTINGS]:
        lines = {name: here.line(name) for name in beyond}
        told = ", ".join(name if number is None else f"{name} (line {number})" for name, number in lines.items())
        own = (_own_folder(user_config_path) or Path("your configuration folder")) / CONFIG_FILE
        msg = (
            f"{here.name}: a file in the working directory may choose how to decode and nothing else: move {told} to "
            f"{own}, or name the file with --config if you trust all of it"
        )
        raise UsageError(msg)
    return here


def _mind_writers(own: Path) -> None:
    """Raise UsageError where somebody else could have written the user's own file (as OpenSSH does for its own)."""
    found = own.stat()
    if found.st_uid not in {os.geteuid(), 0}:
        msg = f"{own} belongs to another user: make it your own, or name it with --config if you trust it"
        raise UsageError(msg)
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        msg = f"{own} can be written by others than you: chmod go-w it"
        raise UsageError(msg)


def _own_file(name: str) -> Path | None:
    """Return a file of the user's configuration folder; None where there is none."""
    folder = _own_folder(user_config_path)
    return folder / name if folder and (folder / name).is_file() else None


def _home(kind: Callable[[str], Path]) -> Path:
    if (folder := _own_folder(kind)) is None:
        raise UsageError("there is no home folder to keep files in: set HOME to an absolute path")
    return folder


def _own_folder(kind: Callable[[str], Path]) -> Path | None:
    """Return a folder of the user's; None where they have no home.

    A relative one, which older versions of platformdirs then give, is in the working directory, where anybody may have
    made it.
    """
    try:
        folder = kind(APP)
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None
