"""Where settings come from. Wires nothing; what a setting is stands in ``hybrid.settings.config``.

``--max-tokens 64``, ``HYBRID_MAX_TOKENS=64`` and ``max_tokens = 64`` say the same. The first source that names a
setting wins:

1. flags, and the parameters of ``hybrid.open``
2. ``HYBRID_*`` variables; one that is nearly a setting is refused
3. the file of ``--config`` or ``HYBRID_CONFIG``
4. ``hybrid.toml`` in the working directory
5. without 3, the user's own: ``hybrid.toml`` in their configuration folder

The law: the fourth may come from whoever wrote the folder, so it sets what ``SettingScope.PROJECT`` marks and nothing
else; a file that says more is refused as a whole (``tests/test_config.py`` goes through every field). The fifth may say
everything, so nobody else may be able to write it.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from platformdirs import user_cache_path, user_config_path, user_state_path
from pydantic import ValidationError

from hybrid.errors import HybridError, UsageError, to_one_line
from hybrid.settings.config import NO_LEDGER, Settings, names_for
from hybrid.settings.setting_info import SettingScope
from hybrid.store.files import WINDOWS, home_folder, own_folder

CONFIG_FILE = "hybrid.toml"
PREFIX = "HYBRID_"
RELAY = "relay"
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
# What bounds spending and sending: a variable that is named after one of them and is no setting is always refused.
BOUNDS = ("CAP", "PRICE", "LEDGER", "OFFLINE")
# Of the file of a working directory, which may be a stranger's: one of megabytes takes seconds to read.
MOST_BYTES = 16 * 1024
# How much alike two names are (difflib's ratio) of which one is taken for the other, misspelt: one letter of four.
NEAR = 0.75
Checked = TypeVar("Checked")
# What pydantic finds wrong with a value, as a user reads it; {} is the bound.
_WORDS = (
    dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "must be a whole number")
    | dict.fromkeys(("float_type", "float_parsing"), "must be a number")
    | dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false")
    | dict.fromkeys(("string_type", "path_type"), "must be text")
    | {
        "finite_number": "must be a finite number",
        "string_too_short": "must not be empty",
        "tuple_type": "must be a list",
        "too_short": "must not be empty",
        "model_type": "must be names with values",
        "mapping_type": "must be names with values",
        "greater_than": "must be more than {gt}",
        "greater_than_equal": "must be at least {ge}",
        "less_than": "must be less than {lt}",
        "less_than_equal": "must be at most {le}",
        "literal_error": "must be {expected}",
    }
)

# A path of Windows in double quotes, where TOML takes a backslash for the beginning of an escape; what that stands for.
_NO_ESCAPE, _CONTROL = re.compile(rb'"[^"\n]*\\[^btnfr"\\\s]'), re.compile(r"[\x00-\x1f\x7f]")
_BACKSLASHES = "a path with backslashes stands between single quotes"
# Two ways to say what a kept draft may lose.
_DIALS = {"worth", "risk"}
# Who writes a draft.
_WRITERS = {"local", "drafters", "experts"}


def price_file(settings: Settings) -> Path | None:
    """Return the price file to read: the one that was named, or the user's own if there is one."""
    if settings.prices is not None:
        return settings.prices
    return _own_file("prices.toml")


def ledger_file(settings: Settings) -> Path | None:
    """Return the file that keeps what was spent; None where no file is wanted. Raises UsageError without a home."""
    if settings.ledger is None:
        return home_folder(user_state_path) / "ledger.sqlite"
    return None if settings.ledger == Path(NO_LEDGER) else settings.ledger


def cache_file() -> Path:
    """Return the file of what was measured of endpoints and model files. Raises UsageError without a home."""
    return home_folder(user_cache_path) / "cache.json"


def counts_file() -> Path:
    """Return the file of what was counted of pairs of models and of experts. Raises UsageError without a home."""
    return home_folder(user_state_path) / "counts.json"


