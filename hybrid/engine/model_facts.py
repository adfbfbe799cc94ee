"""What a model's header tells a person who looks for a pair: size, quantisation, architecture, and its vocabulary.

No weights are read. The laws (``tests/engine/test_model_facts.py``): models of equal ``vocabulary_digest`` have one
word for their vocabulary, and padding at its end changes nothing; files that did not change are not read again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path

import msgspec

from hybrid.engine.gguf_header import TYPES, GgufHeader
from hybrid.engine.model_check import check_model
from hybrid.engine.native import ll
from hybrid.engine.shards import first_shard, read_model, shard_files
from hybrid.errors import EngineError
from hybrid.json_store import JsonStore

VERSION = 1
MOST_MODELS = 1024
_UNUSED = 5  # the type of a token that a converter added to fill a row
_PREFIX, _MOSTLY = "LLAMA_FTYPE_", "MOSTLY_"


@dataclass(frozen=True)
class ModelFacts:
    """``bytes``: of all files; ``parameters``: numbers in all tensors; ``vocabulary``: a word for its tokens.

    ``quantisation`` and ``architecture`` are llama.cpp's names, empty where the file tells none.
    """

    bytes: int
    parameters: int
    quantisation: str
    architecture: str
    num_tokens: int
    vocabulary: str


def read_facts(path: Path, kept: Path | None = None) -> ModelFacts:
    """Return what the headers of a model tell. Raises EngineError for one that llama.cpp could not open or survive.

    ``kept``: a file that remembers facts between runs, which need not exist. A tokeniser of 150,000 tokens is read in
    0.1 s, and there may be dozens of models.
    """
    first = first_shard(path)
    try:
        files = [file for file in shard_files(first) if file.exists()] or [first]
        seen = [number for file in files for number in _seen(file)]
    except OSError as error:
        msg = f"the model file {first} cannot be read: {error.strerror or error}"
        raise EngineError(msg) from None
    store = None if kept is None else JsonStore(kept, "facts", VERSION, _is_entry)
    name = str(first.absolute())
    match store.read_entries().get(name) if store else None:
        case [before, told] if before == seen:
            return msgspec.convert(told, ModelFacts)
    header = read_model(first)
    check_model(header)
    facts = _facts(header, sum(seen[::3]))
    if store:

        def added(entries: dict[str, object]) -> dict[str, object]:
            entries.pop(name, None)
            return dict(list({**entries, name: [seen, asdict(facts)]}.items())[-MOST_MODELS:])

        store.change(added)
    return facts


def vocabulary_word(header: GgufHeader) -> tuple[int, str]:
    """Return the number of tokens without the padding at the end, and a word that equal vocabularies have in common."""
    tokens, types = header.tokens, header.values.get(TYPES)
    count = len(tokens)
    kinds = types if isinstance(types, tuple) and len(types) == count else ()
    while count > 1 and (tokens[count - 1] == b"[PAD%d]" % (count - 1) or (kinds and kinds[count - 1] == _UNUSED)):
        count -= 1
    return count, blake2b(b"\0".join(tokens[:count]), digest_size=4).hexdigest() if tokens else ""


def _is_entry(entry: object) -> bool:
    with suppress(msgspec.ValidationError):
        told = msgspec.convert(entry, tuple[list[int], dict[str, int | str]])[1]
        facts = msgspec.convert(told, ModelFacts)
        return told.keys() == asdict(facts).keys() and min(facts.bytes, facts.parameters, facts.num_tokens) >= 0
    return False


@cache
def _quantisations() -> Mapping[int, str]:
    """Return llama.cpp's names of file types."""
    names = [name for name in dir(ll) if name.startswith(_PREFIX)]
    return {getattr(ll, name): name.removeprefix(_PREFIX).removeprefix(_MOSTLY).removeprefix("ALL_") for name in names}


def _facts(header: GgufHeader, num_bytes: int) -> ModelFacts:
    kind, architecture = (header.values.get(f"general.{name}") for name in ("file_type", "architecture"))
    parameters = sum(math.prod(tensor.dims) for tensor in header.tensors.values())
    quantisation = _quantisations().get(kind, f"type {kind}") if isinstance(kind, int) else ""
    return ModelFacts(num_bytes, parameters, quantisation, str(architecture or ""), *vocabulary_word(header))


def _seen(path: Path) -> tuple[int, int, int]:
    """Return by what a file is known to be the one that was read; its size is the first."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ino
