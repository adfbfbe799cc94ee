"""What a dialect is: pure functions from a question to HTTP bodies, and from the replies to an answer.

A dialect opens no connection. ``write`` returns one request and the function that reads each event of its reply;
``score`` is a generator that yields requests and is sent their replies. So a golden body and a recorded reply test a
dialect whole. It guesses nothing: the capabilities of an endpoint stand in one record (``can``), first as the documents
have them, then as a probe measured them (``cloud.probe_result``), then as answers have shown them (``learn_from_*``).

A new dialect is one file beside this one: a frozen dataclass under ``Dialect`` (or ``OpenAi``) with a default ``can``,
``_score``, ``_write`` and ``check_usage``, and a ``SPEC`` that ``cloud.discover`` lists. Steps: ``cloud/README.md``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any, Literal, Self, TypeAlias

from hybrid.cloud.dialects.reading import NO_ROWS, Written, fields_of, known_rows, read_event, read_usage
from hybrid.cloud.dialects.text_tokens import TextVocabulary
from hybrid.cloud.port import (
    Capabilities,
    Chunk,
    ModelQuestion,
    RowAlteration,
    ScoreQuestion,
    Scores,
    WriteQuestion,
    max_usage,
    min_usage,
    num_written,
)
from hybrid.cloud.relay_bounds import LimitName
from hybrid.errors import CloudError, MissingCapability
from hybrid.types import NO_USAGE, CloudUsage, Ids, Message, Sampling

Json: TypeAlias = Mapping[str, Any]

# Lists that are tried, the longest first, where a server that refuses one does not name the longest that it gives.
LENGTHS = (100, 20, 5, 1)
_NAMED = re.compile(r"max allowed: (\d+)")


@dataclass(frozen=True)
class Post:
    """One POST. ``shape`` names the fields that are wanted; the others stay unread.

    ``before``: the charge for the requests of this question that were answered before it.

    ``proof`` "gives": a reply proves that this server supports requests marked "needs", which end other servers. A
    "needs" request is sent only to the same server as the proof (``Wire.epoch``), a "gives" request only where the
    proof could be used; else the flow is sent None in place of a reply. Only vllm-tokens uses it.

    ``stream``: server-sent events that end with [DONE] ("to done"), or with the event that tells why the text ended
    ("to finish"), or JSON by the line; None: the whole reply is one event.
    """

    path: str
    body: Json
    shape: type | None = None
    stream: Literal["to done", "to finish", "lines"] | None = None
    before: CloudUsage = NO_USAGE
    proof: Literal["gives", "needs"] | None = None


ScoreFlow: TypeAlias = Generator[Post, Any, Scores]
"""Yields a request, is sent its reply (None: it must not leave, see ``Post.proof``), and so on; returns the rows."""

ReadEvent: TypeAlias = Callable[[Any], Chunk]
"""Reads one event of a reply; a whole reply is one event."""


@dataclass(frozen=True)
class ContinuationRequest:
    """The request for a continuation, and what reads each event of its reply."""

    post: Post
    read: ReadEvent


@dataclass(frozen=True)
class DialectConfig:
    """The model's name at the endpoint, the local vocabulary (None: not at hand), the salt of the prefix cache.

    ``limit_name``: how a chat route calls the limit that bounds an answer with its thoughts.
    """

    model: str = ""
    vocabulary: TextVocabulary | None = None
    salt: str | None = None
    limit_name: LimitName = "max_tokens"

    @property
    def text_tokens(self) -> TextVocabulary:
        """The local vocabulary. Raises ValueError where there is none: the caller's fault."""
        if self.vocabulary is None:
            msg = "this dialect speaks in text and needs the local vocabulary"
            raise ValueError(msg)
        return self.vocabulary


# What OpenAI-style servers take as "never": a token at this bias is not drawn.
BAN = -100.0


def biases(never: Iterable[int]) -> dict[str, float]:
    """Return what keeps an OpenAI-style server from drawing some tokens."""
    return {str(token): BAN for token in sorted(never)}


