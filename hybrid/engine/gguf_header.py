"""Read the header of a GGUF file without trusting it: metadata, vocabulary, tensors.

Every count, length and offset is compared with the length of the file before it is used. A damaged or hostile file
costs one sentence, little memory and milliseconds. This file does not know llama.cpp; sound headers that llama.cpp does
not survive are the business of ``engine.model_check``. The format: github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from hybrid.errors import EngineError, to_one_line

MetadataValue: TypeAlias = int | float | str | tuple[int | float, ...] | None
TOKENS, TEMPLATE, ALIGNMENT = "tokenizer.ggml.tokens", "tokenizer.chat_template", "general.alignment"
TYPES = "tokenizer.ggml.token_type"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# Elements in a block and bytes of one, by tensor type. A type that is missing here may be newer than this table.
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 40),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66),
    17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136),
    24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54),
    35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18),
}  # fmt: skip
# The largest vocabularies have 262,144 tokens, and fewer than a million merges.
_MOST_STRINGS = 1 << 22
# Arrays of numbers hold one for each layer (512 at most) or each token; of the latter the tokens' types alone are kept.
_MOST_NUMBERS = 512
_MOST_NAME, _MOST_DIMS = 64, 4


class _DamagedGguf(Exception):
    """What is wrong with the file; the reader puts the file's name before it."""


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: its dimensions, innermost first, and the GGML type of its numbers.

    ``offset``: where in its file's data they begin. Tensors that differ in nothing else are equal.
    """

    dims: tuple[int, ...]
    kind: int
    offset: int = field(compare=False)


@dataclass(frozen=True)
class GgufHeader:
    """The header of one file.

    ``values``: the metadata; None for arrays of texts, and for long arrays but that of the tokens' types. ``tokens``:
    the vocabulary's texts, or none. ``data_start``: the bytes before the first tensor. ``others``: the headers of a
    split model's further files.
    """

    path: Path
    values: Mapping[str, MetadataValue]
    tokens: Sequence[bytes]
    tensors: Mapping[str, TensorInfo]
    data_start: int
    others: tuple[GgufHeader, ...] = ()


def read_header(path: Path) -> GgufHeader:
    """Read a file's header. Raises EngineError if it is missing, unreadable, no GGUF file, damaged or cut off."""
    try:
        if not path.exists():
            msg = f"there is no model file {path}"
            raise EngineError(msg)
        if not path.is_file():
            msg = f"{path} is not a file"
            raise EngineError(msg)
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                msg = f"{path} is not a GGUF file"
                raise EngineError(msg)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
                return _GgufReader(raw).header(path)
    except OSError as error:
        msg = f"the model file {path} cannot be read: {error.strerror}"
        raise EngineError(msg) from error
    except (struct.error, OverflowError):  # a number beyond the last byte, or beyond any file's
        msg = f"{path} is damaged or cut off: its header goes on beyond its last byte"
        raise EngineError(msg) from None
    except _DamagedGguf as damaged:
        msg = f"{path} is damaged: {damaged}"
        raise EngineError(msg) from None


