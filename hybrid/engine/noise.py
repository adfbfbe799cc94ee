"""Measure a local model's noise: the same tokens decoded together and one by one.

Sums of rounded numbers depend on what is decoded together, so a row depends on how its prefix was read. The result is
kept on disk, by the model file's own bytes and the number of layers on a GPU.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import numpy as np

from hybrid.engine.port import Engine
from hybrid.json_store import JsonStore
from hybrid.prob import UNMEASURED, Dense, max_log_difference
from hybrid.types import Ids

VERSION = 1
# Tokens that are decoded both ways.
MEASURED = 64
# Bytes read from each end of a file: the header with its vocabulary, and the last tensors.
END_BYTES = 1 << 20


def measure(engine: Engine, text: Ids) -> float:
    """Return the largest difference, in nats, of a likely token's log-probability between two ways to decode ``text``.

    The text is cut or repeated to 64 tokens, or to the context if that is shorter. The engine is left empty. If no
    token is likely anywhere, nothing can be measured, and ``UNMEASURED`` is returned.
    """
    ids = np.resize(np.array(text), min(MEASURED, engine.num_context)).tolist()
    engine.rewind(0)
    together = engine.extend(tuple(ids), len(ids))
    engine.rewind(0)
    singly = [engine.extend((token,))[0] for token in ids]
    engine.rewind(0)
    pairs = zip(together, singly, strict=True)
    found = [
        max_log_difference(Dense.from_logits(one).logprobs, Dense.from_logits(other).logprobs) for one, other in pairs
    ]
    return max((nats for nats in found if nats < np.inf), default=UNMEASURED)


class NoiseCache:
    """The measured noise of local models, on disk."""

    def __init__(self, path: Path) -> None:
        """Take the file, which need not exist."""
        self._kept = JsonStore(path, "models", VERSION)

    def read(self, model: Path, gpu_layers: int) -> float | None:
        """Return the noise of a model file in nats, if it was measured."""
        entry = self._kept.read_entries().get(_key(model, gpu_layers))
        is_noise = isinstance(entry, float) and 0.0 <= entry < np.inf  # the file is the user's
        return entry if is_noise else None

    def write(self, model: Path, gpu_layers: int, noise: float) -> bool:
        """Keep a measured noise; return whether that worked."""
        key = _key(model, gpu_layers)
        return self._kept.change(lambda entries: {**entries, key: noise})


def _key(model: Path, gpu_layers: int) -> str:
    """Identify a model and its layers on a GPU."""
    return f"{identify(model)} {gpu_layers}"


def identify(model: Path) -> str:
    """Identify a model by its file's length and both ends, wherever it lies."""
    size = model.stat().st_size
    digest = blake2b(str(size).encode(), digest_size=16)
    with model.open("rb") as file:
        digest.update(file.read(END_BYTES))
        file.seek(max(0, size - END_BYTES))
        digest.update(file.read(END_BYTES))
    return digest.hexdigest()
