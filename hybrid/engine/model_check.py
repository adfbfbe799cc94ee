"""Refuse models that would end the process: sound GGUF headers whose numbers llama.cpp does not survive.

llama.cpp checks a file's syntax and reports errors in it. But it asserts, divides and indexes by the file's
hyperparameters. Each rule here stands for a process that died (``tests/engine/test_gguf_mutations.py`` finds them by
mutation); the reason is in llama.cpp's source. Files that llama.cpp itself refuses are left to it. An assertion that no
rule foresees ends the command with a sentence (``engine.native``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from hybrid.engine.gguf_header import TYPES, GgufHeader, MetadataValue, TensorInfo, first_shard, read_model, shard_files
from hybrid.engine.native import ll
from hybrid.errors import EngineError
from hybrid.store.json_store import JsonStore

MOST_LAYERS, MOST_EXPERTS = 512, 1024  # llama-hparams.h
# Buffers that are mapped from a file must begin at a multiple of this (ggml-backend.cpp).
ALIGNMENT = 32
_F32 = 0
# Q8_1, Q8_K, whole numbers and float64: types for which llama.cpp has no product with an activation.
_NO_PRODUCT = frozenset((9, 15, 24, 25, 26, 27, 28))
# Tensors of token or expert ids, which are no factors.
_IDS = ("d2t", "t2d", "tid2eid")
_RECURRENT = ("mamba", "rwkv", "arwkv")  # architectures that need no attention heads
# Architectures of experts that have no "moe" in their name: llama.cpp divides by the number of those in use.
_OF_EXPERTS = frozenset(("qwen4exp", "smallthinker"))
_DELTA_NETS = frozenset(("qwen35", "qwen35moe"))
# What general.type may say beside "model", and the architectures of projectors, which older ones do not say.
_KINDS = {"adapter": "an adapter of one", "mmproj": "a projector of pictures for one", "imatrix": "statistics of one"}
_PROJECTORS = frozenset(("clip",))
_SCALINGS = frozenset(("none", "linear", "yarn", "longrope"))


def check_model(header: GgufHeader) -> None:
    """Raise EngineError, in one sentence, for a model whose loading, opening or decoding would end the process."""
    _check(header, _RULES)


def check_vocabulary(header: GgufHeader) -> None:
    """Raise EngineError, in one sentence, for a file whose vocabulary would end the process that reads it alone."""
    _check(header, (_check_kind, _check_vocabulary))


def _check(header: GgufHeader, rules: Iterable[Callable[[GgufHeader], str]]) -> None:
    for rule in rules:
        if said := rule(header):
            msg = f"llama.cpp cannot run {header.path}: {said}"
            raise EngineError(msg)


def _of(header: GgufHeader, name: str) -> MetadataValue:
    """Return the value of a key of the file's architecture."""
    return header.values.get(f"{header.values.get('general.architecture')}.{name}")


def _whole(header: GgufHeader, name: str) -> int | None:
    """Return a whole number: the largest, if there is one for each layer; None, if there is none."""
    value = _of(header, name)
    if isinstance(value, tuple) and value and all(isinstance(each, int) for each in value):
        return int(max(value))
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _check_kind(header: GgufHeader) -> str:
    """Other files in this format: an adapter, a projector of pictures, an importance matrix."""
    kind, architecture = header.values.get("general.type"), header.values.get("general.architecture")
    if architecture in _PROJECTORS:
        kind = "mmproj"
    return f"it holds no model but {_KINDS[kind]}" if isinstance(kind, str) and kind in _KINDS else ""


def _within(name: str, least: int, most: int) -> Callable[[GgufHeader], str]:
    def said(header: GgufHeader) -> str:
        number = _whole(header, name)
        outside = number is not None and not least <= number <= most
        return f"{name} is {number}, and no model's is" if outside else ""

    return said


