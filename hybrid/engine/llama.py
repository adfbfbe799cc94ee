"""llama.cpp behind the engine port, through the C interface of llama-cpp-python.

Only this room imports ``llama_cpp``. The high-level ``Llama`` class is passed over on purpose: it keeps scores for
every position only with ``logits_all`` (5 GB at a 152k vocabulary and 8k context), reports a full context as a numpy
error, and sorts the vocabulary in Python for log-probabilities.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.ctypeslib import as_array

from hybrid.engine.gguf_header import first_shard, read_model
from hybrid.engine.local_memory import DEFAULT_KV_TYPE, KV_TYPES, KvCacheSize, LocalMemory, Placement, gpu_devices
from hybrid.engine.model_check import check_model
from hybrid.engine.native import (
    DecodeQueue,
    MappedFiles,
    default_threads,
    forget_errors,
    last_error,
    ll,
    safe_model_params,
    take_log,
    why_not_loaded,
)
from hybrid.engine.port import PROMPT_BLOCK, Interrupted, IsCancelled, Logits, check_fits, never
from hybrid.engine.recurrent import RecurrentStates
from hybrid.engine.vocabulary import LlamaVocabulary
from hybrid.errors import ContextOverflow, EngineError
from hybrid.types import Ids

# A cancel is seen between chunks, so a chunk bounds how long it waits.
CHUNK = 256
# Rows one decode may return. llama.cpp sizes a buffer by it: at a 152k vocabulary 37.5 MiB, against 300 by default.
MAX_ROWS = 32
# Positions are int32 in llama.cpp.
MOST_CONTEXT = 2**31 - 1
# Without --ctx no more than this, however long a model was trained: the cache of 128k tokens is gigabytes.
DEFAULT_CONTEXT = 8192


class Weights(LlamaVocabulary):
    """A model file in memory: its tensors and its vocabulary. Contexts made from it share both."""

    def __init__(
        self,
        path: str | Path,
        *,
        gpu_layers: int | None = 0,
        kv_type: str = DEFAULT_KV_TYPE,
        beside: Weights | None = None,
    ) -> None:
        """Load a GGUF file. Raises EngineError: missing, not GGUF, damaged or not loadable.

        ``gpu_layers``: those to keep on a GPU; below 0 all, None as llama.cpp does by itself, and none where it fails.
        ``kv_type``: of the contexts' caches, one of ``KV_TYPES``. ``beside``: another model, in turn with which this
        one decodes.
        """
        self.path = first_shard(Path(path))
        header = read_model(self.path)
        check_model(header)
        take_log()
        self.kv_type = kv_type
        self._restores_exactly: bool | None = None  # not tried yet
        self._files = MappedFiles([header.path, *(each.path for each in header.others)])
        try:
            self._model, self.placement = self._load(gpu_layers)
            self._files.check_named()
        except BaseException:
            self._files.close()
            raise
        super().__init__(self._model, self.path.name)
        self._turns: DecodeQueue = beside._turns if beside else DecodeQueue()

    def _load(self, gpu_layers: int | None) -> tuple[Any, Placement]:
        """Return llama.cpp's model, and what of it lies on a GPU. Raises EngineError."""
        params, devices, failed = safe_model_params(), gpu_devices(), ""
        if gpu_layers is not None:
            params.n_gpu_layers = gpu_layers
        model = ll.llama_model_load_from_file(os.fsencode(self.path), params)
        if not model and gpu_layers is None and devices:  # nobody asked for the GPU, and its memory may be full
            failed = f"llama.cpp could not load it there ({why_not_loaded()})"
            forget_errors()
            params.n_gpu_layers = 0
            model = ll.llama_model_load_from_file(os.fsencode(self.path), params)
        if not model:
            msg = f"llama.cpp cannot load {self.path}: {why_not_loaded()}"
            raise EngineError(msg)
        placement = Placement.of(params.n_gpu_layers, int(ll.llama_model_n_layer(model)), devices, gpu_layers)
        return model, replace(placement, failed=failed)

    def context(self, num_context: int = 0, threads: int | None = None, *, in_turn: bool = True) -> LlamaEngine:
        """Open a cache of ``num_context`` tokens; 0: what the model was trained with, 8192 at most.

        Contexts that are open at the same time decode in turn (``engine.native``); those that are not ``in_turn``
        decode beside all others, each on its caller's thread.
        """
        return LlamaEngine(self, num_context, threads or default_threads(), self._turns if in_turn else None)

    def contexts_that_fit(self, num_context: int, wanted: int, beside: Sequence[Weights] = ()) -> int:
        """Return how many contexts of a length fit in the memory that is free, at least 1 and at most ``wanted``.

        The length is as in ``context``. ``beside``: models that have a context beside each of them. A first one that
        does not fit is refused where it is opened.
        """
        needed = (num_context or self.default_length) * sum(each._bytes_per_token for each in (self, *beside))
        return max(1, min(wanted, psutil.virtual_memory().available // needed)) if needed else wanted

    @property
    def default_length(self) -> int:
        """The tokens of a context for which no length was chosen."""
        return min(int(ll.llama_model_n_ctx_train(self._model)), DEFAULT_CONTEXT)

    @property
    def _on_gpu(self) -> bool:
        return self.placement.on_gpu > 0

    @property
    def _bytes_per_token(self) -> int:
        """Bytes of the machine's memory for a token; 0 where it is all on a GPU, or not one row for every layer."""
        size = self.cache_size
        return 0 if size is None else int(size.bytes_per_token * self.placement.share_in_memory)

    @property
    def cache_size(self) -> KvCacheSize | None:
        """What a context's cache holds of a token, wherever it lies; None where layers keep a state in its place.

        Raises UsageError where the model cannot have a cache of this type.
        """
        model = self._model
        if self.is_recurrent:
            return None
        heads, architecture = int(ll.llama_model_n_head(model)), self.metadata("general.architecture")
        width = int(ll.llama_model_n_embd(model)) // max(1, heads)
        given = [self.metadata(f"{architecture}.attention.{name}_length") for name in ("key", "value")]
        lengths = [int(each) if each and each.isdecimal() else width for each in given]
        num_layers, num_heads = int(ll.llama_model_n_layer(model)), int(ll.llama_model_n_head_kv(model))
        return KvCacheSize(num_layers, num_heads, lengths[0], lengths[1], self.kv_type)

    def memory(self, num_context: int = 0, num_contexts: int = 1) -> LocalMemory:
        """Return what so many contexts of a length take, the length being as in ``context``."""
        return LocalMemory(self.placement, self.cache_size, num_context or self.default_length, num_contexts)

    @property
    def longest_context(self) -> int | None:
        """The trained context length; None if the model is meant for more (recurrent layers, scaled positions)."""
        scaling = self.metadata(f"{self.metadata('general.architecture')}.rope.scaling.type")
        if scaling in {"linear", "yarn", "longrope"} or ll.llama_model_is_recurrent(self._model):
            return None
        return int(ll.llama_model_n_ctx_train(self._model))

    @cached_property
    def is_recurrent(self) -> bool:
        """Whether some layers, or all, keep a state in the place of a row for every token."""
        return bool(ll.llama_model_is_recurrent(self._model) or ll.llama_model_is_hybrid(self._model))

    @property
    def num_parameters(self) -> int:
        """The number of weights in all tensors."""
        return int(ll.llama_model_n_params(self._model))

    def metadata(self, key: str) -> str | None:
        """Return the metadata of a key as text; None if the file has no such key."""
        size = ll.llama_model_meta_val_str(self._model, key.encode(), None, 0)
        if size < 0:
            return None
        buffer = ctypes.create_string_buffer(size + 1)
        ll.llama_model_meta_val_str(self._model, key.encode(), buffer, size + 1)
        return buffer.value.decode("utf-8", "replace")

    def check_files(self) -> None:
        """Raise EngineError where a file of the model was changed since: reading it on could end the process."""
        self._files.check_unchanged()

    def close(self) -> None:
        """Free the weights; every context over them must be closed before."""
        self._turns.close()
        if self._model:
            ll.llama_model_free(self._model)
            self._model = None
        self._files.close()


def _fitting_length(weights: Weights, num_context: int) -> int:
    """Return the length of a context. Raises EngineError if it does not fit in memory: Linux would kill a process.

    Linux promises memory that it does not have, and llama.cpp fills a cache with zeros at once.
    """
    if not 0 <= num_context <= MOST_CONTEXT:
        msg = f"no model has a context of {num_context} tokens"
        raise EngineError(msg)
    needed, free = num_context * weights._bytes_per_token, psutil.virtual_memory().available
    if needed > free:
        sizes = f"{needed / 2**30:.1f} GiB in {weights.kv_type}, and {free / 2**30:.1f} GiB are free"
        msg = f"a context of {num_context} tokens over {weights.path} takes {sizes}: lower --ctx{_or_smaller(weights)}"
        raise EngineError(msg)
    return num_context


def _or_smaller(weights: Weights) -> str:
    """Say which other settings make a cache smaller where it lies."""
    packed = ", or name a smaller --kv-type (q8_0)" if weights.kv_type in {"f32", "f16", "bf16"} else ""
    return packed + (", or keep fewer layers on the GPU (--gpu-layers)" if weights.placement.on_gpu else "")


class LlamaEngine:
    """One context: a cache over shared weights. Driven by one thread at a time."""

    def __init__(self, weights: Weights, num_context: int, threads: int, turns: DecodeQueue | None = None) -> None:
        """Open the context; its decodes come in ``turns``, if any. Raises EngineError where there is no memory."""
        params = ll.llama_context_default_params()
        params.n_ctx = _fitting_length(weights, num_context or weights.default_length)
        params.n_batch = params.n_ubatch = CHUNK
        params.n_outputs_max = MAX_ROWS
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = KV_TYPES[weights.kv_type].number
        params.swa_full = True  # a sliding window that forgets cannot be rewound
        params.no_perf = True
        forget_errors()
        self._ctx = ll.llama_init_from_model(weights._model, params)
        if not self._ctx:
            msg = f"llama.cpp cannot open a context of {params.n_ctx} tokens over {weights.path}: {last_error()}"
            if weights.kv_type != DEFAULT_KV_TYPE or weights.placement.on_gpu:
                msg += f": lower --ctx{_or_smaller(weights)}, or leave kv_type {DEFAULT_KV_TYPE}"
            raise EngineError(msg)
        self.weights = weights
        self.num_tokens = weights.num_tokens
        self.end_ids = weights.end_ids
        self.tokenize, self.piece = weights.tokenize, weights.piece
        self.render, self.thoughts = weights.render, weights.thoughts
        self.template_names = weights.template_names
        self.num_context = int(params.n_ctx)  # llama.cpp rounds its own up, but takes no longer batch
        self._memory = ll.llama_get_memory(self._ctx)
        self._batch = ll.llama_batch_init(CHUNK, 0, 1)
        self._ids: list[int] = []
        self.num_decoded = 0
        """Tokens decoded so far, those decoded again included."""
        self.prompt_block = CHUNK if weights._on_gpu else PROMPT_BLOCK
        self.waited_s = 0.0
        self._turns = turns or DecodeQueue()
        self._states = self._recurrent_states()
        self._turns.join()

    def __repr__(self) -> str:
        """Name the file and how full the cache is."""
        return f"LlamaEngine({self.weights.path.name}, {len(self._ids)}/{self.num_context})"

    @property
    def ids(self) -> Ids:
        """The tokens in the cache."""
        return tuple(self._ids)

    @property
    def has_exact_rewind(self) -> bool:
        """False for recurrent layers whose saved state, loaded again, gave other scores: the prefix is read again."""
        return self._states is not None or not self.weights.is_recurrent

    def extend(self, ids: Ids, num_rows: int = 1, cancelled: IsCancelled = never) -> Logits:
        """Decode ``ids`` in chunks and return the last ``num_rows`` rows."""
        check_fits(len(self._ids) + len(ids), self.num_context)
        if self._states is not None and self._states.is_stale:
            self._restore(self._states, cancelled)
        rows = np.empty((num_rows, self.num_tokens), dtype=np.float32)
        first_row, done, filled = len(ids) - num_rows, 0, 0
        while done < len(ids):
            if cancelled():
                raise Interrupted
            # A chunk holds tokens without rows, or at most MAX_ROWS with.
            end = min(done + CHUNK, first_row) if done < first_row else min(done + MAX_ROWS, len(ids))
            wanted = end - done if done >= first_row else 0
            self._decode(ids[done:end], with_rows=wanted > 0)
            if wanted:
                width = self.weights._width
                scores = as_array(ll.llama_get_logits(self._ctx), (wanted * width,))
                rows[filled : filled + wanted] = scores.reshape(wanted, width)[:, : self.num_tokens]
                filled += wanted
            done = end
        # The largest is NaN where any is, and -inf where all are; single -infs are tokens that cannot be.
        if num_rows and not np.isfinite(rows.max(axis=1)).all():
            msg = f"{self.weights.path} is damaged: after {len(self._ids)} tokens its scores are no numbers"
            raise EngineError(msg)
        return rows

    def _decode(self, ids: Ids, *, with_rows: bool) -> None:
        batch, start = self._batch, len(self._ids)
        if self._states is not None:
            self._states.before_decode(start, with_rows=with_rows)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i] = token
            batch.pos[i] = start + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = with_rows
        status, waited_s = self._turns.run(self._decode_batch)
        self.waited_s += waited_s
        if status != 0:
            msg = f"llama.cpp could not decode (status {status}): {last_error()}"
            raise EngineError(msg)
        self._ids += ids
        self.num_decoded += len(ids)

    def _decode_batch(self) -> int:
        """Decode the batch to its end: a GPU would still be computing when ``llama_decode`` returns."""
        status = int(ll.llama_decode(self._ctx, self._batch))
        ll.llama_synchronize(self._ctx)
        return status

    def rewind(self, length: int) -> None:
        """Forget all but ``length`` tokens. What recurrent layers must decode again, the next ``extend`` does."""
        if length >= len(self._ids):
            return
        if self._states is not None:
            self._states.rewind(length)
            del self._ids[length:]
        elif ll.llama_memory_seq_rm(self._memory, 0, length, -1):
            del self._ids[length:]
        else:
            kept = tuple(self._ids[:length])
            ll.llama_memory_clear(self._memory, True)
            self._ids.clear()
            if kept:
                self.extend(kept, num_rows=0)

    def settle(self, length: int) -> None:
        """Let recurrent layers keep their state where a span begins."""
        if self._states is not None:
            self._states.settle(length)

    def _restore(self, states: RecurrentStates, cancelled: IsCancelled) -> None:
        """Let the memory hold the tokens in ``ids`` and no others. Raises Interrupted, and is then to do again."""
        held = self._ids
        decodes = states.load(len(held))
        self._ids = held[: decodes[0][0]] if decodes else held[:]
        try:
            for start, end in decodes:
                if cancelled():
                    raise Interrupted
                self._decode(tuple(held[start:end]), with_rows=False)
            states.loaded()
        finally:
            self._ids = held

    def _recurrent_states(self) -> RecurrentStates | None:
        """Return what saves the states of recurrent layers; None without such layers, or where a state is not all.

        A model's first context tries it.
        """
        if self.weights.is_recurrent and self.weights._restores_exactly is None:
            self._states = RecurrentStates(self._ctx)
            self.weights._restores_exactly = self._restores_exactly(self._states)
            ll.llama_memory_clear(self._memory, True)
            self._ids, self.num_decoded = [], 0
        return RecurrentStates(self._ctx) if self.weights._restores_exactly else None

    def _restores_exactly(self, states: RecurrentStates) -> bool:
        """Whether the scores after a state that was saved and loaded are the same to the last bit. Three decodes."""
        with suppress(EngineError, ContextOverflow):
            self.extend((0,), 0)
            states.save(1)
            first = self.extend((1,), 1)
            self.rewind(1)
            return bool((self.extend((1,), 1) == first).all()) and self.num_decoded == 3
        return False

    def close(self) -> None:
        """Free the context; the weights stay."""
        if self._ctx:
            ll.llama_batch_free(self._batch)
            ll.llama_free(self._ctx)
            self._ctx = None
            self._turns.leave()