def drawn(sampling: Sampling, *fields: str) -> dict[str, Any]:
    """Return how a token is drawn, as most servers call it: some fields of a sampling, or all five."""
    return {name: getattr(sampling, name) for name in fields or ("temperature", "top_p", "top_k", "min_p", "seed")}


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
    """One server family's version of the wire.

    ``can`` of a class is what the documents say; of an object, what is known of its endpoint by now.
    """

    setup: DialectConfig
    can: Capabilities = Capabilities()

    @property
    def name(self) -> str:
        """What ``--dialect`` calls it."""
        return self.can.dialect

    def score(self, question: ScoreQuestion) -> ScoreFlow:
        """Yield the requests that score a draft; return its rows."""
        candidates = question.candidates if self.can.candidates else ()
        return self._score(replace(question, top_k=self._top_k(question), candidates=candidates))

    def write(self, question: WriteQuestion) -> ContinuationRequest | None:
        """Return the request that continues a text, and its reader; None: this text cannot be sent (no request)."""
        return self._write(replace(question, top_k=self._top_k(question)))

    @abstractmethod
    def _score(self, question: ScoreQuestion) -> ScoreFlow: ...

    @abstractmethod
    def _write(self, question: WriteQuestion) -> ContinuationRequest | None: ...

    @abstractmethod
    def check_usage(self, question: ScoreQuestion, reply: Any) -> CloudUsage:
        """Read the charge from one reply to a check: at least the tokens it shows. Must not raise: it may be broken."""

    def max_usage(self, question: ModelQuestion) -> CloudUsage:
        """Return the most that an answer may be charged: nothing cached, everything written. By text: see NOTES.md."""
        return max_usage(question)

    def min_usage(self, question: ModelQuestion) -> CloudUsage:
        """Return the least that an answer is charged: the tokens sent, and those that a check must write."""
        return min_usage(question)

    def learn_from_usage(self, question: ModelQuestion, usage: CloudUsage) -> Self:
        """Return the dialect with what the usage of an answer shows of its endpoint; itself if that is nothing new."""
        if usage.cached_tokens <= 0:
            return self
        keeps_cache = isinstance(question, ScoreQuestion) or self.can.keeps_cache
        can = replace(self.can, keeps_cache=keeps_cache, tells_cache=True)
        return self if can == self.can else replace(self, can=can)

    def learn_from_answer(self, question: WriteQuestion, told: CloudUsage, text: str) -> Self:  # noqa: ARG002
        """Return the dialect with what a whole answer shows: its usage as the server told it, and its text."""
        return self

    def learn_from_error(self, question: ModelQuestion, error: CloudError) -> Self:
        """Return the dialect with what an error shows of its endpoint; itself if that is nothing new.

        A request was sent before. ``error.sent`` False: it was not charged.
        """
        if isinstance(error, MissingCapability) and not error.sent:
            asked = self._top_k(question)
            named = _NAMED.search(str(error))
            fewer = int(named[1]) if named else next((k for k in LENGTHS if k < asked), 0)
            if 0 < fewer < asked:
                return replace(self, can=replace(self.can, most_k=fewer))
        return self

    def _top_k(self, question: ModelQuestion) -> int:
        """How many log-probabilities a question is asked for here: no more than the endpoint gives; 0: no rows."""
        if isinstance(question, WriteQuestion) and not self.can.rows:
            return 0
        vocabulary = self.setup.vocabulary
        # A list longer than the vocabulary ends SGLang's server.
        limits = (question.top_k, self.can.most_k, None if vocabulary is None else vocabulary.num_tokens)
        return min([k for k in limits if k is not None])


@dataclass(frozen=True)
class OpenAi(Dialect, ABC):
    """A dialect with OpenAI's bodies and usages, which proxies pass on."""

    def check_usage(self, question: ScoreQuestion, reply: Any) -> CloudUsage:  # noqa: ARG002  (others need the question)
        """Read the usage; at least the written tokens that are shown."""
        ids = fields_of(reply, "choices", 0).get("token_ids")
        return read_usage(reply).at_least(CloudUsage(0, len(ids) if isinstance(ids, list) else 0).known)

    def learn_from_error(self, question: ModelQuestion, error: CloudError) -> Self:
        """Learn too that streams lack rows or ids that whole answers may have, as through some proxies."""
        lacking = isinstance(error, MissingCapability) and error.sent and not error.charged.completion_tokens
        if lacking and isinstance(question, WriteQuestion) and self.can.streams:
            return replace(self, can=replace(self.can, streams=False))
        return super().learn_from_error(question, error)

    def _continuation(
        self, path: str, body: Json, read: Callable[[Json], Written], most: CloudUsage | None = None
    ) -> ContinuationRequest:
        """Return the request for a continuation, a stream with its usage or a whole answer: see ``read_event``."""
        post = Post(path, body)
        if self.can.streams:
            post = Post(path, {**body, "stream": True, "stream_options": {"include_usage": True}}, stream="to done")
        return ContinuationRequest(post, partial(read_event, read, most=most))