_SIZES = (
    _within("block_count", 1, MOST_LAYERS),
    _within("context_length", 0, 2**31 - 1),
    _within("embedding_length", 1, 2**24),
    _within("attention.key_length", 1, 2**16),
    _within("attention.value_length", 1, 2**16),
    _within("attention.sliding_window", 0, 2**31 - 1),
    _within("ssm.conv_kernel", 0, 2**16),
    _within("ssm.group_count", 0, 2**16),
    _within("full_attention_interval", 1, MOST_LAYERS),
)


def _check_sizes(header: GgufHeader) -> str:
    layers, extra = _whole(header, "block_count"), _whole(header, "nextn_predict_layers")
    if layers is not None and extra is not None and extra > layers:
        return f"nextn_predict_layers is {extra} of {layers}"
    for file in (header, *header.others):
        if file.tensors and file.data_start % ALIGNMENT:
            where = f" in {file.path.name}" if header.others else ""
            return f"its tensors begin at byte {file.data_start}{where}, which is no multiple of {ALIGNMENT}"
    return next(filter(None, (rule(header) for rule in _SIZES)), "")


def _check_numbers(header: GgufHeader) -> str:
    for key, value in header.values.items():
        if key.endswith("_epsilon") and isinstance(value, float) and not 0 <= value < math.inf:
            return f"{key} is {value}"
    scaling = _of(header, "rope.scaling.type")
    return "it scales positions in an unknown way" if isinstance(scaling, str) and scaling not in _SCALINGS else ""


def _check_heads(header: GgufHeader) -> str:
    architecture, heads = str(header.values.get("general.architecture")), _whole(header, "attention.head_count")
    if heads == 0 and not architecture.startswith(_RECURRENT):
        return "attention.head_count is 0"
    return ""


