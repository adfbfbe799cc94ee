"""Together's ``/v1/completions``: text in, the prompt's tokens echoed beside the answer, with ids and rows by text.

Shapes: togethercomputer/openapi (CompletionRequest, CompletionResponse, PromptPart, LogprobsPart). No server of theirs
was asked, only ``server_stub``. The prompt comes back as a part of its own (``prompt``), its tokens with their ids: the
rows of a draft are those of the last tokens, if these are the draft. Their streams have no lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hybrid.cloud.dialects.completions import Completions, due_row
from hybrid.cloud.dialects.dialect import DialectSpec, OpenAi
from hybrid.cloud.dialects.reading import NO_ROWS, choice_of, guarded, known_rows, read_usage
from hybrid.cloud.dialects.text_tokens import TextVocabulary
from hybrid.cloud.port import Capabilities, ScoreQuestion, Scores
from hybrid.errors import MissingCapability


@dataclass(frozen=True)
class Together(Completions):
    """The dialect of Together's completions; what it does not do in its own way is the legacy route's."""

    can: Capabilities = Capabilities(dialect="together", ids=False, most_k=20, streams=False)
    check_usage = OpenAi.check_usage  # the echo stands apart from what was written

    def _read_echo(self, question: ScoreQuestion, reply: Any) -> Scores:
        return read_scores(self.setup.text_tokens, question, reply, question.top_k)


# Hosted services have no route of their own that answers for nothing: this one is named.
SPEC = DialectSpec("together", Together)


@guarded
def read_scores(words: TextVocabulary, question: ScoreQuestion, reply: Any, top_k: int) -> Scores:
    """Read the rows that were due; none where the server splits the draft in another way."""
    choice, prompts = choice_of(reply), reply.get("prompt")
    if not prompts:
        msg = "the endpoint does not echo what it was asked to score"
        raise MissingCapability(msg)
    told, after = prompts[0]["logprobs"], choice.get("logprobs")
    if told is None or (question.after and after is None):
        raise MissingCapability(NO_ROWS)
    num = len(question.span)
    if tuple(told["token_ids"][len(told["token_ids"]) - num :]) != question.span:
        return Scores((), read_usage(reply))
    first = len(told["tokens"]) - num
    due = [(told["tokens"][i], told["top_logprobs"][i]) for i in range(first, len(told["tokens"]))]
    due += list(zip(after["tokens"], after["top_logprobs"], strict=True))[:1] if after else []
    rows = known_rows(due_row(words, top, piece, top_k) for piece, top in due[: question.num_rows])
    return Scores(rows, read_usage(reply))
