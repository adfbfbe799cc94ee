"""Two yardsticks of the benchmarks: the bare llama.cpp loop, and llama-cpp-python's ``create_completion``.

The product never uses this file. It stands here because only this room imports ``llama_cpp``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hybrid.engine.llama import CHUNK, Weights
from hybrid.engine.native import ll, safe_model_params
from hybrid.errors import EngineError
from hybrid.types import Ids


class BareContext:
    """A context and a batch, as in llama.cpp's own examples. No row is copied and no id is kept."""

    def __init__(self, weights: Weights, num_context: int, threads: int, num_rows: int) -> None:
        """Open a context like the engine's, but for at most ``num_rows`` rows at a time."""
        params = ll.llama_context_default_params()
        params.n_ctx = num_context
        params.n_batch = params.n_ubatch = CHUNK
        params.n_outputs_max = num_rows
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        self._ctx = ll.llama_init_from_model(weights._model, params)
        if not self._ctx:
            msg = f"llama.cpp cannot open a bare context of {num_context} tokens over {weights.path}"
            raise EngineError(msg)
        self._memory = ll.llama_get_memory(self._ctx)
        self._batch = ll.llama_batch_init(num_context, 0, 1)
        self._length = 0

    def decode(self, ids: Ids, *, rows: bool = True) -> float:
        """Decode ``ids``, with a row for each or none. Return one score, so that the call waits for the rows."""
        batch = self._batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, self._length + i, 1, rows
            batch.seq_id[i][0] = 0
        if ll.llama_decode(self._ctx, batch) != 0:
            msg = "llama.cpp could not decode"
            raise EngineError(msg)
        self._length += len(ids)
        return float(ll.llama_get_logits(self._ctx)[0]) if rows else 0.0

    def read(self, ids: Ids) -> None:
        """Decode a text of any length without rows."""
        for start in range(0, len(ids), CHUNK):
            self.decode(ids[start : start + CHUNK], rows=False)

    def rewind(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        ll.llama_memory_seq_rm(self._memory, 0, length, -1)
        self._length = length

    def close(self) -> None:
        """Free the context."""
        ll.llama_batch_free(self._batch)
        ll.llama_free(self._ctx)


def completion_chunks(path: Path, prompt: Ids, num_tokens: int, logprobs: int) -> Iterator[object]:
    """Stream ``llama_cpp.Llama.create_completion`` with log-probabilities, a chunk a token, on one thread."""
    model = _loaded(path, n_ctx=len(prompt) + num_tokens + 8, logits_all=True)
    try:
        yield from model.create_completion(
            list(prompt), max_tokens=num_tokens, logprobs=logprobs, temperature=0.0, stream=True
        )
    finally:
        model.close()


def _loaded(path: Path, **settings: Any) -> ll.Llama:
    """Load with our model parameters, which ``Llama`` takes from a function of its module only."""
    params = safe_model_params()
    module = ll.llama_cpp
    own, module.llama_model_default_params = module.llama_model_default_params, lambda: params
    try:
        return ll.Llama(str(path), n_threads=1, n_threads_batch=1, verbose=False, **settings)
    finally:
        module.llama_model_default_params = own


__all__ = ["BareContext", "completion_chunks"]