def _check_rope(header: GgufHeader) -> str:
    """Rotations turn pairs of a head's numbers."""
    width, heads = _whole(header, "embedding_length"), _whole(header, "attention.head_count")
    head = _whole(header, "attention.key_length") or (width // heads if width and heads else None)
    turned = _whole(header, "rope.dimension_count")
    if turned is not None and head is not None and (turned % 2 or turned > head):
        return f"rope.dimension_count is {turned}, and a head has {head} numbers"
    sections = _of(header, "rope.dimension_sections")
    if isinstance(sections, tuple) and head is not None:
        parts = [int(part) for part in sections if isinstance(part, int)]
        if parts and (min(parts) < 0 or sum(parts) > head):
            return f"rope.dimension_sections are {', '.join(map(str, parts))}, and a head has {head} numbers"
    return ""


def _check_several(header: GgufHeader) -> str:
    architecture = str(header.values.get("general.architecture"))
    num, used = _whole(header, "expert_count") or 0, _whole(header, "expert_used_count") or 0
    groups, groups_used = _whole(header, "expert_group_count") or 0, _whole(header, "expert_group_used_count") or 0
    if not num and ("moe" in architecture or architecture in _OF_EXPERTS):
        return "it has no experts"
    if num <= 1 and architecture.startswith("hunyuan"):  # one expert is none to llama.cpp
        return ""
    if num > MOST_EXPERTS or used > num or (num > 0) != (used > 0):
        return f"{used} of {num} experts are used"
    if groups and (groups >= num or num % groups or (groups > 1 and not 0 < groups_used < groups)):
        return f"{groups_used} of {groups} groups of {num} experts are used"
    return ""


def _check_delta_net(header: GgufHeader) -> str:
    """Layers of a gated delta net: llama.cpp takes two of their tensors as optional, and computes with them."""
    if header.values.get("general.architecture") not in _DELTA_NETS:
        return ""
    inner, state, rank = (_whole(header, f"ssm.{name}") for name in ("inner_size", "state_size", "time_step_rank"))
    if state is not None and rank is not None and inner != state * rank:
        return f"ssm.inner_size is {inner}, not {state} times {rank}"
    blocks = [name.removesuffix("ssm_conv1d.weight") for name in header.tensors if name.endswith(".ssm_conv1d.weight")]
    needed = (f"{block}attn_{name}.weight" for block in blocks for name in ("qkv", "gate"))
    return next((f"the tensor {name} is missing" for name in needed if name not in header.tensors), "")


def _check_vocabulary(header: GgufHeader) -> str:
    model = header.values.get("tokenizer.ggml.model")
    if model in {"none", "no_vocab"}:
        return "it has no vocabulary"
    # As llama.cpp sees them: up to the first NUL, and empty ones have names of their own.
    known = {text.partition(b"\0")[0] or index for index, text in enumerate(header.tokens)}
    if len(known) < len(header.tokens):
        return "two of its tokens are the same text"
    spelled = (known & {f"<0x{byte:02X}>".encode(), bytes([byte])} for byte in range(256))
    if model == "llama" and header.tokens and not all(spelled):
        return "its vocabulary has no tokens for single bytes"
    return ""


def _check_types(header: GgufHeader) -> str:
    for name, tensor in header.tensors.items():
        if not name.removesuffix(".weight").endswith(_IDS) and not _is_factor(tensor):
            return f"the tensor {name} has type {tensor.kind}, which llama.cpp cannot compute with"
    return ""


def _is_factor(tensor: TensorInfo) -> bool:
    if len(tensor.dims) <= 1:  # norms and biases
        return tensor.kind == _F32
    return tensor.kind not in _NO_PRODUCT


_RULES = (
    _check_kind,
    _check_sizes,
    _check_numbers,
    _check_heads,
    _check_rope,
    _check_several,
    _check_delta_net,
    _check_vocabulary,
    _check_types,
)


# What a model's header tells a person who looks for a pair: size, quantisation, architecture, and its vocabulary.
#
# No weights are read. The laws (``tests/engine/test_model_facts.py``): models of equal ``vocabulary_digest`` have one
# word for their vocabulary, and padding at its end changes nothing; files that did not change are not read again.

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
        if kept is None:
            return _facts(first, files)
        store = JsonStore(kept, "headers", _is_entry, MOST_MODELS)
        return msgspec.convert(store.of_files(files, lambda: asdict(_facts(first, files))), ModelFacts)
    except OSError as error:
        msg = f"the model file {first} cannot be read: {error.strerror or error}"
        raise EngineError(msg) from None


def vocabulary_word(header: GgufHeader) -> tuple[int, str]:
    """Return the number of tokens without the padding at the end, and a word that equal vocabularies have in common."""
    tokens, types = header.tokens, header.values.get(TYPES)
    count = len(tokens)
    kinds = types if isinstance(types, tuple) and len(types) == count else ()
    while count > 1 and (tokens[count - 1] == b"[PAD%d]" % (count - 1) or (kinds and kinds[count - 1] == _UNUSED)):
        count -= 1
    return count, blake2b(b"\0".join(tokens[:count]), digest_size=4).hexdigest() if tokens else ""


def _is_entry(entry: Any) -> bool:
    with suppress(msgspec.ValidationError, AttributeError):
        match entry:
            case [*_, told]:
                facts = msgspec.convert(told, ModelFacts)
                return told.keys() == asdict(facts).keys() and min(facts.bytes, facts.parameters, facts.num_tokens) >= 0
    return False


@cache
def _quantisations() -> Mapping[int, str]:
    """Return llama.cpp's names of file types."""
    names = [name for name in dir(ll) if name.startswith(_PREFIX)]
    return {getattr(ll, name): name.removeprefix(_PREFIX).removeprefix(_MOSTLY).removeprefix("ALL_") for name in names}


def _facts(first: Path, files: Sequence[Path]) -> ModelFacts:
    num_bytes, header = sum(file.stat().st_size for file in files), read_model(first)
    check_model(header)
    kind, architecture = (header.values.get(f"general.{name}") for name in ("file_type", "architecture"))
    parameters = sum(math.prod(tensor.dims) for tensor in header.tensors.values())
    quantisation = _quantisations().get(kind, f"type {kind}") if isinstance(kind, int) else ""
    return ModelFacts(num_bytes, parameters, quantisation, str(architecture or ""), *vocabulary_word(header))
