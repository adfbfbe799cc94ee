"""The account of the cloud that counts: what each request is charged, and how it is to be answered.

Whole nano-USD, rounded up once a request. It must never import ``hybrid`` or ``server_stub``: it is what their ledgers
are compared with.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

from counted_model import Model, Token, write
from counted_shapes import CLAIMS, Charged, Wanted

# Modes that do more than claim something about usage.
DEEDS = [
    "honest", "end-untold", "end-told", "max-tokens-ignored-told", "max-tokens-ignored-untold", "usage-per-chunk",
    "usage-first", "usage-twice", "cut", "preamble", "refusal-in-stream", "failure-in-stream", "slow",
]  # fmt: skip
MODES = sorted({*DEEDS, *CLAIMS})
STATUSES = [400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 425, 429, 499, 500, 502, 503, 504]
# What may be answered after the work was done: a time-out, a conflict, a closed connection, a failure.
CHARGEABLE = {408, 409, 425, 499, *range(500, 600)}


@dataclass(frozen=True)
class Manner:
    """How requests are answered from now on. ``times``: for so many, then honestly again (None: for ever)."""

    mode: str = "honest"
    times: int | None = None
    run_ahead: int = 4  # tokens written after the client closed (a real vLLM wrote 4); -1: to the end
    overrun: int = 5  # tokens beyond max_tokens in the modes that ignore it
    preamble: int = 75  # tokens a chat service puts before the conversation
    charge_errors: bool = False
    delay_s: float = 30.0  # before the first byte, in mode "slow"
    token_s: float = 0.0  # a pause after each token of a stream
    tokens_per_event: int = 1
    retry_after: str | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES and not (self.mode.startswith("status=") and self.mode[7:].isdecimal()):
            msg = f"no mode {self.mode!r}; modes are status=NNN, {', '.join(MODES)}"
            raise ValueError(msg)

    @property
    def status(self) -> int | None:
        return int(self.mode[7:]) if self.mode.startswith("status=") else None


@dataclass
class Entry:
    """One request, as charged so far."""

    id: str
    serial: int
    route: str
    mode: str
    at: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    nanousd: int = 0
    charged: Fraction = Fraction(0)
    finished: bool = False
    closed_early: bool = False

    def told(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "charged"}


class Account:
    """What was charged. Each line of ``file`` is an increment of one request; the sum of all lines is the account.

    A line is written before the reply that it is about; the process may die at any moment.
    """

    def __init__(self, price: str, file: Path | None = None):
        prompt, cached, completion, *request = (Fraction(Decimal(part)) for part in price.split("/"))
        self._per = [1000 * prompt, 1000 * cached, 1000 * completion]  # USD a million tokens: 1,000 nano-USD a token
        self._per_request = 10**9 * request[0] if request else Fraction(0)
        self._lock, self.entries = threading.Lock(), list[Entry]()
        self._file = None if file is None else os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def open(self, request_id: str | None, route: str, mode: str) -> Entry:
        with self._lock:
            serial = len(self.entries) + 1
            entry = Entry(request_id or f"unnamed-{serial}", serial, route, mode, time.time())
            self.entries.append(entry)
        return entry

    def accept(self, entry: Entry, prompt: int, cached: int) -> None:
        """Charge a request and its prompt, of which ``cached`` tokens at their price."""
        self._add(entry, prompt, cached, 0, self._per_request)

    def wrote(self, entry: Entry, completion: int = 1) -> None:
        self._add(entry, 0, 0, completion, Fraction(0))

    def close(self, entry: Entry, *, early: bool) -> None:
        entry.closed_early = early
        entry.finished = True
        self._append(entry, 0, 0, 0, 0)

    def _add(self, entry: Entry, prompt: int, cached: int, completion: int, more: Fraction) -> None:
        with self._lock:
            entry.prompt_tokens += prompt
            entry.cached_tokens += cached
            entry.completion_tokens += completion
            counts = (prompt - cached, cached, completion)
            entry.charged += more + sum(price * count for price, count in zip(self._per, counts, strict=True))
            before, entry.nanousd = entry.nanousd, ceil(entry.charged)
        self._append(entry, prompt, cached, completion, entry.nanousd - before)

    def _append(self, entry: Entry, prompt: int, cached: int, completion: int, nanousd: int) -> None:
        if self._file is not None:
            line = {"serial": entry.serial, "id": entry.id, "prompt_tokens": prompt, "cached_tokens": cached}
            line |= {"completion_tokens": completion, "nanousd": nanousd, "finished": entry.finished}
            os.write(self._file, json.dumps(line).encode() + b"\n")

    def told(self) -> dict[str, Any]:
        with self._lock:
            requests = [entry.told() for entry in self.entries]
        return {"total_nanousd": sum(each["nanousd"] for each in requests), "requests": requests}

    def leave(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read_account(file: Path) -> dict[str, Any]:
    """The account that a cloud wrote to its file, in the shape of ``GET /account``, whatever became of the cloud."""
    requests: dict[int, dict[str, Any]] = {}
    for line in file.read_text().splitlines():
        said = json.loads(line)
        known = requests.setdefault(said["serial"], dict.fromkeys(said, 0) | {"id": said["id"]})
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "nanousd"):
            known[name] += said[name]
        known |= {"serial": said["serial"], "finished": bool(known["finished"] or said["finished"])}
        requests[said["serial"]] = known
    return {"total_nanousd": sum(each["nanousd"] for each in requests.values()), "requests": list(requests.values())}


class PrefixCache:
    """What was computed before, in whole blocks as vLLM keeps it; ``block`` 0 keeps nothing."""

    def __init__(self, block: int):
        self._block, self._known = block, set[tuple[str, tuple[int, ...]]]()

    def look_up(self, salt: str, ids: tuple[int, ...], *, read: bool) -> int:
        """The tokens of ``ids`` that need no computing; they are remembered from now on."""
        if not self._block:
            return 0
        cuts = range(self._block, len(ids) + 1, self._block)
        cached = 0
        for cut in cuts:
            if (salt, ids[:cut]) not in self._known or cut >= len(ids):  # the last token is always computed
                break
            cached = cut
        self._known.update((salt, ids[:cut]) for cut in cuts)
        return cached if read else 0


@dataclass
class Job:
    """A request that is being answered: what was charged of it, and whether anybody still listens."""

    account: Account
    entry: Entry
    wanted: Wanted
    manner: Manner
    preamble: int = 0
    hidden_end: bool = False

    def charged(self) -> Charged:
        entry = self.entry
        counts = (entry.prompt_tokens, entry.cached_tokens, entry.completion_tokens)
        return Charged(*counts, self.wanted.order.max_tokens, self.preamble, self.hidden_end)

    def tokens(self, model: Model) -> Iterator[Token]:
        """Write, charging each token as soon as it is computed."""
        order = self.wanted.order
        if self.manner.mode.startswith("max-tokens-ignored"):
            order = replace(order, max_tokens=order.max_tokens + self.manner.overrun)
        for token in write(model, order):
            self.account.wrote(self.entry)
            if self.manner.mode in {"end-untold", "end-told"} and token.id == model.end_id:
                self.hidden_end = True
            yield token

    def run_ahead(self, tokens: Iterator[Token]) -> None:
        """Nobody listens any more; it is written on for a while all the same, and charged."""
        left = self.manner.run_ahead
        while left != 0 and next(tokens, None) is not None:
            left -= 1
