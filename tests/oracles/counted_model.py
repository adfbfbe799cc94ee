"""The model of the cloud that counts: greedy rows and texts, straight from llama.cpp or from a table.

By another hand than the client and than ``server_stub``: this file knows ``llama_cpp`` and arithmetic, and must never
import ``hybrid`` or ``server_stub``. What it says is a function of the ids alone: llama.cpp is given one token at a
time, because its sums over a batch differ in the last bits from those over single tokens.
"""

from __future__ import annotations

import codecs
import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

LARGE = Path(__file__).parents[2] / "hybrid" / "models" / "large.gguf"


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of probabilities, float64; the last axis is the vocabulary."""
    shifted = np.asarray(logits, dtype=np.float64)
    shifted = shifted - shifted.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class Model(ABC):
    """A vocabulary from a model file, and rows that subclasses give."""

    def __init__(self, llama: llama_cpp.Llama, path: Path):
        self._llama, self._lock, self.name = llama, threading.Lock(), path.stem
        vocab = llama_cpp.llama_model_get_vocab(llama._model.model)
        self.size = int(llama.n_vocab())
        self.context = int(llama.metadata["llama.context_length"])
        self.end_id = int(llama.token_eos())
        control = (i for i in range(self.size) if llama_cpp.llama_vocab_is_control(vocab, i))
        self.control_ids = frozenset(control)
        self._pieces = [bytes(llama.detokenize([i], special=True)) for i in range(self.size)]

    def tokenize(self, text: str) -> list[int]:
        """Ids of a text; the names of control tokens are read as those tokens, as Hugging Face does."""
        with self._lock:
            return [int(i) for i in self._llama.tokenize(text.encode(), add_bos=False, special=True)]

    def piece(self, token: int) -> bytes:
        return self._pieces[token]

    def text(self, ids: Sequence[int]) -> str:
        """What a reader is shown: without control tokens, with a replacement mark for broken UTF-8."""
        return b"".join(self._pieces[i] for i in ids if i not in self.control_ids).decode(errors="replace")

    def row(self, ids: Sequence[int]) -> np.ndarray:
        """Log-probabilities (V,) of the token after ``ids``, which are not empty."""
        return self.rows(ids, len(ids) - 1)[0]

    @abstractmethod
    def rows(self, ids: Sequence[int], first: int = 0) -> np.ndarray:
        """Log-probabilities (len(ids) - first, V): row i is of the token after ``ids[: first + i + 1]``."""

    def close(self) -> None:
        self._llama.close()


class LlamaModel(Model):
    """llama.cpp on one core, with a few contexts, so that streams at the same time keep theirs."""

    def __init__(self, path: Path = LARGE, contexts: int = 4):
        def load() -> llama_cpp.Llama:
            return llama_cpp.Llama(
                str(path), n_ctx=0, logits_all=True, n_threads=1, n_threads_batch=1, n_gpu_layers=0, verbose=False
            )

        self._contexts = [load() for _ in range(contexts)]
        super().__init__(self._contexts[0], path)

    def rows(self, ids: Sequence[int], first: int = 0) -> np.ndarray:
        ids = list(ids)
        with self._lock:
            llama, common = self._nearest(ids)
            llama.n_tokens = common  # the next eval forgets what lies behind
            for token in ids[common:]:
                llama.eval([token])
            return log_softmax(llama.scores[first : len(ids)])

    def _nearest(self, ids: list[int]) -> tuple[llama_cpp.Llama, int]:
        """The context that knows most of these ids, or, if none knows half, the one unused for longest."""

        def common(llama: llama_cpp.Llama) -> int:
            past = llama.input_ids[: min(llama.n_tokens, len(ids))]
            differ = np.nonzero(past != np.array(ids[: len(past)]))[0]
            return int(differ[0]) if differ.size else len(past)

        best = max(self._contexts, key=common)
        found = best if 2 * common(best) >= len(ids) else self._contexts[0]
        self._contexts.remove(found)
        self._contexts.append(found)
        return found, common(found)

    def close(self) -> None:
        for llama in self._contexts:
            llama.close()


class TableModel(Model):
    """A real vocabulary and invented rows: a printable token after each, and an end every ``PERIOD`` positions.

    For tests where only counting matters: a row costs microseconds.
    """

    PERIOD = 32

    def __init__(self, path: Path = LARGE):
        super().__init__(llama_cpp.Llama(str(path), n_ctx=32, n_gpu_layers=0, verbose=False), path)
        readable = [piece.isascii() and piece.decode().isprintable() for piece in self._pieces]
        plain = [i for i in range(self.size) if readable[i] and i not in self.control_ids]
        logits = np.full((self.size, self.size), -4.0)
        for i in range(self.size):
            for rank in range(5):
                logits[i, plain[(37 * i + 11 + 5 * rank) % len(plain)]] = 4.0 - 1.5 * rank - 0.01 * (i % 7)
        ending = logits.copy()
        ending[:, self.end_id] = 7.0
        self._going, self._ending = log_softmax(logits), log_softmax(ending)

    def rows(self, ids: Sequence[int], first: int = 0) -> np.ndarray:
        tables = (self._going, self._ending)
        places = range(first, len(ids))
        return np.array([tables[place % self.PERIOD == self.PERIOD - 1][ids[place]] for place in places])


@dataclass(frozen=True)
class Order:
    """What is to be written, after which ids; the defaults are vLLM's."""

    prompt: tuple[int, ...]
    max_tokens: int = 16
    temperature: float = 1.0
    seed: int = 0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    bias: Mapping[int, float] = field(default_factory=dict)
    allowed: frozenset[int] | None = None
    ignore_end: bool = False
    min_tokens: int = 0


