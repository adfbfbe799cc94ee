"""An answer on a terminal: tokens coloured by who wrote them, and one line of what it took. Plain text elsewhere."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

from hybrid.run.answer import Answer
from hybrid.run.events import Degraded, Event, Finished, Shown

LOCAL_STYLE, CHECKED_STYLE, CLOUD_STYLE = "default", "green", "bold magenta"
# A model's text may hold control sequences; on a terminal they are shown, not obeyed.
VISIBLE = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {127: "\u2421", 155: "\u241b"}


class Screen:
    """Shows tokens as they come."""

    def __init__(self) -> None:
        """Colours only where somebody looks."""
        self._out = Console(highlight=False, soft_wrap=True)
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)
        self._safe = VISIBLE if self._out.is_terminal else {}

    def show(self, event: Event) -> None:
        """Show what a user wants to see of an event."""
        match event:
            case Shown(_, token):
                style = (
                    CLOUD_STYLE
                    if token.source == "cloud"
                    else CHECKED_STYLE
                    if token.how == "accepted"
                    else LOCAL_STYLE
                )
                self._out.print(Text(token.text.translate(self._safe), style), end="")
                self._out.file.flush()
            case Degraded(why):
                self._err.print(Text(f"hybrid: the local model goes on alone: {why}", "yellow"))
            case Finished(answer):
                self._out.print()
                if sys.stdout.isatty():
                    self._err.print(Text(summary(answer), "dim"))
            case _:
                pass


def summary(answer: Answer) -> str:
    """Return one line: who wrote how much, what was asked, what it cost."""
    usage, total = answer.usage, max(1, len(answer.tokens))
    parts = [
        f"{len(answer.tokens)} tokens",
        f"{100 * usage.cloud_tokens / total:.0f} % by the cloud",
        f"{usage.cloud_requests} requests",
    ]
    if answer.bill.nanousd is not None:
        parts.append(
            f"{answer.bill.nanousd / 1e9:.6f} USD (cloud alone {(answer.bill.cloud_only_nanousd or 0) / 1e9:.6f})"
        )
    if answer.finish_reason == "length":
        parts.append("cut off at its limit")
    return f"[{', '.join(parts)}, {answer.timing.total_ms:.0f} ms]"
