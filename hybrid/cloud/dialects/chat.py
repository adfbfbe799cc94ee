"""OpenAI's ``/v1/chat/completions``: whole answers to whole conversations, nothing else.

Shapes: openai/openai-openapi (CreateChatCompletionRequest, ...StreamResponse). Seen running: vLLM 0.32's copy, and a
LiteLLM proxy; no server of OpenAI's. The route takes no prompt and continues no partial answer: it opens a text and
does nothing after that. Traps:

- The log-probability -9999 stands for "not in the list".
- The reason of the end comes in an event of its own.
- Reasoning models give no log-probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from hybrid.cloud.dialects.dialect import ContinuationRequest, DialectSpec, Json, OpenAi, ScoreFlow
from hybrid.cloud.dialects.reading import NO_ROWS, event_of, finish_of, guarded
from hybrid.cloud.dialects.text_tokens import TextVocabulary, only_documented, read_content, split_text
from hybrid.cloud.normal_forms import max_bytes
from hybrid.cloud.port import Capabilities, Chunk, ModelQuestion, ScoreQuestion, WriteQuestion
from hybrid.errors import MissingCapability
from hybrid.types import CloudUsage

CHAT = "/v1/chat/completions"
# As the local model's template has it: many servers' templates drop a role that they do not know.
ROLES = {"developer": "system"}
# A turn is more than its text: names of roles and marks around them, in any template a few tokens.
TURN = 16
# What a server may put before a conversation, whose length nothing tells beforehand. The longest default system message
# of a published template that was looked at (Ministral 3) has 2,400 characters, gpt-oss's 220. At three characters a
# token, which is few for English, that is 800; rounded up.
PREAMBLE = 1024


@dataclass(frozen=True)
class Chat(OpenAi):
    """The dialect of the chat route. ``preamble``: the most tokens that a server may add to a conversation."""

    can: Capabilities = Capabilities(
        dialect="openai-chat", ids=False, continues=False, scoring_method=None, scoring_methods=(), most_k=20
    )
    preamble: int = PREAMBLE

    def _score(self, question: ScoreQuestion) -> ScoreFlow:
        """Refuse: no draft can be put to it."""
        yield from ()
        msg = f"a chat endpoint cannot score a draft of {len(question.span)} tokens"
        raise MissingCapability(msg)

    def max_usage(self, question: ModelQuestion) -> CloudUsage:
        """One token per byte of the conversation, a few for each turn, and what the server puts before it."""
        turns = question.turns if isinstance(question, WriteQuestion) else ()
        prompt = max_bytes("".join(turn.content for turn in turns)) + TURN * (len(turns) + 1) + self.preamble
        return CloudUsage(prompt, question.limit if isinstance(question, WriteQuestion) else 1)

    def min_usage(self, question: ModelQuestion) -> CloudUsage:  # noqa: ARG002  (others know the question's tokens)
        """Return nothing: its vocabulary may be any, so that only it knows how many tokens a text has."""
        return CloudUsage(0, 0)

    def learn_from_usage(self, question: ModelQuestion, usage: CloudUsage) -> Self:
        """Learn too the most tokens that the server adds to a conversation: they are reserved from then on.

        A smaller number lowers nothing: a template may add its default system message where a conversation brings none.
        Half as many tokens as ours are taken for the texts, which is few for any other vocabulary.
        """
        turns = question.turns if isinstance(question, WriteQuestion) else ()
        spelled = sum(len(self.setup.text_tokens.split(turn.content) or ()) for turn in turns)
        more = usage.prompt_tokens - spelled // 2
        return replace(self, preamble=max(self.preamble, more))

    def _write(self, question: WriteQuestion) -> ContinuationRequest | None:
        """Ask for the whole answer; nothing once it has begun."""
        if question.begun or not question.turns:
            return None
        only_documented(question, "top_k", "min_p")
        if question.has_template_args:
            raise MissingCapability("this endpoint takes messages, and documents no arguments for its chat template")
        if question.turns[-1].role == "assistant":
            raise MissingCapability("this endpoint takes messages, and begins a new turn after an open one")
        body: dict[str, Any] = {
            "model": self.setup.model,
            "messages": [{"role": ROLES.get(turn.role, turn.role), "content": turn.content} for turn in question.turns],
            "max_tokens": question.limit,
            "temperature": question.sampling.temperature,
            "top_p": question.sampling.top_p,
            "seed": question.sampling.seed,
        }
        if question.top_k:
            body |= {"logprobs": True, "top_logprobs": question.top_k}
        read = partial(read_event, self.setup.text_tokens, top_k=question.top_k)
        return ContinuationRequest(self._continuation(CHAT, body), read)


SPEC = DialectSpec("openai-chat", Chat, (CHAT, {}))
# The same route without log-probabilities: only a reply shows the difference.
TEXT_SPEC = DialectSpec("text-chat", partial(Chat, can=replace(Chat.can, dialect="text-chat", rows=False)))


@guarded
def read_event(words: TextVocabulary, reply: Json, top_k: int) -> Chunk:
    """Read one event of a stream, or a whole answer: its text as local tokens, with rows where the list names them."""
    choice, usage = event_of(reply)
    if choice is None:
        return Chunk(usage=usage)
    text = str((choice.get("delta") or choice.get("message") or {}).get("content") or "")
    logprobs = choice.get("logprobs")
    if text and top_k and logprobs is None:
        raise MissingCapability(NO_ROWS)
    content = (logprobs or {}).get("content") or []
    ids, rows, read = read_content(words, text, content, top_k)
    rest = split_text(words, text[read:])
    every = (*rows, *[None] * len(rest))
    return Chunk(ids + rest, every, text, finish_of(choice.get("finish_reason")), usage)
