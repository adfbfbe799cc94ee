"""A model file's vocabulary: text to ids and back, and conversations as its own chat template writes them.

The law (``tests/engine/test_llama.py``): a user's text is text. Where it spells a control token it is tokenised apart,
so that nobody can end their own turn.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from hybrid.engine.chat import ChatRenderer
from hybrid.engine.native import ll
from hybrid.engine.port import NO_ARGS, IsCancelled, never
from hybrid.engine.special_tokens import PART, SpecialTokens
from hybrid.engine.template import ChatTemplate, TemplateFault
from hybrid.engine.template_trial import check_template
from hybrid.engine.thought_marks import ThoughtMarks
from hybrid.errors import UsageError
from hybrid.types import Ids, Message, TemplateArg, Vocabulary

# Of larger vocabularies not every token is compared.
COMPARED = 4096


def share_words(first: Vocabulary, second: Vocabulary) -> bool:
    """Return whether two models name tokens alike. Of large vocabularies a sample is compared."""
    num = first.num_tokens
    if num != second.num_tokens or first.end_ids != second.end_ids:
        return False
    return all(first.piece(token) == second.piece(token) for token in range(0, num, max(1, num // COMPARED)))


class LlamaVocabulary:
    """The vocabulary of a loaded model, as ``port.ChatVocabulary`` has it. ``name``: the file's, for sentences."""

    def __init__(self, model: Any, name: str) -> None:
        """Read the vocabulary's size, its end tokens and the chat template."""
        self.name = name
        self._vocab = ll.llama_model_get_vocab(model)
        self._width = int(ll.llama_vocab_n_tokens(self._vocab))  # of a row of scores; the rest of it is padding
        self.end_ids = frozenset(i for i in range(self._width) if ll.llama_vocab_is_eog(self._vocab, i))
        used = (i for i in reversed(range(self._width)) if not self._is_padding(i))
        self.num_tokens = 1 + max(next(used, self._width - 1), *self.end_ids, int(ll.llama_vocab_bos(self._vocab)))
        template = ll.llama_model_chat_template(model, None)
        self._template = template.decode("utf-8") if template else None

    def tokenize(self, text: str, *, special: bool = False) -> Ids:
        """Split text into ids."""
        return self._split(text, add_special=special, parse_special=special)

    def piece(self, token: int) -> bytes:
        """Return the bytes of one token. Raises ValueError for an id it has not: llama.cpp would end the process."""
        if not 0 <= token < self.num_tokens:
            msg = f"there is no token {token}"
            raise ValueError(msg)
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = ll.llama_token_to_piece(self._vocab, token, buffer, size, 0, True)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The tokens that are no text of a user's: those that end or control one, or that a file adds to its words."""
        text = ll.LLAMA_TOKEN_ATTR_NORMAL | ll.LLAMA_TOKEN_ATTR_BYTE
        return self.end_ids | {i for i in range(self.num_tokens) if not ll.llama_vocab_get_attr(self._vocab, i) & text}

    @cached_property
    def vocabulary_digest(self) -> str:
        """Return a digest of the vocabulary: the tokens as the file spells them, and those that end a text.

        A digest of the pieces would take four times as long: half a second at 150,000 tokens.
        """
        texts = b"\0".join(ll.llama_vocab_get_text(self._vocab, token) for token in range(self._width))
        ends = ",".join(map(str, sorted(self.end_ids)))
        return hashlib.blake2b(texts + b"\0\0" + ends.encode(), digest_size=8).hexdigest()

    def check_template(self, cancelled: IsCancelled = never) -> None:
        """Raise UsageError where the chat template takes too much; an unknown one is tried first, once: seconds.

        Raises Interrupted soon after ``cancelled()`` says so.
        """
        if self._template is not None:
            check_template(self._template, self.name, cancelled)

    @property
    def template_names(self) -> frozenset[str]:
        """The arguments that the file's own chat template reads; none where there is none, or it cannot be read."""
        try:
            return self._renderer.template.reads
        except (UsageError, TemplateFault):
            return frozenset()

    def render(
        self, messages: Sequence[Message], args: Mapping[str, TemplateArg] = NO_ARGS, cancelled: IsCancelled = never
    ) -> Ids:
        """Render a conversation with the file's own chat template; ``args`` are given to it by name."""
        # Somebody's text spells a control token: it is read as text, so that nobody can end their own turn with it.
        apart = any(name in message.content for message in messages for name in self._control_names)
        pieces = self._renderer.pieces(messages, args, apart=apart, cancelled=cancelled)
        split = (self._split(each.text, add_special=False, parse_special=each.turn is None) for each in pieces)
        return tuple(chain.from_iterable(split))

    def thoughts(self, messages: Sequence[Message], args: Mapping[str, TemplateArg] = NO_ARGS) -> ThoughtMarks | None:
        """Return the marks around thoughts that the file's own template spells, and whether the prompt opens them."""
        return self._renderer.thoughts(messages, args)

    @cached_property
    def _renderer(self) -> ChatRenderer:
        if self._template is None:
            msg = f"{self.name} has no chat template: use --raw to send the text as it stands"
            raise UsageError(msg)
        self.check_template()
        bos, eos = (self._name(ll.llama_vocab_bos(self._vocab)), self._name(ll.llama_vocab_eos(self._vocab)))
        return ChatRenderer(ChatTemplate(self._template, bos, eos), self.name)

    @cached_property
    def _control_names(self) -> tuple[str, ...]:
        return tuple(name for name in map(self._name, sorted(self.control_ids)) if name)

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Tokens that no text is split into: marks of turns, the ends."""
        return frozenset(i for i in range(self.num_tokens) if ll.llama_vocab_is_control(self._vocab, i))

    def _is_padding(self, token: int) -> bool:
        """Whether a converter added the token to fill a row: by its type (llama.cpp since 2024), or by its name."""
        unused = ll.llama_vocab_get_attr(self._vocab, token) & ll.LLAMA_TOKEN_ATTR_UNUSED
        return bool(unused) or ll.llama_vocab_get_text(self._vocab, token) == b"[PAD%d]" % token

    @cached_property
    def _specials(self) -> Mapping[bool, SpecialTokens]:
        """The tokens that llama.cpp looks for first: all that are no words, or user-defined ones alone."""
        own = ll.LLAMA_TOKEN_ATTR_USER_DEFINED
        every = own | ll.LLAMA_TOKEN_ATTR_CONTROL | ll.LLAMA_TOKEN_ATTR_UNKNOWN
        return {True: self._tokens_of(every), False: self._tokens_of(own)}

    def _tokens_of(self, kinds: int) -> SpecialTokens:
        attrs = ((token, ll.llama_vocab_get_attr(self._vocab, token)) for token in range(self._width))
        found = {ll.llama_vocab_get_text(self._vocab, token): attr for token, attr in attrs if attr & kinds}
        takes_space = ll.LLAMA_TOKEN_ATTR_LSTRIP
        return SpecialTokens(
            {text.decode("utf-8", "replace"): bool(attr & takes_space) for text, attr in found.items()}
        )

    def _split(self, text: str, *, add_special: bool, parse_special: bool) -> Ids:
        """Split a text, in parts where it is long. What begins every text stands in the first part alone."""
        ends = ll.llama_vocab_get_add_eos(self._vocab) or ll.llama_vocab_get_add_sep(self._vocab)
        if len(text) <= PART or (add_special and ends):
            return self._split_part(text, add_special, parse_special)
        parts = enumerate(self._specials[parse_special].parts(text))
        split = (self._split_part(part, add_special and not i, parse_special) for i, part in parts)
        return tuple(chain.from_iterable(split))

    def _split_part(self, text: str, add_special: bool, parse_special: bool) -> Ids:
        raw = text.encode("utf-8", "replace")  # half a surrogate pair is no text; it becomes a question mark
        size = len(raw) + 8
        while True:
            buffer = (ll.llama_token * size)()
            count = ll.llama_tokenize(self._vocab, raw, len(raw), buffer, size, add_special, parse_special)
            if count >= 0:
                return tuple(buffer[:count])
            if -count <= size:  # not a wish for more room
                msg = "the text cannot be split into tokens"
                raise UsageError(msg)
            size = -count  # a space may be three tokens, where the vocabulary spells it in bytes

    def _name(self, token: int) -> str:
        return self.piece(token).decode("utf-8", "replace") if 0 <= token < self.num_tokens else ""
