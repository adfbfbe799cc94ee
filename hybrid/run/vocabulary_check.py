"""Whether what an endpoint gives is in the local vocabulary: each reply is held against it, before it is believed.

The law: a token is taken from the cloud only if the local model has a number for it, and reads it alike where the
endpoint says how it reads (``tests/run/test_driver.py``, ``test_long_text.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hybrid.cloud import Chunk, Scores
from hybrid.cloud.same_pieces import PART, check_pieces, mismatch, without_spaces
from hybrid.engine import Engine
from hybrid.errors import VocabularyMismatch
from hybrid.prob import TopK
from hybrid.run.open_request import WriteStream


class VocabularyCheck:
    """Compares what an endpoint gives with the local vocabulary. Raises VocabularyMismatch at what differs.

    Padding, which is unlikely, is no other vocabulary: rows are taken over the tokens that both models have. Every
    reply is compared, not only the first: a server that is restarted with another model is noticed.
    """

    def __init__(self, engine: Engine) -> None:
        """Take the local model."""
        self._engine = engine

    def check_scores(self, scores: Scores) -> tuple[TopK, ...]:
        """Compare how the endpoint reads some tokens, and its likeliest ones; return the rows over our vocabulary."""
        check_pieces(scores.pieces, self._engine)
        self._check_numbers(row.best for row in scores.rows)
        return tuple(row.within(self._engine.num_tokens) for row in scores.rows)

    def check_written(self, stream: WriteStream, chunk: Chunk) -> Chunk:
        """Compare what a stream has written with how the endpoint spells it, which may lag behind.

        Returns the chunk, its rows over the local vocabulary. What was compared is taken off the stream's two texts.
        """
        self._check_numbers(chunk.ids)
        stream.local_text += b"".join(map(self._engine.piece, chunk.ids))
        if stream.cloud_text:
            theirs = without_spaces(stream.cloud_text)
            ours = without_spaces(stream.local_text.decode("utf-8", "replace"))
            if PART not in theirs + ours:
                if not ours.startswith(theirs):
                    raise mismatch("what the cloud wrote", theirs, ours)
                stream.cloud_text, stream.local_text = "", ours.removeprefix(theirs).encode()
        return replace(chunk, rows=tuple(row and row.within(self._engine.num_tokens) for row in chunk.rows))

    def _check_numbers(self, tokens: Iterable[int]) -> None:
        """Raise for a token this model has no number for: llama.cpp would end the process."""
        unknown = next((token for token in tokens if token >= self._engine.num_tokens), None)
        if unknown is not None:
            msg = f"the cloud writes token {unknown}, and the local model has {self._engine.num_tokens} tokens"
            raise VocabularyMismatch(msg)
