"""The folders in which other programs keep models, and Ollama's: which file a name means there.

Ollama's ``manifests/HOST/NAMESPACE/MODEL/TAG`` is JSON that names ``blobs/sha256-...``. Folders that keep files by
repository are the business of ``engine.model_folders``; where all of them lie, and what a name is, of
``engine.model_folders``.

The laws (``tests/engine/test_model_folders.py``): nothing is written, and nothing is read that does not lie below its
folder when all links are followed, whatever names, links and manifests say.
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, final

from hybrid.engine.gguf_header import first_shard, shard_files
from hybrid.errors import EngineError

# A part of a name, and a digest as manifests write it.
PART = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,128}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_WEIGHTS, _ADAPTER = "application/vnd.ollama.image.model", "application/vnd.ollama.image.adapter"
OLLAMA_HOST, OLLAMA_NAMESPACE = "registry.ollama.ai", "library"
# Manifests hold a few hundred bytes, those of models in single tensors a few hundred thousand.
_MOST_MANIFEST_BYTES = 1 << 22
# A cache of a thousand repositories is listed; a folder of a million files is not walked to its end.
_MOST_ENTRIES = 20_000


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


@dataclass(frozen=True)
class ModelName:
    """A name's parts between slashes, one to three, and what stands behind a colon: a tag or a quantisation."""

    parts: tuple[str, ...]
    tag: str | None


class Refused(Exception):
    """Why something in a folder is not used."""


def inside(path: Path, root: Path) -> Path:
    """Return a path unchanged. Raises Refused if it does not exist, or does not lie below the folder after links."""
    try:
        found = path.resolve(strict=True)
        below = found.is_relative_to(root.resolve(strict=True))
    except (OSError, RuntimeError, ValueError):  # RuntimeError: links in a circle; ValueError: a NUL
        msg = f"{path} is missing, or a link to nothing"
        raise Refused(msg) from None
    if not below:
        msg = f"{path} leads out of {root}: name the file that is meant by its own path"
        raise Refused(msg)
    return path


def regular(path: Path, root: Path) -> Path:
    """Return the path of a file unchanged. Raises Refused as ``inside``, and for a folder or a pipe; OSError."""
    if not inside(path, root).is_file():  # opening a pipe would wait for ever
        msg = f"{path} is not a file"
        raise Refused(msg)
    return path


class Layout(ABC):
    """One folder. ``source``: the program whose it is."""

    def __init__(self, root: Path, source: str) -> None:
        """Take a folder, which need not exist."""
        self.root, self.source = root, source

    @abstractmethod
    def look_up(self, name: ModelName) -> list[DiskModel]:
        """Return the models that a name may mean here."""

    @abstractmethod
    def models(self) -> Iterator[DiskModel]:
        """Yield all models here."""

    @property
    def state(self) -> str:
        """What keeps the folder from being searched, for a sentence that names it; empty for nothing."""
        try:
            os.scandir(self.root).close()
        except PermissionError:
            return ", which you may not read"
        except OSError:
            return ", not there"
        return ""

    def entries(self, folder: Path) -> list[Path]:
        """Return what lies in a folder below the root, by name, but hidden ones; nothing where we may not look."""
        with suppress(OSError, Refused):
            inside(folder, self.root)
            with os.scandir(folder) as found:
                names = [entry.name for entry in islice(found, _MOST_ENTRIES) if not entry.name.startswith(".")]
            return [folder / name for name in sorted(names)]
        return []

    def read(self, path: Path, most_bytes: int) -> bytes:
        """Return the bytes of a small file. Raises Refused."""
        try:
            with regular(path, self.root).open("rb") as file:
                raw = file.read(most_bytes + 1)
        except OSError as error:
            msg = f"{path} cannot be read: {error.strerror or error}"
            raise Refused(msg) from None
        if len(raw) > most_bytes:
            msg = f"{path} is damaged: it is longer than {most_bytes} bytes"
            raise Refused(msg)
        return raw

    def model(self, name: str, path: Path) -> DiskModel:
        """Return the model that begins with a file."""
        try:
            for file in filter(Path.exists, shard_files(path)):
                regular(file, self.root)
            first = regular(first_shard(path), self.root)
        except (Refused, EngineError) as refused:
            return DiskModel(name, None, self.source, str(refused))
        except OSError as error:
            return DiskModel(name, None, self.source, f"{path} cannot be read: {error.strerror or error}")
        return DiskModel(name, first, self.source)


@final
class OllamaStore(Layout):
    """Manifests by registry, namespace, model and tag, and blobs by digest."""

    def look_up(self, name: ModelName) -> list[DiskModel]:
        """Return the model of a name; without a tag the one that is called latest."""
        host, namespace, model = (*(OLLAMA_HOST, OLLAMA_NAMESPACE)[: 3 - len(name.parts)], *name.parts)
        manifest = self._manifests / host / namespace / model / (name.tag or "latest")
        return [self._read(manifest)] if os.path.lexists(manifest) and not is_dir(manifest) else []

    def models(self) -> Iterator[DiskModel]:
        """Yield the model of every manifest."""
        for host in self.entries(self._manifests):
            for namespace in self.entries(host):
                for model in self.entries(namespace):
                    tags = (tag for tag in self.entries(model) if is_path_of_parts(tag, 4) and not is_dir(tag))
                    yield from map(self._read, tags)

    @property
    def _manifests(self) -> Path:
        return self.root / "manifests"

    def _read(self, manifest: Path) -> DiskModel:
        name = _ollama_name(*manifest.parts[-4:])
        try:
            return self.model(name, self.root / "blobs" / self._blob(manifest))
        except Refused as refused:
            return DiskModel(name, None, self.source, str(refused))

    def _blob(self, manifest: Path) -> str:
        """Return the name of the blob that holds a model's weights. Raises Refused."""
        raw = self.read(manifest, _MOST_MANIFEST_BYTES)
        try:
            layers: Any = json.loads(raw)["layers"]
            kinds = [str(layer["mediaType"]) for layer in layers]
            digests = [str(layer["digest"]) for layer in layers if layer["mediaType"] == _WEIGHTS]
        except (ValueError, TypeError, KeyError, RecursionError):
            msg = f"its manifest {manifest} is damaged"
            raise Refused(msg) from None
        if _ADAPTER in kinds:
            msg = "it is a model with an adapter, which is another model than its weights alone"
            raise Refused(msg)
        if not digests:
            msg = "Ollama keeps no GGUF file of it: its weights are of another format, or are not on this disk"
            raise Refused(msg)
        if len(digests) > 1:
            msg = f"its weights lie in {len(digests)} blobs, which have no names by which llama.cpp joins them"
            raise Refused(msg)
        if not (found := _DIGEST.fullmatch(digests[0])):
            msg = f"its manifest {manifest} is damaged: the digest of its weights is none"
            raise Refused(msg)
        return f"sha256-{found[1]}"


def is_dir(path: Path) -> bool:
    """Whether there is a folder at a path, as far as we may look."""
    with suppress(OSError):
        return path.is_dir()
    return False


def is_path_of_parts(path: Path, num: int) -> bool:
    """Whether the last parts of a path may stand in a name."""
    return all(map(PART.fullmatch, path.parts[-num:]))


def _ollama_name(host: str, namespace: str, model: str, tag: str) -> str:
    """Return the name that Ollama shows: without what goes without saying."""
    parts = [host, namespace, model]
    if host == OLLAMA_HOST:
        parts = [model] if namespace == OLLAMA_NAMESPACE else [namespace, model]
    return f"{'/'.join(parts)}:{tag}"
