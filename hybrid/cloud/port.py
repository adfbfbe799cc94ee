"""The cloud's port: a remote model scores a draft and continues a text; and the law of what that is charged.

Everything that comes through this port has been checked: rows are distributions, no more than were due, and missing
rows are missing. Failures are the exceptions of ``hybrid.errors``.

The law of a charge, field by field (``tests/cloud/test_metering.py``). The greater of what the server tells and what
the client knows by itself:

- *prompt*: never less than the tokens sent. Told as 0 or not at all: the most that the prompt can be.
  Where a chat tells a total without it, no more than that.
- *completion*: never less than the tokens that came, plus the one that ended them if it was not among them. Where what
  comes are no tokens of ours, as in a chat, never less than what must have come (``cloud.relay_bounds``).
- *cached*: never more than the prompt.

A charge says of its tokens which were told, which are known beyond that, and which are assumed (``CloudUsage``).

So a server that tells nothing, nonsense or too little is charged for what is known. A server that tells more is
believed; the ledger decides whether that is too much. A request that was refused with a status of ``REFUSED`` was not
computed and is free. The charge of any other failed request is unknown, and its reservation stands.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Protocol, TypeAlias

from hybrid.errors import CloudError, VocabularyMismatch
from hybrid.prob import TopK
from hybrid.types import NO_USAGE, Ability, CloudUsage, Ids, Message, Sampling, Vocabulary

ScoringMethod: TypeAlias = Literal["one request", "prefixes", "forced", "generate"]
"""How a draft is scored: in one request; by each of its prefixes with one new token; by forcing the model to write it;
by letting the model generate and comparing."""

RowAlteration: TypeAlias = Literal["temperature", "cut", "ban"]
"""What may alter the rows of written tokens: another temperature than 1, top-k, top-p or min-p, and tokens banned."""

# What decoded pieces hold where a token is only part of a character; such pieces say nothing.
PART = "\N{REPLACEMENT CHARACTER}"


class BeforeSend(Protocol):
    """Awaited before a request's first byte leaves, so that what may have left is on record; what it raises stops it.

    Every ``Cloud`` awaits it: a question that failed without it is settled as one of which nothing left.
    """

    async def __call__(self, num_bytes: int = 0) -> None:
        """Take that a request leaves now whose body has so many bytes."""
        ...


async def unrecorded(num_bytes: int = 0) -> None:
    """Let a request leave that nobody keeps a record of."""


@dataclass(frozen=True)
class Capabilities:
    """What an endpoint is and can do: as its documents say, then as a probe measured, then as answers have shown.

    ``ids``: tokens are numbers on the wire. ``continues``: it can continue a partial answer. ``rows``: it writes with
    log-probabilities; they are the model's own unless ``rows_altered_by`` applies. ``scoring_method``: how a draft is
    scored (None: not at all), one of ``scoring_methods``, the cheapest first. ``candidates``: a row can hold tokens
    that are asked for by id. ``most_k``: the longest top-k list. ``keeps_cache``: a check reads the prefix cache.
    ``tells_cache``: replies tell how many tokens were cached. ``same_words``: the vocabulary is the local model's.
    ``streams``: a stream tells all that a whole answer does.
    None means not known.
    """

    model: str = ""
    dialect: str = ""
    max_context: int | None = None
    same_words: bool | None = None
    ids: bool = True
    continues: bool = True
    rows: bool = True
    rows_altered_by: frozenset[RowAlteration] = frozenset()
    scoring_method: ScoringMethod | None = "one request"
    scoring_methods: tuple[ScoringMethod, ...] = ("one request",)
    candidates: bool = False
    most_k: int | None = None
    keeps_cache: bool | None = None
    tells_cache: bool | None = None
    streams: bool = True

    @property
    def counts_tokens(self) -> bool:
        """Whether the tokens that are read of it are those that it charges for.

        What takes messages may write in any vocabulary: its text is then split into tokens of ours, which are others.
        So is that of a model whose vocabulary is known to be another (``translated``).
        """
        return self.continues and self.same_words is not False

    @cached_property
    def abilities(self) -> frozenset[Ability]:
        """What can be asked of it. A text can be opened everywhere; a draft needs rows, and a way to have them."""
        able: dict[Ability, bool] = {
            "open": True,
            "write": self.continues,
            "ids": self.ids,
            "score": self.rows and self.scoring_method is not None,
        }
        return frozenset(ability for ability, can in able.items() if can)


@dataclass(frozen=True)
class ScoreQuestion:
    """Score ``span`` after ``prefix``; with ``after``, the row that follows it too. Needs a non-empty prefix.

    ``candidates`` are tokens whose own log-probability is wanted in each row, where the endpoint can tell it without
    losing the top-k list: one tuple per row, or none at all. The others are as in ``WriteQuestion``.
    """

    prefix: Ids
    span: Ids
    after: bool
    top_k: int
    candidates: tuple[Ids, ...] = ()
    asked_at: float | None = None
    begun: int = 0
    turns: tuple[Message, ...] = ()
    has_template_args: bool = False

    @property
    def num_rows(self) -> int:
        """Rows due."""
        return len(self.span) + int(self.after)


@dataclass(frozen=True)
class WriteQuestion:
    """Continue ``prefix`` by at most ``limit`` tokens, none of them in ``ban``.

    The last ``begun`` tokens of the prefix are the answer's; those before render ``turns``, the conversation as it was
    put, for endpoints that take no prompt but messages. ``asked_at`` is the time (``time.monotonic``) from which the
    question's total deadline counts: that of its first attempt; None: now. ``has_template_args``: the prefix was
    rendered with arguments of the user's, of which messages alone tell nothing.
    """

    prefix: Ids
    limit: int
    top_k: int
    sampling: Sampling
    ban: frozenset[int] = frozenset()
    begun: int = 0
    turns: tuple[Message, ...] = ()
    asked_at: float | None = None
    has_template_args: bool = False


ModelQuestion: TypeAlias = ScoreQuestion | WriteQuestion


@dataclass(frozen=True, eq=False)
class Scores:
    """One row per scored token, then the row after; perhaps fewer than were asked, never later ones without earlier.

    ``usage``: the charge. ``pieces`` are the endpoint's own texts of some ids.
    """

    rows: tuple[TopK, ...]
    usage: CloudUsage
    pieces: Mapping[int, str] = field(default_factory=dict)

    def check_pieces(self, words: Vocabulary) -> None:
        """Raise VocabularyMismatch where the endpoint's text of a token is another than the vocabulary's."""
        for token, theirs in self.pieces.items():
            if token >= words.num_tokens:
                continue  # nothing here is called by that number; whether it is likely is looked at elsewhere
            ours = words.piece(token).decode("utf-8", "replace")
            if theirs == ours or PART in theirs + ours:
                continue
            if without_spaces(theirs) != without_spaces(ours):
                what = f"token {token}"
                raise mismatch(what, theirs, ours)


def without_spaces(text: str) -> str:
    """Drop white space: servers strip, keep or clean up the spaces around a piece as they like."""
    return "".join(text.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").split())


def mismatch(what: str, theirs: str, ours: str) -> VocabularyMismatch:
    """Return the refusal that names both spellings."""
    msg = f"{what} is {theirs[-40:]!r} in the cloud and {ours[-40:]!r} here: the models do not share a vocabulary"
    return VocabularyMismatch(msg)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some tokens as they were written, each with its row (None: not told).

    ``finish`` comes once, towards the end. ``usage``: the charge so far. The last one is the whole charge; it comes
    with ``finish`` or after it, or at the end of a stream without one.
    """

    ids: Ids = ()
    rows: tuple[TopK | None, ...] = ()
    text: str = ""
    finish: Literal["stop", "length"] | None = None
    usage: CloudUsage | None = None


