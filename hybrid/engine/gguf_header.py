"""Read the header of a GGUF file without trusting it: metadata, vocabulary, tensors.

Every count, length and offset is compared with the length of the file before it is used. A damaged or hostile file
costs one sentence, little memory and milliseconds. This file does not know llama.cpp; sound headers that llama.cpp does
not survive are the business of ``engine.model_check``. The format: github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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


# Models that are split into several files: which files, whether all are there, and their headers as one.
#
# llama.cpp's tool names the files ``NAME-00001-of-00003.gguf``; the keys ``split.*`` in each header say the same. The
# first holds the metadata, and llama.cpp finds the others by their names when it is given the first.
#
# The laws (``tests/engine/test_shards.py``): a split model gives the rows of the whole file, whichever of its files is
# named; a part that is missing or damaged, or belongs to another split, is refused before llama.cpp opens any of them.

NUMBER, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)
# A model of a terabyte has a few dozen files. llama.cpp holds each of them open.
_MOST_FILES = 4096


def shard_names(name: str) -> tuple[str, ...]:
    """Return the file names of the split that a file's name belongs to, in order; the name itself for any other.

    >>> shard_names("large-00002-of-00002.gguf")
    ('large-00001-of-00002.gguf', 'large-00002-of-00002.gguf')
    """
    if not (found := _SHARD.fullmatch(name)):
        return (name,)
    count = int(found["count"])
    if not (1 < count <= _MOST_FILES and 1 <= int(found["number"]) <= count):
        return (name,)
    return tuple(f"{found['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1))


def shard_stem(name: str) -> str:
    """Return a file's name without ``.gguf`` and without its place in a split."""
    found = _SHARD.fullmatch(name)
    return found["stem"] if found and len(shard_names(name)) > 1 else name.removesuffix(".gguf")


def shard_files(path: Path) -> tuple[Path, ...]:
    """Return all files of the model that a file belongs to, by its name; none needs to be there."""
    return tuple(path.with_name(name) for name in shard_names(path.name)) if path.name else (path,)


def first_shard(path: Path) -> Path:
    """Return the file by which a model is opened: the first of its split, or the file itself.

    Raises EngineError for a split with missing files, in a sentence that names them. A file that has only the name of a
    part and is whole is opened as it is, as llama.cpp does.
    """
    files = shard_files(path)
    missing = [file.name for file in files if not os.path.exists(file)]  # noqa: PTH110  (Path's raises)
    if len(files) == 1 or len(missing) == len(files):  # where there is nothing at all, the reader says so
        return path
    if missing and not _is_whole(path):
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        msg = f"{path} is part of a split model, and of its {len(files)} files {shown} {_is(missing)} missing"
        raise EngineError(msg)
    return path if missing else files[0]


def read_model(path: Path) -> GgufHeader:
    """Read the header of a model: of its one file, or of all files of a split, as if the tensors lay in the first.

    ``path``: any file of it. Raises EngineError as ``read_header`` does, and for files that make no whole.
    """
    path = first_shard(path)
    first = read_header(path)
    count = first.values.get(COUNT)
    if not isinstance(count, int) or count <= 1:
        return first
    files = shard_files(path)
    if len(files) != count:
        msg = f"{path} is the first of {count} files, which llama.cpp finds only as NAME-00001-of-{count:05}.gguf"
        raise EngineError(msg)
    headers = [first, *map(read_header, files[1:])]
    for number, header in enumerate(headers):
        if header.values.get(NUMBER) != number or header.values.get(COUNT, count) != count:
            msg = f"{header.path} is not file {number + 1} of {count} of the model, as its name says"
            raise EngineError(msg)
    tensors = _joined(headers)
    told = first.values.get(TENSORS)
    if told is not None and told != len(tensors):
        msg = f"the {count} files of {path} hold {len(tensors)} tensors, and the first tells of {told}"
        raise EngineError(msg)
    return replace(first, tensors=tensors, others=tuple(headers[1:]))


def _joined(headers: Sequence[GgufHeader]) -> Mapping[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for header in headers:
        if twice := tensors.keys() & header.tensors.keys():
            msg = f"{header.path} is damaged: the tensor {min(twice)} lies in another file of the model, too"
            raise EngineError(msg)
        tensors |= header.tensors
    return tensors


def _is_whole(path: Path) -> bool:
    """Whether a file is there and no part of a split, whatever it is called."""
    with suppress(EngineError):
        return read_header(path).values.get(COUNT) in {None, 0, 1}
    return False


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
