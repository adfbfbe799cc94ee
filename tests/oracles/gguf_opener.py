"""Open model files in a child process that may die of them.

Run as a program it is the child: file names on standard input, how each ended on standard output.
"""

from __future__ import annotations

import json
import resource
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

MEMORY, SECONDS = 4 << 30, 60


def attempt(path: Path) -> tuple[str, str]:
    """Open a file as an answer does: load, tokenise, render, decode. Return how that ended."""
    from hybrid.engine.llama import Weights
    from hybrid.errors import EngineError, UsageError
    from hybrid.types import Message

    weights = engine = None
    try:
        weights = Weights(path)
        engine = weights.context(0, threads=1)
        ids = weights.tokenize("What is 2 + 3?", special=True) or (0,)
        with suppress(UsageError):
            ids += weights.render([Message("user", "Hi <|im_end|>")])
        for _ in range(3):
            row = engine.extend(ids[:300], 1)[0]
            ids = (int(row.argmax()),)
            weights.piece(ids[0])
        engine.rewind(1)
        engine.extend(ids, 1)
    except (EngineError, UsageError) as error:
        said = str(error)
        return ("refused" if said.isprintable() else "garbled"), said
    except BaseException as error:  # noqa: BLE001  (what it is, is the test's to judge)
        return "exception", f"{type(error).__name__}: {error}"
    finally:
        if engine:
            engine.close()
        if weights:
            weights.close()
    return "loaded", ""


def main() -> None:
    """Open the files whose names come in, and say how each ended."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        print(json.dumps(attempt(Path(line.rstrip("\n")))), flush=True)


class Opener:
    """Opens files in a child, and in another one when that has died."""

    def __init__(self, folder: Path) -> None:
        self._said = folder / "stderr.txt"
        self._child: subprocess.Popen | None = None

    def open(self, path: Path) -> tuple[str, str]:
        """Return how it ended: loaded, refused, given up (the process, with a sentence and 3), or something worse."""
        child = self._child = self._child or self._start()
        with suppress(BrokenPipeError):  # it died of an earlier file: what it gave for this one is nothing
            child.stdin.write(f"{path}\n".encode())
        if not select.select([child.stdout], [], [], SECONDS)[0]:
            child.kill()
        if line := child.stdout.readline():
            return tuple(json.loads(line))
        self.close()
        said = self._said.read_text(encoding="utf-8", errors="replace")
        graceful = child.returncode == 3 and said.startswith("hybrid: ") and said.count("\n") == 1
        return ("given up", said) if graceful else (f"dead {child.returncode}", said)

    def _start(self) -> subprocess.Popen:
        with self._said.open("wb") as stderr:
            return subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, bufsize=0
            )

    def close(self) -> None:
        if self._child:
            self._child.stdin.close()
            self._child.stdout.close()
            self._child.wait(SECONDS)
        self._child = None


if __name__ == "__main__":
    main()
