"""Models by the names that other programs gave them: which file a name means, and what there is on this disk.

A name is ``MODEL[:TAG]``, ``ORG/REPO[:TAG]`` or three parts between slashes. Folders and their layouts are the business
of ``engine.folder_layouts``.

The laws (``tests/engine/test_model_folders.py``): a file that exists wins; a name never leads to a file outside the
folder in which it was found; a name that several files fit is refused; nothing is written or downloaded.
"""

from __future__ import annotations

import os
import re
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TypeAlias, final

from hybrid.engine.folder_layouts import (
    PART,
    DiskModel,
    Layout,
    ModelName,
    OllamaStore,
    Refused,
    is_dir,
    is_path_of_parts,
)
from hybrid.engine.gguf_header import shard_names, shard_stem
from hybrid.errors import EngineError, UsageError, spelled
from hybrid.settings.names import NAMED

__all__ = [
    "DiskModel",
    "Files",
    "Flat",
    "Hub",
    "Published",
    "Repositories",
    "find_model",
    "folders_searched",
    "models_on_disk",
    "parse_name",
]


# The folders that keep files by repository, ORG/REPO: Hugging Face's cache, LM Studio's folder, llama.cpp's old cache.
#
# Hugging Face's cache, which llama.cpp shares, holds ``models--ORG--REPO/snapshots/COMMIT/*.gguf``, which are links to
# blobs; LM Studio's folder ``PUBLISHER/REPO/*.gguf``; llama.cpp's older cache ``ORG_REPO_FILE.gguf`` in one folder.
#
# The laws are those of ``engine.folder_layouts``, and (``tests/engine/test_model_folders.py``): every name under which
# a model is listed means that model alone; a file of another kind beside a model is none.

# A commit, as snapshots are called.
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Folders in folders, as repositories have them.
_MOST_DEPTH = 3
# Files beside a model that are no models: projectors, importance matrices, and heads that draft for it.
_BESIDE = re.compile(r"(?:^|[-._])(?:mmproj|imatrix|mtp|eagle3|dflash|dspark)(?=[-._])", re.IGNORECASE)
# The last part of a file's name, if it tells a quantisation: Q4_K_M, IQ3_XXS, BF16, MXFP4.
_QUANT = re.compile(r"[-._]((?:I?Q|TQ|B?F|FP|MXFP|NVFP)[0-9][A-Za-z0-9_]*)$", re.IGNORECASE)

Files: TypeAlias = Mapping[str, Path]
"""The model files of a repository: their paths below it, with ``/``, and where they lie."""


class Repositories(Layout):
    """Folders that keep the files of repositories, ORG/REPO."""

    @abstractmethod
    def repositories(self) -> Iterator[tuple[str, str]]:
        """Yield every ORG and REPO."""

    @abstractmethod
    def files(self, organisation: str, repository: str) -> Files:
        """Return the files of a repository whose names end with ``.gguf``."""

    def look_up(self, name: ModelName) -> list[DiskModel]:
        """Return the models of ORG/REPO, those of ORG/REPO:QUANT, or the one of ORG/REPO/FILE.gguf."""
        if len(name.parts) < 2 or (len(name.parts) == 3 and name.tag):
            return []
        organisation, repository, *file = name.parts
        named = self._models(organisation, repository)
        if file:
            chosen = [path for path in named if file[0] in shard_names(_name(path))]
        else:
            chosen = _of_quantisation(list(named), name.tag)
        return [named[path] for path in chosen]

    def models(self) -> Iterator[DiskModel]:
        """Yield the models of every repository."""
        for repository in self.repositories():
            yield from self._models(*repository).values()

    def _models(self, organisation: str, repository: str) -> dict[str, DiskModel]:
        """Return a repository's models, by the paths of their files below it; of a split, by its first file that is."""
        files = {path: at for path, at in self.files(organisation, repository).items() if not _BESIDE.search(at.name)}
        first: dict[tuple[str, str], str] = {}
        for path in sorted(files):
            first.setdefault((path.removesuffix(_name(path)), shard_names(_name(path))[0]), path)
        tags = _tags(list(first.values()))
        return {
            path: self.model(str(files[path]) if tag is None else f"{organisation}/{repository}{tag}", files[path])
            for path, tag in tags.items()
        }

    def walk(self, folder: Path, depth: int = _MOST_DEPTH, seen: frozenset[str] = frozenset()) -> Iterator[Path]:
        """Yield the files below a folder that are called ``*.gguf``; a link to one is one, wherever it leads.

        A link to a folder that this one lies in, one of ``seen``, is not followed: it would list its files again.
        """
        seen |= {os.path.realpath(folder)}
        for entry in self.entries(folder):
            if is_dir(entry):
                again = os.path.realpath(entry) in seen
                yield from () if depth == 1 or again else self.walk(entry, depth - 1, seen)
            elif entry.name.endswith(".gguf"):
                yield entry


