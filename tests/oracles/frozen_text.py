"""What is frozen is texts, by section and item: here they are masked, kept, read back and compared, byte for byte.

Of two processors the last digits of a row differ, and with them perhaps a text: what a model wrote is compared only
where its fingerprint is that of the machine that recorded it.
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
# The last digits of a logarithm are a processor's own; so many are kept of what no model wrote.
DIGITS = 9
MASKS = (
    (r'("(?:(?:\w+_)?ms|created)": ?)-?\d[\d.e+-]*', r"\g<1>0"),
    (r"\b(127\.0\.0\.1|localhost):\d+", r"\1:0"),
    (re.escape(str(TREE)), "<tree>"),
    (rf"{re.escape(gettempdir())}/[^\s\"':,)]*", "<path>"),
    (r"\b\d+(?:\.\d+)? (?:ms|s)\b", "<time>"),
)
IDS = re.compile(r'(?<=[-_])[0-9a-f]{24,32}\b|(?<="request_id": ")[^"]+|(?<="id": ")[0-9a-f]{12,32}\b')
FLOAT = re.compile(r"-?\d+\.\d{6,}(?:e[+-]?\d+)?|-?\d+(?:\.\d+)?e-\d+")


def masked(text: str, *, rounds: bool = False) -> str:
    """Return a text without times, ports and paths, ids numbered as they come, and perhaps its numbers rounded."""
    for pattern, mask in MASKS:
        text = re.sub(pattern, mask, text)
    ids: dict[str, str] = {}
    text = IDS.sub(lambda found: ids.setdefault(found[0], f"id{len(ids) + 1}"), text)
    return FLOAT.sub(lambda found: f"{float(found[0]):.{DIGITS}g}", text) if rounds else text


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
    """Write a corpus."""
    told = json.dumps(corpus, indent=0, sort_keys=True).encode()
    path.write_bytes(lzma.compress(told, preset=9 | lzma.PRESET_EXTREME))


def kept(path: Path) -> Corpus:
    """Read what ``keep`` wrote."""
    return json.loads(lzma.decompress(path.read_bytes()))


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
