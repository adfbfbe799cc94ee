"""Models by the names that other programs gave them: which file a name means, and what there is on this disk.

A name is ``MODEL[:TAG]``, ``ORG/REPO[:TAG]`` or three parts between slashes. ``STORES`` is the table of the programs.

The laws (``tests/engine/test_model_folders.py``): a file that exists wins; every name under which a model is listed
means that model alone; a name that several files fit is refused; a file of another kind beside a model is none; nothing
is written or downloaded, and nothing is read that does not lie below its folder when all links are followed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeAlias

from hybrid.engine.gguf_header import first_shard, shard_files, shard_names, shard_stem
from hybrid.errors import EngineError, UsageError, spelled
from hybrid.settings.names import NAMED

# A part of a name, a digest as manifests write it, and a commit, as snapshots are called.
_PART = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,128}")
_DIGEST, _COMMIT = re.compile(r"sha256:([0-9a-f]{64})"), re.compile(r"[0-9a-f]{40}")
_WEIGHTS, _ADAPTER = "application/vnd.ollama.image.model", "application/vnd.ollama.image.adapter"
_OLLAMA = ("registry.ollama.ai", "library")  # what goes without saying in a name of Ollama's
# Files beside a model that are no models: projectors, importance matrices, and heads that draft for it.
_BESIDE = re.compile(r"(?:^|[-._])(?:mmproj|imatrix|mtp|eagle3|dflash|dspark)(?=[-._])", re.IGNORECASE)
# The last part of a file's name, if it tells a quantisation: Q4_K_M, IQ3_XXS, BF16, MXFP4.
_QUANT = re.compile(r"[-._]((?:I?Q|TQ|B?F|FP|MXFP|NVFP)[0-9][A-Za-z0-9_]*)$", re.IGNORECASE)
_MOST_PARTS = 3
# A cache of a thousand repositories is listed; a folder of a million files is not walked to its end.
_MOST_ENTRIES = 20_000
# Manifests hold a few hundred bytes, those of models in single tensors a few hundred thousand.
_MOST_MANIFEST_BYTES = 1 << 22
_isdir, _isfile, _exists = os.path.isdir, os.path.isfile, os.path.exists  # Path's raise where we may not look


@dataclass(frozen=True)
class DiskModel:
    """A model that another program keeps on this disk.

    ``name``: what ``--local`` takes for it; ``path``: its file, the first of a split model; ``source``: whose folder;
    ``problem``: why it cannot be used, as far as folders tell, or empty; ``path`` is then None.
    """

    name: str
    path: Path | None
    source: str
    problem: str = ""


# A name's parts between slashes, one to three, and what stands behind a colon: a tag or a quantisation.
ModelName: TypeAlias = tuple[tuple[str, ...], str | None]
# The names of models, and what returns the file of one, or raises EngineError for one that cannot be used.
Models: TypeAlias = Iterator[tuple[str, Callable[[], Path]]]
# The model files of a repository: their paths below it, and where they lie; and ORG and REPO with them.
Files: TypeAlias = Iterable[tuple[PurePosixPath, Path]]
Repositories: TypeAlias = Iterator[tuple[tuple[str, ...], Files]]


def find_model(name: str) -> Path:
    """Return the file that a name, or a path, means; a path that is none of these is returned as it is.

    Raises UsageError for a name that no model has, or several, and EngineError for a model that cannot be used.
    """
    parsed = None if _isfile(name) else parse_name(name)
    if parsed is None:
        return Path(name)
    match _models(parsed):
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
    return tuple(sorted(_models(None), key=lambda model: model.name.casefold()))


def folders_searched() -> str:
    """Name the folders in which names are looked for, and what keeps one from being searched."""
    return ", ".join(f"{root} ({store.source}{_state(root)})" for store in STORES for root in _roots(store.places))


def parse_name(name: str) -> ModelName | None:
    """Return a name's parts; None for what can only be a path.

    >>> parse_name("qwen2.5:1.5b")
    (('qwen2.5',), '1.5b')
    >>> parse_name("models/small.gguf"), parse_name("../small:latest")
    (None, None)
    """
    whole, colon, tag = name.partition(":")
    parts = tuple(whole.split("/"))
    if len(parts) > _MOST_PARTS or not _are_parts(*parts, *([tag] if colon else ())):
        return None
    return None if whole.endswith(".gguf") and len(parts) < _MOST_PARTS else (parts, tag or None)


def _are_parts(*texts: str) -> bool:
    return all(map(_PART.fullmatch, texts))


def _models(name: ModelName | None) -> list[DiskModel]:
    """Return the models that a name may mean, or all; of those with one name the first."""
    found: dict[str, DiskModel] = {}
    for store in STORES:
        for root in _roots(store.places):
            for shown, find_file in store.models(root, name):
                try:
                    model = DiskModel(shown, find_file(), store.source)
                except EngineError as error:
                    model = DiskModel(shown, None, store.source, str(error))
                found.setdefault(shown.casefold(), model)
    return list(found.values())


def _usable(name: str, model: DiskModel) -> Path:
    problem = model.problem
    if model.path is not None:
        try:
            with model.path.open("rb") as file:
                if file.read(4) == b"GGUF":
                    return model.path
            problem = f"{model.path} is not a GGUF file"
        except OSError as error:
            problem = f"{model.path} cannot be read: {error.strerror}"
    msg = f"{name} ({model.source}) cannot be used: {problem}"
    raise EngineError(msg)


def _unknown(name: str) -> str:
    """Say where a name was looked for, and which names are near it."""
    known = [*NAMED, *(model.name for model in models_on_disk())]
    folded = {each.casefold(): each for each in reversed(known)}
    near = get_close_matches(name.casefold(), folded, n=4, cutoff=0.6)
    base = name.casefold().partition(":")[0]
    near += [each for each in folded if each.partition(":")[0] == base and each not in near]
    there = f"; there is {', '.join(spelled(folded[each]) for each in near[:4])}" if near else ""
    file = "it is a folder, not a file" if _isdir(name) else "no such file"
    return f"there is no model {name}: {file}, and none of this name in {folders_searched()}{there}"


def _roots(places: Iterable[str]) -> list[Path]:
    """Return a program's folders, whether they exist or not: of the variables the first that is set, else the others.

    A relative folder is none: anybody may have made it where we stand.
    """
    roots: list[Path] = []
    for place in places:
        variable, _, below = place.partition("/")
        with suppress(RuntimeError, EngineError, ValueError):  # no home; no such file, or none of text
            root = Path(place).expanduser()
            if place.startswith("@"):
                pointer = Path(place[1:]).expanduser()
                root = Path(_read(pointer, Path(pointer.anchor), 1 << 12).decode().strip()) / "models"
            elif place.startswith("$"):
                root = Path(os.environ.get(variable[1:], "").strip()).expanduser()
                if root.is_absolute():
                    return [root / below]
            roots += [root] if root.is_absolute() else []
    return list(dict.fromkeys(roots))


def _state(root: Path) -> str:
    try:
        os.scandir(root).close()
    except PermissionError:
        return ", which you may not read"
    except OSError:
        return ", not there"
    return ""


def _inside(path: Path, root: Path) -> Path:
    """Return a path unchanged. Raises EngineError if it does not exist, or not below the folder after links."""
    problem = f"{path} is missing, or a link to nothing"
    with suppress(OSError, RuntimeError, ValueError):  # RuntimeError: links in a circle; ValueError: a NUL
        if path.resolve(strict=True).is_relative_to(root.resolve(strict=True)):
            return path
        problem = f"{path} leads out of {root}: name the file that is meant by its own path"
    raise EngineError(problem)


def _regular(path: Path, root: Path) -> Path:
    """Return the path of a file unchanged. Raises EngineError as ``_inside``, and for a folder or a pipe."""
    if not _isfile(_inside(path, root)):  # opening a pipe would wait for ever
        msg = f"{path} is not a file"
        raise EngineError(msg)
    return path


def _first_file(path: Path, root: Path) -> Path:
    """Return the file by which a model is opened. Raises EngineError as ``_regular``, of all its files."""
    for file in filter(_exists, shard_files(path)):
        _regular(file, root)
    return _regular(first_shard(path), root)


def _read(path: Path, root: Path, most_bytes: int) -> bytes:
    """Return the bytes of a small file. Raises EngineError."""
    try:
        with _regular(path, root).open("rb") as file:
            raw = file.read(most_bytes + 1)
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror or error}"
        raise EngineError(msg) from None
    if len(raw) > most_bytes:
        msg = f"{path} is damaged: it is longer than {most_bytes} bytes"
        raise EngineError(msg)
    return raw


def _entries(root: Path, folder: Path, depth: int = 1) -> Iterator[Path]:
    """Yield what lies so deep in a folder below a root, by name, but hidden ones; nothing where we may not look."""
    names: list[str] = []
    with suppress(OSError, EngineError), os.scandir(_inside(folder, root)) as found:
        names = [entry.name for entry in islice(found, _MOST_ENTRIES) if not entry.name.startswith(".")]
    for name in sorted(names):
        yield from [folder / name] if depth == 1 else _entries(root, folder / name, depth - 1)


def _gguf_files(root: Path, folder: Path, depth: int = 3, around: frozenset[str] = frozenset()) -> Files:
    """Yield the files in a folder that are called ``*.gguf``; a link to one is one, wherever it leads.

    A link to a folder that this one lies in, one of those ``around``, is not followed: it would list its files again.
    """
    around |= {os.path.realpath(folder)}
    for entry in _entries(root, folder):
        if not _isdir(entry) and entry.name.endswith(".gguf"):
            yield PurePosixPath(entry.name), entry
        elif _isdir(entry) and depth > 1 and os.path.realpath(entry) not in around:
            for path, at in _gguf_files(root, entry, depth - 1, around):
                yield entry.name / path, at


def _ollama_models(root: Path, name: ModelName | None) -> Models:
    """Yield the models of ``manifests/HOST/NAMESPACE/MODEL/TAG``; without a tag a name means the latest."""
    (*parts,), tag = name or ((), None)
    named = root.joinpath("manifests", *_OLLAMA[: 3 - len(parts)], *parts, tag or "latest")
    for manifest in [named] if name else _entries(root, root / "manifests", 4):
        *parts, tag = manifest.parts[-4:]
        if os.path.lexists(manifest) and not _isdir(manifest) and _are_parts(*parts, tag):
            unsaid = next(num for num in (2, 1, 0) if tuple(parts[:num]) == _OLLAMA[:num])
            yield f"{'/'.join(parts[unsaid:])}:{tag}", partial(_ollama_file, root, manifest)


def _ollama_file(root: Path, manifest: Path) -> Path:
    """Return the blob that holds a model's weights. Raises EngineError."""
    raw = _read(manifest, root, _MOST_MANIFEST_BYTES)
    try:
        layers: Any = json.loads(raw)["layers"]
        kinds = [str(layer["mediaType"]) for layer in layers]
        digests = [str(layer["digest"]) for layer in layers if layer["mediaType"] == _WEIGHTS]
    except (ValueError, TypeError, KeyError, RecursionError):
        msg = f"its manifest {manifest} is damaged"
        raise EngineError(msg) from None
    msg = f"its manifest {manifest} is damaged: the digest of its weights is none"
    if _ADAPTER in kinds:
        msg = "it is a model with an adapter, which is another model than its weights alone"
    elif not digests:
        msg = "Ollama keeps no GGUF file of it: its weights are of another format, or are not on this disk"
    elif len(digests) > 1:
        msg = f"its weights lie in {len(digests)} blobs, which have no names by which llama.cpp joins them"
    elif digest := _DIGEST.fullmatch(digests[0]):
        return _first_file(root / "blobs" / f"sha256-{digest[1]}", root)
    raise EngineError(msg)


