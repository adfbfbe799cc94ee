"""How a model of another vocabulary has read an answer so far: its tokens, what it made of each place, where they end.

A text can be split in many ways, and a model's next row depends on the way. The tokens that it wrote itself, or would
have written (its most likely one is the text's), are its own way: they are kept. What somebody else wrote is split anew
as one text with what follows it, so that no token ends where a draft happened to end.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace

from hybrid.prob import TopK
from hybrid.types import Ids

# Places behind which nothing is asked about again: a draft is as long at most.
RECENT = 512


@dataclass(frozen=True, eq=False)
class Reading:
    """T tokens of an answer in another vocabulary. ``ends``: the byte at which each ends. ``own``: its own way.

    ``rows``: by the number of tokens before it, the row that stands there, where it is known; ``favourites``: the
    token that the model puts there. Both may stand after the last token, too.
    """

    ids: Ids = ()
    ends: tuple[int, ...] = ()
    own: tuple[bool, ...] = ()
    rows: dict[int, TopK] = field(default_factory=dict)
    favourites: dict[int, int] = field(default_factory=dict)

    def start(self, place: int) -> int:
        """Return the byte at which the token with ``place`` tokens before it begins."""
        return self.ends[place - 1] if place else 0

    def last_place(self, offset: int) -> int:
        """Return how many tokens end at or before a byte."""
        return bisect_right(self.ends, offset)

    def keep(self, num: int) -> Reading:
        """Return the first tokens, with what is known of their places and the one after them."""
        rows = {place: row for place, row in self.rows.items() if place <= num}
        favourites = {place: token for place, token in self.favourites.items() if place <= num}
        return Reading(self.ids[:num], self.ends[:num], self.own[:num], rows, favourites)

    def recent(self) -> Reading:
        """Return it with no more than what is known of its last places."""
        least = len(self.ids) - RECENT
        rows = {place: row for place, row in self.rows.items() if place >= least}
        return replace(self, rows=rows, favourites={at: token for at, token in self.favourites.items() if at >= least})

    def extend(self, ids: Ids, sizes: tuple[int, ...], *, own: bool) -> Reading:
        """Return it with more tokens, of so many bytes each."""
        ends, end = [*self.ends], self.start(len(self.ids))
        for size in sizes:
            end += size
            ends.append(end)
        more = (own,) * len(ids)
        return Reading(self.ids + ids, tuple(ends), self.own + more, {**self.rows}, {**self.favourites})


def follow(
    reading: Reading, pieces: list[bytes], favourite_pieces: dict[int, bytes], text: bytes, shown: int
) -> Reading:
    """Return how much of an earlier reading holds for a text, whose first ``shown`` bytes stand.

    ``pieces``: what the reading's tokens spell; ``favourite_pieces``: what the favourites of its places do. The tokens
    are kept up to the last that is the model's own. Where what stands ends inside the first favourite behind that (or
    with it), it is taken: the model was about to write it, and may owe its end.
    """
    num = 0
    for place, piece in enumerate(pieces):
        if not text.startswith(piece, reading.start(place)):
            break
        num = place + 1
    kept = reading.keep(max((place + 1 for place in range(num) if reading.own[place]), default=0))
    for place in range(len(kept.ids), num + 1):
        at, piece = reading.start(place), favourite_pieces.get(place, b"")
        if piece and at < shown <= at + len(piece) and _agree(text[at:], piece):
            return reading.keep(place).extend((reading.favourites[place],), (len(piece),), own=True)
    return kept


def _agree(text: bytes, piece: bytes) -> bool:
    """Return whether one of two texts is the beginning of the other."""
    return text.startswith(piece) or piece.startswith(text)
