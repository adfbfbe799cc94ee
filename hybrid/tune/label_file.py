"""What was bought of a pair of models, on disk: a line a text, written before the next is bought.

    {"labels":1,"local":"5d...","endpoint":"https://api.example.com/v1","model":"large-1"}
    {"question":"8d5e1f...","writer":"local","words":[...],"tokens":[...],...}

A question stands there as a hash, a text as the numbers of its tokens (whoever has the model can read them). The file
is for its owner alone (mode 0600).

The law: wherever the process is killed, what stands as a whole line is kept and what was torn is removed, so that no
text is bought twice but the one that was under way; two processes do not buy for one pair at once
(``tests/tune/test_label_file.py`` cuts at every byte).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from hybrid.errors import UsageError
from hybrid.folders import make_folder
from hybrid.line_file import LineFile, open_regular
from hybrid.run.text_rows import Writer
from hybrid.tune.bought import BoughtQuestion, BoughtText

LABELS_VERSION = 1


@dataclass(frozen=True)
class PairNames:
    """Which two models: the local one's identity, the endpoint's name, and the model there."""

    local: str
    endpoint: str
    model: str

    def file(self, folder: Path) -> Path:
        """Return where what was bought of them lies."""
        digest = blake2b(f"{self.local} {self.endpoint} {self.model}".encode(), digest_size=12).hexdigest()
        return folder / f"{digest}.jsonl"


class LabelFile:
    """The texts that were bought of one pair. The file is locked for as long as this lives."""

    def __init__(self, path: Path, pair: PairNames) -> None:
        """Open or make the file, and read it. Raises UsageError where that cannot be, or another process has it."""
        self._texts: dict[tuple[str, Writer], BoughtText] = {}
        make_folder(path.parent)
        self._file = LineFile(path, "another process is buying")
        try:
            self._read(pair)
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        """Texts."""
        return len(self._texts)

    def has(self, question: str, writer: Writer) -> bool:
        """Whether a text was bought."""
        return (question, writer) in self._texts

    def question(self, name: str) -> BoughtQuestion | None:
        """Return a question whose two texts were bought; None where one is missing."""
        draft, written = self._texts.get((name, "local")), self._texts.get((name, "cloud"))
        return None if draft is None or written is None else BoughtQuestion(draft, written)

    def add(self, question: str, writer: Writer, text: BoughtText) -> None:
        """Keep a text. It is on the disk, or nothing of it is, when this returns or raises.

        Raises OSError, naming the file, where it cannot be written.
        """
        self._write({"question": question, "writer": writer, **text.to_json()})
        self._texts[question, writer] = text

    def close(self) -> None:
        """Close the file and give the lock back."""
        self._file.close()

    def _read(self, pair: PairNames) -> None:
        header = {"labels": LABELS_VERSION, **asdict(pair)}
        lines = [line for line in self._file.lines() if line.endswith(b"\n")]
        if not lines:
            self._file.cut(0)
            self._write(header)
            return
        found: dict[tuple[str, Writer], BoughtText] = {}
        with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            if msgspec.json.decode(lines[0]) == header:
                for line in lines[1:]:
                    kept = msgspec.json.decode(line)
                    question, writer = msgspec.convert((kept["question"], kept["writer"]), tuple[str, Writer])
                    found[question, writer] = BoughtText.from_json(kept)
                self._texts = found
                self._file.cut(sum(map(len, lines)))
                return
        msg = f"{self._file.path} holds something that this version did not write: move it away, or remove it"
        raise UsageError(msg)

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.append([msgspec.json.encode(line, enc_hook=float) + b"\n"])


def bought_before(folder: Path, local: str, endpoint: str) -> dict[Path, PairNames]:
    """Return the files of what was bought of a local model at an endpoint, whichever models it had; the newest last."""
    found: dict[Path, PairNames] = {}
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns):
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, UsageError), open_regular(path) as file:
            header = msgspec.json.decode(file.buffer.readline(), type=dict[str, Any])
            pair = PairNames(*(str(header.get(each.name)) for each in fields(PairNames)))
            if (pair.local, pair.endpoint) == (local, endpoint):
                found[path] = pair
    return found
