"""The most bytes that a text has in any form in which a server may tokenise it.

The law (``tests/cloud/test_normal_forms.py``). However a text is cut into parts, and whichever of these is done to each
part - Unicode's four normal forms, lower case, case folding, one after another, white space stripped - the parts have
no more bytes together than ``max_bytes``. Every token of a byte-level vocabulary is a byte of that form at the least.

Both decompositions, and both changes of case, are made of each character alone, so their bytes add up over a text; a
composition is never longer than what it is composed of. So the bound is a sum over characters: of an ASCII text its
length, of any other at most 11 times its bytes (U+FDFA). It needs no normal form of the text itself, which takes
quadratic time where thousands of marks stand on one letter.

A character that this Python does not know yet may have a decomposition in a newer Unicode (16 has some of two
characters): it counts as three of four bytes, which is the most that any canonical one has had (UAX 15, table 1).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

# Characters that are looked up at once: their codes and counts take 1.3 MiB.
LOOKED_UP_AT_ONCE: Final = 1 << 18
BLOCK: Final = 1 << 12
UNKNOWN_BYTES: Final = 12
# Not known, for private use, and halves of a pair: no block of these alone is worth its forms.
WITHOUT_FORMS: Final = frozenset({"Cn", "Co", "Cs"})
# JSON's \uXXXX; beyond the basic plane there are two of them.
ESCAPED_BYTES: Final = 6
# The most bytes of each character. 0: no text has had one of its block yet; all of them take 0.5 s.
_most: Final = np.zeros(0x110000, np.uint8)


def max_bytes(text: str, *, escaped: bool = False) -> int:
    r"""Return the most bytes of a text's forms; ``escaped``: each character may also be written as JSON's escape.

    >>> max_bytes("plain"), max_bytes("ü"), max_bytes("한"), max_bytes("ü", escaped=True)
    (5, 3, 9, 6)
    """
    if text.isascii() and not (escaped and "\x7f" in text):
        return len(text)
    parts = (text[start : start + LOOKED_UP_AT_ONCE] for start in range(0, len(text), LOOKED_UP_AT_ONCE))
    return sum(int(_look_up(part, escaped=escaped).sum(dtype=np.int64)) for part in parts)


def _look_up(text: str, *, escaped: bool) -> npt.NDArray[np.uint8]:
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    most = _most[codes]
    if not most.all():
        for block in np.flatnonzero(np.bincount(codes[most == 0] // BLOCK)):
            _most[block * BLOCK : (block + 1) * BLOCK] = _most_of_block(int(block))
        most = _most[codes]
    if escaped:
        most = np.maximum(most, np.uint8(ESCAPED_BYTES) * ((codes > ord("~")) + np.uint8(codes > 0xFFFF)))
    return most


def _most_of_block(block: int) -> npt.NDArray[np.uint8]:
    """Return the most bytes of each character of a block. Marks do not change places across a line's end."""
    chars = [chr(code) for code in range(block * BLOCK, (block + 1) * BLOCK)]
    lines = "\n".join(char if char != "\n" else " " for char in chars)
    kinds = [unicodedata.category(char) for char in chars]
    forms = [lines] if {*kinds} <= WITHOUT_FORMS else _forms(lines)
    most = np.max([_sizes(form) for form in forms], axis=0)
    return np.where([kind == "Cn" for kind in kinds], UNKNOWN_BYTES, most).astype(np.uint8)


def _forms(text: str) -> Iterator[str]:
    """Yield the forms of which one is the longest, whatever the character."""
    in_case: tuple[Callable[[str], str], ...] = (str, str.lower, str.casefold)
    for changed in (change(text) for change in in_case):
        yield changed
        yield unicodedata.normalize("NFD", changed)
        yield unicodedata.normalize("NFKD", changed)


def _sizes(lines: str) -> npt.NDArray[np.int64]:
    """Return the bytes of each line."""
    ends = np.flatnonzero(np.frombuffer((lines + "\n").encode("utf-8", "surrogatepass"), np.uint8) == ord("\n"))
    return np.diff(ends, prepend=-1) - 1
