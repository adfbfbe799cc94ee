"""What ``hybrid models list`` shows: models that have names, those that others keep, and which share a vocabulary.

Only headers are read, never weights, and those of a file that did not change are remembered. What cannot be used is
listed with its reason, and is no error.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from typing import Any, TypeAlias

from hybrid.engine import real_models as room
from hybrid.engine.gguf_header import read_header
from hybrid.engine.model_check import ModelFacts, read_facts, vocabulary_word
from hybrid.engine.model_folders import folders_searched, models_on_disk
from hybrid.errors import EngineError, UsageError, spelled
from hybrid.report import Table
from hybrid.settings.names import BUNDLED, MODELS, NAMED
from hybrid.settings.sources import cache_file

Told: TypeAlias = Mapping[str, Mapping[str, Any]]
"""What is told of models, by name."""


def named_models() -> dict[str, dict[str, Any]]:
    """Return what is known of every model that has a name; None for what only the missing package could tell."""
    files = {name: MODELS / f"{name}.gguf" for name in BUNDLED}
    states = dict.fromkeys(files, "bundled")
    headers = {name: read_header(path) for name, path in files.items()}
    sizes = {name: room.num_parameters(header) for name, header in headers.items()}
    reference, *_ = room.variants()
    published = room.existing_file(reference)
    header = read_header(published) if published else None
    for model in room.variants():
        path = room.existing_file(model)
        files |= {model.name: path} if path else {}
        if header:
            headers[model.name], sizes[model.name] = header, room.num_parameters(header, model.left_out)
        unbuilt = "not built yet" if published else f"pip install '{room.REQUIREMENT}'"
        states[model.name] = ("installed" if model.is_published else "built") if path else unbuilt
    return {
        name: {
            "parameters": sizes.get(name),
            "bytes": files[name].stat().st_size if name in files else None,
            "file": str(files[name]) if name in files else None,
            "state": states[name],
            "vocabulary": vocabulary_word(headers[name])[1] if name in headers else None,
            "for": purpose,
        }
        for name, purpose in NAMED.items()
    }


def disk_models() -> dict[str, dict[str, Any]]:
    """Return what is known of every model in other programs' folders; ``problem`` says why one cannot be used."""
    kept = None
    with suppress(UsageError):  # without a home they are read every time
        kept = cache_file()
    found: dict[str, dict[str, Any]] = {}
    for model in models_on_disk():
        said: dict[str, Any] = dict.fromkeys(field.name for field in fields(ModelFacts))
        problem = model.problem
        if model.path is not None:
            try:
                said = asdict(read_facts(model.path, kept))
            except EngineError as error:
                problem = str(error)
        file = None if model.path is None else str(model.path)
        found[model.name] = {**said, "file": file, "source": model.source, "problem": problem or None}
    return found


def shared_vocabularies(*lists: Told) -> dict[str, list[str]]:
    """Return the models that share a vocabulary with another one, by its word."""
    groups: dict[str, list[str]] = {}
    for models in lists:
        for name, said in models.items():
            if said["vocabulary"]:
                groups.setdefault(said["vocabulary"], []).append(name)
    return {word: names for word, names in groups.items() if len(names) > 1}


def named_table(models: Told) -> Table:
    """Return the models that have names, one a line."""
    rows = [
        (name, in_millions(said["parameters"]), in_mib(said["bytes"]), said["state"], said["for"])
        for name, said in models.items()
    ]
    return Table("", ("name", "parameters", "size", "state", "for"), rows, words=("state", "for"))


def disk_lines(models: Told) -> list[str]:
    """Return the models on this disk, one a line, and below them those that cannot be used, with the reason.

    The name stands last, so that no terminal cuts what is there to be typed.
    """
    rows = [("parameters", "size", "type", "vocabulary", "kept by", "on this disk")]
    for name, said in models.items():
        if not said["problem"]:
            kind = f"{said['architecture']} {said['quantisation']}".strip()
            figures = (in_millions(said["parameters"]), in_mib(said["bytes"]), kind, said["vocabulary"])
            rows.append((*figures, said["source"], spelled(name)))
    *wide, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = ["  ".join((*map(_aligned, row, wide, ">><<<"), row[-1])) for row in rows]
    unusable = [
        spelled(f"{name} ({said['source']}): {said['problem']}") for name, said in models.items() if said["problem"]
    ]
    return [*(lines if len(rows) > 1 else ()), *unusable]


def _aligned(text: str, width: int, how: str) -> str:
    return f"{text:{how}{width}}"


def none_on_disk() -> str:
    """Say that other programs keep no models on this disk, and where it was looked for them."""
    return f"No other models on this disk: looked in {folders_searched()}."


def in_millions(number: int | None) -> str:
    """Return a number of parameters as people say it."""
    if number is None:
        return ""
    return f"{number / 1e6:.1f} M" if number < 10**9 else f"{number / 1e9:.1f} B"


def in_mib(size: int | None) -> str:
    """Return a size as people say it."""
    if size is None:
        return ""
    return f"{size / 2**20:.1f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"
