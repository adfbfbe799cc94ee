"""Toy models on three tokens, a driver that answers a policy from them, and the enumeration of every coin."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import pytest

from hybrid.policy import CoinKey, DraftPosition, Policy, decode
from hybrid.policy.requests import (
    AnswerContinues,
    AnswerEnded,
    Check,
    Draft,
    Drafted,
    Emit,
    NoAnswer,
    PendingToken,
    Scored,
    Write,
    Wrote,
)
from hybrid.prob import Dense, FullRow, TopK, warp
from hybrid.types import Sampling

V, END = 3, 2


class Toy:
    """A random but fixed distribution after every prefix. What is made of it is kept: enumerations ask for it again."""

    def __init__(self, name: str, num_tokens: int = V) -> None:
        self.name, self.num_tokens, self.known = name, num_tokens, {}

    def row(self, prefix: tuple[int, ...]) -> Dense:
        seed = int.from_bytes(hashlib.sha256(f"{self.name}{prefix}".encode()).digest()[:8], "big")
        return Dense.from_logits(np.random.default_rng(seed).standard_normal(self.num_tokens) * 1.2)

    def _once(self, make: Callable, *key):
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]

    def __call__(self, prefix: tuple[int, ...]) -> Dense:
        return self._once(lambda: self.row(prefix), prefix)

    def law(self, prefix: tuple[int, ...], sampling: Sampling) -> Dense:
        """What it draws from."""
        return self._once(lambda: warp(self(prefix), sampling), prefix, sampling)

    def shown(self, prefix: tuple[int, ...], k: int, actual: int | None = None) -> TopK:
        """What an endpoint shows of it."""
        return self._once(lambda: TopK.from_dense(self(prefix), k, actual), prefix, k, actual)


class Mix(Toy):
    """A toy that is mostly another one, so that drafts are sometimes right."""

    def __init__(self, base: Toy, name: str, share: float) -> None:
        super().__init__(name, base.num_tokens)
        self.base, self.share = base, share

    def row(self, prefix: tuple[int, ...]) -> Dense:
        return Dense.from_probs((1 - self.share) * self.base(prefix).probs + self.share * super().row(prefix).probs)


class Made(Toy):
    """A toy whose rows a function makes."""

    def __init__(self, row: Callable[[tuple[int, ...]], Dense]) -> None:
        super().__init__("made", row(()).num_tokens)
        self.row = row


AT_ONE = Sampling(1.0)


def play(policy: Policy, small: Toy, large: Toy, coin, max_tokens: int, **how):
    """Answer a policy's requests; returns the shown tokens and the log of requests. ``how``: see ``Player``."""
    player = Player(small, large, coin, max_tokens, **how)
    loop, reply, log = decode(policy, player.toss, frozenset({player.end}), max_tokens), None, []
    while True:
        try:
            request = loop.send(reply)
        except StopIteration:
            return player.shown, log
        log.append(request)
        reply = player.answer(request)


