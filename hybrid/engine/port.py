"""The port of the local model: a tokeniser, and a KV cache that is extended and rewound.

The laws (``tests/engine/test_port.py`` asks them of every engine): ``ids`` are exactly the tokens in the cache;
``extend`` takes all its tokens, or raises and leaves in ``ids`` those it took; after ``rewind`` the next ``extend``
gives the rows that it would give had the cache never held more.

Threads must not share an engine: one owner thread drives it (``engine.pool``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hybrid.errors import ContextOverflow
from hybrid.types import Ids, Message, TemplateArg, Vocabulary

# The marks that a model writes around its thoughts, found in its chat template.
#
# A pair is taken only where the template itself spells or writes both marks. The law
# (``tests/engine/test_thought_marks.py``): of a template without such a pair nothing is taken for a
# thought. How a text is divided by them is ``record/answer_builder.py``.


@dataclass(frozen=True)
class ThoughtMarks:
    """What stands before a model's thoughts and after them. ``opened``: the prompt has begun them already."""

    open: str
    close: str
    opened: bool = False

    def left_open(self, text: str) -> bool:
        """Whether a text begins thoughts and does not end them.

        >>> [ThoughtMarks("<a>", "</a>").left_open(text) for text in ("<a>", "<a></a>", "</a>", "", "</a><a> 1")]
        [True, False, False, False, True]
        """
        return text.rfind(self.open) > text.rfind(self.close)


# Pairs with the models that write them; the first of which a template spells both marks is taken. In gpt-oss's format
# every message has a channel: what stands between a first channel and that of the answer is thought, perhaps nothing.
# So its thoughts hold the marks between their messages; and a final channel that is constrained
# (``final <|constrain|>json``) is not told from thoughts: no fixed text closes them then.
PAIRS = (
    ("<|channel|>", "final<|message|>"),  # gpt-oss
    ("<|channel>", "<channel|>"),  # Gemma 4
    ("[THINK]", "[/THINK]"),  # Mistral
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<mm:think>", "</mm:think>"),  # MiniMax-M3
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("<|open|>think<|sep|>", "<|close|>think<|sep|><|open|>response<|sep|>"),  # Kimi K3
    ("<|think|>", "<|begin|>assistant<|content|>"),  # Solar
    ("<think:opensource>", "</think:opensource>"),  # Hunyuan
    ("<think>", "</think>"),  # Qwen, DeepSeek and most others
    ("<thinking>", "</thinking>"),  # Apriel
)


def marks_of(template: str) -> ThoughtMarks | None:
    """Return the pair of marks that stands in a template's own text; None where none does.

    >>> marks_of("{{ '<think>' }}{{ content.split('</think>')[-1] }}")
    ThoughtMarks(open='<think>', close='</think>', opened=False)
    >>> marks_of("{{ '<think>' }}") is None
    True
    """
    return next((ThoughtMarks(*pair) for pair in PAIRS if all(mark in template for mark in pair)), None)


Logits: TypeAlias = NDArray[np.float32]
IsCancelled: TypeAlias = Callable[[], bool]

NO_ARGS: Mapping[str, TemplateArg] = MappingProxyType({})
"""Nothing is given to a template beside the conversation."""

# The remedy that every message about a too long text ends with.
MEND_CONTEXT = "shorten the text, or raise --ctx to at most what the model was trained with"


# Prompts are read in blocks of this many tokens, aligned at 0 (``Cursor.begin``). On a CPU decodes of 64, 128 and 256
# tokens give the same bits at the same speed; those of 48 and less give others, up to 0.95 nats off.
PROMPT_BLOCK = 64


def blocks(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield where a text is cut that is read in blocks aligned at 0, from one place to another.

    >>> list(blocks(70, 200, 64))
    [(70, 128), (128, 192), (192, 200)]
    """
    while start < stop:
        end = min((start // size + 1) * size, stop)
        yield start, end
        start = end


class Interrupted(Exception):
    """The work was cancelled between two chunks."""


def never() -> bool:
    """Nobody cancels."""
    return False


def check_fits(num_tokens: int, num_context: int) -> None:
    """Raise ContextOverflow where a text does not fit a context."""
    if num_tokens > num_context:
        msg = f"{num_tokens} tokens do not fit the context of {num_context}: {MEND_CONTEXT}"
        raise ContextOverflow(msg)


class ChatVocabulary(Vocabulary, Protocol):
    """Text to ids and back, and conversations as this model reads them."""

    @property
    def template_names(self) -> frozenset[str]:
        """The arguments that the model's chat template reads; none where it has no template."""
        ...

    def render(
        self, messages: Sequence[Message], args: Mapping[str, TemplateArg] = NO_ARGS, cancelled: IsCancelled = never
    ) -> Ids:
        """Return a conversation as the model's chat template writes it, ready for the assistant's turn.

        A last turn of the assistant's is left open. ``args`` are given to the template by name. Raises UsageError where
        the model has no template, the template has no place for a turn, or never reads an argument; Interrupted once
        ``cancelled()`` says so.
        """
        ...

    def thoughts(self, messages: Sequence[Message], args: Mapping[str, TemplateArg] = NO_ARGS) -> ThoughtMarks | None:
        """Return the marks around this model's thoughts, ``opened`` where such a prompt ends inside them.

        None where its template spells none. Raises as ``render`` does.
        """
        ...


class Engine(ChatVocabulary, Protocol):
    """A vocabulary, and a KV cache that holds some prefix."""

    @property
    def num_context(self) -> int:
        """The most tokens that the cache can hold."""
        ...

    @property
    def ids(self) -> Ids:
        """The tokens in the cache."""
        ...

    @property
    def has_exact_rewind(self) -> bool:
        """Whether ``rewind`` is cheap and exact: the same logits come again. Nothing is decoded ahead without it."""
        ...

    @property
    def prompt_block(self) -> int:
        """The number of tokens that are decoded together where a prompt is read; see ``Cursor.begin``."""
        ...

    @property
    def waited_s(self) -> float:
        """Seconds that decodes have waited so far for those of other contexts over the same weights.

        What decoding takes beside others, less what this grows by meanwhile, is what it takes alone.
        """
        ...

    def extend(self, ids: Ids, num_rows: int = 1, cancelled: IsCancelled = never) -> Logits:
        """Append at least one token and return raw scores after each of the last ``num_rows`` of them.

        Shape (num_rows, V), a copy; ``num_rows`` at most len(ids), 0 allowed. Raises ContextOverflow before anything
        is decoded where it does not fit, Interrupted between chunks once ``cancelled()`` says so, EngineError where
        the model cannot decode or a row is no distribution (a NaN, nothing above -inf).
        """
        ...

    def rewind(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        ...

    def settle(self, length: int) -> None:
        """Hear that a span begins after ``length`` tokens, and that rewinds go back to there at most for now.

        A hint: it changes no number. Recurrent layers keep their state at that place.
        """
        ...

    def close(self) -> None:
        """Free the engine's memory."""
        ...
