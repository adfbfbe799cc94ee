"""What a dialect is: pure functions from a question to requests, and from their replies to an answer.

A dialect opens no connection: it is a generator that yields what is to be asked (``Post``) and is sent the replies, so
that a golden body and a recorded reply test it whole. Nor does it guess: what a server of its family can do stands in
one record (``can``), first as the documents have it, then as a probe has measured it (``cloud.probe_result``), then as
answers have shown it (``learned``).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias, TypeVar

from hybrid.cloud.dialects.reading import read_shown_usage
from hybrid.cloud.dialects.text_tokens import TextTokens
from hybrid.cloud.port import (
    Capabilities,
    Chunk,
    Question,
    RowAlteration,
    ScoreQuestion,
    Scores,
    WriteQuestion,
    max_usage,
    min_usage,
)
from hybrid.errors import CloudError, MissingCapability
from hybrid.types import NO_USAGE, CloudUsage

Q = TypeVar("Q", ScoreQuestion, WriteQuestion)
Json: TypeAlias = Mapping[str, Any]

# Lists that are tried, the longest first, where a server that refuses one does not name the longest that it gives.
LENGTHS = (100, 20, 5, 1)
_NAMED = re.compile(r"max allowed: (\d+)")


@dataclass(frozen=True)
class Post:
    """One POST. ``shape`` names the fields that are wanted and what to leave unread.

    ``before``: what was charged for the requests that were answered before it.

    ``proof``: an answer to one that gives it shows that this server can take those that need it. These leave only where
    it was given and the server must still be the same (``Wire.epoch``), and one that gives it only where it might be
    of use; else None is sent in the place of a reply.

    ``stream``: how events come: as server-sent ones that end with [DONE], or with the one that says why it ended, or as
    lines of JSON; None: the reply is one event.
    """

    path: str
    body: Json
    shape: type | None = None
    stream: Literal["to done", "to finish", "lines"] | None = None
    before: CloudUsage = NO_USAGE
    proof: Literal["gives", "needs"] | None = None


ScoreFlow: TypeAlias = Generator[Post, Any, Scores]
"""Yields a request, is sent its reply, and so on; returns the rows."""

ReadEvent: TypeAlias = Callable[[Any], Chunk]
"""Reads one event of a reply; a whole reply is one event."""


@dataclass(frozen=True)
class Continuation:
    """The request for a continuation, and what reads each event of its reply."""

    post: Post
    read: ReadEvent


@dataclass(frozen=True)
class DialectSetup:
    """What every dialect needs to know: the model's name there, the local vocabulary, the salt of the prefix cache."""

    model: str = ""
    vocabulary: TextTokens | None = None
    salt: str | None = None

    @property
    def text_tokens(self) -> TextTokens:
        """The local vocabulary. Raises ValueError where there is none, which is the caller's fault."""
        if self.vocabulary is None:
            msg = "this dialect speaks in text and needs the local vocabulary"
            raise ValueError(msg)
        return self.vocabulary


def tells_rows(can: Capabilities, question: WriteQuestion) -> bool:
    """Whether what is written comes with rows, and these are the model's own under this sampling and ban."""
    sampling, altering = question.sampling, set[RowAlteration]()
    if not sampling.greedy:
        altering |= {"temperature"} if sampling.temperature != 1.0 else set()
        altering |= {"cut"} if sampling.cut else set()
    altering |= {"ban"} if question.ban else set()
    return can.rows and not altering & can.rows_altered_by


