"""Files that a person, a disk or a stranger has spoiled: mutants of JSON by number, and some that are no file at all.

Written from RFC 8259; knows none of the product's formats.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

_NUMBERS = (-1, 0, 1, 2, 3.5, -0.0, 1e308, -1e308, float("nan"), float("inf"), 2**31, 2**63, -(2**63), 2**64, 10**400)
_TEXTS = ("", "text", "1", "\u0000\n\u001b[31m", "\ud800", "x" * 100_000)
_TREES: tuple[Any, ...] = ([], {}, [[]], [None], {"a": None}, [1, "a", None], {"": {}}, [0] * 10_000)
WRONG: tuple[Any, ...] = (None, True, False, *_NUMBERS, *_TEXTS, *_TREES)


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a tree; of a long list the first and last."""
    yield path
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from places(value, (*path, key))
    elif isinstance(tree, list):
        for number in sorted({*range(len(tree))[:3], *range(len(tree))[-2:]}):
            yield from places(tree[number], (*path, number))


def deep(num: int, kind: str = "[]") -> str:
    return ("[" * num + "]" * num) if kind == "[]" else '{"a":' * num + "1" + "}" * num


def _change(rng: random.Random, tree: Any) -> tuple[str, str]:
    """Change one value of a tree; return what was done and the text."""
    path = rng.choice([path for path in places(tree) if path] or [()])
    if not path:
        return "the whole", json.dumps(rng.choice(WRONG))
    within = tree
    for key in path[:-1]:
        within = within[key]
    kind = rng.choice(["value", "value", "value", "value", "gone", "twice", "deep", "number"])
    marker = "\u0001here\u0001"
    if kind == "gone":
        del within[path[-1]]
        return f"{path} gone", json.dumps(tree)
    if kind == "twice":
        if isinstance(within, list):
            within.insert(path[-1], within[path[-1]])
        else:
            within[path[-1]] = [within[path[-1]]] * 2
        return f"{path} twice", json.dumps(tree)
    if kind == "deep":
        within[path[-1]] = marker
        return f"{path} deep", json.dumps(tree).replace(json.dumps(marker), deep(rng.choice([50, 900, 3000, 100_000])))
    if kind == "number" and isinstance(within[path[-1]], int | float) and not isinstance(within[path[-1]], bool):
        within[path[-1]] = within[path[-1]] * rng.choice([-1, 2, 0.5, 1e9, 1e-9]) + rng.choice([0, 1, -1])
        return f"{path} another number", json.dumps(tree)
    within[path[-1]] = rng.choice(WRONG)
    return f"{path} = {str(within[path[-1]])[:40]!r}", json.dumps(tree)


def _json_text(rng: random.Random, raw: bytes) -> tuple[str, bytes]:
    what, text = _change(rng, json.loads(raw))
    return what, text.encode("utf-8", "surrogatepass")


def _json_lines(rng: random.Random, raw: bytes) -> tuple[str, bytes]:
    """Change one line of JSON lines, or which lines there are."""
    lines = raw.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    kind = rng.choice(["tree", "tree", "tree", "gone", "twice", "swapped", "blank"])
    if kind == "tree":
        what, text = _json_text(rng, lines[at])
        lines[at] = text + b"\n"
        return f"line {at + 1}: {what}", b"".join(lines)
    other = rng.randrange(len(lines))
    if kind == "swapped":
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines[at : at + 1] = {"gone": [], "twice": [lines[at]] * 2, "blank": [b"\n"]}[kind]
    return f"line {at + 1} {kind} ({other + 1})", b"".join(lines)


_TOML = (
    *("true", "-1", "0", "1", "1e308", "-0.0", "nan", "inf", "-inf", str(2**63), "9" * 5000, "0x10", "1_0", "0.1e-9"),
    *('""', '"text"', '"1"', '"\\u0000"', "'\\'", "[]", "[1, 2]", "{}", "{a = 1}", "1979-05-27", "07:32:00", "", "#"),
    "[" * 3000 + "]" * 3000,
)


def _toml(rng: random.Random, raw: bytes) -> tuple[str, bytes]:
    """Change one value of a TOML text, or which lines there are."""
    lines = raw.decode().splitlines(keepends=True)
    at = rng.choice([n for n, line in enumerate(lines) if line.strip() and not line.startswith("#")])
    kind = rng.choice(["value", "value", "value", "key", "gone", "twice", "into"])
    key, equals, value = lines[at].partition("=")
    if kind == "value" and equals:
        lines[at] = f"{key}= {(chosen := rng.choice(_TOML))}\n"
        return f"{key.strip()} = {chosen[:40]}", "".join(lines).encode()
    if kind == "key" and equals:
        lines[at] = f"{rng.choice(['', 'x', '[]', 'a.b', chr(34) * 2])}{key}={value}"
    elif kind == "into":
        lines.insert(at, rng.choice(["[[price]]\n", "[other]\n", "[price]\n", "other = 1\n", "\ufeff\n", "[[\n"]))
    else:
        lines[at : at + 1] = [lines[at]] * (2 if kind == "twice" else 0)
    return f"line {at + 1} {kind}", "".join(lines).encode()


FORMATS = {"json": _json_text, "json lines": _json_lines, "toml": _toml}


def mutant(raw: bytes, seed: int, number: int, form: str | None = "json") -> tuple[str, bytes]:
    """One damaged file by number: what was done, and its bytes. ``form``: in ``FORMATS``; None: bytes that are none."""
    rng = random.Random(f"{seed}:{number}")
    kind = rng.choice(["cut", "flips", "insert", *(["tree"] * 5 if form else [])])
    if kind == "cut":
        end = rng.randrange(len(raw))
        return f"cut at {end}", raw[:end]
    if kind == "flips":
        spoilt = bytearray(raw)
        for _ in range(rng.choice([1, 1, 2, 8])):
            spoilt[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        return "flips", bytes(spoilt)
    if kind == "insert":
        at = rng.randrange(len(raw))
        return f"bytes at {at}", raw[:at] + rng.randbytes(rng.choice([1, 4, 1000])) + raw[at:]
    return FORMATS[form](rng, raw)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


WHOLE: Mapping[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "null": lambda path: path.write_bytes(b"null"),
    "a list": lambda path: path.write_bytes(b"[]"),
    "zeros": lambda path: path.write_bytes(bytes(4096)),
    "deep lists": lambda path: path.write_text(deep(200_000)),
    "deep objects": lambda path: path.write_text(deep(200_000, "{}")),
    "a long number": lambda path: path.write_text("9" * 100_000),
    "UTF-16": lambda path: path.write_text('{"version": 1}', encoding="utf-16"),
    "a folder": Path.mkdir,
    "a fifo": os.mkfifo,
    "endless zeros": _endless,
    "100 MB of spaces": lambda path: path.write_bytes(b" " * 100_000_000),
    "100 MB of brackets": lambda path: path.write_bytes(b"[" + b"[],[]," * 16_000_000 + b"[]]"),
    "100 MB of text": lambda path: path.write_bytes(b'{"version": 1, "a": "' + b"x" * 100_000_000 + b'"}'),
    "100 MB of a sparse file": lambda path: os.truncate(path, 100_000_000) if path.touch() is None else None,
    "a link to itself": lambda path: path.symlink_to(path),
}
