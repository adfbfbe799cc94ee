"""What is served: a model's name, vocabulary and limits, and the checks that every family makes against them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hybrid.engine import ChatVocabulary
from hybrid.errors import UsageError
from hybrid.types import Message
from server_stub.ask import Row
from server_stub.wire import WireError


@dataclass(frozen=True)
class Served:
    """A model and the switches of the command line. ``block_size`` None: the family's own."""

    name: str
    vocabulary: ChatVocabulary
    num_context: int
    max_logprobs: int = 20
    latency_s: float = 0.0
    token_s: float = 0.0
    prefill_s: float = 0.0
    scoring_keeps_cache: bool = False
    logprobs: bool = True
    api_key: str | None = None
    block_size: int | None = None
    scale_out: bool = False
    v2_runner: bool = False
    prompt_tokens_details: bool = False

    def check_model(self, name: str | None) -> None:
        """Raise WireError where another model is asked for."""
        if name is not None and name != self.name:
            raise WireError(404, f"The model `{name}` does not exist.", "NotFoundError", "model")

    def tokenize(self, prompt: str | Sequence[int], *, special: bool = True) -> tuple[int, ...]:
        """Return a prompt's ids, whatever they are where they were given."""
        return self.vocabulary.tokenize(prompt, special=special) if isinstance(prompt, str) else tuple(prompt)

    def encode(self, prompt: str | Sequence[int], *, special: bool = True) -> tuple[int, ...]:
        """Return a prompt's ids. Raises WireError for an id that is none."""
        ids = self.tokenize(prompt, special=special)
        if any(token >= self.vocabulary.num_tokens for token in ids):
            raise WireError(400, f"Token id {max(ids)} is out of vocabulary", param="prompt")
        return ids

    def render(self, turns: Sequence[Message]) -> tuple[int, ...]:
        """Return a conversation's ids, by the model's own template. Raises WireError where that refuses it."""
        try:
            return self.vocabulary.render(turns)
        except UsageError as error:
            raise WireError(400, str(error), param="messages") from None

    def check_room(self, ids: Sequence[int], max_tokens: int) -> None:
        """Raise WireError where prompt and answer do not fit the context together."""
        if ids and len(ids) + max_tokens <= self.num_context:
            return
        message = (
            f"This model's maximum context length is {self.num_context} tokens. However, you requested {max_tokens} "
            f"output tokens and your prompt contains {len(ids)} input tokens."
        )
        raise WireError(400, message, param="input_tokens")

    def text(self, ids: Iterable[int]) -> str:
        """Return the text of some tokens together."""
        return b"".join(map(self.vocabulary.piece, ids)).decode("utf-8", "replace")

    def texts(self, rows: Iterable[Row | None], ids: Iterable[int]) -> dict[int, str]:
        """Return the text of every token that rows show, and of some more, each alone."""
        shown = {i for row in rows if row is not None for i, _ in (*row.top, *row.watched) if i >= 0} | set(ids)
        return {i: self.text((i,)) for i in shown}

    def width(self, ids: Iterable[int]) -> int:
        """Count the characters of tokens that are each shown alone, as ``text_offset`` does."""
        return sum(len(self.text((token,))) for token in ids)
