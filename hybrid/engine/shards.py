"""Models that are split into several files: which files, whether all are there, and their headers as one.

llama.cpp's tool names the files ``NAME-00001-of-00003.gguf``; the keys ``split.*`` in each header say the same. The
first holds the metadata, and llama.cpp finds the others by their names when it is given the first.

The laws (``tests/engine/test_shards.py``): a split model gives the rows of the whole file, whichever of its files is
named; a part that is missing or damaged, or belongs to another split, is refused before llama.cpp opens any of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hybrid.engine.gguf_header import GgufHeader, TensorInfo, read_header
from hybrid.errors import EngineError

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
