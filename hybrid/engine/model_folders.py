"""Models by the names that other programs gave them: which file a name means, and what there is on this disk.

A name is ``MODEL[:TAG]``, ``ORG/REPO[:TAG]`` or three parts between slashes. Folders and their layouts are the business
of ``engine.folder_layouts``.

The laws (``tests/engine/test_model_folders.py``): a file that exists wins; a name never leads to a file outside the
folder in which it was found; a name that several files fit is refused; nothing is written or downloaded.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from hybrid.engine.folder_layouts import PART, DiskModel, Layout, ModelName, OllamaStore, is_dir
from hybrid.engine.repository_layouts import Flat, Hub, Published
from hybrid.errors import EngineError, UsageError, spelled
from hybrid.model_names import NAMED

__all__ = ["DiskModel", "find_model", "folders_searched", "models_on_disk", "parse_name"]

# Where Ollama's own service on Linux keeps them.
OLLAMA_SERVICE = "/usr/share/ollama/.ollama/models"
_MOST_PARTS, _MOST_POINTER_BYTES = 3, 1 << 12
_MAGIC = b"GGUF"


def find_model(name: str) -> Path:
    """Return the file that a name, or a path, means; a path that is none of these is returned as it is.

    Raises UsageError for a name that no model has, or several, and EngineError for a model that cannot be used.
    """
    parsed = None if _is_file(name) else parse_name(name)
    if parsed is None:
        return Path(name)
    found: dict[str, DiskModel] = {}
    for layout in layouts():
        for model in layout.look_up(parsed):
            found.setdefault(model.name.casefold(), model)
    match list(found.values()):
        case []:
            raise UsageError(_unknown(name))
        case [model]:
            return _usable(name, model)
        case several:
            msg = f"{name} may mean several models: {', '.join(spelled(model.name) for model in several)}"
            raise UsageError(msg)


def models_on_disk() -> tuple[DiskModel, ...]:
    """Return every model in the folders of other programs, by name; of one name the first that ``find_model`` takes.

    No model is opened, and no folder is an error.
    """
    found: dict[str, DiskModel] = {}
    for layout in layouts():
        for model in layout.models():
            found.setdefault(model.name.casefold(), model)
    return tuple(found[name] for name in sorted(found))


def folders_searched() -> str:
    """Name the folders in which names are looked for, and what keeps one from being searched."""
    return ", ".join(f"{layout.root} ({layout.source}{layout.state})" for layout in layouts())


def parse_name(name: str) -> ModelName | None:
    """Return a name's parts; None for what can only be a path.

    >>> parse_name("qwen2.5:1.5b")
    ModelName(parts=('qwen2.5',), tag='1.5b')
    >>> parse_name("models/small.gguf"), parse_name("../small:latest")
    (None, None)
    """
    whole, colon, tag = name.partition(":")
    parts = tuple(whole.split("/"))
    if len(parts) > _MOST_PARTS or not all(map(PART.fullmatch, (*parts, tag) if colon else parts)):
        return None
    if whole.endswith(".gguf") and len(parts) < _MOST_PARTS:
        return None
    return ModelName(parts, tag or None)


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:  # a part of the name is too long
        return False


def _usable(name: str, model: DiskModel) -> Path:
    if model.path is None:
        msg = f"{name} ({model.source}) cannot be used: {model.problem}"
        raise EngineError(msg)
    try:
        with model.path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        msg = f"{name} ({model.source}) cannot be used: {model.path} cannot be read: {error.strerror}"
        raise EngineError(msg) from None
    if magic != _MAGIC:
        msg = f"{name} ({model.source}) cannot be used: {model.path} is not a GGUF file"
        raise EngineError(msg)
    return model.path


def _unknown(name: str) -> str:
    """Say where a name was looked for, and which names are near it."""
    known = [*NAMED, *(model.name for model in models_on_disk())]
    folded = {each.casefold(): each for each in reversed(known)}
    near = get_close_matches(name.casefold(), folded, n=4, cutoff=0.6)
    near += [
        each for each in folded if each.partition(":")[0] == name.casefold().partition(":")[0] and each not in near
    ]
    there = f"; there is {', '.join(spelled(folded[each]) for each in near[:4])}" if near else ""
    file = "it is a folder, not a file" if is_dir(Path(name)) else "no such file"
    return f"there is no model {name}: {file}, and none of this name in {folders_searched()}{there}"


def layouts() -> list[Layout]:
    """Return the folders that this user's programs would look in, in order, whether they exist or not."""
    ollama = _variable("OLLAMA_MODELS")
    found: list[Layout] = [
        OllamaStore(root, "Ollama")
        for root in ([ollama] if ollama else [*_home(".ollama/models"), Path(OLLAMA_SERVICE)])
    ]
    kept = _variable("LLAMA_CACHE")
    found += [Hub(root, "llama.cpp") for root in filter(None, [kept])]
    found += [Hub(root, "Hugging Face") for root in _hub_folders()]
    found += [Published(root, "LM Studio") for root in _lm_studio_folders()]
    found += [Flat(root, "llama.cpp") for root in ([kept] if kept else _caches("llama.cpp"))]
    return found


def _hub_folders() -> list[Path]:
    for variable, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if given := _variable(variable):
            return [given / below]
    given = _variable("XDG_CACHE_HOME")
    return [given / "huggingface/hub"] if given else _home(".cache/huggingface/hub")


def _lm_studio_folders() -> list[Path]:
    """Return LM Studio's folder as its pointer file tells it, today's place and the older one."""
    told: list[Path] = []
    for pointer in _home(".lmstudio-home-pointer"):
        with suppress(OSError, ValueError):
            if pointer.is_file() and pointer.stat().st_size <= _MOST_POINTER_BYTES:
                folder = Path(pointer.read_text(encoding="utf-8").strip())
                told += [folder / "models"] if folder.is_absolute() else []
    return list(dict.fromkeys([*told, *_home(".lmstudio/models"), *_home(".cache/lm-studio/models")]))


def _caches(name: str) -> list[Path]:
    given = _variable("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    if given:
        return [given / name]
    return _home(f"Library/Caches/{name}" if sys.platform == "darwin" else f".cache/{name}")


def _home(below: str) -> list[Path]:
    """Return a place in the user's home; none without a home."""
    with suppress(RuntimeError):
        home = Path.home()
        return [home / below] if home.is_absolute() else []
    return []


def _variable(name: str) -> Path | None:
    """Return the folder that a variable names. A relative one is none: anybody may have made it where we stand."""
    with suppress(RuntimeError):
        path = Path(os.environ.get(name, "").strip()).expanduser()
        return path if path.is_absolute() else None
    return None
