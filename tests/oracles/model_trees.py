"""A home folder with models in it, as Ollama, huggingface_hub, LM Studio and llama.cpp leave it; and split models."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import gguf
import numpy as np
from gguf_mutants import Gguf

from hybrid.engine.model_folders import STORES

MODEL = "application/vnd.ollama.image.model"
LAYER = {"mediaType": MODEL, "digest": "sha256:" + "1" * 64}
MAIN, OTHER = "a" * 40, "b" * 40
VARIABLES = ("OLLAMA_MODELS", "LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")
NO, COUNT, TENSORS = (
    gguf.Keys.Split.LLM_KV_SPLIT_NO,
    gguf.Keys.Split.LLM_KV_SPLIT_COUNT,
    gguf.Keys.Split.LLM_KV_SPLIT_TENSORS_COUNT,
)
_U16, _I32 = 2, 5


class Home:
    """A user's home folder, and what other programs put into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ollama, self.hub = path / ".ollama/models", path / ".cache/huggingface/hub"
        self.lm_studio, self.flat = path / ".lmstudio/models", path / ".cache/llama.cpp"

    def pull(self, name, content=b"GGUF", layers=None):
        """Keep a model as Ollama does; return its blob."""
        digest = sha256(content).hexdigest()
        host, namespace, model, tag = name.split("/")
        (self.ollama / "blobs").mkdir(parents=True, exist_ok=True)
        blob = self.ollama / "blobs" / f"sha256-{digest}"
        blob.write_bytes(content)
        manifest = self.ollama / "manifests" / host / namespace / model / tag
        manifest.parent.mkdir(parents=True, exist_ok=True)
        weights = {"mediaType": MODEL, "digest": f"sha256:{digest}", "size": len(content)}
        system = {"mediaType": "application/vnd.ollama.image.system", "digest": f"sha256:{'0' * 64}", "size": 3}
        manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers or [system, weights]}))
        return blob

    def manifest(self, content, name="registry.ollama.ai/library/odd/latest"):
        path = self.ollama / "manifests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    def download(self, repository, *files, commit=MAIN, ref="main", content=b"GGUF"):
        """Keep files of a repository as huggingface_hub does; return the snapshot's folder."""
        folder = self.hub / f"models--{repository.replace('/', '--')}"
        for name in ("blobs", "refs", f"snapshots/{commit}"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        if ref:
            (folder / "refs" / ref).write_text(commit)
        for file in files:
            blob = folder / "blobs" / sha256(file.encode()).hexdigest()
            blob.write_bytes(content)
            link = folder / "snapshots" / commit / file
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(os.path.relpath(blob, link.parent))
        return folder / "snapshots" / commit


def stores_with_service(service):
    """Return the table of the programs' folders, with that of Ollama's own service elsewhere."""
    first, *others = STORES
    return (first._replace(places=(*first.places[:-1], str(service))), *others)


def write(path: Path, content=b"GGUF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def split_model(whole: Gguf, folder: Path, count: int = 3, *, empty_first: bool = False) -> list[Path]:
    """Split a file as llama.cpp's own tool does; its first file may hold no tensors."""
    folder.mkdir(exist_ok=True)
    bounds = np.linspace(0, len(whole.tensors), count + 1 - empty_first).astype(int).tolist()
    bounds = [0] * empty_first + bounds
    ends = [offset for *_, offset in whole.tensors[1:]] + [len(whole.data)]
    paths = []
    for number in range(count):
        chosen = range(bounds[number], bounds[number + 1])
        tensors, data = [], b""
        for name, dims, kind, offset in (whole.tensors[i] for i in chosen):
            tensors.append((name, dims, kind, len(data)))
            end = ends[next(i for i in chosen if whole.tensors[i][0] == name)]
            data += whole.data[offset:end]
            data += bytes(-len(data) % 32)
        part = replace(whole, keys=list(whole.keys) if number == 0 else [], tensors=tensors, data=data, fields=[])
        part.set(NO, _U16, number).set(COUNT, _U16, count).set(TENSORS, _I32, len(whole.tensors))
        paths.append(folder / f"small-{number + 1:05}-of-{count:05}.gguf")
        paths[-1].write_bytes(part.dump())
    return paths