@dataclass(frozen=True)
class Token:
    """One written token. ``row``: raw log-probabilities (V,). ``text``: what may be shown now."""

    id: int
    row: np.ndarray
    text: str
    finish: str | None = None
    stop_reason: Any = None


def choose(row: np.ndarray, order: Order, place: int) -> int:
    """The greedy token, or the one that ``seed`` and ``place`` draw; the lowest id of equals."""
    scores = row.copy()
    for token, value in order.bias.items():
        scores[token] += value
    if order.allowed is not None:
        banned = np.ones(len(scores), dtype=bool)
        banned[list(order.allowed)] = False
        scores[banned] = -np.inf
    if order.temperature < 1e-5:  # vLLM's limit of greedy
        return int(np.argmax(scores))
    probs = np.exp(log_softmax(scores / order.temperature))
    ranked = np.argsort(-probs, kind="stable")
    keep = probs[ranked] >= order.min_p * probs[ranked[0]]
    keep &= np.cumsum(probs[ranked]) - probs[ranked] < order.top_p
    if order.top_k > 0:
        keep[order.top_k :] = False
    kept = ranked[keep]
    point = int.from_bytes(hashlib.sha256(f"{order.seed} {place}".encode()).digest()[:8], "big") / 2**64
    sums = np.cumsum(probs[kept])
    return int(kept[np.searchsorted(sums, point * sums[-1], side="right")])


def write(model: Model, order: Order) -> Iterator[Token]:
    """Write token by token, each computed only when it is asked for, until an end, a stop or the limit."""
    ids, shown, text = list(order.prompt), 0, ""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    held = max((len(stop) - 1 for stop in order.stop), default=0)  # what may be the beginning of a stop string
    limit = min(order.max_tokens, model.context - len(order.prompt))
    for written in range(1, limit + 1):
        row = model.row(ids)
        token = choose(row, order, written)
        ids.append(token)
        finish, reason = None, None
        if written >= order.min_tokens:
            if token == model.end_id and not order.ignore_end:
                finish = "stop"
            elif token in order.stop_ids:
                finish, reason = "stop", token
        if finish is None and token not in model.control_ids:
            text += decoder.decode(model.piece(token))
        with suppress(ValueError):
            at, reason = min((text.index(stop), stop) for stop in order.stop if stop in text)
            text, finish = text[:at], "stop"
        finish = finish or ("length" if written == limit else None)
        if finish and not isinstance(reason, str):
            text += decoder.decode(b"", final=True)
        upto = len(text) if finish else max(shown, len(text) - held)
        yield Token(token, row, text[shown:upto], finish, reason)
        shown = upto
        if finish:
            return
