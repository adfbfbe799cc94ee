"""The last line of a batch with degraded lines: what must come first, and the whole command that asks them anew.

The law: the command has every flag that the run was given, and HIGHER in the place of a ``--cap`` that was in the way:
with an amount there it asks the same endpoint and models, and pasted as printed it is refused, so that nothing is spent
without a cap (``tests/cli/test_batch_repair.py``).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hybrid.cli.flags import words_of
from hybrid.file_system import WINDOWS
from hybrid.spend import CapScope, closed_endpoint, denying_level

if TYPE_CHECKING:
    from hybrid.cli.batch_lines import OutputLine
    from hybrid.cli.flags import Flags


# What no shell of Windows reads otherwise.
_PLAIN = re.compile(r"[\w@+=:./\\-]+", re.ASCII)


@dataclass
class RepairNeeds:
    """What decided the degraded lines, and so must change before another try of them comes to more.

    ``levels``: the caps that decided any, None for one that a line does not name. ``closed``: endpoints that charged
    more than was reserved, in the order of their lines.
    """

    outage: bool = False
    levels: set[CapScope | None] = field(default_factory=set)
    closed: dict[str, None] = field(default_factory=dict)

    def add(self, entry: OutputLine) -> None:
        """Add a line; one that is not degraded needs nothing."""
        level = entry.degraded_cap or denying_level(entry.degraded or "")  # a line of before caps were named has a text
        if endpoint := closed_endpoint(entry.degraded or ""):
            self.closed[endpoint] = None
        elif entry.is_repairable and entry.degraded_kind == "paced":
            self.levels.add("day")
        elif entry.is_repairable and (entry.degraded_kind == "budget" or level):
            self.levels.add(level)
        elif entry.is_repairable:
            self.outage = True

    def command(self, source: Path, out: Path, flags: Flags, which: str = "degraded") -> str:
        """Return the command that asks such lines of ``out`` anew, for a shell; standard input is IN, output OUT."""
        named = ["IN" if str(source) == "-" else str(source), "OUT" if str(out) == "-" else str(out)]
        given = flags.copy()
        if self._needs_higher_cap and given.get("cap") is not None:
            given["cap"] = "HIGHER"  # which is no amount
        return shell_line(["hybrid", "batch", *named, "--again", which, *words_of(given)])

    def correction(self, source: Path, out: Path, flags: Flags) -> str:
        """Return the line that says how lines that failed are asked, once they are corrected."""
        saved = "".join(f", {each}" for each in _saved(source, out))
        return f"correct such lines in the input, then{saved}: {self.command(source, out, flags, 'failed')}"

    def sentence(self, source: Path, out: Path, command: str | None, flags: Flags) -> str | None:
        """Return the last line; None where nothing is to be done. ``command``: None where no line would gain by it."""
        reopening = "; ".join(self._budget(flags, "reconcile", "--reopen", each) for each in self.closed)
        if command is None:
            said = f"an endpoint that charges more than was reserved is closed; if it still is: {reopening}"
            return said if reopening else None
        conditions = [*self._conditions(flags), *_saved(source, out)]
        said = f"{', and '.join(conditions)}: {command}" if conditions else command
        return f"first: {reopening}; then{', ' if conditions else ': '}{said}" if reopening else said

    @property
    def _needs_higher_cap(self) -> bool:
        return bool(self.levels & {"client", None})

    def _conditions(self, flags: Flags) -> Iterator[str]:
        if self._needs_higher_cap:
            cap = flags.get("cap")
            yield "with more money" + ("" if cap is None else f" (give an amount above {cap} for HIGHER)")
        for level in sorted(level for level in self.levels if level is not None and level != "client"):
            raised = self._budget(flags, "set", f"--{level}", "X")
            yield f"with a higher cap ({raised})" + (" or after 00:00 UTC" if level == "day" else "")
        if self.outage:
            yield "once the endpoint answers"

    @staticmethod
    def _budget(flags: Flags, *words: str) -> str:
        ledger = flags.get("ledger")
        return shell_line(["hybrid", "budget", *words, *(() if ledger is None else ("--ledger", str(ledger)))])


def shell_line(words: Sequence[str]) -> str:
    """Return words as a line to be pasted; both of Windows' shells take double quotes, and cmd no others."""
    if not WINDOWS:
        return shlex.join(words)
    # Before a quote, the closing one included, a backslash stands for itself only if it is doubled.
    doubled = (re.sub(r'(\\+)(?="|\Z)', r"\1\1", word).replace('"', '\\"') for word in words)
    return " ".join(word if _PLAIN.fullmatch(word) else f'"{each}"' for word, each in zip(words, doubled, strict=True))


def _saved(source: Path, out: Path) -> Iterator[str]:
    """Yield what must first be put into a file, for lines to be asked anew."""
    if str(source) == "-":
        yield "with the lines of standard input in a file IN"
    if str(out) == "-":
        yield "with the printed lines in a file OUT"
