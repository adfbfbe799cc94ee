"""Settings: flags before ``HYBRID_*`` variables before ``hybrid.toml`` in the working directory. Wires nothing.

Every field is a parameter of ``hybrid.open``; all but the deadlines, ``retries``, ``cool_down_s``, ``cloud_top_k`` and
``cache_salt`` are flags of ``hybrid ask``. ``--max-tokens 64``, ``HYBRID_MAX_TOKENS=64`` and ``max_tokens = 64`` say
the same.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from platformdirs import user_cache_path, user_config_path, user_state_path
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from hybrid.errors import UsageError

CONFIG_FILE = "hybrid.toml"
# The name of this program's folders among the user's own; without an author, which only Windows would show.
APP = "hybrid-llm"
# In the place of a ledger's name: what is spent is forgotten with the process, and the ledger's caps do not bind.
NO_LEDGER = "none"
MOST_SPAN = 256
_SPACE = re.compile(r"[\s\x00-\x1f]")


class Settings(BaseSettings):
    """What a user may choose; None means: the bundled model, the preset's own value, no limit."""

    model_config = SettingsConfigDict(env_prefix="HYBRID_", toml_file=CONFIG_FILE, extra="forbid", frozen=True)

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
    seed: int = Field(0, ge=0, description="seed of all draws")
    system: str | None = Field(None, description="system message")
    raw: bool = Field(default=False, description="send the prompt as it stands, without the chat template")
    overlap: bool = Field(default=True, description="draft on while a check is waited for")
    trace_rows: bool = Field(default=False, description="tell every row that is read; a trace can then be replayed")
    offline: bool = Field(default=False, description="send no request")
    ctx: int = Field(0, ge=0, description="local context in tokens; 0: what the model was trained with, 8192 at most")
    threads: int | None = Field(None, ge=1, le=256, description="llama.cpp threads; default: one core is left free")
    gpu_layers: int = Field(0, ge=-1, description="layers to keep on a GPU; -1: all")
    cloud_top_k: int = Field(20, ge=1, description="log-probabilities asked for at each position")
    cache_salt: str | None = Field(None, min_length=1, description="parts this client's prefix cache from others'")
    connect_timeout_s: float = Field(5.0, gt=0, description="deadline for a connection")
    first_byte_timeout_s: float = Field(20.0, gt=0, description="deadline for the first byte of an answer")
    read_timeout_s: float = Field(10.0, gt=0, description="deadline between two parts of an answer")
    request_timeout_s: float = Field(120.0, gt=0, description="most waiting for one question, its first byte included")
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
        if length is None or length in {"auto", "cheap"} or (isinstance(length, int) and 1 <= length <= MOST_SPAN):
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

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  (no .env file is read)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: flags, environment, file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def price_file(settings: Settings) -> Path | None:
    """Return the price file to read: the one that was named, or the user's own if there is one."""
    if settings.prices is not None:
        return settings.prices
    usual = user_config_path(APP) / "prices.toml"
    return usual if usual.exists() else None


def ledger_file(settings: Settings) -> Path | None:
    """Return the file that keeps what was spent; None where no file is wanted."""
    if settings.ledger is None:
        return user_state_path(APP) / "ledger.sqlite"
    return None if settings.ledger == Path(NO_LEDGER) else settings.ledger


def findings_file() -> Path:
    """Return the file that keeps what probes have found about endpoints."""
    return user_cache_path(APP) / "endpoints.json"


def _is_address(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return (
            parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0 and not _SPACE.search(value)
        )
    except ValueError:  # a port that is no number
        return False


def load(**flags: object) -> Settings:
    """Read all sources; flags that are None were not given. Raises UsageError with one sentence."""
    try:
        return Settings(**{key: value for key, value in flags.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            msg = f"there is no setting called {name}" + ("" if name in flags else f" (in {CONFIG_FILE})")
        else:
            msg = f"{name}: {first['msg'].removeprefix('Value error, ')} (it is {first['input']!r})"
        raise UsageError(msg) from None
    except OSError as error:
        msg = f"{CONFIG_FILE} cannot be read: {error.strerror}"
        raise UsageError(msg) from None
    except ValueError as error:  # a hybrid.toml that is not TOML
        msg = f"{CONFIG_FILE}: {error}"
        raise UsageError(msg) from None