def _hub(root: Path) -> Repositories:
    """Yield ``models--ORG--REPO`` of Hugging Face's cache; the name of no repository holds two hyphens in a row."""
    for folder in _entries(root, root):
        kind, *repository = folder.name.split("--")
        if kind == "models" and len(repository) == 2 and _are_parts(*repository):
            yield tuple(repository), _snapshot(root, folder)


def _snapshot(root: Path, folder: Path) -> Files:
    """Yield ``snapshots/COMMIT/*.gguf``, links to blobs, of the commit that is ``main``, or of the only one."""
    commits = [entry for entry in _entries(root, folder / "snapshots") if _COMMIT.fullmatch(entry.name)]
    main = ""
    with suppress(EngineError):
        main = _read(folder / "refs" / "main", root, 100).decode("ascii", "replace").strip()
    for commit in commits:
        if commit.name == main or len(commits) == 1:
            yield from _gguf_files(root, commit)


def _lm_studio(root: Path) -> Repositories:
    """Yield ``PUBLISHER/REPO`` of LM Studio's folder."""
    for folder in _entries(root, root, 2):
        if _are_parts(*folder.parts[-2:]) and _isdir(folder):
            yield folder.parts[-2:], _gguf_files(root, folder)


def _flat(root: Path) -> Repositories:
    """Yield ``ORG_REPO_FILE.gguf`` of llama.cpp's older cache by ``manifest=ORG=REPO=TAG.json``, which tells the parts.

    A file whose name begins with those of two repositories is the longer one's.
    """
    manifests = [entry.name.removesuffix(".json").split("=") for entry in _entries(root, root)]
    parts = [told[1:] for told in manifests if told[0] == "manifest" and len(told) == 4 and _are_parts(*told[1:])]
    starts = {(organisation, repository): f"{organisation}_{repository}_" for organisation, repository, _ in parts}
    files = [path for _, path in _gguf_files(root, root, depth=1)]
    for repository, start in sorted(starts.items()):
        longer = tuple(other for other in starts.values() if other.startswith(start) and other != start)
        own = [path for path in files if path.name.startswith(start) and not path.name.startswith(longer)]
        yield repository, [(PurePosixPath(path.name.removeprefix(start)), path) for path in own]