@dataclass(frozen=True)
class WritingScorer(Dialect, ABC):
    """A dialect that can score a draft by having the server write, of several prompts in one request if it takes that.

    - *prefixes*: it is sent the prefix and each longer one, and writes one token after each. Every row is exact, every
      prefix paid for.
    - *generate*: the model writes on, and its rows up to the first token that differs from the draft are taken: fewer
      rows than were asked for, at the price of one continuation.
    - At once, as each dialect has it: the draft is part of the prompt (*one request*), or the model is *forced* to
      write it, by a grammar: one prefix, one round trip.

    The law: the rows of each method are those of scoring in one request, for as many positions as it answers
    (``tests/cloud/test_scoring_methods.py``).
    """

    @abstractmethod
    def post_completions(self, questions: Sequence[WriteQuestion]) -> Post:
        """Return the request for the continuations of some prompts, all under the limit of the first."""

    @abstractmethod
    def read_completions(self, questions: Sequence[WriteQuestion], reply: Any) -> list[Chunk]:
        """Return one chunk per prompt, with its usage."""

    def _score_at_once(self, question: ScoreQuestion) -> ScoreFlow:  # noqa: ARG002
        """Score in a request of the dialect's own; where there is none, no such method is documented."""
        msg = f"{self.can.dialect} scores a draft by no request of its own"
        raise MissingCapability(msg)

    def _score(self, question: ScoreQuestion) -> ScoreFlow:
        method = self.can.scoring_method
        if method not in {"prefixes", "generate"}:
            return (yield from self._score_at_once(question))
        asked = self._asked(question)
        if not asked:
            return Scores((), NO_USAGE)
        chunks = self.read_completions(asked, (yield self.post_completions(asked)))
        told = [chunk.rows[0] if chunk.rows else None for chunk in chunks]
        if method == "generate":
            ids, shown, span = chunks[0].ids, chunks[0].rows[: question.num_rows], question.span
            told = [row if ids[:i] == span[:i] else None for i, row in enumerate(shown)]
        rows = known_rows(told)
        if not rows and any(chunk.ids for chunk in chunks) and not any(any(chunk.rows) for chunk in chunks):
            raise MissingCapability(NO_ROWS)
        return Scores(rows, self.sum_usage(asked, chunks))

    def _asked(self, question: ScoreQuestion) -> list[WriteQuestion]:
        """Return what is to be written for a draft; nothing from a text on that ends inside a character."""
        asked = [WriteQuestion(question.prefix, question.num_rows, question.top_k, Sampling())]
        if self.can.scoring_method == "prefixes":
            texts = [question.prefix + question.span[:i] for i in range(question.num_rows)]
            asked = [replace(asked[0], prefix=text, limit=1) for text in texts]
        sayable = takewhile(lambda each: self.setup.text_tokens.text_of(each.prefix) is not None, asked)
        return asked if self.can.ids else [*sayable]

    def sum_usage(self, asked: Sequence[WriteQuestion], chunks: Sequence[Chunk]) -> CloudUsage:
        """Add up the usages of continuations in one request: at least the tokens written. One may tell for all."""
        told, written, ends = NO_USAGE, 0, self.setup.text_tokens.end_ids
        for question, chunk in zip(asked, chunks, strict=True):
            told += chunk.usage or NO_USAGE
            written += num_written(chunk.ids, chunk.finish, ends, question.limit)
        return replace(told, requests=1).at_least(CloudUsage(0, written).known)

    def max_usage(self, question: ModelQuestion) -> CloudUsage:
        """Nothing cached, what is written runs to its limit, and a text is a token per byte."""
        return self._usage(question, len if self.can.ids else self.setup.text_tokens.max_tokens)

    def min_usage(self, question: ModelQuestion) -> CloudUsage:
        """Return the tokens that are sent, spelled or not, and one written after each prompt of a check."""
        if isinstance(question, ScoreQuestion) and self.can.scoring_method == "prefixes":
            asked = self._asked(question)
            return CloudUsage(sum(len(each.prefix) for each in asked), len(asked))
        return replace(self._usage(question, len), completion_tokens=int(isinstance(question, ScoreQuestion)))

    def _usage(self, question: ModelQuestion, tokens: Callable[[Ids], int]) -> CloudUsage:
        """Return what is read and the most that is written, where a text is so many ``tokens``."""
        prefix = question.prefix
        if isinstance(question, WriteQuestion):
            return CloudUsage(tokens(prefix), question.limit)
        rows = question.num_rows
        if self.can.scoring_method == "prefixes":
            return CloudUsage(sum(tokens(prefix + question.span[:i]) for i in range(rows)), rows)
        if self.can.scoring_method in {"forced", "generate"}:
            return CloudUsage(tokens(prefix), rows)
        return CloudUsage(tokens(prefix + question.span), 1)


TokenizeRoute: TypeAlias = tuple[str, Callable[[str, str], Json]]
"""A tokenizer's route, and a function from a model's name and a text to its body."""

ChatRoute: TypeAlias = Callable[[str, Sequence[Message]], Generator[tuple[str, Json], Any, Ids]]
"""The ids of a conversation as the server's own template writes it: yields routes and bodies, is sent the replies."""


@dataclass(frozen=True)
class DialectSpec:
    """How a dialect is detected and built. One stands in each dialect's file; ``cloud.discover`` has their order."""

    name: str
    """As ``--dialect`` names it."""
    build: Callable[[DialectConfig], Dialect]
    detect_route: tuple[str, Json | None] | None = None
    """A free route and its body (None: GET). None: it cannot be detected, the user must name the dialect."""
    detect_key: str = ""
    """A field of the free route's reply. Empty: a refusal of an empty body is the evidence that there is the route."""
    tokenize_route: TokenizeRoute | None = None
    chat_route: ChatRoute | None = None
    """How its own chat template is asked for, at no charge. None: it cannot be."""
    models_route: str = ""
    """A list of models of its own, where the server may lack OpenAI's."""
