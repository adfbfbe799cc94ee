"""Damaged GGUF files: a file taken apart into its fields, and mutants of it by number."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import gguf

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
SIZES = {int(kind): size for kind, size in gguf.GGML_QUANT_SIZES.items()}
INTERESTING = (
    0,
    1,
    2,
    3,
    5,
    7,
    16,
    31,
    255,
    256,
    65535,
    2**20,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**63 - 1,
    2**64 - 1,
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-38, 1e38, float("inf"), float("-inf"), float("nan"))


@dataclass
class Gguf:
    """A file's fields. ``keys``: (name, type, the value's bytes); ``tensors``: (name, dimensions, type, offset)."""

    keys: list[tuple[bytes, int, bytes]]
    tensors: list[tuple[bytes, list[int], int, int]]
    data: bytes
    version: int = 3
    num_tensors: int | None = None
    num_keys: int | None = None
    fields: list[tuple[int, int]] = field(default_factory=list)
    """Where the numbers of the last ``dump`` are: (position, bytes)."""

    @classmethod
    def read(cls, path: Path) -> Gguf:
        reader = gguf.GGUFReader(path)
        kept = (f for name, f in reader.fields.items() if not name.startswith("GGUF."))
        keys = [(bytes(f.parts[1]), int(f.types[0]), b"".join(part.tobytes() for part in f.parts[3:])) for f in kept]
        tensors = [
            (bytes(p[1]), p[3].tolist(), int(p[4][0]), int(p[5][0])) for p in (t.field.parts for t in reader.tensors)
        ]
        return cls(keys, tensors, path.read_bytes()[reader.data_offset :])

    def dump(self) -> bytes:
        """Write the file, and note where its numbers are."""
        out, self.fields = bytearray(b"GGUF"), [(0, 4)]

        def put(form: str, number: int) -> None:
            self.fields.append((len(out), struct.calcsize("<" + form)))
            out.extend(struct.pack("<" + form, number))

        def text(raw: bytes) -> None:
            put("Q", len(raw))
            out.extend(raw)

        put("I", self.version)
        put("Q", len(self.tensors) if self.num_tensors is None else self.num_tensors)
        put("Q", len(self.keys) if self.num_keys is None else self.num_keys)
        for name, kind, value in self.keys:
            text(name)
            put("I", kind)
            starts = {STRING: (8,), ARRAY: (4, 8)}.get(kind, (len(value),))
            self.fields += [(len(out) + sum(starts[:i]), size) for i, size in enumerate(starts)]
            out.extend(value)
        for name, dims, kind, offset in self.tensors:
            text(name)
            put("I", len(dims))
            for size in dims:
                put("Q", size % 2**64)
            put("I", kind % 2**32)
            put("Q", offset % 2**64)
        out.extend(bytes(-len(out) % 32))
        return bytes(out) + self.data

    def find(self, name: str) -> int:
        return next(i for i, key in enumerate(self.keys) if key[0] == name.encode())

    def text(self, name: str) -> str:
        """Return a text under a key."""
        return self.keys[self.find(name)][2][8:].decode()

    def set(self, name: str, kind: int, value: object) -> Gguf:
        """Put a value under a key, whether it was there or not."""
        entry = (name.encode(), kind, pack(kind, value))
        known = [key[0] for key in self.keys]
        if entry[0] in known:
            self.keys[known.index(entry[0])] = entry
        else:
            self.keys.append(entry)
        return self

    def drop(self, name: str) -> Gguf:
        del self.keys[self.find(name)]
        return self

    def place(self, name: str) -> int:
        """Return where a tensor stands among the others."""
        return next(i for i, tensor in enumerate(self.tensors) if tensor[0] == name.encode())

    def reshape(self, name: str, **change: object) -> Gguf:
        """Say something else of a tensor: how it is ``called``, its ``dims``, ``kind`` or ``offset``."""
        i = self.place(name)
        now = dict(zip(("called", "dims", "kind", "offset"), self.tensors[i], strict=True)) | change
        self.tensors[i] = tuple(now.values())
        return self

    def settle(self) -> Gguf:
        """Give every tensor the place that its shape asks for; its numbers become others."""
        at, placed = 0, []
        for name, dims, kind, _ in self.tensors:
            block, size = SIZES.get(kind, (1, 1))
            placed.append((name, dims, kind, at))
            at += -(-math.prod(dims) // block * size // 32) * 32
        self.tensors = placed
        if at < 1 << 24:
            self.data += bytes(max(0, at - len(self.data)))
        return self

    def poke(self, name: str, at: int, raw: bytes) -> Gguf:
        """Write bytes into a tensor's data."""
        start = self.tensors[self.place(name)][3] + at
        self.data = self.data[:start] + raw + self.data[start + len(raw) :]
        return self


