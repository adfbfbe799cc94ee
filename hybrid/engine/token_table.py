"""What a model's file tells of its tokens, without a context: bytes, which are special, a digest, embedding rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hybrid.engine.llama import Weights
from hybrid.engine.output_rows import OutputRows
from hybrid.errors import EngineError


@dataclass(frozen=True, eq=False)
class TokenTable:
    """``pieces``: the bytes of each token; ``digest``: ``vocabulary_digest``; ``rows``: of the output matrix."""

    name: str
    pieces: Sequence[bytes]
    special_ids: frozenset[int]
    digest: str
    rows: OutputRows


def read_token_table(path: Path) -> TokenTable:
    """Read the tokens of a model. Raises EngineError for a file that cannot be used, or has fewer rows than tokens."""
    weights = Weights(path)
    try:
        pieces = [weights.piece(token) for token in range(weights.num_tokens)]
        rows = OutputRows(path)
        if rows.num_rows < len(pieces):
            msg = f"{path} has {len(pieces)} tokens and an output matrix of {rows.num_rows} rows"
            raise EngineError(msg)
        return TokenTable(weights.name, pieces, weights.special_ids, weights.vocabulary_digest, rows)
    finally:
        weights.close()


__all__ = ["TokenTable", "read_token_table"]
