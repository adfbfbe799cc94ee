"""Open model files in a child process that may die of them.

Run as a program it is the child: file names on standard input, how each ended on standard output. Its argument,
``model`` or ``vocabulary``, tells what the files are opened as.
"""

from __future__ import annotations

import json
import resource
import select
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

MEMORY, SECONDS = 4 << 30, 60


def open_model(path: Path) -> None:
    """Open a file as an answer does: load, tokenise, render, decode."""
    from hybrid.engine.llama import Weights
    from hybrid.errors import UsageError
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
    finally:
        if engine:
            engine.close()
        if weights:
            weights.close()


def open_vocabulary(path: Path) -> None:
    """Open a file as that of a cloud's vocabulary: load, spell, tokenise, render."""
    from hybrid.cloud.translated import numbers_of
    from hybrid.cloud.translation import ExactSplitter
    from hybrid.engine.vocabulary import VocabularyFile, share_words
    from hybrid.errors import UsageError
    from hybrid.types import Message

    with closing(VocabularyFile(path)) as words:
        share_words(words, words)
        numbers_of(words, words)
        assert len(words.vocabulary_digest) == 16
        assert words.control_ids | words.special_ids | words.end_ids <= {*range(words.num_tokens)}
        ids = words.tokenize("What is 2 + 3? \u00e9\u4e2d <|im_end|>")
        assert all(0 <= token < words.num_tokens for token in ids)
        b"".join(map(words.piece, ids)).decode("utf-8", "replace")
        ExactSplitter(words)
        with suppress(UsageError):
            words.render([Message("user", "Hi <|im_end|>")])


OPENED = {"model": open_model, "vocabulary": open_vocabulary}


def attempt(path: Path, what: str) -> tuple[str, str]:
    """Return how opening a file ended."""
    from hybrid.errors import EngineError, UsageError

    try:
        OPENED[what](path)
    except (EngineError, UsageError) as error:
        said = str(error)
        return ("refused" if said.isprintable() else "garbled"), said
    except BaseException as error:  # noqa: BLE001  (what it is, is the test's to judge)
        return "exception", f"{type(error).__name__}: {error}"
    return "loaded", ""


def main() -> None:
    """Open the files whose names come in, and say how each ended."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        print(json.dumps(attempt(Path(line.rstrip("\n")), sys.argv[1])), flush=True)


class Opener:
    """Opens files in a child, and in another one when that has died."""

    def __init__(self, folder: Path, what: str = "model") -> None:
        self._said, self._what = folder / f"{what}.stderr.txt", what
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
            command = [sys.executable, __file__, self._what]
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, bufsize=0)

    def close(self) -> None:
        if self._child:
            self._child.stdin.close()
            self._child.stdout.close()
            self._child.wait(SECONDS)
        self._child = None


if __name__ == "__main__":
    main()