@dataclass(frozen=True)
class Dialect(ABC):
    """One family's words. A family's ``can`` is what its documents say, until more is known of an endpoint."""

    setup: DialectSetup
    can: Capabilities = Capabilities()

    @property
    def name(self) -> str:
        """What ``--dialect`` calls it."""
        return self.can.dialect

    def score(self, question: ScoreQuestion) -> ScoreFlow:
        """Yield the requests that score a draft, and return its rows."""
        return self._score(self._fit(question))

    def write(self, question: WriteQuestion) -> Continuation | None:
        """Yield the request that continues a text, and what is read in each event of it."""
        return self._write(self._fit(question))

    @abstractmethod
    def _score(self, question: ScoreQuestion) -> ScoreFlow: ...

    @abstractmethod
    def _write(self, question: WriteQuestion) -> Continuation | None: ...

    @abstractmethod
    def check_usage(self, question: ScoreQuestion, reply: Any) -> CloudUsage:
        """Return what one reply to a check says it was charged, and shows that it wrote, whatever else stands there."""

    def max_usage(self, question: Question) -> CloudUsage:
        """Return the most that answering may be charged: for a request by ids, nothing cached and all written."""
        return max_usage(question)

    def min_usage(self, question: Question) -> CloudUsage:
        """Return the least that answering is charged: the tokens that are sent, and those that a check has written."""
        return min_usage(question)

    def learn(self, question: Question, told: CloudUsage | CloudError) -> Self:
        """Return the dialect as an answer has shown this endpoint to be; itself where that is nothing new.

        ``told``: what the answer said that it was charged, or why there was none, after something was asked. A refusal
        that was not sent, in the words of ``CloudError``, is free.
        """
        if isinstance(told, MissingCapability) and not told.sent:
            asked = self._top_k(question)
            named = _NAMED.search(str(told))
            fewer = int(named[1]) if named else next((k for k in LENGTHS if k < asked), 0)
            if 0 < fewer < asked:
                return replace(self, can=replace(self.can, most_k=fewer))
        read_cache = isinstance(told, CloudUsage) and isinstance(question, ScoreQuestion) and told.cached_tokens > 0
        if read_cache and not self.can.keeps_cache:
            return replace(self, can=replace(self.can, keeps_cache=True))
        return self

    def _fit(self, question: Q) -> Q:
        """Return a question that asks for no more than this endpoint gives; with ``top_k`` 0 for no rows at all."""
        top_k = self._top_k(question)
        if isinstance(question, WriteQuestion):
            return replace(question, top_k=top_k)
        return replace(question, top_k=top_k, candidates=question.candidates if self.can.candidates else ())

    def _top_k(self, question: Question) -> int:
        if isinstance(question, WriteQuestion) and not self.can.rows:
            return 0
        vocabulary = self.setup.vocabulary
        num_tokens = None if vocabulary is None else vocabulary.num_tokens  # more than there are end SGLang's server
        return min(k for k in (question.top_k, self.can.most_k, num_tokens) if k is not None)


@dataclass(frozen=True)
class OpenAi(Dialect, ABC):
    """What those dialects have in common whose bodies and usages are OpenAI's, and which proxies pass on."""

    def check_usage(self, question: ScoreQuestion, reply: Any) -> CloudUsage:  # noqa: ARG002  (others need the question)
        """Return what is told, and no fewer tokens than are shown."""
        return read_shown_usage(reply)

    def learn(self, question: Question, told: CloudUsage | CloudError) -> Self:
        """Learn too that a stream lacks what may come with a whole answer, as it does through some proxies."""
        lacking = isinstance(told, MissingCapability) and told.sent and not told.charged.completion_tokens
        if lacking and isinstance(question, WriteQuestion) and self.can.streams:
            return replace(self, can=replace(self.can, streams=False))
        return super().learn(question, told)

    def _continuation(self, path: str, body: Json) -> Post:
        """Return the request for a continuation: a stream that tells its usage, or a whole answer."""
        if not self.can.streams:
            return Post(path, body)
        return Post(path, {**body, "stream": True, "stream_options": {"include_usage": True}}, stream="to done")


TokenizeRoute: TypeAlias = tuple[str, Callable[[str, str], Json]]
"""A tokenizer's route, and what makes its question from a model's name and a text."""


@dataclass(frozen=True)
class DialectSpec:
    """How a family is made and known; each stands in its dialect's file, and ``cloud.discover`` has their order.

    ``knock`` is a route that answers for nothing, and with what it is asked (None: a GET); None where only the user can
    name the family. ``shows`` is what the answer then holds; "" where a refusal is the answer, since that of an empty
    question tells that there is such a route. ``split`` is its tokenizer. ``models`` is its own list of models, where
    it may lack OpenAI's.
    """

    name: str
    build: Callable[[DialectSetup], Dialect]
    detect_route: tuple[str, Json | None] | None = None
    detect_key: str = ""
    tokenize_route: TokenizeRoute | None = None
    models_route: str = ""
