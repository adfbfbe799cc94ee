"""OpenAI's ``/v1/chat/completions``: whole answers to whole conversations, nothing else.

Shapes: openai/openai-openapi (CreateChatCompletionRequest, ...StreamResponse). Seen running: vLLM 0.32's copy, and a
LiteLLM proxy; no server of OpenAI's. The route takes no prompt and continues no partial answer: it opens a text and
does nothing after that. Traps:

- The log-probability -9999 stands for "not in the list".
- The reason of the end comes in an event of its own.
- Reasoning models give no log-probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from hybrid.cloud.dialects.dialect import ContinuationRequest, DialectSpec, Json, OpenAi, ScoreFlow, drawn
from hybrid.cloud.dialects.reading import NO_ROWS, Written
from hybrid.cloud.dialects.text_tokens import TextVocabulary, only_documented, read_content
from hybrid.cloud.port import Capabilities, ModelQuestion, ScoreQuestion, WriteQuestion
from hybrid.cloud.prompt_bounds import BoundedPrompt, BoundedTurn, CountedAnswer, PromptCounts
from hybrid.cloud.relay_bounds import most_completion
from hybrid.errors import MissingCapability
from hybrid.types import CloudUsage

CHAT = "/v1/chat/completions"
# As the local model's template has it: many servers' templates drop a role that they do not know.
ROLES = {"developer": "system"}


@dataclass(frozen=True)
class Chat(OpenAi):
    """The dialect of the chat route. ``counts``: what the server has told of the prompts that it made."""

    can: Capabilities = Capabilities(
        dialect="openai-chat", ids=False, continues=False, scoring_method=None, scoring_methods=(), most_k=20
    )
    counts: PromptCounts = field(default=PromptCounts(), compare=False)

    def _score(self, question: ScoreQuestion) -> ScoreFlow:
        """Refuse: no draft can be put to it."""
        yield from ()
        msg = f"a chat endpoint cannot score a draft of {len(question.span)} tokens"
        raise MissingCapability(msg)

    def max_usage(self, question: ModelQuestion) -> CloudUsage:
        """Return what the server has counted of the conversation, and the most tokens of all that is new.

        Where it has counted nothing of it the prompt is assumed.
        """
        limit = most_completion(question.limit) if isinstance(question, WriteQuestion) else 1
        bound = self.counts.most(_bounded(question))
        return CloudUsage(bound.tokens, limit, assumed_prompt_tokens=0 if bound.counted else bound.tokens)

    def min_usage(self, question: ModelQuestion) -> CloudUsage:  # noqa: ARG002  (others know the question's tokens)
        """Return nothing: its vocabulary may be any, so that only it knows how many tokens a text has."""
        return CloudUsage(0, 0)

    def learn_from_answer(self, question: WriteQuestion, told: CloudUsage, text: str) -> Self:
        """Learn how many tokens the server makes of a conversation, and of its own answer."""
        written = told.told_completion_tokens
        answer = CountedAnswer.of(text, written) if written else None
        return replace(self, counts=self.counts.learn(_bounded(question), told.told_prompt_tokens, answer))

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
            self.setup.limit_name: question.limit,
            **drawn(question.sampling, "temperature", "top_p", "seed"),
        }
        if question.top_k:
            body |= {"logprobs": True, "top_logprobs": question.top_k}
        read = partial(read_choice, self.setup.text_tokens, top_k=question.top_k)
        return self._continuation(CHAT, body, read, self.max_usage(question))


SPEC = DialectSpec("openai-chat", Chat, (CHAT, {}))
# The same route without log-probabilities: only a reply shows the difference.
TEXT_SPEC = DialectSpec("text-chat", partial(Chat, can=replace(Chat.can, dialect="text-chat", rows=False)))


def _bounded(question: ModelQuestion) -> BoundedPrompt:
    return BoundedPrompt(tuple(BoundedTurn.of(turn.role, turn.content) for turn in question.turns))


def read_choice(words: TextVocabulary, choice: Json, top_k: int) -> Written:
    """Read what an event or a whole answer says as local tokens, with rows where the list names them."""
    text = str((choice.get("delta") or choice.get("message") or {}).get("content") or "")
    logprobs = choice.get("logprobs")
    if text and top_k and logprobs is None:
        raise MissingCapability(NO_ROWS)
    return read_content(words, text, (logprobs or {}).get("content") or [], top_k)
