"""``hybrid batch --again``: lines of an output are asked anew, into a file that takes its place once it is complete.

The law: the lines that are not asked anew are those of the output, byte for byte, and an answer gives way only to a
better one: never to an error, and one that went on without the cloud never to another such. What the other attempts of
a line have cost stays with it (``tests/cli/test_batch_money.py``). Until the new file is complete the output is the old
one, untouched; what stands in the new one of another output is refused (``tests/cli/test_batch_again.py``). Who answers
is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hybrid.cli.batch_lines import (
    CloudNames,
    Outcome,
    OutputLine,
    StoredLine,
    add_known,
    check_cloud,
    decode,
    encode,
    with_discarded,
)
from hybrid.cli.batch_output import BatchOutput, beside
from hybrid.cli.questions import InputLine
from hybrid.errors import UsageError, to_one_line

WORDS = {"degraded": Outcome.DEGRADED, "failed": Outcome.FAILED}


def outcomes_of(words: str) -> frozenset[Outcome]:
    """Read ``degraded``, ``failed`` or both, with a comma. Raises UsageError for anything else."""
    named = [word.strip() for word in words.split(",")]
    if unknown := [word for word in named if word not in WORDS]:
        msg = f"--again {to_one_line(unknown[0])}: give degraded, failed or degraded,failed"
        raise UsageError(msg)
    return frozenset(WORDS[word] for word in named)


def file_for(out: Path, asked: frozenset[Outcome]) -> Path:
    """Return the file that the new lines go to: one for each choice of what is asked, so that each can go on."""
    return beside(out, "-".join(["again", *(word for word, outcome in WORDS.items() if outcome in asked)]))


class OldLines:
    """The lines of an output that stands, found in its order while the same input is answered into another."""

    def __init__(
        self, out: BatchOutput, asked: frozenset[Outcome], lines: Iterator[InputLine], cloud: CloudNames
    ) -> None:
        """Compare the whole output with the input, and change nothing.

        ``num_taken``: the lines that are not asked anew. Raises UsageError where output and input do not belong
        together; where lines that failed are asked, they may have been corrected in the input.
        """
        self._out, self._asked = out, asked
        out.compare(lines, lambda entry, _: check_cloud(entry, cloud, out.path), corrected=Outcome.FAILED in asked)
        self.num_taken = sum(entry.outcome not in asked for entry, _ in out.stored())
        self._stored = out.stored()
        self._ahead = next(self._stored, None)
        self._open: dict[int, tuple[OutputLine, StoredLine]] = {}
        self._not_better: dict[int, OutputLine] = {}

    def take(self, line: InputLine) -> StoredLine | None:
        """Return the line that is taken over as it stands; None where the line is asked."""
        found = self._find(line.number)
        return found[1] if found and found[0].outcome not in self._asked else None

    def is_asked(self, number: int) -> bool:
        """Whether a line is asked: anew, or because it was not there."""
        found = self._find(number)
        return found is None or found[0].outcome in self._asked

    def better_of(self, line: InputLine, found: Mapping[str, Any]) -> bytes | StoredLine:
        """Return what a line that was asked comes to: what was found, or the old line where that is the better one.

        Either carries on what the other attempts have cost.
        """
        raw = encode(line, found)
        if (old := self._find(line.number)) is None:
            return raw
        new, (before, stored) = decode(raw, self._out.path), old
        # Of two that are degraded the old one may hold what the cloud wrote, and the bill of it.
        if before.outcome == Outcome.FAILED or new.outcome > before.outcome:
            return with_discarded(raw, before.cost_nanousd)
        self._not_better[line.number] = new
        if new.cost_nanousd == 0:
            return stored
        return with_discarded(stored.read(), add_known(before.discarded_nanousd, new.cost_nanousd))

    def take_attempt(self, number: int) -> OutputLine | None:
        """Return, once, what this run's attempt of a line came to where the old line was kept."""
        return self._not_better.pop(number, None)

    def check(self, entry: OutputLine, stored: StoredLine, path: Path) -> None:
        """Raise UsageError where a line of the new file was taken over from another output than this."""
        old = self._find(entry.line)
        if old and old[0].outcome not in self._asked and old[1].read() != stored.read():
            msg = f"{path} was begun for another output than {self._out.path}: remove it to begin again"
            raise UsageError(msg)

    def improved(self, entry: OutputLine) -> bool | None:
        """Return whether a line of the new file is better than the old; None where it was not asked anew."""
        found = self._find(entry.line)
        self._open.pop(entry.line, None)
        if found is None or found[0].outcome not in self._asked:
            return None
        return entry.outcome > found[0].outcome

    def _find(self, number: int) -> tuple[OutputLine, StoredLine] | None:
        while self._ahead is not None and self._ahead[0].line <= number:
            self._open[self._ahead[0].line] = self._ahead
            self._ahead = next(self._stored, None)
        return self._open.get(number)
