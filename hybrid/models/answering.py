"""Answer questions greedily with one model and keep its logits; read the logits along another model's answer.

The law, tested in ``tests/models/test_evaluation.py``: an answer is the text that ``hybrid ask --policy local`` shows.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hybrid.engine import Engine
from hybrid.engine.llama import Weights
from hybrid.engine.port import Logits
from hybrid.errors import EngineError
from hybrid.tasks import MAX_TOKENS
from hybrid.types import Ids, Message


@dataclass(frozen=True)
class ModelAnswer:
    """A greedy answer. ``ids`` include the end token, ``text`` does not.

    ``rows`` are the logits before each id, shape (len(ids), V).
    """

    prompt: Ids
    ids: Ids
    rows: Logits
    text: str


class AnsweringModel:
    """One model that answers one question after the other."""

    def __init__(self, engine: Engine) -> None:
        """Take an engine; it stays the caller's to close."""
        self.engine = engine

    def write(self, question: str, max_tokens: int = MAX_TOKENS, *, keep_rows: bool = True) -> ModelAnswer:
        """Answer a question greedily until the end, ``max_tokens`` or a full context; the lowest id wins a tie.

        Without ``keep_rows`` only the last row is kept: at 49,152 tokens each takes 192 KiB.
        """
        engine = self.engine
        prompt = engine.render([Message("user", question)])
        limit = min(max_tokens, engine.num_context - len(prompt))
        engine.rewind(0)
        ids: list[int] = []
        rows = [engine.extend(prompt)[-1]]
        while True:
            ids.append(int(rows[-1].argmax()))
            if ids[-1] in engine.end_ids or len(ids) == limit:
                break
            if not keep_rows:
                rows.clear()
            rows.append(engine.extend((ids[-1],))[-1])
        shown = ids[:-1] if ids[-1] in engine.end_ids else ids
        decoder = codecs.getincrementaldecoder("utf-8")("replace")  # half a character at the end is not shown
        text = "".join(decoder.decode(engine.piece(token)) for token in shown)
        return ModelAnswer(prompt, tuple(ids), np.stack(rows), text)

    def read(self, written: ModelAnswer) -> Logits:
        """Return this model's rows along an answer of a model with the same vocabulary. Shape (T, V)."""
        self.engine.rewind(0)
        return self.engine.extend((*written.prompt, *written.ids[:-1]), num_rows=len(written.ids))


@contextmanager
def open_model(path: Path) -> Iterator[AnsweringModel]:
    """Load a GGUF file on one thread. Raises EngineError where that cannot be, or the file has no chat template."""
    weights = Weights(path)
    try:
        if weights.metadata("tokenizer.chat_template") is None:
            msg = f"{path} has no chat template, so that no question can be put to it"
            raise EngineError(msg)
        engine = weights.context(threads=1)
        try:
            yield AnsweringModel(engine)
        finally:
            engine.close()
    finally:
        weights.close()
