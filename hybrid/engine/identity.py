"""What identifies a model file, wherever it lies and whatever it is called, and what is measured of that model alone.

The laws (``tests/engine/test_identity.py``): a change of the header, of the tensor table, of the size or of a sampled
block is another identity; a file whose path, size, time and inode are those of the last time is not read again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.engine.gguf_header import read_header, shard_files
from hybrid.engine.port import Engine
from hybrid.errors import EngineError
from hybrid.prob import UNMEASURED, Dense, kl_shift, max_log_difference
from hybrid.store.json_store import JsonStore
from hybrid.types import Ids

# A requantised or trained model differs in every tensor, so a megabyte of samples shows it.
NUM_BLOCKS, BLOCK_BYTES = 64, 1 << 14
# What version 0.1.0 read from each end of a file.
END_BYTES = 1 << 20
# The files that were seen last are kept.
MOST_FILES = 256


def identify(model: Path, cache: Path | None = None) -> str:
    """Return a digest of a file's header, size and 64 blocks of its tensors. Raises OSError.

    The files of a split model are one model: whichever is named, the digest is of the digests of all that are there.
    ``cache``: a file that remembers digests between runs, which need not exist. A file that is no sound GGUF has no
    header, and its blocks are taken from all of it.
    """
    files = _files(model)
    if cache is None:
        return _digest_of_all(files)
    return str(JsonStore(cache, "identities", _is_entry, MOST_FILES).of_files(files, lambda: _digest_of_all(files)))


def identify_by_ends(model: Path) -> str:
    """Return the digest by which version 0.1.0 identified a file, by its size and ends: what it kept is found by it.

    Raises OSError.
    """
    size = model.stat().st_size
    digest = blake2b(str(size).encode(), digest_size=16)
    with model.open("rb") as file:
        digest.update(file.read(END_BYTES))
        file.seek(max(0, size - END_BYTES))
        digest.update(file.read(END_BYTES))
    return digest.hexdigest()


def _is_entry(entry: object) -> bool:
    match entry:
        case [*_, str(digest)]:
            return re.fullmatch("[0-9a-f]{32}", digest) is not None
    return False


def _files(model: Path) -> tuple[Path, ...]:
    """Return the files of a model that are there, in order; the one that was named, if it has no others."""
    return tuple(file for file in shard_files(model) if file.exists()) or (model,)


def _digest_of_all(files: Sequence[Path]) -> str:
    digests = [_digest(file) for file in files]
    return digests[0] if len(digests) == 1 else blake2b("".join(digests).encode(), digest_size=16).hexdigest()


def _digest(model: Path) -> str:
    size = model.stat().st_size
    try:
        header_bytes = read_header(model).data_start
    except EngineError:
        header_bytes = 0
    digest = blake2b(str(size).encode(), digest_size=16)
    room = max(0, size - header_bytes - BLOCK_BYTES)
    with model.open("rb") as file:
        digest.update(file.read(header_bytes))
        for number in range(NUM_BLOCKS):
            file.seek(header_bytes + room * number // (NUM_BLOCKS - 1))
            digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()


# How long the local model takes to draft: the time of tokens that are decoded one by one.

# A thousandth of a second is told from its noise, and a model of a thousand parameters is timed within one.
TIMED = 16


def drafting_ms(engine: Engine, text: Ids) -> float:
    """Return the milliseconds that a drafted token takes, after the first one of ``text``. The engine is left empty."""
    ids = (text * TIMED)[: min(TIMED, engine.num_context - 1) + 1]
    engine.rewind(0)
    engine.extend(ids[:1])
    began = time.perf_counter()
    for token in ids[1:]:
        engine.extend((token,))
    took = time.perf_counter() - began
    engine.rewind(0)
    return took * 1000.0 / max(1, len(ids) - 1)


# A local model's noise: what the same tokens differ by, decoded together and one by one.
#
# Sums of rounded numbers depend on what is decoded together, so a row depends on how its prefix was read. With weights
# of three bits a token's log-probability moved by up to a nat, but sqrt(2 KL) by 0.23 at most (KL between the two
# readings: 0.03 at most), so both are measured. The result is kept by the model file's own bytes, the number of layers
# on a GPU, and the type of the KV cache where it is not the usual one. It is what is typical, and no bound: other texts
# and batches of other lengths were off by up to five times as much. An earlier program's entry is the nats alone.

# Entries that name no type of the KV cache are of this one.
USUAL_KV_TYPE = "f16"
# Tokens that are decoded both ways.
MEASURED = 64


@dataclass(frozen=True)
class LocalNoise:
    """What a local model's rows are typically off by, as ``prob.Dense`` has it: the most that was seen in one text.

    ``nats``: any likely token's log-probability; ``shift``: sqrt(2 KL) to a row, None where it was not measured: then
    a divergence may be off by what the nats allow.
    """

    nats: float = UNMEASURED
    shift: float | None = None


def measure(engine: Engine, text: Ids) -> LocalNoise:
    """Return the most that two ways to decode ``text`` differ by at any of its tokens.

    The text is cut or repeated to 64 tokens, or to the context if that is shorter. The engine is left empty. If no
    token is likely anywhere, nothing can be measured, and nothing but ``UNMEASURED`` nats is returned.
    """
    ids = np.resize(np.array(text), min(MEASURED, engine.num_context)).tolist()
    engine.rewind(0)
    together = engine.extend(tuple(ids), len(ids))
    engine.rewind(0)
    singly = [engine.extend((token,))[0] for token in ids]
    engine.rewind(0)
    found = []
    for one, other in zip(together, singly, strict=True):
        rows = Dense.from_logits(one).logprobs, Dense.from_logits(other).logprobs
        if (nats := max_log_difference(*rows)) < np.inf:
            found.append((nats, kl_shift(*rows)))
    return LocalNoise(*map(max, zip(*found, strict=True))) if found else LocalNoise()


class NoiseCache:
    """The measured noise of local models, on disk."""

    def __init__(self, path: Path) -> None:
        """Take the file, which need not exist."""
        self._kept = JsonStore(path, "models")

    def read(self, model: Path, gpu_layers: int, kv_type: str = USUAL_KV_TYPE) -> LocalNoise | None:
        """Return the noise of a model file with so many layers on a GPU and such a KV cache, if it was measured."""
        entry = self._kept.read_entries().get(self._key(model, gpu_layers, kv_type))
        found: dict[str, Any] = entry if isinstance(entry, dict) else {"nats": entry}
        if (nats := _noise(found.get("nats"))) is None:
            return None
        return LocalNoise(nats, _noise(found.get("shift")))

    def write(self, model: Path, gpu_layers: int, noise: LocalNoise, kv_type: str = USUAL_KV_TYPE) -> bool:
        """Keep a measured noise; return whether that worked."""
        return self._kept.keep(self._key(model, gpu_layers, kv_type), asdict(noise))

    def _key(self, model: Path, gpu_layers: int, kv_type: str) -> str:
        """Identify a model, its layers on a GPU, and the type of its cache where it is not the usual one."""
        kept_as = f"{identify(model, self._kept.path)} {gpu_layers}"
        return kept_as if kv_type == USUAL_KV_TYPE else f"{kept_as} {kv_type}"


def _noise(kept: Any) -> float | None:
    """Return a kept number, or None for what is none: the file is the user's."""
    return kept if isinstance(kept, float) and 0.0 <= kept < np.inf else None
