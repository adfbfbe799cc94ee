"""An engine that decodes no prefix twice, and a score that reads no draft twice.

Many rules read the same text: what the cloud wrote, what the local model drafted. The rows of a prefix are kept as they
came first, so a rule that comes later reads them for nothing.

The law (``tests/bench/test_world.py``): a row depends on its prefix alone, whatever was read before. With
``together`` it does so to the last bit: it is the row of a context that reads so many tokens at once and each further
one by itself, as a draft is written. Without, it is such a context's within the model's noise.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np

from hybrid.defer import DraftSignals, Forecast, KeptScore, QuestionForecast, Score, ScoreWrapper, score_to_json
from hybrid.defer.signals import OF_TOKENS
from hybrid.engine import NO_ARGS, Interrupted, IsCancelled, ThoughtMarks, num_shared
from hybrid.engine.llama import LlamaEngine
from hybrid.engine.port import MEND_CONTEXT, Logits, never
from hybrid.errors import ContextOverflow
from hybrid.types import Ids, Message, TemplateArg

# A row of 49,152 scores takes 197 kB, so this many take half a gigabyte: a question's, under some thirty rules.
MAX_ROWS = 2500


class MemoEngine:
    """An engine over another one, whose cache catches up only where a row is not known."""

    has_exact_rewind = True

    def __init__(self, engine: LlamaEngine, max_rows: int = MAX_ROWS) -> None:
        """Take an engine that nobody else drives, and how many rows are kept: those that were read last."""
        self._engine = engine
        self._max_rows = max_rows
        self._rows: OrderedDict[Ids, Logits] = OrderedDict()
        self._ids: Ids = ()
        self._rendered: dict[tuple[Message, ...], Ids] = {}
        self.weights = engine.weights
        self.num_tokens, self.end_ids, self.num_context = engine.num_tokens, engine.end_ids, engine.num_context
        self.together: int | None = None
        """Tokens at the beginning that are decoded at once, those after them one by one; None: all as they come."""
        self.prompt_block, self.waited_s = engine.prompt_block, 0.0
        self.num_decoded = 0
        """Tokens decoded so far."""

    @property
    def ids(self) -> Ids:
        """The tokens that were taken, decoded or not."""
        return self._ids

    def tokenize(self, text: str, *, special: bool = False) -> Ids:
        """Split text into ids."""
        return self._engine.tokenize(text, special=special)

    def piece(self, token: int) -> bytes:
        """Return the bytes of one token."""
        return self._engine.piece(token)

    @property
    def template_names(self) -> frozenset[str]:
        """The arguments of the model's chat template."""
        return self._engine.template_names

    def render(
        self, messages: Sequence[Message], args: Mapping[str, TemplateArg] = NO_ARGS, cancelled: IsCancelled = never
    ) -> Ids:
        """Render a conversation; a template takes as long as ten tokens, and every rule asks the same."""
        if args:
            return self._engine.render(messages, args, cancelled)
        key = tuple(messages)
        if key not in self._rendered:
            self._rendered[key] = self._engine.render(messages)
        return self._rendered[key]

    def thoughts(self, messages: Sequence[Message], args: Mapping[str, TemplateArg] = NO_ARGS) -> ThoughtMarks | None:
        """Return the marks around thoughts."""
        return self._engine.thoughts(messages, args)

    def extend(self, ids: Ids, num_rows: int = 1, cancelled: IsCancelled = never) -> Logits:
        """Append tokens and return the rows after the last ``num_rows`` of them, decoding what is not known."""
        text = self._ids + ids
        if len(text) > self.num_context:
            msg = f"{len(text)} tokens do not fit the context of {self.num_context}: {MEND_CONTEXT}"
            raise ContextOverflow(msg)
        if cancelled():
            raise Interrupted
        lengths = range(len(text) - num_rows + 1, len(text) + 1)
        missing = [length for length in lengths if text[:length] not in self._rows]
        if missing:
            self._decode(text[: missing[-1]], missing[0], cancelled)
        rows = np.empty((num_rows, self.num_tokens), dtype=np.float32)
        for i, length in enumerate(lengths):
            rows[i] = self._rows[text[:length]]
            self._rows.move_to_end(text[:length])
        self._ids = text
        while len(self._rows) > self._max_rows:
            self._rows.popitem(last=False)
        return rows

    def rewind(self, length: int) -> None:
        """Forget all but the first ``length`` tokens. Their rows are kept."""
        self._ids = self._ids[:length]

    def forget(self) -> None:
        """Forget every row, and what is in the cache: the next question begins as the first one did."""
        self._rows.clear()
        self._rendered.clear()
        self._ids = ()
        self._engine.rewind(0)

    def settle(self, length: int) -> None:
        """Say nothing: the other engine's cache is behind."""

    def close(self) -> None:
        """Free the engine's memory."""
        self._rows.clear()
        self._engine.close()

    def _decode(self, text: Ids, first: int, cancelled: IsCancelled) -> None:
        """Read the rows after the first ``first`` tokens of a text and after each longer part of it."""
        start = min(num_shared(self._engine.ids, text), first - 1)
        self._engine.rewind(start)
        self.num_decoded += len(text) - start
        for end in self._ends(start, len(text)):
            num_rows = max(0, end + 1 - max(first, start + 1))
            found = self._engine.extend(text[start:end], num_rows, cancelled)
            for length, row in enumerate(found, start=end - num_rows + 1):
                self._rows.setdefault(text[:length], row.copy())
            start = end

    def _ends(self, start: int, end: int) -> Iterable[int]:
        """Return where the batches end that decode a part of a text."""
        if self.together is None:
            return (end,)
        return range(min(max(self.together, start + 1), end), end + 1)


@dataclass
class CachedScore(ScoreWrapper):
    """A score that forecasts each draft of a question once, however often its signals are read."""

    kind: ClassVar[str] = "kept"
    score: Score
    _drafts: dict[tuple[Any, ...], Forecast] = field(default_factory=dict)
    _questions: dict[tuple[tuple[int, ...], int], QuestionForecast] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the score's own plain data, its kind among it."""
        return score_to_json(cast(KeptScore, self.score))

    def forecast(self, signals: DraftSignals) -> Forecast:
        """Forecast a draft."""
        numbers = [getattr(signals, name) for name in ("tokens", *OF_TOKENS)]
        if (said := signals.critic) is not None:
            numbers += (said.kl, said.logprob)
        own = (signals.words, signals.prompt_tokens, signals.shown, signals.ended)
        key = (*own, signals.last_divergence, signals.divergence_age, *(each.tobytes() for each in numbers))
        if key not in self._drafts:
            self._drafts[key] = self.score.forecast(signals)
        return self._drafts[key]

    def before(self, words: tuple[int, ...], prompt_tokens: int) -> QuestionForecast:
        """Forecast from the question alone."""
        key = words, prompt_tokens
        if key not in self._questions:
            self._questions[key] = self.score.before(words, prompt_tokens)
        return self._questions[key]