def _repository_models(read: Callable[[Path], Repositories], root: Path, name: ModelName | None) -> Models:
    """Yield the models of ORG/REPO, those of ORG/REPO:QUANT, or the one of ORG/REPO/FILE.gguf; all without a name."""
    (*parts,), tag = name or ((), None)
    if len(parts) == 1 or (len(parts) == 3 and tag):
        return
    for repository, found in read(root):
        if name and repository != tuple(parts[:2]):
            continue
        files = {path: at for path, at in found if not _BESIDE.search(at.name)}
        first: dict[PurePosixPath, PurePosixPath] = {}  # of a split, its first file that is there
        for path in sorted(files, key=str):
            first.setdefault(path.parent / shard_names(path.name)[0], path)
        paths = list(first.values())
        for path in _of_quantisation(paths, tag):
            if not parts[2:] or parts[2] in shard_names(path.name):
                own = _own_tag(path, paths)
                shown = str(files[path]) if own is None else f"{'/'.join(repository)}{own}"
                yield shown, partial(_first_file, files[path], root)


def _of_quantisation(paths: list[PurePosixPath], quant: str | None) -> list[PurePosixPath]:
    """Return the files that a quantisation fits, whatever its case: by the whole name, else by a part of it.

    A part ends where llama.cpp's ``-hf`` lets it end: at a hyphen or a dot.
    """
    if quant is None:
        return paths
    whole = [path for path in paths if quant.casefold() in {name.casefold() for name in _tags(path)}]
    part = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(quant)}(?=[-./]|$)", re.IGNORECASE)
    return whole or [path for path in paths if part.search(str(path.parent / shard_stem(path.name)))]


