"""Whether an endpoint spells its tokens as a vocabulary does: what it tells of some of them is held against it."""

from __future__ import annotations

from collections.abc import Mapping

from hybrid.errors import VocabularyMismatch
from hybrid.types import Vocabulary

# What decoded pieces hold where a token is only part of a character; such pieces say nothing.
PART = "\N{REPLACEMENT CHARACTER}"


def check_pieces(pieces: Mapping[int, str], words: Vocabulary) -> None:
    """Raise VocabularyMismatch where the endpoint's text of a token is another than the vocabulary's."""
    for token, theirs in pieces.items():
        if token >= words.num_tokens:
            continue  # nothing here is called by that number; whether it is likely is looked at elsewhere
        ours = words.piece(token).decode("utf-8", "replace")
        if theirs == ours or PART in theirs + ours:
            continue
        if without_spaces(theirs) != without_spaces(ours):
            what = f"token {token}"
            raise mismatch(what, theirs, ours)


def without_spaces(text: str) -> str:
    """Drop white space: servers strip, keep or clean up the spaces around a piece as they like."""
    return "".join(text.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").split())


def mismatch(what: str, theirs: str, ours: str) -> VocabularyMismatch:
    """Return the refusal that names both spellings."""
    msg = f"{what} is {theirs[-40:]!r} in the cloud and {ours[-40:]!r} here: the models do not share a vocabulary"
    return VocabularyMismatch(msg)
