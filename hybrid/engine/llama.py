"""llama.cpp behind the engine port, through the C interface of llama-cpp-python.

Only this room imports ``llama_cpp``. The high-level ``Llama`` class is passed over on purpose: it keeps scores for
every position only with ``logits_all`` (5 GB at a 152k vocabulary and 8k context), reports a full context as a numpy
error, and sorts the vocabulary in Python for log-probabilities.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import llama_cpp as ll
import numpy as np
import psutil

from hybrid.engine.gguf_header import read_header
from hybrid.engine.model_check import check_model
from hybrid.engine.port import MEND_CONTEXT, Interrupted, IsCancelled, Logits, never
from hybrid.engine.template import render_chat
from hybrid.errors import ContextOverflow, EngineError, UsageError, to_one_line
from hybrid.types import Ids, Message

# A cancel is seen between chunks, so a chunk bounds how long it waits.
CHUNK = 256
# Rows one decode may return. llama.cpp sizes a buffer by it: at a 152k vocabulary 37.5 MiB, against 300 by default.
MAX_ROWS = 32
# Snapshots that let recurrent models step back within their last decode; those without recurrent layers ignore it.
SNAPSHOTS = 16
_ERROR_LEVEL = 4
# The exit code of a local model that cannot be used, as ``hybrid.cli`` has it.
EXIT_ENGINE = 3
# Positions are int32 in llama.cpp.
MOST_CONTEXT = 2**31 - 1
# Without --ctx no more than this, however long a model was trained: the cache of 128k tokens is gigabytes.
DEFAULT_CONTEXT = 8192
# Stands for a turn's text while its template is rendered: two private-use characters around its number.
_MARK, _MARKED = "\ue000{}\ue001", re.compile("\ue000(\\d+)\ue001")


def default_threads() -> int:
    """One thread fewer than physical or permitted cores: llama.cpp spins while it waits for a core that is busy."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed) - 1)


class _Log:
    """Takes llama.cpp's log over and keeps its last errors, for the sentence of an EngineError."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._callback = ll.llama_log_callback(self._take)  # llama.cpp keeps the pointers; so must we
        self._last_words = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_give_up)

    def install(self) -> None:
        """Take llama.cpp's messages over, and its last words."""
        ll.llama_log_set(self._callback, ctypes.c_void_p(0))
        if set_last_words := getattr(ll.llama_cpp._lib, "ggml_set_abort_callback", None):
            set_last_words(self._last_words)

    def _take(self, level: int, text: bytes, _: object) -> None:
        if level == _ERROR_LEVEL:
            self.errors = [*self.errors[-4:], text.decode("utf-8", "replace").strip()]


def _give_up(reason: bytes) -> None:
    """End the process with the exit code of an unusable model; llama.cpp would abort it, with a core dump.

    An assertion of llama.cpp cannot be raised as an exception: it fails on any thread, and llama.cpp aborts once this
    function returns. ``engine.model_check`` refuses the models whose assertions were ever seen to fail.
    """
    said = to_one_line(reason.decode("utf-8", "replace").rpartition("/")[2])
    os.write(2, f"hybrid: llama.cpp cannot go on with this model: {said}\n".encode())
    os._exit(EXIT_ENGINE)


_LOG = _Log()


def take_log() -> None:
    """Make llama.cpp ready, forget its last complaints and keep those that follow."""
    _LOG.install()
    ll.llama_backend_init()
    _LOG.errors.clear()


def last_error() -> str:
    """Return llama.cpp's last complaint."""
    return _LOG.errors[-1] if _LOG.errors else "no reason given"


