"""A model file's vocabulary: text to ids and back, and conversations as its own chat template writes them.

The law (``tests/engine/test_llama.py``): a user's text is text. Where it spells a control token it is tokenised apart,
so that nobody can end their own turn.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from hybrid.engine.chat import ChatRenderer
from hybrid.engine.gguf_header import first_shard, read_model
from hybrid.engine.model_check import check_model, check_vocabulary
from hybrid.engine.native import ll, safe_model_params, take_log, why_not_loaded
from hybrid.engine.port import NO_ARGS, IsCancelled, ThoughtMarks, never
from hybrid.engine.template import ChatTemplate, TemplateFault
from hybrid.engine.template_trial import check_template
from hybrid.errors import EngineError, UsageError
from hybrid.types import Ids, Message, TemplateArg, Vocabulary

__all__ = ["COMPARED", "PART", "LlamaVocabulary", "SpecialTokens", "VocabularyFile", "share_words"]


# Where a text may be cut before it is split into tokens, so that its parts have the tokens of the whole.
#
# llama.cpp first looks for its special tokens, and from each that it finds on to the end of the text for all others:
# the square of the turns of a conversation. A part is short, so that all parts together are linear.
#
# The law (``tests/engine/test_special_tokens.py``): the tokens of the parts, joined, are those of the text. A cut
# stands before a special token where no other one begins earlier and ends later, or begins inside it, and where no
# space around belongs to one. Pure text: knows no llama.cpp.

# Characters of a part, if a cut can stand there. A part of so many takes 2 ms.
PART = 1 << 14
# Characters of a name by which a place is found.
_BEGINNING = 4


class SpecialTokens:
    """The texts of a vocabulary's special tokens; True: the token takes the space before it."""

    def __init__(self, names: Mapping[str, bool]) -> None:
        """Take the texts."""
        self._names = {name: takes_space for name, takes_space in names.items() if name}
        self._lengths = sorted({len(name) for name in self._names}, reverse=True)

    def parts(self, text: str, size: int = PART) -> Iterator[str]:
        """Yield a text in parts of at least ``size`` characters, the last one excepted."""
        start = 0
        while self._names and len(text) - start > size:
            places = (each.start() for each in self._beginnings.finditer(text, start + size))
            if (cut := next((place for place in places if self._is_cut(text, place)), None)) is None:
                break
            yield text[start:cut]
            start = cut
        yield text[start:]

    @cached_property
    def _beginnings(self) -> re.Pattern[str]:
        """Where a name may begin. Of 6,400 whole names each character takes 0.1 ms where all begin alike."""
        return re.compile(f"(?={'|'.join(map(re.escape, sorted({name[:_BEGINNING] for name in self._names})))})")

    def _names_at(self, text: str, place: int) -> list[str]:
        """Return the names that stand at a place, the longest first."""
        texts = (text[place : place + length] for length in self._lengths)
        return [each for each in texts if each in self._names]

    def _is_cut(self, text: str, at: int) -> bool:
        """Whether llama.cpp ends a fragment here, whatever stands around."""
        here = self._names_at(text, at)
        if not here or any(self._names[name] or name[0].isspace() for name in here):
            return False
        places = range(max(0, at - self._lengths[0] + 1), at + len(here[0]))
        longest = ((place, names[0]) for place in places if place != at and (names := self._names_at(text, place)))
        return all(place + len(name) <= at for place, name in longest)


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


# A model file's vocabulary alone: how a model that runs elsewhere splits text, without its weights.
#
# Any GGUF of the model will do, however small its weights were rounded; files that hold a vocabulary and nothing else
# (llama.cpp's own ``ggml-vocab-*.gguf``) do, too.


class VocabularyFile(LlamaVocabulary):
    """The vocabulary of a GGUF file, held until it is closed."""

    def __init__(self, path: str | Path) -> None:
        """Read it. Raises EngineError: missing, not GGUF, damaged or not loadable."""
        self.path = first_shard(Path(path))
        header = read_model(self.path)
        check_model(header) if header.tensors else check_vocabulary(header)
        take_log()
        params = safe_model_params()
        params.vocab_only = True
        self._model = ll.llama_model_load_from_file(os.fsencode(self.path), params)
        if not self._model:
            msg = f"llama.cpp cannot read the vocabulary of {self.path}: {why_not_loaded()}"
            raise EngineError(msg)
        super().__init__(self._model, self.path.name)

    def close(self) -> None:
        """Free it."""
        if self._model:
            ll.llama_model_free(self._model)
            self._model = None