def pack(kind: int, value: object) -> bytes:
    """Return a value's bytes; of an array: (type of its items, items)."""
    if kind == ARRAY:
        item, items = value
        return struct.pack("<IQ", item, len(items)) + b"".join(pack(item, each) for each in items)
    if kind == STRING:
        raw = value if isinstance(value, bytes) else str(value).encode()
        return struct.pack("<Q", len(raw)) + raw
    if SCALARS[kind] in "fd":
        return struct.pack("<" + SCALARS[kind], value)
    bits = 8 * struct.calcsize(SCALARS[kind])
    number = int(value) % 2**bits
    return struct.pack(
        "<" + SCALARS[kind], number - 2**bits if SCALARS[kind].islower() and number >> bits - 1 else number
    )


def items(raw: bytes) -> tuple[int, list[object]]:
    """Take an array's bytes apart."""
    kind, count = struct.unpack_from("<IQ", raw)
    if kind != STRING:
        form = SCALARS[kind]
        return kind, list(struct.unpack_from(f"<{count}{form}", raw, 12))
    found, at = [], 12
    for _ in range(count):
        (size,) = struct.unpack_from("<Q", raw, at)
        found.append(raw[at + 8 : at + 8 + size])
        at += 8 + size
    return kind, found


# ---- mutants ---------------------------------------------------------------------------------------------------------

HYPERPARAMETERS = sorted(
    value
    for room in vars(gguf.Keys).values()
    if isinstance(room, type)
    for value in vars(room).values()
    if isinstance(value, str) and "{arch}" in value
)
OTHERS = sorted(
    value
    for room in vars(gguf.Keys).values()
    if isinstance(room, type)
    for value in vars(room).values()
    if isinstance(value, str) and value.startswith(("tokenizer.", "general.alignment", "split."))
)
TEXTS = (
    b"", b"\xff\xfe", b"llama", b"gpt2", b"bert", b"t5", b"rwkv", b"plamo2", b"none", b"no_vocab", b"default",
    b"linear", b"yarn", b"longrope", b"x" * 5000, b"{{ 1/0 }}", b"{% for", b"\x00", b"gemma4", b"qwen2", b"tekken",
    b"deepseek-llm",
)  # fmt: skip


def number(rng: random.Random) -> int:
    return rng.choice([rng.choice(INTERESTING), rng.getrandbits(rng.choice([4, 8, 16, 32, 64]))])


