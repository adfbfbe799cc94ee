"""What a model of another vocabulary says, laid beside local tokens: its rows at any byte, and its text as it comes.

A row of its stands where its tokens begin. Of a place inside one it tells what goes on from the bytes before it. The
token that a row names (``best``) is the one with which the model's own greedy text goes on from there.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from hybrid.cloud.port import Chunk
from hybrid.errors import VocabularyMismatch
from hybrid.prob import PrefixRow, TextRow, TokenBytes, TopK
from hybrid.types import Ids, Vocabulary

# Bytes to tokens and back to the same bytes, in any vocabulary: what a piece of a text is, without the rest of it.
#
# The law (``tests/cloud/test_exact_split.py``): the tokens' bytes, joined, are the bytes that were given: none lost,
# none added, wherever a text was cut. A vocabulary that puts a space before every text is told apart from the text's
# own; a character that was cut in two is spelled in its bytes.


class ExactSplitter:
    """Splits pieces of a text into a vocabulary's tokens."""

    def __init__(self, words: Vocabulary) -> None:
        """Take the vocabulary."""
        self.words = words

    @cached_property
    def spelling(self) -> TokenBytes:
        """The tokens by their bytes; read once, when first needed."""
        return TokenBytes(tuple(map(self.words.piece, range(self.words.num_tokens))), self.words.end_ids)

    def bytes_of(self, ids: Ids) -> bytes:
        """Return what tokens spell; those that end a text spell nothing."""
        return b"".join(self.words.piece(token) for token in ids if token not in self.words.end_ids)

    def split(self, data: bytes) -> Ids:
        """Return tokens that spell ``data``, to the byte. Raises VocabularyMismatch for a byte that no token spells."""
        start = next((at for at, byte in enumerate(data) if not 0x80 <= byte < 0xC0), len(data))
        end = start + whole_characters(data[start:])
        return self._longest(data[:start]) + self._text(data[start:end]) + self._longest(data[end:])

    def _text(self, data: bytes) -> Ids:
        try:
            ids = self.words.tokenize(data.decode("utf-8"))
        except UnicodeDecodeError:
            return self._longest(data)
        spelled = self.bytes_of(ids)
        if spelled == data:
            return ids
        if ids and spelled == b" " + data:  # a space that stands before every text of this vocabulary
            return self._longest(self.words.piece(ids[0])[1:]) + ids[1:]
        return self._longest(data)

    def _longest(self, data: bytes) -> Ids:
        """Take the longest token at each place."""
        ids: list[int] = []
        while data:
            token = self.spelling.first(data)
            if token is None:
                msg = f"no token of the model spells {data[:4]!r}"
                raise VocabularyMismatch(msg)
            ids.append(token)
            data = data[len(self.spelling.pieces[token]) :]
        return tuple(ids)


