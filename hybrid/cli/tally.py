"""What a batch came to: counts over the lines of its output, whichever run wrote them.

The law: figures are those of the output file, so that a batch that was interrupted ends in the same ones; an unknown
price makes the bill unknown, never 0 (``tests/cli/test_batch.py``).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid.batch.output import OutputLine, add_known
from hybrid.cli.command import words_of
from hybrid.record.spending import check_cost_note, note_of_all
from hybrid.spend import Bill, CapScope, as_usd, closed_endpoint, denying_level
from hybrid.store.files import WINDOWS

if TYPE_CHECKING:
    from hybrid.cli.command import Flags


# The last line of a batch with degraded lines: what must come first, and the whole command that asks them anew.
#
# The law: the command has every flag that the run was given, and HIGHER in the place of a ``--cap`` that was in the
# way: with an amount there it asks the same endpoint and models, and pasted as printed it is refused, so that nothing
# is spent without a cap (``tests/cli/test_batch_repair.py``).

# What no shell of Windows reads otherwise.
_PLAIN = re.compile(r"[\w@+=:./\\-]+", re.ASCII)


@dataclass
class RetryRequirements:
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


@dataclass
class LineTally:
    """Counts lines as they are written. ``kept`` of them an earlier run has answered; the rest is over all of them.

    ``asked_again``: lines that ``--again`` asked anew, of which ``better`` came to more than before.
    ``open_nanousd``: what requests whose charge is not known (a run was killed, a connection broke) may have cost;
    under ``--cap``, where it counts as spent. ``discarded_nanousd``: what attempts have cost that ``--again`` replaced,
    or that were not better, in all runs: with the bill it is what all answers of the output have cost; None: not known.
    ``degraded_kinds``: the degraded lines by kind (``unknown``: those of before kinds were told).
    ``check_cost_note``: the first line's note that its checks cost more than the cloud alone.
    ``repairable``: lines that a cap, a day's pacing or an outage decided; ``needs``: what must
    change before another try of them.
    """

    answered: int = 0
    failed: int = 0
    kept: int = 0
    asked_again: int = 0
    better: int = 0
    degraded: int = 0
    degraded_kinds: dict[str, int] = field(default_factory=dict)
    repairable: int = 0
    needs: RetryRequirements = field(default_factory=RetryRequirements)
    local_tokens: int = 0
    cloud_tokens: int = 0
    cloud_requests: int = 0
    bill: Bill = Bill(0, 0, 0)  # noqa: RUF009  (frozen)
    open_nanousd: int = 0
    discarded_nanousd: int | None = 0
    check_cost_note: str | None = None
    first_failure: str | None = None
    first_reason: str | None = None

    @property
    def cost_nanousd(self) -> int | None:
        """What all attempts have cost that these lines hold or replaced; None: not known."""
        return add_known(self.bill.nanousd, self.discarded_nanousd)

    def add(self, entry: OutputLine, attempt: OutputLine | None = None, *, is_kept: bool) -> None:
        """Count a line; ``is_kept``: an earlier run has answered it.

        ``attempt``: what this run's came to, where it was not better than the line, which then is an earlier run's.
        """
        self.kept += is_kept
        self.discarded_nanousd = add_known(self.discarded_nanousd, entry.discarded_nanousd)
        if entry.error is not None:
            self.failed += 1
            self.first_failure = self.first_failure or f"line {entry.line}: {entry.error}"
            return
        self.answered += 1
        self.check_cost_note = self.check_cost_note or check_cost_note(entry.notes)
        if entry.degraded is not None:
            self.degraded += 1
            kind = entry.degraded_kind or "unknown"
            self.degraded_kinds[kind] = self.degraded_kinds.get(kind, 0) + 1
            self.repairable += entry.is_repairable
            latest = attempt if attempt and attempt.degraded is not None else entry
            self.needs.add(latest)
            by_earlier = is_kept or (attempt is not None and latest is entry)
            whose = ", from an earlier run" if by_earlier else ""
            self.first_reason = self.first_reason or f"line {entry.line}{whose}: {latest.degraded}"
        if entry.usage:
            self.local_tokens += entry.usage.local_tokens
            self.cloud_tokens += entry.usage.cloud_tokens
            self.cloud_requests += entry.usage.cloud_requests
        if entry.bill:
            mine, ours = entry.bill, self.bill
            self.bill = Bill(
                add_known(ours.nanousd, mine.nanousd),
                add_known(ours.cloud_only_nanousd, mine.cloud_only_nanousd),
                add_known(ours.cloud_only_cached_nanousd, mine.cloud_only_cached_nanousd),
            )

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``."""
        own = {name: value for name, value in asdict(self).items() if name not in {"needs", "check_cost_note"}}
        return own | {"notes": self.notes()}

    def notes(self) -> list[str]:
        """Say what a user should know of all lines together."""
        dear = note_of_all(self.bill, self.check_cost_note)
        return [] if dear is None else [dear]

    def _told_bill(self) -> str:
        """Say the bill; of lines that a model answered alone the cloud would have written others, and longer ones."""
        said = str(self.bill)
        as_they_stand = "(the cloud alone, of the texts as they stand:"
        return said.replace("(the cloud alone:", as_they_stand) if self.degraded else said

    def so_far(self) -> str:
        """Say how far it is."""
        return f"{_counted(self.answered)} answered" + (f", {self.failed} failed" if self.failed else "")

    def summary(self) -> list[str]:
        """Say it all: what came of the lines, what it cost, and the first of everything that went wrong."""
        parts = [self.so_far() + (f" ({self.kept} by an earlier run)" if self.kept else ""), self._told_bill()]
        if total := self.local_tokens + self.cloud_tokens:
            parts.append(f"{100 * self.cloud_tokens / total:.0f} % of the tokens by the cloud")
        said = [", ".join(parts)]
        said += self.notes()
        if self.asked_again:
            said.append(f"{_counted(self.asked_again)} asked again, {self.better} of them better than before")
        if self.discarded_nanousd != 0:
            amount = "an unknown amount" if self.discarded_nanousd is None else as_usd(self.discarded_nanousd)
            said.append(f"{amount} more went into attempts that were replaced or not better")
        if self.open_nanousd:
            most = as_usd(self.open_nanousd)
            said.append(f"requests that were cut off may have cost {most} more: hybrid budget reconcile lists them")
        if self.first_reason:
            kinds = ", ".join(f"{num} {kind}" for kind, num in sorted(self.degraded_kinds.items()))
            what = f"in {_counted(self.degraded)} less was asked of the cloud than is due ({kinds})"
            if self.degraded_kinds.keys() == {"charge"}:  # they are whole
                what = f"for {_counted(self.degraded)} the endpoint charged more than was reserved"
            said.append(f"{what}; the first is {self.first_reason}")
        if self.first_failure:
            said.append(f"the first that failed is {self.first_failure}")
        return said


def _counted(num_lines: int) -> str:
    return f"{num_lines} line{'' if num_lines == 1 else 's'}"