@dataclass
class Player:
    """Both models and the user of a policy that is played.

    ``coin`` None decodes greedily (what is certain needs no coin), else both models draw under ``law``. ``fails(n)``
    tells whether the n-th cloud request fails. ``short``: answer at most so many rows of a check. ``told``: what the
    large model writes comes with its rows. A gate may say "drop", which no real driver knows: the token it has looked
    at is forgotten, and what is left is checked. ``mids``: the local models above the small one, for a policy's stages.
    ``keyed``: the coin is given what each toss is for, too.
    """

    small: Toy
    large: Toy
    coin: Callable | None
    max_tokens: int
    k: int = V
    fails: Callable[[int], bool] | None = None
    end: int = END
    short: int | None = None
    law: Sampling = AT_ONE
    told: bool = True
    mids: tuple[Toy, ...] = ()
    keyed: bool = False
    shown: list[PendingToken] = field(default_factory=list)
    asked: int = 0

    def toss(self, probs, key: CoinKey) -> int:
        assert self.coin or max(probs) == 1.0
        if self.coin is None:
            return int(np.argmax(probs))
        return self.coin(probs, key) if self.keyed else self.coin(probs)

    def answer(self, request):
        match request:
            case Draft():
                return self.draft(request)
            case Emit(tokens):
                return self.emit(tokens)
        if isinstance(request, Check) and request.level <= len(self.mids):
            return Scored(tuple(map(FullRow, self.rows_of(request, self.mids[request.level - 1]))))
        self.asked += 1
        if self.fails and self.fails(self.asked):
            return NoAnswer("cut")
        return self.check(request) if isinstance(request, Check) else self.write(request)

    def draw(self, model: Toy, at: tuple[int, ...], key: CoinKey | None = None) -> int:
        """Draw a token; without a key, as the cloud does: nobody here sees its coin."""
        if self.coin is None:
            return model(at).best
        probs = model.law(at, self.law).probs
        return self.toss(probs, key) if key else self.coin(probs)

    def draft(self, request: Draft) -> Drafted:
        at, gate, span, rows, call, looked = request.at, request.gate, [], [], None, None
        room = min(request.limit, self.max_tokens - len(at))
        while len(span) < room and call is None and not (span and span[-1].id == self.end):
            row, place = self.small(at), DraftPosition(len(at), rows)
            if (call := gate.before(row, place)) is not None:
                looked = row
                break
            token = self.draw(self.small, at, CoinKey(len(at), "draft", request.rejections))
            drawn_from = None if self.coin is None else self.small.law(at, self.law)
            span.append(PendingToken(token, "local", "unchecked", drawn_from=drawn_from, draft_row=row))
            at += (token,)
            call, rows = gate.after(row, token, place), [*rows, row]
        if call == "drop":
            span, call = span[:-1], "check"
        if looked is None and request.wants_next_row and not (span and span[-1].id == self.end):
            looked = self.small(at)
        ended = bool(span) and span[-1].id == self.end
        full = len(at) >= self.max_tokens
        return Drafted(tuple(span), call or gate.when_full, looked, ended, full)

    def rows_of(self, request: Check, model: Toy) -> list[Dense]:
        ids = tuple(pending.id for pending in request.span)
        return [model(request.at + ids[:i]) for i in range(len(ids) + request.wants_next_row)]

    def check(self, request: Check) -> Scored:
        ids = tuple(pending.id for pending in request.span)
        count = len(ids) + (request.wants_next_row and not (ids and ids[-1] == self.end))
        at = [(request.at + ids[:i], ids[i] if i < len(ids) else None) for i in range(count)]
        return Scored(tuple(self.large.shown(before, self.k, token) for before, token in at[: self.short]))

    def write(self, request: Write) -> Wrote:
        at, ban = request.at, request.ban
        token = self.draw(Made(lambda prefix: without(self.large(prefix), ban)) if ban else self.large, at)
        pending = PendingToken(
            token, "cloud", "written", draft_row=(self.small, *self.mids)[-1](at) if request.wants_draft_rows else None
        )
        row = self.large.shown(at, self.k) if self.told and request.wants_target_rows else None
        return Wrote((replace(pending, target_row=row),), ended=token == self.end)

    def emit(self, tokens) -> AnswerContinues | AnswerEnded:
        for pending in tokens:
            self.shown.append(pending)
            if pending.id == self.end:
                return AnswerEnded("stop")
            if len(self.shown) == self.max_tokens:
                return AnswerEnded("length")
        return AnswerContinues()


def without(row: Dense, ban: frozenset[int]) -> Dense:
    """What is left of a row when some tokens may not be drawn."""
    logits = row.logits.astype(float)
    logits[list(ban)] = -np.inf
    return Dense.from_logits(logits)


def greedy_text(model: Toy, max_tokens: int, end=END) -> tuple[int, ...]:
    """What a model writes by itself."""
    text: tuple[int, ...] = ()
    while len(text) < max_tokens and end not in text:
        text += (model(text).best,)
    return text