def pairs_folder() -> Path:
    """Return the folder of what is known and learned of pairs, a folder each. Raises UsageError without a home."""
    return home_folder(user_state_path) / "pairs"


def scores_folder() -> Path:
    """Return the folder of labels, and of what earlier versions kept of pairs. Raises UsageError without a home."""
    return home_folder(user_state_path) / "scores"


def concepts_folder() -> Path:
    """Return the folder that keeps which tokens say the same, a file a vocabulary. Raises UsageError without a home."""
    return home_folder(user_state_path) / "concepts"


def load(*, config: Path | str | None = None, **flags: object) -> Settings:
    """Read all sources; flags that are None were not given. ``config``: a file to read instead of the user's own.

    Raises UsageError with one sentence, which names the file and the line where one is to be mended.
    """
    sources = _sources(config, flags)
    found = _places(sources)
    return _validated(_merged([source.values for source in sources]), lambda name: found.get(name, ""))


def checked(
    check: Callable[[Settings], Checked], settings: Settings, *, config: Path | str | None = None, **flags: object
) -> Checked:
    """Return what ``check`` makes of the settings that were loaded from these sources.

    Raises its UsageError, with the variables and the files that are to be mended: each from which a setting comes
    without which the error would not be, or would be another one.
    """
    try:
        return check(settings)
    except UsageError as error:
        why = str(error)
    default = Settings()
    found = {name: place for name, place in _places(_sources(config, flags)).items() if place}
    without = {name: settings.model_copy(update={name: getattr(default, name)}) for name in found}
    blamed = [place for name, place in found.items() if _refusal(check, without[name]) != why]
    raise UsageError(f"{why} (in {' and '.join(blamed)})" if blamed else why)


def _refusal(check: Callable[[Settings], object], settings: Settings) -> str:
    """Say what ``check`` finds wrong with settings; empty for nothing."""
    try:
        check(settings)
    except HybridError as error:
        return str(error)
    return ""


def _sources(config: Path | str | None, flags: Mapping[str, object]) -> list[_SettingsSource]:
    """Return all sources, the first to win first; flags that are None were not given."""
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        sources = [_SettingsSource(given), _environment(), *_files(config)]
    except OSError as error:
        msg = f"{error.filename} cannot be read: {error.strerror}"
        raise UsageError(msg) from None
    _mind_misspelt([source.values.get("api_key_env") for source in sources])
    return sources


def _places(sources: Sequence[_SettingsSource]) -> dict[str, str]:
    """Say where each setting's value stands; empty for a flag."""
    return {name: source.place(name) for source in reversed(sources) for name in source.values}


def choosing(settings: Settings, choices: Mapping[str, object]) -> Settings:
    """Return settings with some replaced; None replaces none. No source is read again.

    Raises UsageError with one sentence.
    """
    given = {name: value for name, value in choices.items() if value is not None}
    return _validated(_merged([given, settings.model_dump(exclude_none=True)]))


