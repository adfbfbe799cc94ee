"""Small vocabularies with what makes text hard to align: shared pieces, parts of characters, control tokens."""

from __future__ import annotations

from collections.abc import Sequence


class Pieces:
    """Splits greedily into the longest pieces; with ``space_first`` it puts a space before every text.

    Control tokens have a name and are never what plain text is split into, as SentencePiece and BPE files have it.
    """

    def __init__(
        self,
        pieces: Sequence[bytes | str],
        *,
        ends: frozenset[int] = frozenset(),
        opening: tuple[int, ...] = (),
        space_first: bool = False,
    ) -> None:
        self._pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.num_tokens = len(self._pieces)
        self.end_ids = ends
        self._opening = opening
        self._space_first = space_first

    def piece(self, token: int) -> bytes:
        return self._pieces[token]

    def tokenize(self, text: str, *, special: bool = False) -> tuple[int, ...]:
        left, found = ((" " if self._space_first else "") + text).encode(), list(self._opening if special else ())
        while left:
            fits = [i for i, piece in enumerate(self._pieces) if piece and left.startswith(piece)]
            fits = [i for i in fits if i not in self.end_ids and i not in self._opening]
            if not fits:
                break  # what no piece spells is lost, as in some tokenisers
            best = max(fits, key=lambda i: (len(self._pieces[i]), -i))
            found.append(best)
            left = left[len(self._pieces[best]) :]
        return tuple(found)


# The words of most dialects' tests. 6 and 7 are one text; 8 and 9 are halves of "é"; 10 ends an answer.
WORDS = Pieces(
    ["a", "b", "c", "d", " e", "ab", "x", "x", b"\xc3", b"\xa9", "<end>", "é!"],
    ends=frozenset({10}),
)
A, B, C, D, E, AB, X1, X2, HALF, OTHER_HALF, END, ACCENT = range(12)
