"""An answer on a terminal: tokens coloured by who wrote them, and one line of what it took. Plain text elsewhere."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.text import Text

from hybrid.errors import escape_controls
from hybrid.record.answer import Answer, Token
from hybrid.record.events import (
    CloudRecovered,
    Degraded,
    Event,
    Finished,
    Flushed,
    NoteAdded,
    TokenEmitted,
    thoughts_of,
)
from hybrid.report import provenance
from hybrid.report.terminal import STYLES
from hybrid.spend.price import as_usd

# By which local model, in the order in which they first wrote: the colour tells who checked.
MARKS = ("", "underline", "italic", "underline italic")


class LocalMarks:
    """Marks for several local models: the first that writes has none."""

    def __init__(self) -> None:
        """Begin before any has written."""
        self.of: dict[str | None, str] = {}
        """The mark of each that has written."""

    def style(self, provenance: str, model: str | None) -> str:
        """Return how a token looks: its key of ``STYLES``, and who wrote it."""
        if provenance == "cloud":
            return STYLES[provenance]
        mark = self.of.setdefault(model, MARKS[len(self.of) % len(MARKS)])
        return f"{STYLES[provenance]} {mark}".strip()

    def mark(self, said: Text) -> Text:
        """Mark the names of several models where they are spoken of."""
        for name, mark in self.of.items():
            if name and mark:
                said.highlight_words([name], mark)
        return said


class Screen:
    """Shows tokens as they come. Where nobody looks, standard output gets the text and nothing else, as it is."""

    def __init__(self, *, thoughts: bool = False) -> None:
        """Colours only on a terminal. ``thoughts``: what the model thinks is shown too, dim, on standard error."""
        self._out = Console(highlight=False, soft_wrap=True)
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)
        self._shown = False
        self._thoughts = thoughts
        self._thinking = False
        self._marks = LocalMarks()

    def show(self, event: Event) -> None:
        """Show what a user wants to see of an event."""
        self._thought(thoughts_of(event))
        match event:
            case TokenEmitted(_, token):
                self._token(token)
            case Flushed(text) if text:
                self._text(text)
            case Degraded(why, kind):
                self._note(why if kind == "paced" else f"the local model goes on alone: {why}")
            case NoteAdded(why):
                self._note(why)
            case CloudRecovered():
                self._note("the cloud answers again")
            case Finished(answer):
                self._end_thought()
                self._shown = False
                print(flush=True)  # noqa: T201  (the answer's last line)
                if self._out.is_terminal:
                    self._err.print(self._marks.mark(Text(summary(answer), "dim")))
            case _:
                pass

    def close(self) -> None:
        """End the line of an answer that was cut off: what a terminal shows next is no part of it."""
        self._end_thought()
        if self._shown and self._out.is_terminal:
            print(flush=True)  # noqa: T201  (the answer's last line)
        self._shown = False

    def _thought(self, text: str) -> None:
        if text and self._thoughts:
            self._err.print(Text(escape_controls(text), "dim italic"), end="")
            self._thinking = True

    def _end_thought(self) -> None:
        if self._thinking:
            self._err.print()
            self._thinking = False

    def _note(self, text: str) -> None:
        self._end_thought()
        if self._shown and self._out.is_terminal:
            self._err.print()  # not in the middle of the answer's line
        self._err.print(Text(f"hybrid: {escape_controls(text)}", "yellow"))

    def _token(self, token: Token) -> None:
        if not token.text:
            return
        self._end_thought()
        self._shown = True
        if self._out.is_terminal:
            style = self._marks.style(provenance(token.source, token.how), token.model)
            self._out.print(Text(escape_controls(token.text), style), end="")
        else:
            self._text(token.text)

    def _text(self, text: str) -> None:
        # Not through rich: a reader that leaves is ours to notice, and rich would end the process from inside.
        sys.stdout.write(escape_controls(text) if self._out.is_terminal else text)
        sys.stdout.flush()


def tell_assumed(nanousd: int, cloud: str | None) -> None:
    """Say on standard error what is booked at most for requests that broke off or were left; nothing for none.

    ``cloud``: the endpoint; None: the bundled server, which no ledger knows.
    """
    if nanousd:
        most = as_usd(nanousd)
        said = f"{most} is booked for requests that broke off or were left, the most that they can cost"
        corrected = "hybrid budget log lists them; hybrid budget reconcile ID --charged USD corrects one"
        typer.echo(f"hybrid: {said}" + (f" ({corrected})" if cloud is not None else ""), err=True)


def summary(answer: Answer) -> str:
    """Return one line: who wrote how much, what was asked, what it cost."""
    usage, total = answer.usage, max(1, len(answer.tokens))
    parts = [
        f"{len(answer.tokens)} tokens",
        f"{100 * usage.cloud_tokens / total:.0f} % by the cloud",
        f"{usage.cloud_requests} request{'' if usage.cloud_requests == 1 else 's'}",
    ]
    if len(usage.written_by) > 1 + (usage.cloud_tokens > 0):  # several local models wrote
        parts.insert(1, "by " + ", ".join(f"{name} {num}" for name, num in usage.written_by.items()))
    if usage.thought_tokens:
        parts.insert(1, f"{usage.thought_tokens} of them thoughts")
    if usage.wording:
        parts.append(f"{usage.wording} token{'' if usage.wording == 1 else 's'} kept as another wording")
    parts.append(str(answer.bill))
    if assumed := usage.cloud_assumed_prompt_tokens + usage.cloud_assumed_completion_tokens:
        parts.append(f"{assumed} of the tokens billed are assumed, since no usage told them")
    if answer.finish_reason == "length":
        parts.append("cut off at its limit")
    parts.append(f"seed {answer.seed}")
    return f"[{', '.join(parts)}, {answer.timing.total_ms:.0f} ms]"