def _merged(levels: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return what the most specific level says of each setting, the first to win first.

    The number of ``kl:0.5`` and ``threshold`` are one choice, and so are ``worth`` and ``risk``: the more specific
    replaces the other, and only at one level they can contradict each other. A policy replaces branches. Who names
    local models, names all of them.
    """
    values: dict[str, object] = {}
    for level in map(_with_drafters, levels):
        said = {name: value for name, value in level.items() if name not in values}
        name, colon, _ = str(said.get("policy", "")).partition(":")
        if colon and "threshold" in values:
            said["policy"] = name
        if ":" in str(values.get("policy", "")):
            said.pop("threshold", None)
        if "policy" in values:
            said.pop("branches", None)
        for replaced in (_DIALS, _WRITERS):
            if values.keys() & replaced:
                said = {name: value for name, value in said.items() if name not in replaced}
        values |= said
    return values


def _with_drafters(level: Mapping[str, object]) -> Mapping[str, object]:
    """Return a level whose ``local`` is one model; of several, those before the last draft for it."""
    named = level.get("local")
    if not isinstance(named, list | tuple):
        return level
    *drafters, local = named or [None]
    rest = {name: value for name, value in level.items() if name != "local"}
    return rest if local is None else {**rest, "local": local} | ({"drafters": drafters} if drafters else {})


@dataclass(frozen=True)
class _SettingsSource:
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
        found = next((n for n, line in enumerate(self.text.splitlines(), start=1) if key.match(line)), None)
        in_table = found is None and setting.startswith(f"{RELAY}_")
        return self.line(RELAY) if in_table else found


def _validated(values: Mapping[str, object], place: Callable[[str], str] = lambda _: "") -> Settings:
    """Return settings of these values; ``place`` says where a setting's value stands, empty for a flag.

    Raises UsageError with one sentence.
    """
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, where = ".".join(str(part) for part in first["loc"]), place(str(first["loc"][0]))
        if first["type"] == "extra_forbidden":
            msg = f"there is no setting called {to_one_line(name)}" + (f" ({where})" if where else "")
        else:
            value = first["input"]
            shown = ", ".join(map(repr, value)) if isinstance(value, list | tuple) and value else repr(value)
            given = f"it is {shown}" + (f" in {where}" if where else "")
            told = _fault(first)
            share = "; 5 % is 0.05" if name == "risk" and first["type"] == "less_than" else ""
            msg = f"{to_one_line(name)}: {told} ({given}{share})"
        raise UsageError(msg) from None


def _fault(first: Mapping[str, Any]) -> str:
    words = _WORDS.get(first["type"])
    return words.format_map(first.get("ctx", {})) if words else str(first["msg"]).removeprefix("Value error, ")


def told_fault(error: ValidationError, known: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """Return where the first fault of other data is (names; numbers from 1), and what it is; ``known``: its keys."""
    first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    where = tuple(to_one_line(part + 1 if isinstance(part, int) else part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(where[-1], [*known], 1, cutoff=0.5)
        return where, f"is not known: did you mean {near[0]}?" if near else f"is not known ({', '.join(known)} are)"
    if first["type"] == "missing":
        return where, "is missing"
    return where, _fault(first) + (f" (it is {first['input']!r})" if where else "")


def _environment() -> _SettingsSource:
    said = {name.upper(): value for name, value in os.environ.items()}
    named = {setting: f"{PREFIX}{setting.upper()}" for setting in Settings.model_fields}
    return _SettingsSource({setting: said[name] for setting, name in named.items() if name in said}, PREFIX)


def _mind_misspelt(keys: Sequence[object]) -> None:
    """Raise UsageError for a variable that is nearly a setting: HYBRID_CAPS=1 would cap nothing, and say nothing.

    So would HYBRID_CAP_USD=1, and HYBRID_MODEL=large would name none.

    Others are not ours to judge. They may belong to another program or hold a key, as those in ``keys`` do.
    """
    key = str(Settings.model_fields["api_key_env"].default)
    own = [key.removeprefix(PREFIX), *map(str.upper, Settings.model_fields), CONFIG_VARIABLE.removeprefix(PREFIX)]
    for name in sorted(name.upper() for name in os.environ if name not in keys):
        short = name.removeprefix(PREFIX)
        if short == name or short in own or name.startswith(key):
            continue
        if near := _nearest(short, own):
            msg = f"there is no setting called {to_one_line(name)}: did you mean {PREFIX}{near}?"
            raise UsageError(msg)


def _nearest(name: str, own: Sequence[str]) -> str | None:
    """Return the setting that a name is nearly: by its letters, or by whole words of either in the other."""
    words = set(name.split("_"))
    if near := difflib.get_close_matches(name, own, 1, NEAR):
        return near[0]
    if bound := next((word for word in BOUNDS if word in words), None):
        return bound
    if name.endswith("_KEY"):
        return None
    alike = [each for each in own if words <= set(each.split("_")) or words >= set(each.split("_"))]
    return max(alike, key=lambda each: difflib.SequenceMatcher(None, name, each).ratio(), default=None)


def _files(config: Path | str | None) -> Iterator[_SettingsSource]:
    """Yield what the files say, the first to win first. Raises UsageError for one that cannot be read or trusted."""
    named, here, own = config or os.environ.get(CONFIG_VARIABLE), Path(CONFIG_FILE), _own_file(CONFIG_FILE)
    trusted = Path(named) if named else own
    if named:
        yield _read(Path(named), str(named))
    if here.is_file() and not (trusted and trusted.exists() and here.samefile(trusted)):
        yield _only_decoding(_read(here, f"./{CONFIG_FILE}", MOST_BYTES))
    if own and not named:
        _mind_writers(own)
        yield _read(own, str(own))


def _read(path: Path, name: str, most_bytes: int | None = None) -> _SettingsSource:
    """Read a file's settings. Raises UsageError where it is none, or longer than ``most_bytes``; OSError."""
    with path.open("rb") as file:
        raw = file.read(-1 if most_bytes is None else most_bytes + 1)
    if most_bytes is not None and len(raw) > most_bytes:
        msg = f"{name} is longer than {most_bytes // 1024} KiB, which no choice of how to decode needs"
        raise UsageError(msg)
    try:
        text = raw.decode()
        found = _SettingsSource(_flat(tomllib.loads(text)), name, text)
    except ValueError as error:  # not UTF-8, or not TOML
        hint = f"; {_BACKSLASHES}" if _NO_ESCAPE.search(raw) else ""
        msg = f"{name}: {to_one_line(error)}{hint}"
        raise UsageError(msg) from None
    except RecursionError:
        msg = f"{name} is nested too deeply"
        raise UsageError(msg) from None
    _mind_escapes(found)
    return found


def _mind_escapes(source: _SettingsSource) -> None:
    r"""Raise UsageError for a file's name of which a backslash made another one: "C:\temp" holds a tab."""
    for name, value in source.values.items():
        is_file = name in Settings.model_fields and "Path" in str(Settings.model_fields[name].annotation)
        for text in value if isinstance(value, list) else [value]:
            if is_file and isinstance(text, str) and _CONTROL.search(text):
                msg = f"{name}: it is {text!r} in {source.place(name)}; {_BACKSLASHES}"
                raise UsageError(msg)


def _flat(said: dict[str, object]) -> dict[str, object]:
    """Return what a file says with the settings of its table ``[relay]`` by their own names."""
    table = said.get(RELAY)
    if not isinstance(table, dict):
        return said
    return {name: value for name, value in said.items() if name != RELAY} | {
        f"{RELAY}_{name}": value for name, value in table.items()
    }


def _only_decoding(here: _SettingsSource) -> _SettingsSource:
    """Return what a file of the working directory says. Raises UsageError where it says what it may not."""
    project = names_for(SettingScope.PROJECT)
    if beyond := [name for name in here.values if name in Settings.model_fields and name not in project]:
        lines = {name: here.line(name) for name in beyond}
        told = ", ".join(name if number is None else f"{name} (line {number})" for name, number in lines.items())
        own = (own_folder(user_config_path) or Path("your configuration folder")) / CONFIG_FILE
        msg = (
            f"{here.name}: a file in the working directory may choose how to decode and nothing else: move {told} to "
            f"{own}, or name the file with --config if you trust all of it"
        )
        raise UsageError(msg)
    return here


def _mind_writers(own: Path) -> None:
    """Raise UsageError where somebody else could have written the user's own file (as OpenSSH does for its own)."""
    if WINDOWS:  # it has no modes, and ACLs are not checked
        return
    found = own.stat()
    if found.st_uid not in {os.geteuid(), 0}:
        msg = f"{own} belongs to another user: make it your own, or name it with --config if you trust it"
        raise UsageError(msg)
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        msg = f"{own} can be written by others than you: chmod go-w it"
        raise UsageError(msg)


def _own_file(name: str) -> Path | None:
    """Return a file of the user's configuration folder; None where there is none."""
    folder = own_folder(user_config_path)
    return folder / name if folder and (folder / name).is_file() else None