class _GgufReader:
    """The file's bytes and a position in them."""

    def __init__(self, raw: mmap.mmap) -> None:
        self._raw, self._size, self._at = raw, len(raw), 4
        self._tokens: list[bytes] = []

    def header(self, path: Path) -> GgufHeader:
        version = self._number("I")
        if version not in {2, 3}:
            swapped = version & 0xFFFF == 0
            msg = "its numbers are in big-endian order" if swapped else f"GGUF version {version} is not 2 or 3"
            raise _DamagedGguf(msg)
        num_tensors, num_values = self._count(24), self._count(13)
        values: dict[str, MetadataValue] = {}
        for _ in range(num_values):
            key = self._name("key")
            if key in values:
                msg = f"the key {to_one_line(key)} stands twice"
                raise _DamagedGguf(msg)
            values[key] = self._value(key)
        alignment = values.get(ALIGNMENT, 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            msg = f"{ALIGNMENT} is not a power of two"
            raise _DamagedGguf(msg)
        tensors, num_bytes = self._tensors(num_tensors, alignment)
        data_start = self._at + -self._at % alignment
        if num_tensors and data_start + num_bytes > self._size:
            msg = f"it is cut off: its tensors end at byte {data_start + num_bytes}, the file at {self._size}"
            raise _DamagedGguf(msg)
        return GgufHeader(path, values, self._tokens, tensors, data_start)

    def _number(self, form: str) -> int:
        number: int = struct.unpack_from("<" + form, self._raw, self._at)[0]
        self._at += struct.calcsize("<" + form)
        return number

    def _count(self, least_bytes: int) -> int:
        """Read a count of entries, each of at least so many bytes."""
        count = self._number("Q")
        if count * least_bytes > self._size:
            msg = f"it has room for {self._size // least_bytes} entries and claims {count}"
            raise _DamagedGguf(msg)
        return count

    def _bytes(self) -> bytes:
        size = self._number("Q")
        if size > self._size - self._at:
            msg = f"a text of {size} bytes does not fit in the file"
            raise _DamagedGguf(msg)
        self._at += size
        return self._raw[self._at - size : self._at]

    def _name(self, what: str) -> str:
        raw = self._bytes()
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            name = ""
        if not name:
            msg = f"the name of a {what} is empty or not UTF-8"
            raise _DamagedGguf(msg)
        return name

    def _value(self, key: str) -> MetadataValue:
        kind = self._number("I")
        if kind == _ARRAY:
            return self._array(key)
        if kind == _STRING:
            raw = self._bytes()
            try:
                return raw.decode()
            except UnicodeDecodeError:
                if key.startswith(TEMPLATE):
                    msg = "its chat template is not UTF-8 text"
                    raise _DamagedGguf(msg) from None
                return raw.decode("utf-8", "replace")
        return self._number(self._form(key, kind))

    def _form(self, key: str, kind: int) -> str:
        if kind not in _SCALARS:
            msg = f"the value of {to_one_line(key)} has the unknown type {kind}"
            raise _DamagedGguf(msg)
        return _SCALARS[kind]

    def _array(self, key: str) -> MetadataValue:
        kind, count = self._number("I"), self._number("Q")
        if kind == _STRING:
            self._strings(key, count)
            return None
        num_bytes = count * struct.calcsize("<" + self._form(key, kind))
        if num_bytes > self._size - self._at:
            msg = f"the {count} numbers of {to_one_line(key)} do not fit in the file"
            raise _DamagedGguf(msg)
        start, self._at = self._at, self._at + num_bytes
        kept = count <= _MOST_NUMBERS or (key == TYPES and count <= _MOST_STRINGS)
        return struct.unpack_from(f"<{count}{_SCALARS[kind]}", self._raw, start) if kept else None

    def _strings(self, key: str, count: int) -> None:
        """Skip texts, but keep those of tokens. The loop calls no function: there may be half a million texts."""
        if count > min(_MOST_STRINGS, self._size // 8):
            msg = f"{to_one_line(key)} claims {count} texts"
            raise _DamagedGguf(msg)
        raw, at, read, keep = self._raw, self._at, struct.Struct("<Q").unpack_from, key == TOKENS
        for _ in range(count):
            (size,) = read(raw, at)
            start, at = at + 8, at + 8 + size
            if keep:
                self._tokens.append(raw[start:at])
        if at > self._size:
            msg = f"the texts of {to_one_line(key)} do not fit in the file"
            raise _DamagedGguf(msg)
        self._at = at

    def _tensors(self, count: int, alignment: int) -> tuple[dict[str, TensorInfo], int]:
        """Return the tensors by name, and the bytes from the beginning of the first to the end of the last."""
        tensors: dict[str, TensorInfo] = {}
        due: int | None = 0  # where the next one begins; None after one whose size is unknown
        end = 0
        for _ in range(count):
            name = self._name("tensor")
            if name in tensors or len(name.encode()) >= _MOST_NAME:
                msg = f"the tensor name {to_one_line(name)} stands twice or is too long"
                raise _DamagedGguf(msg)
            tensor = self._tensor(name)
            if tensor.offset % alignment or (due is not None and tensor.offset != due):
                msg = f"the tensor {to_one_line(name)} does not begin where the one before it ends"
                raise _DamagedGguf(msg)
            tensors[name] = tensor
            size = num_bytes(name, tensor)
            end = tensor.offset + (size or 0)
            due = None if size is None else end + -end % alignment
        return tensors, end

    def _tensor(self, name: str) -> TensorInfo:
        num_dims = self._number("I")
        if num_dims > _MOST_DIMS:
            msg = f"the tensor {to_one_line(name)} has {num_dims} dimensions"
            raise _DamagedGguf(msg)
        dims = tuple(self._number("Q") for _ in range(num_dims))
        if not 0 < math.prod(dims) < 2**63:
            msg = f"the tensor {to_one_line(name)} has the dimensions {', '.join(map(str, dims))}"
            raise _DamagedGguf(msg)
        return TensorInfo(dims, self._number("I"), self._number("Q"))


def num_bytes(name: str, tensor: TensorInfo) -> int | None:
    """Return the bytes of a tensor's numbers; None for a type that is newer than this table. Raises _DamagedGguf."""
    if tensor.kind not in _BLOCKS:
        return None
    block, size = _BLOCKS[tensor.kind]
    row = tensor.dims[0] if tensor.dims else 1
    if row % block:
        msg = f"the rows of the tensor {to_one_line(name)} hold {row} numbers, its type blocks of {block}"
        raise _DamagedGguf(msg)
    return math.prod(tensor.dims) // block * size
