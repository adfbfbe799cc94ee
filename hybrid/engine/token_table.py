"""What a model's file tells of its tokens, without a context: bytes, which are special, a digest, embedding rows."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hybrid.engine.gguf_header import GgufHeader, TensorInfo, num_bytes, read_model
from hybrid.engine.llama import Weights
from hybrid.engine.native import ll
from hybrid.errors import EngineError

__all__ = ["TIED", "UNTIED", "OutputMatrix", "TokenTable", "read_token_table"]


# The rows of a model's output matrix, one a token, as float32: what its scores are products with.
#
# llama.cpp's own functions unpack the numbers, so that every type it knows is read and nothing is written twice. The
# law (``tests/engine/test_output_rows.py``): the rows are those that the ``gguf`` package reads, for packed types and
# plain ones, tied and untied, of one file and of a split one. No model is loaded: the file is mapped, and as many rows
# are unpacked as are asked for.

# A model without the first shares the second between its two ends.
UNTIED, TIED = "output.weight", "token_embd.weight"
_PLAIN = {0: np.float32, 1: np.float16}


class _TypeTraits(ctypes.Structure):
    """What ggml.h says of a type, up to the function that unpacks it."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("block", ctypes.c_int64),
        ("interleaved", ctypes.c_int64),
        ("block_bytes", ctypes.c_size_t),
        ("is_quantised", ctypes.c_bool),
        ("unpack", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


class OutputMatrix:
    """The output matrix of a model file. ``num_rows``: the tokens and their padding; ``width``: numbers in a row."""

    def __init__(self, path: Path) -> None:
        """Find the matrix in the file's header. Raises EngineError for a file that cannot be read or has none."""
        header = read_model(path)
        self.name = UNTIED if UNTIED in header.tensors else TIED
        self._file = next((each for each in (header, *header.others) if self.name in _own_tensors(each, header)), None)
        tensor = header.tensors.get(self.name)
        if self._file is None or tensor is None or len(tensor.dims) != 2:
            msg = f"{path} has no output matrix: neither {UNTIED} nor {TIED} is a matrix in it"
            raise EngineError(msg)
        self._tensor = tensor
        self.width, self.num_rows = tensor.dims
        size = num_bytes(self.name, tensor)
        self._unpack = None if tensor.kind in _PLAIN else _unpacker(tensor, size)
        self._row_bytes = (size or 0) // self.num_rows

    def read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Return some rows in order, shape (stop - start, width). Raises EngineError if the file cannot be read."""
        stop = min(stop, self.num_rows)
        count, first = max(0, stop - start), self._start + start * self._row_bytes
        rows: npt.NDArray[np.float32] = np.empty((count, self.width), dtype=np.float32)
        try:
            with self._path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
                packed = raw[first : first + count * self._row_bytes]
        except (OSError, ValueError) as error:
            msg = f"the model file {self._path} cannot be read: {error}"
            raise EngineError(msg) from None
        if len(packed) < count * self._row_bytes:
            msg = f"the model file {self._path} has become shorter while it was read"
            raise EngineError(msg)
        if self._unpack is None:
            rows[:] = np.frombuffer(packed, dtype=_PLAIN[self._tensor.kind]).reshape(rows.shape)
        else:
            self._unpack(packed, rows.ctypes.data, rows.size)
        return rows

    @property
    def _path(self) -> Path:
        assert self._file is not None
        return self._file.path

    @property
    def _start(self) -> int:
        assert self._file is not None
        return self._file.data_start + self._tensor.offset


def _own_tensors(file: GgufHeader, first: GgufHeader) -> set[str]:
    """Return the tensors that lie in a file; the first header of a split model names those of all files."""
    if file is not first:
        return set(file.tensors)
    return set(first.tensors) - {name for other in first.others for name in other.tensors}


def _unpacker(tensor: TensorInfo, size: int | None) -> Callable[[bytes, int, int], None]:
    """Return llama.cpp's function for a packed type. Raises EngineError where it has none that can be trusted.

    The structure has no version: its sizes are compared with ours, so that one that has changed is never called.
    """
    try:
        traits_of = ll.llama_cpp._lib.ggml_get_type_traits
    except AttributeError:  # a system on which a library does not show those that it was linked with
        msg = "llama.cpp does not show here how it unpacks weights: take a model whose output matrix is F16 or F32"
        raise EngineError(msg) from None
    traits_of.restype, traits_of.argtypes = ctypes.POINTER(_TypeTraits), [ctypes.c_int]
    traits = traits_of(tensor.kind).contents if size is not None else None
    row = tensor.dims[0]
    fits = traits is not None and traits.block > 0 and not row % traits.block
    if (
        traits is None
        or not fits
        or row // traits.block * traits.block_bytes * tensor.dims[1] != size
        or not traits.unpack
    ):
        msg = f"the rows of its output matrix have the type {tensor.kind}, which cannot be unpacked"
        raise EngineError(msg)
    unpack: Callable[[bytes, int, int], None] = traits.unpack
    return unpack


@dataclass(frozen=True, eq=False)
class TokenTable:
    """``pieces``: the bytes of each token; ``digest``: ``vocabulary_digest``; ``rows``: of the output matrix."""

    name: str
    pieces: Sequence[bytes]
    special_ids: frozenset[int]
    digest: str
    rows: OutputMatrix


def read_token_table(path: Path) -> TokenTable:
    """Read the tokens of a model. Raises EngineError for a file that cannot be used, or has fewer rows than tokens."""
    weights = Weights(path)
    try:
        pieces = [weights.piece(token) for token in range(weights.num_tokens)]
        rows = OutputMatrix(path)
        if rows.num_rows < len(pieces):
            msg = f"{path} has {len(pieces)} tokens and an output matrix of {rows.num_rows} rows"
            raise EngineError(msg)
        return TokenTable(weights.name, pieces, weights.special_ids, weights.vocabulary_digest, rows)
    finally:
        weights.close()
