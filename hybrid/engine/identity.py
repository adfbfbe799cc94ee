"""What identifies a model file, wherever it lies and whatever it is called: what was measured of it holds for no other.

The laws (``tests/engine/test_identity.py``): a change of the header, of the tensor table, of the size or of a sampled
block is another identity; a file whose path, size, time and inode are those of the last time is not read again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from hybrid.engine.gguf_header import read_header, shard_files
from hybrid.errors import EngineError
from hybrid.store.json_store import JsonStore

# A requantised or trained model differs in every tensor, so a megabyte of samples shows it.
NUM_BLOCKS, BLOCK_BYTES = 64, 1 << 14
# What version 0.1.0 read from each end of a file.
END_BYTES = 1 << 20
# The files that were seen last are kept.
MOST_FILES = 256


def identify(model: Path, cache: Path | None = None) -> str:
    """Return a digest of a file's header, size and 64 blocks of its tensors. Raises OSError.

    The files of a split model are one model: whichever is named, the digest is of the digests of all that are there.
    ``cache``: a file that remembers digests between runs, which need not exist. A file that is no sound GGUF has no
    header, and its blocks are taken from all of it.
    """
    files = _files(model)
    if cache is None:
        return _digest_of_all(files)
    return str(JsonStore(cache, "identities", _is_entry, MOST_FILES).of_files(files, lambda: _digest_of_all(files)))


def identify_by_ends(model: Path) -> str:
    """Return the digest by which version 0.1.0 identified a file, by its size and ends: what it kept is found by it.

    Raises OSError.
    """
    size = model.stat().st_size
    digest = blake2b(str(size).encode(), digest_size=16)
    with model.open("rb") as file:
        digest.update(file.read(END_BYTES))
        file.seek(max(0, size - END_BYTES))
        digest.update(file.read(END_BYTES))
    return digest.hexdigest()


def _is_entry(entry: object) -> bool:
    match entry:
        case [*_, str(digest)]:
            return re.fullmatch("[0-9a-f]{32}", digest) is not None
    return False


def _files(model: Path) -> tuple[Path, ...]:
    """Return the files of a model that are there, in order; the one that was named, if it has no others."""
    return tuple(file for file in shard_files(model) if file.exists()) or (model,)


def _digest_of_all(files: Sequence[Path]) -> str:
    digests = [_digest(file) for file in files]
    return digests[0] if len(digests) == 1 else blake2b("".join(digests).encode(), digest_size=16).hexdigest()


def _digest(model: Path) -> str:
    size = model.stat().st_size
    try:
        header_bytes = read_header(model).data_start
    except EngineError:
        header_bytes = 0
    digest = blake2b(str(size).encode(), digest_size=16)
    room = max(0, size - header_bytes - BLOCK_BYTES)
    with model.open("rb") as file:
        digest.update(file.read(header_bytes))
        for number in range(NUM_BLOCKS):
            file.seek(header_bytes + room * number // (NUM_BLOCKS - 1))
            digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()