def law_of(answer: Callable, max_tokens: int) -> dict[tuple[int, ...], float]:
    """The exact distribution of an answer's text, by running it once for every sequence of coin results.

    A coin that is tossed again by a key that it was tossed by falls as it fell: as far as that is known, which is the
    interval where its uniform number lies. A toss without a key is a new coin.
    """
    found: dict[tuple[int, ...], float] = defaultdict(float)
    todo = [()]
    while todo:
        fixed, path, weight, known = todo.pop(), [], [1.0], {}

        def coin(probs, key=None, fixed=fixed, path=path, weight=weight, known=known) -> int:
            parts = split(probs, *known[key]) if key in known else list(map(float, probs))
            options = [i for i, p in enumerate(parts) if p > 0]
            if len(path) < len(fixed):
                index = fixed[len(path)]
            else:
                index = options[0]
                todo.extend((*path, other) for other in options[1:])
            path.append(index)
            weight[0] *= parts[index]
            if key is not None:
                known[key] = within(probs, index, *known.get(key, (0.0, 1.0)))
            return index

        shown, _ = answer(coin)
        found[tuple(pending.id for pending in shown)[:max_tokens]] += weight[0]
    return found


def within(probs, index: int, low: float, high: float) -> tuple[float, float]:
    """Where a uniform number lies that was in [low, high) and then gave an index."""
    ladder = np.cumsum(probs)
    ladder = np.concatenate([[0.0], ladder / ladder[-1]])
    return max(low, float(ladder[index])), min(high, float(ladder[index + 1]))


def split(probs, low: float, high: float) -> list[float]:
    """The chance of each index, where the uniform number is known to lie in [low, high)."""
    ends = [within(probs, index, low, high) for index in range(len(probs))]
    # What is left between two roundings of one number is no interval.
    return [max(0.0, last - first) / (high - low) if last - first > 1e-14 else 0.0 for first, last in ends]


def own_law(model: Toy, max_tokens: int, end=END) -> dict[tuple[int, ...], float]:
    """The distribution of a model's own samples."""
    law, todo = {}, [((), 1.0)]
    while todo:
        text, weight = todo.pop()
        if len(text) == max_tokens or end in text:
            law[text] = weight
        else:
            todo += [(((*text, i)), weight * float(p)) for i, p in enumerate(model(text).probs)]
    return law


def distance(first: dict, second: dict) -> float:
    return max(abs(first.get(t, 0.0) - second.get(t, 0.0)) for t in set(first) | set(second))


@pytest.fixture(scope="session")
def toys():
    """The helpers of this file, for tests that are no package."""

    class Toys:
        pass

    for name, value in {
        "Toy": Toy,
        "Mix": Mix,
        "Made": Made,
        "play": play,
        "Player": Player,
        "greedy_text": greedy_text,
        "law_of": law_of,
        "own_law": own_law,
        "distance": distance,
        "END": END,
        "V": V,
        "inf": math.inf,
    }.items():
        setattr(Toys, name, staticmethod(value) if callable(value) and not isinstance(value, type) else value)
    return Toys


SIZE, LENGTH, NUM_PAIRS = 5, 12, 8


@pytest.fixture(scope="session")
def pairs_of(toys):
    """Models on five tokens that part at many positions; their texts do not end early."""

    @lru_cache
    def made(share):
        smalls = [toys.Toy(f"small{i}", SIZE) for i in range(NUM_PAIRS)]
        return [(small, toys.Mix(small, f"large{i}", share)) for i, small in enumerate(smalls)]

    return made


@pytest.fixture
def both(pairs_of):
    return pairs_of(0.5)


@pytest.fixture
def written(toys):
    """What a policy shows of the greedy decoding of a pair."""

    def play(policy, pair, k=SIZE):
        return toys.play(policy, *pair, None, LENGTH, k=k, end=-1)[0]

    return play
