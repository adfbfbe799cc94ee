"""Lines of questions, and what they ask: a text, plain or in JSON, or an object that says more.

    What is 47 + 86?
    "What is 47 + 86?"
    {"id": "sum", "prompt": "What is 47 + 86?", "max_tokens": 16}
    {"custom_id": "sum", "body": {"messages": [{"role": "user", "content": "What is 47 + 86?"}]}}

The last is a line of OpenAI's batch files; its ``method``, ``url`` and ``model`` are not looked at, because where a
batch is answered is said on the command line.

The law: whatever bytes a line is made of, it is a question or a UsageError of one sentence, and a line without an end
does not fill the memory (``tests/cli/test_questions.py``). What an answer is, or where it goes, is not known here.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import Any, BinaryIO

import msgspec

from hybrid.errors import UsageError, to_one_line
from hybrid.record.conversation import TextOrTurns, question_from
from hybrid.settings.config import names_for
from hybrid.settings.setting_info import SettingScope

# A context of a million tokens holds about half of it.
MOST_BYTES = 16 << 20
CHOICES = names_for(SettingScope.ANSWER) - names_for(SettingScope.TRACE)
# How a text or an object begins, or a list of such; or nothing but what stands between the values of JSON.
_LIKE_JSON = re.compile(r'["{]|\[\s*["{]|[\[\]{},:\s]*\Z')
_ENVELOPE = frozenset(("body", "method", "url"))


@dataclass(frozen=True)
class InputLine:
    """A line that is not blank, without the space around it; ``whole`` is False where it was too long to be kept."""

    number: int
    content: bytes
    whole: bool = True

    @property
    def digest(self) -> str:
        """What tells this line from any other: 16 hexadecimal digits."""
        return sha256(self.content).hexdigest()[:16]

    @property
    def seed(self) -> int:
        """A seed of its own, in 31 bits: the same whenever this line is answered, another for its twin elsewhere."""
        return int.from_bytes(sha256(f"{self.number} {self.digest}".encode()).digest()[:4], "big") >> 1


def lines(file: BinaryIO) -> Iterator[InputLine]:
    """Yield the lines that hold anything, one at a time, numbered from 1 as an editor numbers them."""
    for number in count(1):
        raw = rest = file.readline(MOST_BYTES)
        if not raw:
            return
        while len(rest) == MOST_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(MOST_BYTES)
        if content := raw.strip():
            yield InputLine(number, content, whole=rest is raw)


def object_of(line: InputLine) -> dict[str, Any]:
    """Read a line as JSON where it is any, or begins as some; any other is the prompt as it stands.

    Raises UsageError for broken JSON, and for JSON that is neither text nor object: a file of JSON is no file of lines.
    """
    if not line.whole:
        msg = f"the line is longer than {MOST_BYTES >> 20} MiB"
        raise UsageError(msg)
    try:
        text = line.content.removeprefix(codecs.BOM_UTF8).strip().decode()
    except UnicodeDecodeError:
        raise UsageError("the line is not UTF-8 text") from None
    try:
        value = msgspec.json.decode(text)
    except RecursionError:
        raise UsageError("the line is nested too deeply") from None
    except msgspec.DecodeError as error:
        if not _LIKE_JSON.match(text):
            return {"prompt": text}
        quoted = "; a plain question that begins so is written as a JSON text" * text.startswith(('"', "["))
        msg = f"the line cannot be read as JSON: {to_one_line(error)}{quoted}"
        raise UsageError(msg) from None
    if isinstance(value, str):
        return {"prompt": value}
    if not isinstance(value, dict):
        raise UsageError("the line is neither a text nor an object")
    return value


def id_of(fields: dict[str, Any]) -> str | int | None:
    """Return what the line calls itself, under ``id`` or ``custom_id``; None where it does not."""
    name = fields.get("id", fields.get("custom_id"))
    if name is not None and (isinstance(name, bool) or not isinstance(name, str | int)):
        raise UsageError("an id is a text or a whole number")
    return name


def question_of(fields: dict[str, Any]) -> tuple[TextOrTurns, dict[str, Any]]:
    """Return what is asked, and what this answer chooses for itself; null means not chosen."""
    chosen = {name: value for name, value in _unpacked(fields).items() if value is not None}
    prompt, messages = chosen.pop("prompt", None), chosen.pop("messages", None)
    if unknown := sorted(chosen.keys() - CHOICES):
        own = ", ".join(["id", "prompt", "messages", *sorted(CHOICES)])
        msg = f"a line has no field called {to_one_line(', '.join(unknown))}; it may have {own}"
        raise UsageError(msg)
    if (prompt is None) == (messages is None):
        raise UsageError("a line has either a prompt or messages")
    if messages is not None:
        if not isinstance(messages, list) or not messages:
            raise UsageError("messages are a list of at least one object")
        return question_from(messages), chosen
    if not isinstance(prompt, str):
        raise UsageError("the prompt is not a text")
    return prompt, chosen


def _unpacked(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a line's fields but its id, out of the envelope that OpenAI's batch files put them in."""
    plain = {name: value for name, value in fields.items() if name not in {"id", "custom_id"}}
    if "body" not in plain:
        return plain
    body = plain["body"]
    if not isinstance(body, dict) or plain.keys() - _ENVELOPE:
        raise UsageError("a line that has a body has its fields there, in an object")
    return {name: value for name, value in body.items() if name != "model"}
