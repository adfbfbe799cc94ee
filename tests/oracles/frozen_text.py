"""What is frozen is texts, by section and item: here they are masked, kept, read back and compared, byte for byte.

Of two processors the last digits of a logarithm differ, numpy's too, and of a model's row more than these, and with it
perhaps a text. So numbers with a point are compared only where the fingerprint is that of the machine that recorded
them, and what a model wrote is compared nowhere else.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import platform
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from itertools import zip_longest
from pathlib import Path
from tempfile import gettempdir
from typing import TypeAlias

Corpus: TypeAlias = dict[str, dict[str, str]]
Section: TypeAlias = Mapping[str, str]
TREE = Path(__file__).resolve().parents[2]
MASKS = (
    (r'("(?:(?:\w+_)?ms|created)": ?)-?\d[\d.e+-]*', r"\g<1>0"),
    (r"\b(127\.0\.0\.1|localhost):\d+", r"\1:0"),
    (re.escape(str(TREE)), "<tree>"),
    (rf"{re.escape(gettempdir())}/[^\s\"':,)]*", "<path>"),
    (r"\b\d+(?:\.\d+)? (?:ms|s)\b", "<time>"),
)
IDS = re.compile(r'(?<=[-_])[0-9a-f]{24,32}\b|(?<="request_id": ")[^"]+|(?<="id": ")[0-9a-f]{12,32}\b')
NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?|-?\d+e-\d+")


def masked(text: str) -> str:
    """Return a text without times, ports and paths, its ids numbered as they come."""
    for pattern, mask in MASKS:
        text = re.sub(pattern, mask, text)
    ids: dict[str, str] = {}
    return IDS.sub(lambda found: ids.setdefault(found[0], f"id{len(ids) + 1}"), text)


def without_numbers(corpus: Corpus) -> Corpus:
    """Return a corpus in which every number with a point is the same."""
    return {name: {item: NUMBER.sub("~", text) for item, text in items.items()} for name, items in corpus.items()}


def fingerprint() -> str:
    """Name what the last digits of a row hang on: the processor's flags, and who computes with them."""
    path = Path("/proc/cpuinfo")
    told = path.read_text(encoding="utf-8") if path.exists() else platform.processor()
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", told, re.MULTILINE)
    digest = hashlib.sha256(" ".join(sorted((flags[1] if flags else told).split())).encode()).hexdigest()[:16]
    computing = {"llama_cpp_python", "numpy", "scikit_learn"}
    versions = {each.name.replace("-", "_"): each.version for each in distributions()}
    return f"{platform.machine()} {digest} " + " ".join(f"{name} {versions.get(name)}" for name in sorted(computing))


def keep(path: Path, corpus: Corpus) -> None:
    """Write a corpus, and which machine recorded it."""
    told = json.dumps({**corpus, "machine": {"fingerprint": fingerprint()}}, indent=0, sort_keys=True).encode()
    path.write_bytes(lzma.compress(told, preset=9 | lzma.PRESET_EXTREME))


def kept(path: Path) -> Corpus:
    """Read what ``keep`` wrote."""
    return json.loads(lzma.decompress(path.read_bytes()))


def is_of_this_machine(stored: Corpus) -> bool:
    """Whether numbers are as they were recorded, to the last bit."""
    return stored["machine"]["fingerprint"] == fingerprint()


def compared(path: Path, found: Corpus) -> list[str]:
    """Return the differences from what was recorded; see ``differences``."""
    stored = kept(path)
    if not is_of_this_machine(stored):
        stored, found = without_numbers(stored), without_numbers(found)
    return list(differences(stored, found))


def differences(stored: Corpus, found: Corpus) -> Iterator[str]:
    """Yield, for each item that is not the same, its name and its first line that differs; sections of both count."""
    for section in sorted(stored.keys() & found.keys()):
        before, now = stored[section], found[section]
        for item in sorted(before.keys() | now.keys()):
            if item not in before or item not in now:
                yield f"{section}, {item}: {'no longer there' if item in before else 'not recorded'}"
            elif before[item] != now[item]:
                pairs = zip_longest(before[item].split("\n"), now[item].split("\n"), fillvalue="(no line)")
                line, (old, new) = next((n, each) for n, each in enumerate(pairs, 1) if each[0] != each[1])
                start = max(0, next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0) - 60)
                told = f"  recorded {old[start:][:200]}\n  now      {new[start:][:200]}"
                yield f"{section}, {item}, line {line}:\n{told}"