def _own_tag(path: PurePosixPath, paths: list[PurePosixPath]) -> str | None:
    """Return what stands behind ORG/REPO for one of its files: ``:QUANT`` where that means it alone, else its own name.

    None: nothing that may stand in a name means this file alone.
    """
    tags = [f":{tag}" for tag in _tags(path) if _are_parts(tag)]
    if len(paths) == 1 and not (tags and _tags(path)[0]):
        return ""
    return next((tag for tag in tags if _of_quantisation(paths, tag[1:]) == [path]), None)


def _tags(path: PurePosixPath) -> tuple[str, str]:
    """Return the quantisation that a file's name tells, or nothing, and the name itself."""
    stem = shard_stem(path.name)
    found = _QUANT.search(stem)
    return found[1] if found else "", stem


class Store(NamedTuple):
    """Where a program keeps models: ``models(root, name)`` yields those of a folder that a name may mean; all of None.

    ``places``: ``$VARIABLE/BELOW``, ``~/BELOW``, an absolute folder, or ``@FILE``, a file that names one.
    """

    source: str
    models: Callable[[Path, ModelName | None], Models]
    places: tuple[str, ...]


_HUB, _LM_STUDIO, _FLAT = (partial(_repository_models, read) for read in (_hub, _lm_studio, _flat))
_HUB_PLACES = ("$HF_HUB_CACHE", "$HUGGINGFACE_HUB_CACHE", "$HF_HOME/hub", "$XDG_CACHE_HOME/huggingface/hub")
_CACHE = "$LOCALAPPDATA/llama.cpp" if sys.platform == "win32" else "$XDG_CACHE_HOME/llama.cpp"
_HOME_CACHE = "~/Library/Caches/llama.cpp" if sys.platform == "darwin" else "~/.cache/llama.cpp"
# In the order in which a name is looked for. The last place of Ollama's is that of its own service on Linux.
STORES = (
    Store("Ollama", _ollama_models, ("$OLLAMA_MODELS", "~/.ollama/models", "/usr/share/ollama/.ollama/models")),
    Store("llama.cpp", _HUB, ("$LLAMA_CACHE",)),
    Store("Hugging Face", _HUB, (*_HUB_PLACES, "~/.cache/huggingface/hub")),
    Store("LM Studio", _LM_STUDIO, ("@~/.lmstudio-home-pointer", "~/.lmstudio/models", "~/.cache/lm-studio/models")),
    Store("llama.cpp", _FLAT, ("$LLAMA_CACHE", _CACHE, _HOME_CACHE)),
)
