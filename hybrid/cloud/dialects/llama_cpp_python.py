"""llama-cpp-python's server, ``/v1/completions`` with echo: text in, rows by text out.

The server must be started with ``--logits_all true``. Shapes: ``llama_cpp/server/types.py`` and
``Llama._create_completion``. Seen running: 0.3.36. Traps, each with a guard below and a test:

- *Off by one without BOS*: the rows of an echoed prompt are those after each token, listed as if they were before it
  (issue 1983). The number of listed tokens tells which it is: an end token is forbidden, so one token is always
  generated, and a shifted list has no row for it.
- *Keys are texts*: tokens of one text collapse; control tokens and parts of characters are all the empty text. If a row
  hides its most likely token, the server is asked whether the model ends here. If it does not, the row is missing.
- *Its temperature comes last*, after top-k, top-p and min-p; here it comes first. Before it a min-p of its power cuts
  alike. A top-p beside a temperature or a min-p would be another law, so nothing is written by one.
- A streamed row loses characters that are split over tokens, so nothing is streamed. ``max_tokens`` 0 means no limit.
  Repetition is penalised and min-p cuts by default, so every parameter is sent.
- It answers 400 without a word unless ``x-request-id`` is a UUID.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hybrid.cloud.dialects.dialect import ContinuationRequest, DialectSpec, OpenAi, Post, ScoreFlow, biases, drawn
from hybrid.cloud.dialects.reading import choice_of, guarded, read_usage
from hybrid.cloud.dialects.text_tokens import TextVocabulary, read_written, row_by_text
from hybrid.cloud.port import Capabilities, ModelQuestion, ScoreQuestion, Scores, WriteQuestion, final_usage
from hybrid.errors import BadReply, MissingCapability
from hybrid.prob import TopK
from hybrid.types import NO_USAGE, CloudUsage, Ids, Sampling

COMPLETIONS, TOKENIZE = "/v1/completions", "/extras/tokenize"
# How often a check may ask what a row hides: the end of a text is the one place where it matters, and comes once.
AGAIN = 2
# Two sums of the same numbers differ by less.
ROUNDING = 1e-9


@dataclass(frozen=True)
class LlamaCppPython(OpenAi):
    """The dialect of ``python -m llama_cpp.server``."""

    can: Capabilities = Capabilities(dialect="llama-cpp-python", ids=False, keeps_cache=True, streams=False)

    def _score(self, question: ScoreQuestion) -> ScoreFlow:
        """Echo the text and read the rows of the draft; ask once more where a row hides its most likely token."""
        words = self.setup.text_tokens
        span = _sayable(words, question)
        text = None if span is None else self._text(question.prefix + span)
        if span is None or text is None:
            return Scores((), NO_USAGE)  # the prefix ends inside a character: nothing can be asked about it
        reply = yield self._ask(text, question.top_k, echo=True, logit_bias=biases(words.end_ids))
        usage = self._charged(reply, question.prefix + span)
        rows: list[TopK] = []
        asked = 0
        for i, (row, hidden) in enumerate(_echoed(words, question, span, reply)):
            if row is not None and hidden <= float(row.probs[0]):
                rows.append(row)
                continue
            text = self._text(question.prefix + span[:i])
            if asked == AGAIN or text is None:
                break
            asked += 1
            reply = yield replace(self._ask(text, question.top_k), before=usage)
            usage += self._charged(reply, question.prefix + span[:i])
            if choice_of(reply).get("finish_reason") != "stop":
                break  # something else than the end, that has no text of its own
            rows.append(_ending(row, _end(words, question.prefix + span[: i + 1]), hidden))
        return Scores(tuple(rows), usage)

    def max_usage(self, question: ModelQuestion) -> CloudUsage:
        """One token per byte; a check may ask again."""
        most = self.setup.text_tokens.max_tokens
        if isinstance(question, WriteQuestion):
            return CloudUsage(most(question.prefix), question.limit)
        times = 1 + AGAIN
        return CloudUsage(times * most(question.prefix + question.span), times, requests=times)

    def min_usage(self, question: ModelQuestion) -> CloudUsage:
        """Return the tokens that are sent, spelled; a span may end inside a character, which is not."""
        return CloudUsage(len(question.prefix), 1 if isinstance(question, ScoreQuestion) else 0)

    def _charged(self, reply: Any, sent: Ids) -> CloudUsage:
        """Return what one request of a check was charged: one token is always written."""
        most = self.setup.text_tokens.max_tokens(sent)
        return final_usage(read_usage(reply), CloudUsage(len(sent), 1), most)

    def _write(self, question: WriteQuestion) -> ContinuationRequest | None:
        text = self._text(question.prefix)
        if text is None:
            return None
        body = self._body(text, question.limit, question.top_k, question.sampling)
        if question.ban:
            body["logit_bias"] = biases(question.ban)
        read = partial(read_written, self.setup.text_tokens, top_k=question.top_k)
        return ContinuationRequest(Post(COMPLETIONS, body), read)

    def _text(self, ids: Ids) -> str | None:
        """Return what to send: the server puts the opening token before it by itself."""
        opening = self.setup.text_tokens.opening
        return self.setup.text_tokens.text_of(ids[len(opening) :] if ids[: len(opening)] == opening else ids)

    def _ask(self, text: str, top_k: int, **more: object) -> Post:
        return Post(COMPLETIONS, self._body(text, 1, top_k, Sampling()) | more)

    def _body(self, text: str, max_tokens: int, top_k: int, sampling: Sampling) -> dict[str, Any]:
        temperature = 1.0 if sampling.greedy else sampling.temperature
        if sampling.top_p < 1.0 and not sampling.greedy and (temperature != 1.0 or sampling.min_p):
            msg = "this endpoint cuts by --top-p before --temperature and --min-p: leave it out, or leave those out"
            raise MissingCapability(msg)
        body = {"model": self.setup.model, "prompt": text, "max_tokens": max_tokens}
        body |= {"logprobs": top_k} if top_k else {}
        body |= drawn(sampling, "temperature", "top_k", "top_p", "min_p", "seed") | {
            "min_p": sampling.min_p**temperature
        }
        return body | {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


SPEC = DialectSpec(
    "llama-cpp-python",
    LlamaCppPython,
    (TOKENIZE, {"input": "a"}),
    "tokens",
    (TOKENIZE, lambda model, text: {"model": model, "input": text}),
)


def _sayable(words: TextVocabulary, question: ScoreQuestion) -> Ids | None:
    """Return as much of the span as ends with a whole character; None where not even the prefix does."""
    for length in range(len(question.span), -1, -1):
        if words.text_of(question.prefix + question.span[:length]) is not None:
            return question.span[:length]
    return None


@guarded
def _echoed(words: TextVocabulary, question: ScoreQuestion, span: Ids, reply: Any) -> list[tuple[TopK | None, float]]:
    """Return the rows that are due, each with what it hides; none where the server splits the text in another way.

    They are counted from the end, where the last row is the one after the text whether the list is shifted or not.
    """
    logprobs = choice_of(reply).get("logprobs")
    if not isinstance(logprobs, dict):
        msg = "the endpoint answered without rows: start it with --logits_all true"
        raise MissingCapability(msg)
    tokens, tops = logprobs["tokens"], logprobs["top_logprobs"]
    if len(tokens) != len(tops):
        msg = f"the endpoint gave {len(tops)} rows for {len(tokens)} tokens"
        raise BadReply(msg)
    prompt = len(question.prefix) + len(span)
    opening = question.prefix[: len(words.opening)] == words.opening
    listed = prompt - len(words.opening) * opening
    generated = len(tokens) - listed  # 0: shifted, and the generated token is not listed; 1: it is
    if read_usage(reply).prompt_tokens != prompt or generated not in {0, 1}:
        return []
    echoed = tokens[len(tokens) - generated - len(span) : len(tokens) - generated]
    pairs = zip(echoed, span, strict=True)
    if any(theirs and theirs != words.bytes_of([ours]).decode("utf-8", "ignore") for theirs, ours in pairs):
        return []
    first = len(tops) - len(span) - 1
    due = min(question.num_rows, len(span) + 1)
    return [row_by_text(words, tops[first + i], tokens[first + i], question.top_k) for i in range(due)]


def _end(words: TextVocabulary, text: Ids) -> int:
    """Return which end token is meant: the one that was drafted, or else the one that ends the turns so far."""
    return next((token for token in reversed(text) if token in words.end_ids), min(words.end_ids))


def _ending(row: TopK | None, end: int, hidden: float) -> TopK:
    """Give the hidden mass to the end of the text, which the server says is the most likely token."""
    if row is None:
        return TopK.from_lists({end: math.log(hidden)})
    shown = list(zip(row.ids.tolist(), row.logprobs.tolist(), strict=True))
    top, named = dict(shown[: row.num_listed]), dict(shown[row.num_listed :])
    # A whole list hides one token. Of what a shorter one hides, all but the end is less likely: half of it at most.
    others = hidden / 2 if hidden > row.tail - ROUNDING else 0.0
    return TopK.from_lists(top | {end: math.log(hidden)}, named=named, hidden=others)