@final
class Hub(Repositories):
    """Hugging Face's cache."""

    def repositories(self) -> Iterator[tuple[str, str]]:
        """Yield those of the folders ``models--ORG--REPO``; the name of no repository holds two hyphens in a row."""
        for entry in self.entries(self.root):
            kind, *rest = entry.name.split("--")
            if kind == "models" and len(rest) == 2 and all(map(PART.fullmatch, rest)):
                yield rest[0], rest[1]

    def files(self, organisation: str, repository: str) -> Files:
        """Return those of the commit that is ``main``, or of the only one there is."""
        folder = self.root / f"models--{organisation}--{repository}"
        commits = [entry for entry in self.entries(folder / "snapshots") if _COMMIT.fullmatch(entry.name)]
        main = ""
        with suppress(Refused):
            main = self.read(folder / "refs" / "main", 100).decode("ascii", "replace").strip()
        for commit in commits:
            if commit.name == main or len(commits) == 1:
                return {path.relative_to(commit).as_posix(): path for path in self.walk(commit)}
        return {}


@final
class Published(Repositories):
    """LM Studio's folder."""

    def repositories(self) -> Iterator[tuple[str, str]]:
        """Yield every PUBLISHER/REPO."""
        for publisher in self.entries(self.root):
            for entry in self.entries(publisher):
                if is_path_of_parts(entry, 2) and is_dir(entry):
                    yield publisher.name, entry.name

    def files(self, organisation: str, repository: str) -> Files:
        """Return the files in its folder."""
        folder = self.root / organisation / repository
        return {path.relative_to(folder).as_posix(): path for path in self.walk(folder)}


@final
class Flat(Repositories):
    """llama.cpp's older cache: ``ORG_REPO_FILE.gguf``, and ``manifest=ORG=REPO=TAG.json`` for what was asked for."""

    def repositories(self) -> Iterator[tuple[str, str]]:
        """Yield those that have a manifest: the names of files do not tell where ORG ends."""
        told = {tuple(entry.name.split("=")[1:3]) for entry in self.entries(self.root) if _is_old_manifest(entry.name)}
        yield from sorted((organisation, repository) for organisation, repository in told)

    def files(self, organisation: str, repository: str) -> Files:
        """Return the files whose names begin with the repository's, and with no longer name of another one."""
        starts = {(org, repo): f"{org}_{repo}_" for org, repo in self.repositories()}
        if (start := starts.get((organisation, repository))) is None:
            return {}
        longer = tuple(other for other in starts.values() if other.startswith(start) and other != start)
        found = [path for path in self.walk(self.root, 1) if path.name.startswith(start)]
        return {path.name.removeprefix(start): path for path in found if not path.name.startswith(longer)}


def _is_old_manifest(name: str) -> bool:
    kind, *parts = name.removesuffix(".json").split("=")
    return kind == "manifest" and len(parts) == 3 and all(map(PART.fullmatch, parts))


def _of_quantisation(paths: list[str], quant: str | None) -> list[str]:
    """Return the files that a quantisation fits, whatever its case: by the whole name, else by a part of it.

    A part ends where llama.cpp's ``-hf`` lets it end: at a hyphen or a dot.
    """
    if quant is None:
        return paths
    whole = [path for path in paths if quant.casefold() in {_stem(path).casefold(), _label(path).casefold()}]
    part = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(quant)}(?=[-./]|$)", re.IGNORECASE)
    return whole or [path for path in paths if part.search(path.removesuffix(_name(path)) + _stem(path))]


def _tags(paths: list[str]) -> dict[str, str | None]:
    """Return what stands behind ORG/REPO for each file: ``:QUANT`` where that means it alone, else its own name.

    None: nothing that may stand in a name means this file alone.
    """
    told: dict[str, str | None] = {}
    for path in paths:
        tags = ["", *(f":{tag}" for tag in (_label(path), _stem(path)) if PART.fullmatch(tag))]
        del tags[: len(paths) > 1 or (len(tags) > 1 and bool(_label(path)))]
        told[path] = next((tag for tag in tags if _of_quantisation(paths, tag[1:] or None) == [path]), None)
    return told


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _stem(path: str) -> str:
    return shard_stem(_name(path))


def _label(path: str) -> str:
    found = _QUANT.search(_stem(path))
    return found[1] if found else ""


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
