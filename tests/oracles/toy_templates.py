"""Chat servers small enough to enumerate: a template, a vocabulary and a normal form; each counts what it reads."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field


@dataclass
class ToyServer:
    """Counts prompts as a server with one template and one greedy vocabulary does.

    ``default_system``: tokens of its own system message, where a conversation brings none. ``turn_marks``: tokens
    around a turn. ``dates``: tokens of the date, one count a day. ``drops_thoughts``: thoughts of turns before the last
    question are not printed. ``tool_text``: tokens that a template writes where a tool's result stands. ``merges``:
    turns of one side that follow each other have the marks of one. ``wants_it_first``: its own system message stands
    unless a conversation begins with one that says something.
    """

    pieces: tuple[str, ...] = ()
    form: str | None = None
    default_system: int = 0
    turn_marks: int = 3
    dates: tuple[int, ...] = (0,)
    drops_thoughts: bool = False
    tool_text: int = 0
    begin: int = 1
    merges: bool = False
    wants_it_first: bool = False
    asked: int = field(default=0)

    def tokens(self, text):
        """Split a text greedily; what no piece begins is a token a byte."""
        text = unicodedata.normalize(self.form, text) if self.form else text
        found, at = 0, 0
        while at < len(text):
            size = max((len(piece) for piece in self.pieces if text.startswith(piece, at)), default=0)
            found += 1 if size else len(text[at].encode())
            at += size or 1
        return found

    def prompt(self, turns):
        """Return how many tokens a conversation is, today."""
        self.asked += 1
        last = max((at for at, (role, _) in enumerate(turns) if role == "user"), default=-1)
        total = self.begin + self.turn_marks + self.dates[self.asked % len(self.dates)]
        own = not any(role == "system" for role, _ in turns)
        if self.wants_it_first:
            own = turns[0][0] != "system" or not turns[0][1].strip()
        total += self.default_system if own else 0
        if any(role == "tool" for role, _ in turns):
            total += self.tool_text
        side = None
        for at, (role, text) in enumerate(turns):
            dropped = role == "assistant" and self.drops_thoughts and at < last
            before, side = side, "user" if role == "tool" else role
            total += 0 if self.merges and before == side else self.turn_marks
            total += self.tokens((text.rpartition("</think>")[2] if dropped else text).strip())
        return total
