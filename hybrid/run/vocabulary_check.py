"""Whether the two models mean the same by their tokens: held to on every reply, not only when connecting.

The law: a token is taken from the cloud only if the local model has a number for it, and reads it alike where the
endpoint says how it reads (``tests/run/test_driver.py``). A server that is restarted with another model is noticed.
Padding, which is unlikely, is no other vocabulary: rows are taken over the tokens that both models have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hybrid.cloud import Chunk, Scores
from hybrid.engine import Engine
from hybrid.errors import VocabularyMismatch
from hybrid.run.write_stream import WriteStream

# What decoded pieces hold where a token is only part of a character; such pieces say nothing.
_PART = "\N{REPLACEMENT CHARACTER}"


class VocabularyCheck:
    """Holds what an endpoint gives against the local vocabulary. Raises VocabularyMismatch at what differs."""

    def __init__(self, engine: Engine) -> None:
        """Take the local model."""
        self._engine = engine

    def hold(self, scores: Scores) -> Scores:
        """Look at rows, and at how the endpoint reads their tokens; return them over the local vocabulary."""
        for token, theirs in scores.pieces.items():
            if token >= self._engine.num_tokens:
                continue  # nothing here is called by that number; whether it is likely is looked at below
            ours = self._engine.piece(token).decode("utf-8", "replace")
            if _PART not in theirs + ours and _bare(theirs) != _bare(ours):
                what = f"token {token}"
                raise _mismatch(what, theirs, ours)
        self._know(row.best for row in scores.rows)
        return replace(scores, rows=tuple(row.within(self._engine.num_tokens) for row in scores.rows))

    def hold_written(self, reader: WriteStream, new: Chunk) -> Chunk:
        """Look at what a stream has written since it was last found alike; the endpoint's text of it may lag behind.

        Returns the new part of it, its rows over the local vocabulary.
        """
        self._know(new.ids)
        reader.ours += b"".join(map(self._engine.piece, new.ids))
        if reader.text:
            theirs, ours = _bare(reader.text), _bare(reader.ours.decode("utf-8", "replace"))
            if _PART not in theirs + ours:
                if not ours.startswith(theirs):
                    raise _mismatch("what the cloud wrote", theirs, ours)
                reader.text, reader.ours = "", ours.removeprefix(theirs).encode()
        return replace(new, rows=tuple(row and row.within(self._engine.num_tokens) for row in new.rows))

    def _know(self, tokens: Iterable[int]) -> None:
        """Raise for a token this model has no number for: llama.cpp would end the process."""
        unknown = next((token for token in tokens if token >= self._engine.num_tokens), None)
        if unknown is not None:
            msg = f"the cloud writes token {unknown}, and the local model has {self._engine.num_tokens} tokens"
            raise VocabularyMismatch(msg)


def _bare(text: str) -> str:
    """Drop white space: servers strip, keep or clean up the spaces around a piece as they like."""
    return "".join(text.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").split())


def _mismatch(what: str, theirs: str, ours: str) -> VocabularyMismatch:
    msg = f"{what} is {theirs[-40:]!r} in the cloud and {ours[-40:]!r} here: the models do not share a vocabulary"
    return VocabularyMismatch(msg)
