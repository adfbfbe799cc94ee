"""A partition on disk: which tokens of one vocabulary say the same, in JSON that a person reads and edits.

A line a group, a token as ``[id, text]``. A person may delete a group, take a token out or move it: what they merge
stays merged. The laws (``tests/partitions/test_partition_file.py``): what is written is read back; a file that cannot
be used is refused in one sentence that names the file and the line; a file for another vocabulary is never used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybrid.errors import UsageError
from hybrid.prob.concepts import Partition
from hybrid.settings.sources import concepts_folder
from hybrid.store.files import read_regular

VERSION = 1
# Partitions of bundled vocabularies. A user's own file for the same vocabulary wins.
_BUNDLED = Path(__file__).parent / "data"
_BUILD = "hybrid concepts build --local MODEL"


@dataclass(frozen=True)
class PartitionFile:
    """What a file says. ``vocabulary``: the digest of the vocabulary that it is for; ``built``: from what, and how.

    ``groups``: of two tokens and more, a token as its id and its text. The text is for people; the id counts.
    """

    vocabulary: str
    num_tokens: int
    groups: tuple[tuple[tuple[int, str], ...], ...]
    built: Mapping[str, Any] = field(default_factory=dict)

    def dumps(self) -> str:
        """Return the file's text, a line a group."""
        head = {"version": VERSION, "vocabulary": self.vocabulary, "num_tokens": self.num_tokens, "built": self.built}
        lines = (json.dumps([list(token) for token in group], ensure_ascii=False) for group in self.groups)
        body = "\n" + ",\n".join(lines) + "\n" if self.groups else ""
        return json.dumps(head, indent=1, ensure_ascii=False)[:-2] + f',\n "groups": [{body}]\n}}\n'

    @property
    def partition(self) -> Partition:
        """The concepts of ids: each group is one, and each other id is one of its own."""
        return Partition.of_groups(self.num_tokens, [[token for token, _ in group] for group in self.groups])


def read_partition_file(path: Path) -> PartitionFile:
    """Read a file. Raises UsageError with its name, and the line where there is one to mend."""
    try:
        text = read_regular(path).decode("utf-8-sig")
        read = json.loads(text)
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}"
        raise UsageError(msg) from None
    except json.JSONDecodeError as error:
        msg = f"{path}, line {error.lineno}: {error.msg}"
        raise UsageError(msg) from None
    except (ValueError, RecursionError):
        msg = f"{path} is no JSON text in UTF-8"
        raise UsageError(msg) from None
    return _Reader(path, text).file_of(read)


@dataclass(frozen=True)
class _Reader:
    path: Path
    text: str

    def file_of(self, read: object) -> PartitionFile:
        match read:
            case {
                "version": int(version),
                "vocabulary": str(vocabulary),
                "num_tokens": int(num_tokens),
                "groups": list(groups),
            }:
                pass
            case _:
                msg = f'{self.path} is no file of concepts: it needs "version", "vocabulary", "num_tokens" and "groups"'
                raise UsageError(msg)
        if version != VERSION:
            msg = f"{self.path} has the version {version}, and this program reads {VERSION}: build it again"
            raise UsageError(msg)
        assert isinstance(read, dict)
        built = read.get("built")
        found, seen = [], set[int]()
        for number, group in enumerate(groups, start=1):
            found.append(self._group(number, group, num_tokens, seen))
        kept = tuple(group for group in found if len(group) > 1)  # somebody took the others out
        return PartitionFile(vocabulary, num_tokens, kept, built if isinstance(built, dict) else {})

    def _group(self, number: int, group: object, num_tokens: int, seen: set[int]) -> tuple[tuple[int, str], ...]:
        if not isinstance(group, list):
            msg = f"{self.path}: group {number} is {json.dumps(group)[:60]} and no list of tokens"
            raise UsageError(msg)
        tokens = []
        for token in group:
            match token:
                case [int(id_), str(text)] if not isinstance(id_, bool):
                    pass
                case _:
                    where = f"{self.path}: in group {number}"
                    msg = f'{where} stands {json.dumps(token)[:60]}, where a token is [id, "text"]'
                    raise UsageError(msg)
            if not 0 <= id_ < num_tokens:
                msg = f"{self._place(id_, 1)}: there is no token {id_}, the vocabulary has {num_tokens}"
                raise UsageError(msg)
            if id_ in seen:
                msg = f"{self._place(id_, 2)}: the token {id_} stands here for the second time"
                raise UsageError(msg)
            seen.add(id_)
            tokens.append((id_, text))
        return tuple(tokens)

    def _place(self, token: int, time: int) -> str:
        """Say where a token's entry stands for the nth time."""
        found = [each.start() for each in re.finditer(rf"\[\s*{token}\s*,", self.text)]
        return (
            f"{self.path}, line {self.text.count(chr(10), 0, found[time - 1]) + 1}"
            if len(found) >= time
            else f"{self.path}"
        )


def kept_file(digest: str) -> Path | None:
    """Return the file of a vocabulary: the user's own, or else the bundled one; None where there is none."""
    places = (own_file(digest), _BUNDLED / f"{digest}.json")
    return next((place for place in places if place.is_file()), None)


def own_file(digest: str) -> Path:
    """Return where the user's own file of a vocabulary is kept. Raises UsageError without a home."""
    return concepts_folder() / f"{digest}.json"


def find_file(path: Path | None, digest: str, num_tokens: int) -> tuple[Path, PartitionFile]:
    """Return a vocabulary's file, the one that is named or the one that is kept, and what it says.

    Raises UsageError, in a sentence that tells what to do: no file is kept, the file cannot be read, or it is for
    another vocabulary.
    """
    found = kept_file(digest) if path is None else path
    if found is None:
        msg = f"no concepts are kept for this vocabulary ({digest}): build them with {_BUILD}"
        raise UsageError(msg)
    read = read_partition_file(found)
    if read.vocabulary != digest or read.num_tokens != num_tokens:
        other = f"another vocabulary ({read.vocabulary}, {read.num_tokens} tokens)"
        msg = f"{found} is for {other} than the local model's ({digest}, {num_tokens}): build one with {_BUILD}"
        raise UsageError(msg)
    return found, read


def load_partition(path: Path | None, digest: str, num_tokens: int) -> Partition:
    """Return the concepts of a vocabulary from a file, or from the one that is kept for it.

    ``digest``: ``LlamaVocabulary.vocabulary_digest``. Raises UsageError as ``find_file`` does.
    """
    return find_file(path, digest, num_tokens)[1].partition


def groups_with_text(
    groups: Sequence[Sequence[int]], pieces: Sequence[bytes]
) -> tuple[tuple[tuple[int, str], ...], ...]:
    """Return groups as the file has them: each id beside its text."""
    return tuple(tuple((token, pieces[token].decode("utf-8", "replace")) for token in group) for group in groups)


__all__ = [
    "PartitionFile",
    "find_file",
    "groups_with_text",
    "kept_file",
    "load_partition",
    "own_file",
    "read_partition_file",
]


NO_CONCEPTS = (
    "nobody knows which tokens of the local vocabulary say the same: `hybrid concepts build` finds out, and keeps it"
)


def no_partition() -> Partition:
    """Raise UsageError: nobody knows which tokens of the vocabulary say the same."""
    raise UsageError(NO_CONCEPTS)
