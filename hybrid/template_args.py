"""What a chat template is given by name, however it was written: a table, JSON, or NAME=VALUE.

The law (``tests/test_config.py``): the three ways say the same, and whatever is said is names with JSON's scalars, or a
sentence. Which names a template reads is the engine's business (``engine.template``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from hybrid.types import TemplateArg

_WRONG = "names that the chat template reads, each with a text, a number, true, false or null"


def arguments_of(given: object) -> dict[str, TemplateArg]:
    """Return the arguments by their names. Raises ValueError with one sentence.

    >>> arguments_of(["enable_thinking=false", "reasoning_effort=low"])
    {'enable_thinking': False, 'reasoning_effort': 'low'}
    """
    if isinstance(given, str):
        given = _read(given)
    if isinstance(given, list | tuple):
        given = dict(map(_pair, given))
    if not isinstance(given, Mapping):
        raise ValueError(_WRONG)  # noqa: TRY004  (pydantic tells ValueErrors)
    for name, value in given.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(_WRONG)
        if not (value is None or isinstance(value, str | int | float)) or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            msg = f"{name} is not a text, a number, true, false or null"
            raise ValueError(msg)
    return dict(given)


def _read(text: str) -> object:
    """Read what a variable holds: a JSON object, or one NAME=VALUE."""
    if not text.lstrip().startswith("{"):
        return [text]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        msg = 'an object in JSON like {"enable_thinking": false}'
        raise ValueError(msg) from None


def _pair(written: object) -> tuple[str, object]:
    """Read NAME=VALUE: a value that is JSON is what it says, any other is a text."""
    if not isinstance(written, str) or "=" not in written:
        msg = "NAME=VALUE, like enable_thinking=false"
        raise ValueError(msg)
    name, _, value = written.partition("=")
    try:
        return name.strip(), json.loads(value)
    except (ValueError, RecursionError):
        return name.strip(), value
