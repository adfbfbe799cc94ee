"""The log-probabilities of an answer's tokens, from the rows that were read for it: those of whoever wrote each token.

They are the model's own, at temperature 1 and before anything is cut off. A token that an endpoint does not list has
OpenAI's -9999.0, which means "not among the listed".
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybrid.prob import Dense, TopK
from hybrid.run.events import Event, RecordingStarted, Rows, TokenEmitted
from hybrid.types import Ids

NOT_LISTED = -9999.0


@dataclass(frozen=True)
class TokenScore:
    """A token's bytes and log-probability, and the likeliest ones in its place, best first.

    ``at``: the place in the text of the first character that ends in it or after it.
    """

    piece: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...]
    at: int

    def chat(self) -> dict[str, Any]:
        """Return it as the chat route has it."""
        return _named(self.piece, self.logprob) | {"top_logprobs": [_named(*each) for each in self.top]}


class RowKeeper:
    """Hears an answer's events; keeps the rows of the position that comes next, and says what they hold of a token."""

    def __init__(self, num_top: int) -> None:
        """``num_top``: how many tokens are wanted in the place of each."""
        self._num_top = num_top
        self._pieces: tuple[bytes, ...] = ()
        self._shown: list[int] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_read = 0
        self._local: dict[int, tuple[Ids, Dense]] = {}
        self._cloud: dict[int, tuple[Ids, TopK]] = {}

    def hear(self, event: Event) -> TokenScore | None:
        """Take an event; return what is known of the token that came with it, if it is part of the answer itself."""
        match event:
            case RecordingStarted(pieces=pieces):
                self._pieces = pieces
            case Rows(at=at, local=local, cloud=cloud):
                if local is not None:
                    self._local[len(at)] = at, local
                if cloud is not None:
                    self._cloud[len(at)] = at, cloud
            case TokenEmitted(position, token):
                kept = self._cloud if token.source == "cloud" else self._local
                at, row = kept.get(position, ((), None))
                self._local.pop(position, None)
                self._cloud.pop(position, None)
                row = row if at == tuple(self._shown) else None
                self._shown.append(token.id)
                return None if token.thought else self._scored(token.id, row)
            case _:
                pass
        return None

    def _scored(self, token: int, row: Dense | TopK | None) -> TokenScore:
        listed = _listed(row, token, self._num_top)
        top = sorted(listed.items(), key=lambda each: -each[1])[: self._num_top]
        said, piece, at = listed.get(token, NOT_LISTED), self._piece(token), self._num_read
        self._num_read += len(self._decoder.decode(piece))
        return TokenScore(piece, said, tuple((self._piece(each), value) for each, value in top), at)

    def _piece(self, token: int) -> bytes:
        return self._pieces[token] if token < len(self._pieces) else b""


def _listed(row: Dense | TopK | None, token: int, num_top: int) -> dict[int, float]:
    """Return tokens with their log-probabilities: the likeliest, and the one that was written where it is known."""
    if isinstance(row, Dense):
        return dict(row.top(num_top)) | {token: float(row.logprobs_of(np.array([token]))[0])}
    if isinstance(row, TopK):
        return dict(zip(row.ids.tolist(), row.logprobs.tolist(), strict=True))
    return {}


def _named(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": _word(piece), "logprob": _told(logprob), "bytes": list(piece)}


def _word(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")


def _told(logprob: float) -> float:
    """Return a log-probability as JSON can hold it: minus infinity it cannot."""
    return max(logprob, NOT_LISTED)


def legacy(scored: list[TokenScore], num_top: int) -> dict[str, Any]:
    """Return tokens as ``/v1/completions`` has them."""
    tops = [{_word(piece): _told(value) for piece, value in each.top} for each in scored]
    return {
        "tokens": [_word(each.piece) for each in scored],
        "token_logprobs": [_told(each.logprob) for each in scored],
        "top_logprobs": tops if num_top else None,
        "text_offset": [each.at for each in scored],
    }