class Cloud(Protocol):
    """One remote model."""

    async def connect(self, probe: str, probe_ids: Ids, asked_at: float | None = None) -> Capabilities:
        """Ask, at no charge, what the endpoint is, and whether it splits ``probe`` into ``probe_ids``.

        ``asked_at`` is as in ``WriteQuestion``.

        Raises CloudRefusal for settings that will never work, CloudFailure for a bad day.
        """
        ...

    def max_usage(self, question: ModelQuestion) -> CloudUsage:
        """Return the most that answering may be charged."""
        ...

    async def score(self, question: ScoreQuestion, request_id: str, before_send: BeforeSend = unrecorded) -> Scores:
        """Score a draft in as few round trips as the endpoint allows.

        ``request_id`` names this attempt to the server; ``before_send`` is awaited before its first byte leaves.

        Raises CloudError, which says what was charged for certain all the same.
        """
        ...

    def write(
        self, question: WriteQuestion, request_id: str, before_send: BeforeSend = unrecorded
    ) -> AsyncGenerator[Chunk, None]:
        """Stream a continuation; closing the generator closes the request. Raises as ``score`` does."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


# ---- what a request is charged ---------------------------------------------------------------------------------------

# Statuses that say: not computed. After 408, 409, 425, 499 and every 5xx work may have been done and charged.
REFUSED = frozenset({*range(300, 400), 400, 401, 402, 403, 404, 405, 407, 413, 414, 415, 422, 429, 431})


def max_usage(question: ModelQuestion) -> CloudUsage:
    """Return the most that one request by ids is charged: nothing cached, everything written."""
    if isinstance(question, ScoreQuestion):
        return CloudUsage(len(question.prefix) + len(question.span), 1)
    return CloudUsage(len(question.prefix), question.limit)


def min_usage(question: ModelQuestion) -> CloudUsage:
    """Return the least that one request by ids is charged, once it is answered: the ids that were sent."""
    if isinstance(question, ScoreQuestion):
        return CloudUsage(len(question.prefix) + len(question.span), 1)
    return CloudUsage(len(question.prefix), 0)


def final_usage(told: CloudUsage, known: CloudUsage, most_prompt: int) -> CloudUsage:
    """Return what a request that was answered in full was charged; a told prompt of 0 is not told."""
    prompt = CloudUsage(0 if told.prompt_tokens else most_prompt, 0, requests=0)
    return told.at_least(prompt.assumed).at_least(known.known)


def usage_after_failure(error: CloudError, worst: CloudUsage) -> CloudUsage | None:
    """Return what a request that failed was charged; None: nobody knows, and it is within the worst case."""
    if not error.sent:
        return error.charged
    charged = worst.assumed.at_least(error.charged)
    return None if charged == worst else charged


def num_written(ids: Sequence[int], finish: str | None, end_ids: frozenset[int], limit: int) -> int:
    """Count what was written: the token that ended it counts where it is not among the ids.

    By that alone the limit is not exceeded: what ends a text takes one of the tokens that were asked for.
    """
    untold = finish == "stop" and bool(end_ids) and not (ids and ids[-1] in end_ids)
    return max(len(ids), min(len(ids) + untold, limit))


class UsageMeter:
    """What one request has been charged while its answer is read."""

    def __init__(
        self,
        least: CloudUsage,
        most: CloudUsage,
        end_ids: frozenset[int],
        *,
        counts_tokens: bool = True,
        floor: Callable[[int], int] = lambda _told: 0,
    ) -> None:
        """Take what it costs at the least and at the most, and the tokens that end a text.

        ``counts_tokens`` False: what comes is not what is charged for, so that only a told usage is known; where none
        is, the most that may be charged. ``floor`` then returns the fewest tokens that came, where so many are told.
        """
        self._floor = floor
        self._counts_tokens = counts_tokens
        self._known = replace(least, completion_tokens=0)
        self._most = most
        self._end_ids = end_ids
        self.told = NO_USAGE
        """What the server told, as it stands; a count of 0 was not told."""
        self._ids: list[int] = []
        self._settled: CloudUsage | None = None
        self._came = False
        self._wrote = False
        self._wrote_since = False

    @property
    def charged(self) -> CloudUsage:
        """What was charged, if the answer is over."""
        told = self.told
        if not self._counts_tokens and self._wrote and (self._wrote_since or not told.completion_tokens):
            # Nothing was told, or nonsense, or it was told before the end.
            told = told.at_least(CloudUsage(0, self._most.completion_tokens).assumed)
        return final_usage(told, self._least, self._most.prompt_tokens)

    @property
    def _least(self) -> CloudUsage:
        """What is known, and the tokens that came where those are not counted one by one."""
        if self._counts_tokens:
            return self._known
        limit = self._most.completion_tokens
        came = self._floor(self.told.completion_tokens or limit)
        return self._known.at_least(CloudUsage(0, min(came, limit)))

    def read(self, chunk: Chunk) -> Chunk:
        """Count what a chunk holds; if it tells a usage, return it with one that keeps the law."""
        self._came = True
        self._wrote = self._wrote or bool(chunk.ids)
        self._wrote_since = chunk.usage is None and (self._wrote_since or bool(chunk.ids))
        if self._counts_tokens:
            self._ids.extend(chunk.ids)
            written = num_written(self._ids, chunk.finish, self._end_ids, self._most.completion_tokens)
            self._known = self._known.at_least(CloudUsage(0, written))
        if chunk.usage is None:
            return chunk
        self.told = chunk.usage.at_least(self.told)
        self._settled = self.charged
        return replace(chunk, usage=self._settled)

    def remaining(self) -> Iterator[Chunk]:
        """Yield what was charged at the end of an answer that wrote something, unless the last usage told is that."""
        early = self._settled is not None and self._wrote_since
        if (self._least.completion_tokens or early) and self._settled != self.charged:
            yield Chunk(usage=self.charged)

    @contextmanager
    def charge_errors(self) -> Iterator[None]:
        """Have an error say what was charged for certain; what was answered in part was computed."""
        try:
            yield
        except CloudError as error:
            error.sent = error.sent or self._came
            if error.sent:
                error.charged = self.told.at_least(self._least.known)
            raise