def value(rng: random.Random, kind: int, old: bytes = b"") -> object:
    """Return some value of a type; near the old one now and then."""
    if kind == STRING:
        return rng.choice(TEXTS)
    if SCALARS[kind] in "fd":
        return rng.choice([*FLOATS, rng.uniform(-10, 10)])
    if len(old) == struct.calcsize(SCALARS[kind]) and rng.random() < 0.4:
        before = int.from_bytes(old, "little")
        return rng.choice([before + 1, before - 1, 2 * before, before // 2, -before, 3 * before])
    return number(rng)


def whole(rng: random.Random, kind: int, old: bytes = b"") -> bytes:
    if kind != ARRAY:
        return pack(kind, value(rng, kind, old))
    item = rng.choice([*SCALARS, STRING])
    return pack(ARRAY, (item, [value(rng, item) for _ in range(rng.choice([0, 1, 2, 3, 4, 500]))]))


def _value(g: Gguf, rng: random.Random) -> None:
    i = rng.randrange(len(g.keys))
    name, kind, old = g.keys[i]
    g.keys[i] = (name, kind, _array(rng, old) if kind == ARRAY else whole(rng, kind, old))


def _array(rng: random.Random, old: bytes) -> bytes:
    kind, held = items(old)
    how = rng.randrange(6)
    if how == 0:
        held = held[: rng.randrange(len(held) + 1)]
    elif how == 1:
        held = held + held[: rng.randint(1, 5)]
    elif how == 2:
        held = []
    elif how == 3:
        held = [value(rng, kind)] * len(held)
    elif held:
        for _ in range(rng.choice([1, 1, 10])):
            held[rng.randrange(len(held))] = value(rng, kind)
    return pack(ARRAY, (kind, held))


def _retype(g: Gguf, rng: random.Random) -> None:
    i = rng.randrange(len(g.keys))
    kind = rng.choice([*SCALARS, STRING, ARRAY])
    g.keys[i] = (g.keys[i][0], kind, whole(rng, kind))


def _drop(g: Gguf, rng: random.Random) -> None:
    del g.keys[rng.randrange(len(g.keys))]


def _rename(g: Gguf, rng: random.Random) -> None:
    i = rng.randrange(len(g.keys))
    name = bytearray(g.keys[i][0])
    name[rng.randrange(len(name))] = rng.randrange(256)
    g.keys[i] = (rng.choice([bytes(name), b"", b"\xff" + bytes(name), bytes(name) * 1000]), *g.keys[i][1:])


def _twice(g: Gguf, rng: random.Random) -> None:
    g.keys.insert(rng.randrange(len(g.keys)), rng.choice(g.keys))


def _add(g: Gguf, rng: random.Random) -> None:
    arch = items_arch(g)
    name = rng.choice([rng.choice(HYPERPARAMETERS).replace("{arch}", arch), rng.choice(OTHERS)])
    kind = rng.choice([4, 4, 4, 5, 6, 6, 7, STRING, ARRAY, rng.choice([*SCALARS])])
    if name.encode() not in [key[0] for key in g.keys]:
        g.keys.append((name.encode(), kind, whole(rng, kind)))


def items_arch(g: Gguf) -> str:
    try:
        return g.keys[g.find("general.architecture")][2][8:].decode("latin-1")
    except StopIteration:
        return "llama"


def _architecture(g: Gguf, rng: random.Random) -> None:
    old, new = items_arch(g), rng.choice(sorted(gguf.MODEL_ARCH_NAMES.values()))
    g.keys = [(name.replace(f"{old}.".encode(), f"{new}.".encode(), 1), *rest) for name, *rest in g.keys]
    g.set("general.architecture", STRING, new)


def _tensor(g: Gguf, rng: random.Random) -> None:
    i = rng.randrange(len(g.tensors))
    name, dims, kind, offset = g.tensors[i]
    how = rng.randrange(8)
    if how == 0:
        name = rng.choice([b"", name + b"x", name[:-1], b"x" * 64, b"\xff" + name, rng.choice(g.tensors)[0]])
    elif how == 1:
        dims = rng.choice([dims[::-1], [*dims, 1], [*dims, 0], dims[:1], [], [*dims, *dims], [1, *dims]])
    elif how == 2 and dims:
        dims = [*dims]
        dims[rng.randrange(len(dims))] = number(rng)
    elif how == 3:
        kind = rng.choice([rng.randrange(48), number(rng)])
    elif how == 4:
        offset = rng.choice([offset + 1, offset + 32, offset - 32, len(g.data), number(rng)])
    elif how == 5:
        del g.tensors[i]
        return _settle(g, rng)
    elif how == 6:
        g.tensors.insert(rng.randrange(len(g.tensors)), g.tensors.pop(i))
        return _settle(g, rng)
    else:
        g.tensors.insert(i, (name + b"2", dims, kind, offset))
        return _settle(g, rng)
    g.tensors[i] = (name, dims, kind, offset)
    return _settle(g, rng)


def _settle(g: Gguf, rng: random.Random) -> None:
    """Mostly give every tensor the place that its shape asks for, so that only what was changed is wrong."""
    if rng.random() >= 0.3:
        g.settle()


def _counts(g: Gguf, rng: random.Random) -> None:
    if rng.random() < 0.5:
        g.num_keys = rng.choice([len(g.keys) + 1, len(g.keys) - 1, number(rng) % 2**64])
    else:
        g.num_tensors = rng.choice([len(g.tensors) + 1, len(g.tensors) - 1, number(rng) % 2**64])


def _data(g: Gguf, rng: random.Random) -> None:
    raw = bytearray(g.data)
    start = rng.randrange(len(raw))
    end = min(len(raw), start + rng.choice([2, 4, 64, 4096]))
    raw[start:end] = rng.choice([b"\xff", b"\x00", b"\x7f", b"\x7c"]) * (end - start)
    g.data = bytes(raw)


FIELDS: tuple[Callable[[Gguf, random.Random], None], ...] = (
    _value, _value, _value, _value, _add, _add, _add, _tensor, _tensor, _retype, _drop, _rename, _twice, _counts, _data,
    _architecture,
)  # fmt: skip


def _bytes(raw: bytes, g: Gguf, rng: random.Random) -> bytes:
    """Change bytes of the header wherever they are, or cut the file."""
    out, header = bytearray(raw), len(raw) - len(g.data)
    how = rng.randrange(4)
    at, size = rng.choice(g.fields)
    if how == 0:
        at = rng.choice([rng.randrange(header), at + rng.randrange(size)])
        out[at] = rng.choice([0, 255, out[at] ^ 1 << rng.randrange(8), rng.randrange(256)])
    elif how == 1:
        old = int.from_bytes(out[at : at + size], "little")
        new = rng.choice([number(rng), old + 1, old - 1, 2 * old, -old]) % 256**size
        out[at : at + size] = new.to_bytes(size, "little")
    elif how == 2:
        del out[rng.choice([at, at + size, at + rng.randrange(size), header, header - 1, rng.randrange(len(out))]) :]
    else:
        for _ in range(rng.choice([2, 8, 64])):
            out[rng.randrange(header)] = rng.randrange(256)
    return bytes(out)


def mutant(bases: list[Gguf], seed: int, index: int) -> tuple[str, bytes]:
    """Return what was done to which base, and the file. Every other one is sound as a container."""
    rng = random.Random(f"{seed} {index}")
    chosen = rng.randrange(len(bases))
    base = bases[chosen]
    g = Gguf([*base.keys], [*base.tensors], base.data, base.version)
    if rng.random() < 0.35:
        return f"{chosen} bytes", _bytes(g.dump(), g, rng)
    done = [rng.choice(FIELDS) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    for change in done:
        if g.keys and g.tensors and g.data:
            change(g, rng)
    return f"{chosen} " + " ".join(change.__name__.strip("_") for change in done), g.dump()
