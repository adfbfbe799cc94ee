"""llama.cpp's own server, ``/completion``: token ids in, raw log-probabilities of the whole vocabulary out.

The server scores no prompt; a draft is scored by having it write (``WritingScorer``). Shapes:
``tools/server/README.md`` and ``server-task.cpp`` of llama.cpp. Seen running: xllamacpp 2026.10.11549.

- *forced*: a grammar of token literals (``<[id]>``, ``grammars/README.md``) forces the draft; the rows are those of
  the unmodified model. After the grammar's last token only an end token may follow, and its row is the row after the
  draft. A grammar cannot name every token (``_nameable``): the rows of a draft end with the first it cannot name.
- *prefixes*: an array of prompts with one new token each.
- *generate*: the model writes on by itself.

Traps. With speculative decoding of its own the server reports probability 1 and no list for what its draft model
guessed: missing, not certain. Sampling defaults (top-k 40, min-p 0.05) are the server's, so every parameter is sent. A
stream ends without [DONE]; a grammar that names an end token fails with 500. A character of several tokens has the row
of its last one alone; a stream names that one alone, too, and the others are known by what they spell.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any

from hybrid.cloud.dialects.dialect import ContinuationRequest, DialectSpec, Json, Post, ScoreFlow, WritingScorer, drawn
from hybrid.cloud.dialects.reading import (
    NO_ROWS,
    OTHER_TOKENS,
    count,
    fields_of,
    guarded,
    id_list,
    known_rows,
    number,
    raise_error_in,
    read_tokens,
    row_of,
    usage_of,
)
from hybrid.cloud.dialects.text_tokens import TextVocabulary
from hybrid.cloud.port import Capabilities, Chunk, ScoreQuestion, Scores, WriteQuestion
from hybrid.errors import BadReply, MissingCapability
from hybrid.prob import TopK
from hybrid.types import NO_USAGE, CloudUsage, Ids, Message, Sampling

COMPLETION, PROPS = "/completion", "/props"
FINISH = {"eos": "stop", "word": "stop", "limit": "length"}


@dataclass(frozen=True)
class LlamaServer(WritingScorer):
    """The dialect of ``/completion``."""

    can: Capabilities = Capabilities(
        dialect="llama-server",
        scoring_method="forced",
        scoring_methods=("forced", "prefixes", "generate"),
        keeps_cache=True,
        tells_cache=True,
    )

    def check_usage(self, question: ScoreQuestion, reply: Any) -> CloudUsage:  # noqa: ARG002  (others need the question)
        """Return what is told of all prompts, and no fewer tokens than are shown."""
        parts = reply if isinstance(reply, list) else [reply]
        return sum((_shown(part) for part in parts if isinstance(part, Mapping)), NO_USAGE)

    def _write(self, question: WriteQuestion) -> ContinuationRequest | None:
        body = self._body(list(question.prefix), question) | {"stream": True}
        read = _LlamaServerEvents(question.top_k, self.setup.text_tokens)
        return ContinuationRequest(Post(COMPLETION, body, stream="to finish"), read)

    def post_completions(self, questions: Sequence[WriteQuestion]) -> Post:
        """Ask for several continuations; a single prompt stands alone, as the server then answers."""
        prompts = [list(question.prefix) for question in questions]
        return Post(COMPLETION, self._body(prompts[0] if len(prompts) == 1 else prompts, questions[0]))

    @guarded
    def read_completions(self, questions: Sequence[WriteQuestion], reply: Any) -> list[Chunk]:
        """Read them."""
        replies = sorted(reply, key=lambda part: part["index"]) if isinstance(reply, list) else [reply]
        if [part.get("index", 0) for part in replies] != list(range(len(questions))):
            msg = f"the endpoint did not give one continuation for each of {len(questions)} prompts"
            raise BadReply(msg)
        words = self.setup.text_tokens
        return [read_chunk(part, words, question.top_k) for part, question in zip(replies, questions, strict=True)]

    def _score_at_once(self, question: ScoreQuestion) -> ScoreFlow:
        """Force the draft by a grammar."""
        forced = tuple(takewhile(partial(_nameable, self.setup.text_tokens), question.span))
        num_rows = min(question.num_rows, len(forced) + 1)
        write = WriteQuestion(question.prefix, num_rows, question.top_k, Sampling())
        body = self._body(list(question.prefix), write) | {"samplers": []}
        if forced:
            body["grammar"] = "root ::= " + " ".join(f"<[{token}]>" for token in forced)
        chunk = read_chunk((yield Post(COMPLETION, body)), self.setup.text_tokens, question.top_k)
        if chunk.ids[: len(forced)] != forced:
            msg = "the endpoint did not write the draft it was held to"
            raise MissingCapability(msg)
        return Scores(known_rows(chunk.rows[:num_rows]), self.sum_usage([write], [chunk]))

    def _body(self, prompt: list[int] | list[list[int]], question: WriteQuestion) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.setup.model,
            "prompt": prompt,
            "n_predict": question.limit,
            "n_probs": question.top_k,
            "return_tokens": True,
            "cache_prompt": True,
            # As vLLM applies them; what is not listed (penalties, dry, xtc) is not applied.
            "samplers": ["temperature", "min_p", "top_k", "top_p"],
            **drawn(question.sampling, "temperature", "top_k", "top_p", "min_p", "seed"),
        }
        return body | ({"logit_bias": [[token, False] for token in sorted(question.ban)]} if question.ban else {})


def chat_route(_: str, turns: Sequence[Message]) -> Generator[tuple[str, Json], Any, Ids]:
    """Ask for a conversation's text by the server's template, then for its tokens, as the chat route makes them.

    A BOS token that the template writes is taken off there where the tokenizer adds one.
    """
    messages = [{"role": turn.role, "content": turn.content} for turn in turns]
    text = _prompt((yield "/apply-template", {"messages": messages}))
    return read_tokens((yield "/tokenize", {"content": text, "add_special": True, "parse_special": True}))


@guarded
def _prompt(reply: Json) -> str:
    if not isinstance(reply["prompt"], str):
        msg = "not a text"
        raise TypeError(msg)
    return reply["prompt"]


SPEC = DialectSpec(
    "llama-server",
    LlamaServer,
    (PROPS, None),
    "default_generation_settings",
    ("/tokenize", lambda _, text: {"content": text, "add_special": False, "parse_special": False}),
    chat_route,
)


@dataclass
class _LlamaServerEvents:
    """Reads the events of one stream. An end token waits for the next event, which says why it ended and what it cost.

    Whoever is given the end of the text has no reason to read on.
    """

    top_k: int
    words: TextVocabulary
    _held: Chunk | None = None
    _num_read: int = 0

    def __call__(self, reply: Any) -> Chunk:
        chunk, held = read_chunk(reply, self.words, self.top_k, self._num_read), self._held
        self._num_read += len(chunk.ids)
        if held is not None:
            chunk = replace(chunk, ids=held.ids + chunk.ids, rows=held.rows + chunk.rows, text=held.text + chunk.text)
        ended = chunk.finish is None and bool(chunk.ids) and chunk.ids[-1] in self.words.end_ids
        self._held = chunk if ended else None
        return Chunk() if ended else chunk


def _nameable(words: TextVocabulary, token: int) -> bool:
    """Whether a grammar's token literal lets a token through.

    Not one that ends the text; nor one whose bytes begin with zero or are no whole characters, which llama.cpp turns
    down before it looks at the literal, and then ends with an error for want of any token (``llama-grammar.cpp``).
    """
    text = words.text_of([token]) or "\0"
    return token not in words.end_ids and not text.startswith("\0")


@guarded
def read_chunk(reply: Json, words: TextVocabulary, top_k: int, num_read: int = 0) -> Chunk:
    """Read a reply, or one event of a stream: tokens with their rows; the last event says why it ended.

    ``num_read``: tokens of the stream before this event.
    """
    raise_error_in(reply)
    ids = id_list(reply.get("tokens") or [])
    told, begun = reply.get("tokens_predicted"), _begun(words, ids, reply)
    num_unnamed = told - num_read - len(ids) if isinstance(told, int) else 0
    if 0 < num_unnamed <= len(begun):
        ids = words.parts(begun, num_unnamed) + ids
    rows = _rows(ids, reply.get("completion_probabilities"), words, top_k) if top_k else (None,) * len(ids)
    if not reply["stop"]:
        return Chunk(ids, rows, reply["content"])
    ended = FINISH.get(reply.get("stop_type", ""))
    if ended is None:
        msg = f"the endpoint ended with stop_type {reply.get('stop_type')!r}"
        raise BadReply(msg)
    return Chunk(ids, rows, reply["content"], "stop" if ended == "stop" else "length", _usage(reply))


def _rows(ids: Ids, told: object, words: TextVocabulary, top_k: int) -> tuple[TopK | None, ...]:
    """Return the rows of some tokens; None of what only begins a character: its entry is of the token that ends it."""
    if not ids:
        return ()
    if not isinstance(told, list):
        raise MissingCapability(NO_ROWS)
    rows: list[TopK | None] = []
    for entry in told:
        end = next((end for end in range(len(rows), len(ids)) if _spells(words, ids[len(rows) : end + 1], entry)), None)
        if end is None:
            raise BadReply(OTHER_TOKENS)
        rows += [*[None] * (end - len(rows)), _row(ids[end], entry, top_k)]
    rest = ids[len(rows) :]
    if rest and words.text_of(rest) is not None:
        msg = f"the endpoint gave {len(told)} rows for {len(ids)} tokens"
        raise BadReply(msg)
    return (*rows, *[None] * len(rest))


def _begun(words: TextVocabulary, ids: Ids, reply: Json) -> bytes:
    """Return what a character has before the tokens that end it, at most three bytes; nothing where they are whole."""
    text, end = str(reply["content"]).encode(), words.bytes_of(ids)
    begun = text.removesuffix(end)
    return begun if ids and len(text) <= 4 and len(begun) < len(text) else b""


def _spells(words: TextVocabulary, ids: Ids, entry: Json) -> bool:
    """Whether an entry is that of some tokens: of one, or of those of one character; control tokens spell nothing."""
    spelled, told = words.bytes_of(ids), bytes(id_list(entry.get("bytes") or []))
    return bool(entry["id"] == ids[-1] and (len(told) <= len(spelled) if len(ids) == 1 else told == spelled))


def _row(token: int, entry: Json, top_k: int) -> TopK:
    if "top_probs" in entry:
        msg = "the endpoint gives probabilities after sampling; raw log-probabilities are needed"
        raise MissingCapability(msg)
    listed = {count(other["id"]): number(other["logprob"]) for other in entry["top_logprobs"]}
    return row_of(listed, token, number(entry["logprob"]), top_k, None)


def _shown(reply: Json) -> CloudUsage:
    written = reply.get("tokens")
    return _usage(reply).at_least(CloudUsage(0, len(written) if isinstance(written, list) else 0).known)


def _usage(reply: Json) -> CloudUsage:
    cached = fields_of(reply, "timings").get("cache_n")
    return usage_of(reply.get("tokens_evaluated"), reply.get("tokens_predicted"), cached)