def whole_characters(data: bytes) -> int:
    r"""Return how many bytes at the beginning are whole characters of UTF-8: all but one that was cut off at the end.

    >>> whole_characters("né".encode()), whole_characters("né".encode()[:-1])
    (3, 1)
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return len(data) - len(decoder.getstate()[0])


# How a model of another vocabulary has read an answer so far: its tokens, what it made of each place, where they end.
#
# A text can be split in many ways, and a model's next row depends on the way. The tokens that it wrote itself, or would
# have written (its most likely one is the text's), are its own way: they are kept. What somebody else wrote is split
# anew as one text with what follows it, so that no token ends where a draft happened to end.

# Places behind which nothing is asked about again: a draft is as long at most.
RECENT = 512


@dataclass(frozen=True, eq=False)
class TokenizedAnswer:
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

    def keep(self, num: int) -> TokenizedAnswer:
        """Return the first tokens, with what is known of their places and the one after them."""
        rows = {place: row for place, row in self.rows.items() if place <= num}
        favourites = {place: token for place, token in self.favourites.items() if place <= num}
        return TokenizedAnswer(self.ids[:num], self.ends[:num], self.own[:num], rows, favourites)

    def recent(self) -> TokenizedAnswer:
        """Return it with no more than what is known of its last places."""
        least = len(self.ids) - RECENT
        rows = {place: row for place, row in self.rows.items() if place >= least}
        return replace(self, rows=rows, favourites={at: token for at, token in self.favourites.items() if at >= least})

    def extend(self, ids: Ids, sizes: tuple[int, ...], *, own: bool) -> TokenizedAnswer:
        """Return it with more tokens, of so many bytes each."""
        ends, end = [*self.ends], self.start(len(self.ids))
        for size in sizes:
            end += size
            ends.append(end)
        more = (own,) * len(ids)
        return TokenizedAnswer(self.ids + ids, tuple(ends), self.own + more, {**self.rows}, {**self.favourites})


def follow(
    reading: TokenizedAnswer, pieces: list[bytes], favourite_pieces: dict[int, bytes], text: bytes, shown: int
) -> TokenizedAnswer:
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


class ReadableVocabulary(Vocabulary, Protocol):
    """A vocabulary that says which of its tokens are no text."""

    @property
    def control_ids(self) -> frozenset[int]:
        """Tokens that text never spells: marks of turns, padding, the ends."""
        ...


# Bytes of the longest token that is reckoned with; of longer ones only the end is not known.
LONGEST_TOKEN = 64


class RowTranslator:
    """Reads the rows of ``theirs`` in tokens of ``ours``."""

    def __init__(self, theirs: ReadableVocabulary, ours: ExactSplitter) -> None:
        """Take both vocabularies."""
        self._theirs = theirs
        self._ours = ours
        self._ends = ours.words.end_ids

    def piece_of(self, token: int) -> bytes | None:
        """Return what one of their tokens spells; None: it ends the text."""
        return None if token in self._theirs.end_ids else self._theirs.piece(token)

    def row_at(self, reading: TokenizedAnswer, text: bytes, offset: int, token: int | None) -> TextRow | None:
        """Return the row that stands at a byte, for a draft that has ``token`` there; None: it is not known.

        What goes on from there are their tokens that begin at the last place that they came to by their own choice, or
        at one of those since.
        """
        place = earlier = first = reading.last_place(offset)
        if place not in reading.rows:
            return None
        while earlier and not reading.own[earlier - 1] and offset - reading.start(earlier - 1) < LONGEST_TOKEN:
            earlier -= 1
            first = earlier if earlier in reading.rows else first
        reaches = self._reaches(reading, text, range(first, place + 1), offset)
        greedy = self._greedy(reading, text, range(first, place + 1), offset, reaches)
        if greedy == b"":
            return None
        best = self._best(greedy, reading, place, offset, token)
        beyond = self._beyond(reading, text, offset, token)
        return TextRow.after(reaches, self._ours.spelling, best, reading.rows[place].noise, beyond)

    def _beyond(
        self, reading: TokenizedAnswer, text: bytes, offset: int, token: int | None
    ) -> dict[bytes, dict[bytes, float]]:
        """Return what the rows inside a drafted token tell, by the bytes before them."""
        if token is None or token in self._ends:
            return {}
        end, place = offset + len(self._ours.words.piece(token)), reading.last_place(offset) + 1
        found: dict[bytes, dict[bytes, float]] = {}
        while place in reading.rows and offset < reading.start(place) < end:
            found[text[offset : reading.start(place)]] = self._by_bytes(reading.rows[place])[0]
            place += 1
        return found

    def _reaches(self, reading: TokenizedAnswer, text: bytes, places: range, offset: int) -> list[PrefixRow]:
        """Return what the rows at some places tell of a byte, each by how likely a token begins there."""
        starts = {reading.start(place): place for place in places}
        weights = dict.fromkeys(places, 0.0) | {places.start: 1.0}
        reaches: list[PrefixRow] = []
        for place in places:
            start, weight = reading.start(place), weights[place]
            if (row := reading.rows.get(place)) is None:  # as it was read, then
                weights[place + 1] += weight
                continue
            masses, ending, unread = self._by_bytes(row)
            for piece, mass in masses.items():
                after = starts.get(start + len(piece))
                if piece and after is not None and text.startswith(piece, start):
                    weights[after] += weight * mass
            read = text[start:offset]
            reaches.append(PrefixRow(weight, read, masses, ending, row.tail + unread, offset in starts))
        return reaches

    def _by_bytes(self, row: TopK) -> tuple[dict[bytes, float], float, float]:
        """Return the probabilities of the strings that a row shows, of the end, and of what is no text."""
        masses: dict[bytes, float] = {}
        ending = unread = 0.0
        for token, probability in zip(row.ids.tolist(), row.probs.tolist(), strict=True):
            if token in self._theirs.end_ids:
                ending += probability
            elif token >= self._theirs.num_tokens or token in self._theirs.control_ids:
                unread += probability
            else:
                piece = self._theirs.piece(token)
                masses[piece] = masses.get(piece, 0.0) + probability
        return masses, ending, unread

    def _greedy(
        self, reading: TokenizedAnswer, text: bytes, places: range, offset: int, reaches: list[PrefixRow]
    ) -> bytes | None:
        """Return what their most likely text goes on with at a byte; nothing: a row that is not known would tell.

        None: it ends there, or what was read is not its beginning and nothing shown goes on so.
        """
        for place in places:
            piece = self.piece_of(reading.favourites[place]) if place in reading.favourites else b""
            read = text[reading.start(place) : offset]
            if piece and piece.startswith(read):
                return piece[len(read) :]
            if piece is None and not read:
                return None
        others = [pair for reach in reaches for pair in reach.going_on.items()]
        return max(others, key=lambda pair: pair[1], default=(None, 0.0))[0]

    def _best(self, greedy: bytes | None, reading: TokenizedAnswer, place: int, offset: int, token: int | None) -> int:
        """Return the token of ours with which their text goes on: the drafted one, where that is its beginning."""
        if greedy is None:
            ended = reading.favourites[place] in self._theirs.end_ids and reading.start(place) == offset
            if ended and self._ends:
                return token if token is not None and token in self._ends else min(self._ends)
            return 0 if token is None else token
        drafted = b"" if token is None or token in self._ends else self._ours.words.piece(token)
        at = offset + len(greedy)
        while drafted.startswith(greedy) and len(greedy) < len(drafted):
            place = reading.last_place(at)
            piece = self.piece_of(reading.favourites[place]) if place in reading.favourites else None
            if reading.start(place) != at or not piece or not reading.own[place - 1]:
                break
            greedy, at = greedy + piece, at + len(piece)
        if token is not None and drafted and greedy.startswith(drafted):
            return token
        return self._ours.split(greedy)[0]


class StreamRetokenizer:
    """Turns what the endpoint writes into local tokens, as it comes."""

    def __init__(self, rows: RowTranslator, ours: ExactSplitter, reading: TokenizedAnswer, text: bytes) -> None:
        """Take how their model has read an answer, which may be further than its text goes."""
        self._rows = rows
        self._ours = ours
        self.reading = reading
        self._text = text
        self._at = len(text)
        end = self.reading.start(len(self.reading.ids))
        if end > len(self._text):  # the end of a token that was taken in part
            self._text += (rows.piece_of(self.reading.ids[-1]) or b"")[len(self._text) - end :]

    def owed(self) -> Chunk:
        """Return what was paid for already: the end of the last token."""
        return self._emit(flush=True) if self._at < len(self._text) else Chunk()

    def read(self, chunk: Chunk) -> Chunk:
        """Return a chunk in local tokens: what may still grow is held back while more is to come."""
        ended = False
        for token, row in zip(chunk.ids, chunk.rows, strict=True):
            place = len(self.reading.ids)
            rows = {} if row is None else {place: row}
            piece = self._rows.piece_of(token)
            more = self.reading if piece is None else self.reading.extend((token,), (len(piece),), own=True)
            favourites = {place: token} if row is None else {place: row.best}
            self.reading = replace(more, rows={**more.rows, **rows}, favourites={**more.favourites, **favourites})
            self._text += piece or b""
            if ended := piece is None:  # what a server writes behind its end is no part of the text
                break
        told = self._emit(flush=ended or chunk.finish is not None)
        if ended and (end := min(self._ours.words.end_ids, default=None)) is not None:
            row = self._rows.row_at(self.reading, self._text, self._at, end)
            told = replace(told, ids=(*told.ids, end), rows=(*told.rows, row))
        return replace(told, finish=chunk.finish, usage=chunk.usage)

    def _emit(self, *, flush: bool) -> Chunk:
        """Return the local tokens of what has come, all but the last unless nothing follows."""
        ids: Sequence[int] = self._ours.split(self._text[self._at :])
        rows: list[TopK | None] = []
        told = ids if flush else ids[:-1]
        for token in told:
            rows.append(self._rows.row_at(self.reading, self._text, self._at, token))
            self._at += len(self._ours.words.piece(token))
        return Chunk(tuple(told), tuple(rows))