class Weights:
    """A model file in memory: its tensors and its vocabulary. Contexts made from it share both."""

    def __init__(self, path: str | Path, *, gpu_layers: int = 0) -> None:
        """Load a GGUF file. Raises EngineError: missing, not GGUF, damaged or not loadable."""
        self.path = Path(path)
        check_model(read_header(self.path))
        take_log()
        params = safe_model_params()
        params.n_gpu_layers = gpu_layers
        self._on_gpu = gpu_layers != 0
        self._model = ll.llama_model_load_from_file(os.fsencode(self.path), params)
        if not self._model:
            detail = next((e for e in _LOG.errors if "error loading model:" in e), "damaged or of an unknown kind")
            msg = f"llama.cpp cannot load {self.path}: {detail.split('error loading model:')[-1].strip()}"
            raise EngineError(msg)
        self._vocab = ll.llama_model_get_vocab(self._model)
        self._width = int(ll.llama_vocab_n_tokens(self._vocab))  # of a row of scores; the rest of it is padding
        self.end_ids = frozenset(i for i in range(self._width) if ll.llama_vocab_is_eog(self._vocab, i))
        used = (i for i in reversed(range(self._width)) if not self._is_padding(i))
        self.num_tokens = 1 + max(next(used, self._width - 1), *self.end_ids, int(ll.llama_vocab_bos(self._vocab)))
        template = ll.llama_model_chat_template(self._model, None)
        self._template = template.decode("utf-8") if template else None

    def context(self, num_context: int = 0, threads: int | None = None) -> LlamaEngine:
        """Open a cache of ``num_context`` tokens; 0: what the model was trained with, 8192 at most."""
        return LlamaEngine(self, num_context, threads or default_threads())

    def tokenize(self, text: str, *, special: bool = False) -> Ids:
        """Split text into ids."""
        return self._split(text, add_special=special, parse_special=special)

    def piece(self, token: int) -> bytes:
        """Return the bytes of one token. Raises ValueError for an id it has not: llama.cpp would end the process."""
        if not 0 <= token < self.num_tokens:
            msg = f"there is no token {token}"
            raise ValueError(msg)
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = ll.llama_token_to_piece(self._vocab, token, buffer, size, 0, True)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    @cached_property
    def vocabulary_digest(self) -> str:
        """Return a digest of the vocabulary: the tokens as the file spells them, and those that end a text.

        A digest of the pieces would take four times as long: half a second at 150,000 tokens.
        """
        texts = b"\0".join(ll.llama_vocab_get_text(self._vocab, token) for token in range(self._width))
        ends = ",".join(map(str, sorted(self.end_ids)))
        return hashlib.blake2b(texts + b"\0\0" + ends.encode(), digest_size=8).hexdigest()

    def render(self, messages: Sequence[Message]) -> Ids:
        """Render a conversation with the file's own chat template."""
        if self._template is None:
            msg = f"{self.path.name} has no chat template: use --raw to send the text as it stands"
            raise UsageError(msg)
        bos, eos = (self._name(ll.llama_vocab_bos(self._vocab)), self._name(ll.llama_vocab_eos(self._vocab)))
        if not any(name in message.content for message in messages for name in self._control_names):
            return self._split(render_chat(self._template, bos, eos, messages), add_special=False, parse_special=True)
        # Somebody's text spells a control token: it is read as text, so that nobody can end their own turn with it.
        marked = [Message(message.role, _MARK.format(i)) for i, message in enumerate(messages)]
        ids: Ids = ()
        for i, part in enumerate(_MARKED.split(render_chat(self._template, bos, eos, marked))):
            theirs = i % 2 == 1
            text = messages[int(part)].content if theirs else part
            ids += self._split(text, add_special=False, parse_special=not theirs)
        return ids

    @cached_property
    def _control_names(self) -> tuple[str, ...]:
        control = (i for i in range(self.num_tokens) if ll.llama_vocab_is_control(self._vocab, i))
        return tuple(name for name in map(self._name, control) if name)

    def _is_padding(self, token: int) -> bool:
        """Whether a converter added the token to fill a row: by its type (llama.cpp since 2024), or by its name."""
        unused = ll.llama_vocab_get_attr(self._vocab, token) & ll.LLAMA_TOKEN_ATTR_UNUSED
        return bool(unused) or ll.llama_vocab_get_text(self._vocab, token) == b"[PAD%d]" % token

    def _split(self, text: str, *, add_special: bool, parse_special: bool) -> Ids:
        raw = text.encode("utf-8", "replace")  # half a surrogate pair is no text; it becomes a question mark
        size = len(raw) + 8
        while True:
            buffer = (ll.llama_token * size)()
            count = ll.llama_tokenize(self._vocab, raw, len(raw), buffer, size, add_special, parse_special)
            if count >= 0:
                return tuple(buffer[:count])
            if -count <= size:  # not a wish for more room
                msg = "the text cannot be split into tokens"
                raise UsageError(msg)
            size = -count  # a space may be three tokens, where the vocabulary spells it in bytes

    def _name(self, token: int) -> str:
        return self.piece(token).decode("utf-8", "replace") if 0 <= token < self.num_tokens else ""

    @property
    def _bytes_per_token(self) -> int:
        """Bytes of the cache for a token, in float16; 0 if it is on a GPU or does not hold one row for every layer."""
        model = self._model
        if self._on_gpu or ll.llama_model_is_recurrent(model) or ll.llama_model_is_hybrid(model):
            return 0
        heads, architecture = int(ll.llama_model_n_head(model)), self.metadata("general.architecture")
        width = int(ll.llama_model_n_embd(model)) // max(1, heads)
        given = [self.metadata(f"{architecture}.attention.{name}_length") for name in ("key", "value")]
        per_head = sum(int(each) if each and each.isdecimal() else width for each in given)
        return 2 * int(ll.llama_model_n_layer(model)) * int(ll.llama_model_n_head_kv(model)) * per_head

    @property
    def longest_context(self) -> int | None:
        """The trained context length; None if the model is meant for more (recurrent layers, scaled positions)."""
        scaling = self.metadata(f"{self.metadata('general.architecture')}.rope.scaling.type")
        if scaling in {"linear", "yarn", "longrope"} or ll.llama_model_is_recurrent(self._model):
            return None
        return int(ll.llama_model_n_ctx_train(self._model))

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

    def close(self) -> None:
        """Free the weights; every context over them must be closed before."""
        if self._model:
            ll.llama_model_free(self._model)
            self._model = None


