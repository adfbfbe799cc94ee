"""A model that answers a question greedily, and keeps what it thought at every token; or thinks along another's text.

The law, tested in ``tests/bench/test_reference.py``: what is written is what ``hybrid ask --policy local`` shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hybrid.engine import Engine
from hybrid.engine.llama import Weights
from hybrid.engine.port import Logits
from hybrid.types import Ids, Message

# The longest worked answer of the families has about 215 tokens (a multiplication).
MAX_TOKENS = 240


@dataclass(frozen=True)
class Written:
    """An answer: its ids, the ending token included, the logits each was the largest of, and the text before the end.

    Shape of ``rows``: (len(ids), V).
    """

    prompt: Ids
    ids: Ids
    rows: Logits
    text: str


class Answerer:
    """One model that answers one question after the other."""

    def __init__(self, engine: Engine) -> None:
        """Take an engine; it stays the caller's to close."""
        self.engine = engine

    def write(self, question: str, max_tokens: int = MAX_TOKENS) -> Written:
        """Answer a question greedily; the lowest id wins a tie, as in llama.cpp's sampler."""
        engine = self.engine
        prompt = engine.render([Message("user", question)])
        engine.rewind(0)
        ids: list[int] = []
        rows = [engine.extend(prompt)[-1]]
        while True:
            ids.append(int(rows[-1].argmax()))
            if ids[-1] in engine.end_ids or len(ids) == max_tokens:
                break
            rows.append(engine.extend((ids[-1],))[-1])
        shown = ids[:-1] if ids[-1] in engine.end_ids else ids
        text = b"".join(map(engine.piece, shown)).decode("utf-8", "replace")
        return Written(prompt, tuple(ids), np.stack(rows), text)

    def read(self, written: Written) -> Logits:
        """Return this model's rows along an answer of a model with the same vocabulary. Shape (T, V)."""
        self.engine.rewind(0)
        return self.engine.extend((*written.prompt, *written.ids[:-1]), num_rows=len(written.ids))


@contextmanager
def opened(path: Path) -> Iterator[Answerer]:
    """Load a GGUF file on one thread. Raises EngineError where that cannot be."""
    weights = Weights(path)
    try:
        engine = weights.context(threads=1)
        try:
            yield Answerer(engine)
        finally:
            engine.close()
    finally:
        weights.close()