def safe_model_params() -> ll.llama_model_params:
    """Return llama.cpp's own parameters of a model, without Intel's tile instructions where it was built for them.

    On quantised weights those end the process: gcc drops llama.cpp's tile configuration as unused, and the first tile
    instruction is then an illegal one (llama.cpp pull request 26954). Without the extra buffer types the weights are
    multiplied as on any other machine.
    """
    params = ll.llama_model_default_params()
    params.use_extra_bufts = b"AMX_INT8 = 1" not in ll.llama_print_system_info()
    return params


def _fitting_length(weights: Weights, num_context: int) -> int:
    """Return the length of a context. Raises EngineError if it does not fit in memory: Linux would kill a process.

    Linux promises memory that it does not have, and llama.cpp fills a cache with zeros at once.
    """
    if not 0 <= num_context <= MOST_CONTEXT:
        msg = f"no model has a context of {num_context} tokens"
        raise EngineError(msg)
    needed, free = num_context * weights._bytes_per_token, psutil.virtual_memory().available
    if needed > free:
        sizes = f"{needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
        msg = f"a context of {num_context} tokens over {weights.path} takes {sizes}: lower --ctx"
        raise EngineError(msg)
    return num_context


class LlamaEngine:
    """One context: a cache over shared weights. Driven by one thread at a time."""

    def __init__(self, weights: Weights, num_context: int, threads: int) -> None:
        """Open the context. Raises EngineError where llama.cpp cannot (memory, an unsupported model)."""
        params = ll.llama_context_default_params()
        trained = int(ll.llama_model_n_ctx_train(weights._model))
        params.n_ctx = _fitting_length(weights, num_context or min(trained, DEFAULT_CONTEXT))
        params.n_batch = params.n_ubatch = CHUNK
        params.n_outputs_max = MAX_ROWS
        params.n_threads = params.n_threads_batch = threads
        params.swa_full = True  # a sliding window that forgets cannot be rewound
        params.n_rs_seq = SNAPSHOTS
        params.no_perf = True
        _LOG.errors.clear()
        self._ctx = ll.llama_init_from_model(weights._model, params)
        if not self._ctx:
            msg = f"llama.cpp cannot open a context of {params.n_ctx} tokens over {weights.path}: {last_error()}"
            raise EngineError(msg)
        self.weights = weights
        self.num_tokens = weights.num_tokens
        self.end_ids = weights.end_ids
        self.tokenize, self.piece, self.render = weights.tokenize, weights.piece, weights.render
        self.num_context = int(params.n_ctx)  # llama.cpp rounds its own up, but takes no longer batch
        self._memory = ll.llama_get_memory(self._ctx)
        self._batch = ll.llama_batch_init(CHUNK, 0, 1)
        self._ids: list[int] = []
        self._has_snapshots = ll.llama_n_rs_seq(self._ctx) > 0
        self._num_last = 0

    def __repr__(self) -> str:
        """Name the file and how full the cache is."""
        return f"LlamaEngine({self.weights.path.name}, {len(self._ids)}/{self.num_context})"

    @property
    def ids(self) -> Ids:
        """The tokens in the cache."""
        return tuple(self._ids)

    @property
    def has_exact_rewind(self) -> bool:
        """False for recurrent layers: their state is computed again from the prefix."""
        model = self.weights._model
        return not (ll.llama_model_is_recurrent(model) or ll.llama_model_is_hybrid(model))

    def extend(self, ids: Ids, num_rows: int = 1, cancelled: IsCancelled = never) -> Logits:
        """Decode ``ids`` in chunks and return the last ``num_rows`` rows."""
        if len(self._ids) + len(ids) > self.num_context:
            total = len(self._ids) + len(ids)
            msg = f"{total} tokens do not fit the context of {self.num_context}: {MEND_CONTEXT}"
            raise ContextOverflow(msg)
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
                scores = np.ctypeslib.as_array(ll.llama_get_logits(self._ctx), (wanted * width,))
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
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i] = token
            batch.pos[i] = start + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = with_rows
        status = ll.llama_decode(self._ctx, batch)
        if status != 0:
            msg = f"llama.cpp could not decode (status {status}): {'; '.join(_LOG.errors[-1:])}"
            raise EngineError(msg)
        self._ids += ids
        self._num_last = len(ids)

    def rewind(self, length: int) -> None:
        """Forget all but ``length`` tokens. A model that cannot step back (recurrent layers) reads them again."""
        if length >= len(self._ids):
            return
        # Snapshots cover only the last decode. llama.cpp accepts a longer rewind and then returns wrong logits.
        beyond_snapshots = self._has_snapshots and len(self._ids) - length >= self._num_last
        if not beyond_snapshots and ll.llama_memory_seq_rm(self._memory, 0, length, -1):
            del self._ids[length:]
            return
        kept = tuple(self._ids[:length])
        ll.llama_memory_clear(self._memory, True)
        self._ids.clear()
        if kept:
            self.extend(kept, num_rows=0)

    def close(self) -> None:
        """Free the context; the weights stay."""
        if self._ctx:
            ll.llama_batch_free(self._batch)
            ll.llama_free(self._ctx)
            self._ctx = None
