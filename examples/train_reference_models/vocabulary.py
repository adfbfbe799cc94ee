"""The vocabularies, byte-level BPE of a few hundred entries, and the chat template.

``common`` is small's, mid's and large's: Qwen2's pre-tokeniser (``tokenizer.ggml.pre = qwen2``), which keeps digits
single, without which arithmetic is not learnable at this size. ``alien`` is another model's: Llama 3's pre-tokeniser
(``llama-bpe``), which lets up to three digits be one token, and more entries. llama.cpp splits text by the same
expressions, so that it and the training script read text alike. ``words`` is the wordings pair's: every word of its
world is one token, by merges that spell it from its first letter on, so that no other merge can come in between.
The foreign ladders have one each, of their own problems: ``unsure`` splits as ``common`` does, ``sure`` by SmolLM's
pre-tokeniser.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import islice

import foreign
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from hybrid.tasks import FAMILIES, stream
from hybrid.tasks.wordings import FIRST_WORDS, WORDS

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END_OF_TEXT, TURN_START, TURN_END)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXTS_PER_FAMILY = 2_000


@dataclass(frozen=True)
class Vocabulary:
    """``pre``: llama.cpp's name of the pre-tokeniser; ``split`` its expression.

    ``ladder``: the foreign one whose problems it is trained on; None: the fourteen families.
    """

    pre: str
    split: str
    num_tokens: int
    ladder: foreign.Ladder | None = None
    seed: int = 1

    def tokenizer(self) -> Tokenizer:
        """Train the tokeniser on problems of the train split; the same call gives the same vocabulary."""
        tokenizer = _splitting(models.BPE(), self.split)
        trainer = trainers.BpeTrainer(
            vocab_size=self.num_tokens,
            special_tokens=list(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        rng = random.Random(self.seed)
        families = foreign.families_of(self.ladder) if self.ladder else FAMILIES
        problems = (p for family in families for p in islice(stream(family, "train", rng), TEXTS_PER_FAMILY))
        tokenizer.train_from_iterator((f"user\n{p.question}\nassistant\n{p.worked}" for p in problems), trainer)
        return tokenizer


@dataclass(frozen=True)
class WordVocabulary:
    """A vocabulary of whole words: ``words`` stand after a space, ``first_words`` at the beginning of a text."""

    pre: str
    split: str
    words: tuple[str, ...]
    first_words: tuple[str, ...]

    @property
    def num_tokens(self) -> int:
        """The bytes, the special tokens and one for each beginning of a word."""
        return len(self._pieces)

    def tokenizer(self) -> Tokenizer:
        """Make the tokeniser; nothing is learnt."""
        ids = {piece: index for index, piece in enumerate(self._pieces)}
        tokenizer = _splitting(models.BPE(ids, self._merges), self.split)
        tokenizer.add_special_tokens([*SPECIAL])
        return tokenizer

    @property
    def _merges(self) -> list[tuple[str, str]]:
        """How each word is spelled.

        Words after a space come first, so that no letters inside them are merged, then the others, long ones first.
        """
        spelled = [*("\u0120" + word for word in self.words), *sorted(self.first_words, key=len, reverse=True)]
        pairs = ((word[:end], word[end]) for word in spelled for end in range(1, len(word)))
        return list(dict.fromkeys(pairs))

    @property
    def _pieces(self) -> tuple[str, ...]:
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        return (*SPECIAL, *letters, *("".join(pair) for pair in self._merges))


def _splitting(model: models.BPE, split: str) -> Tokenizer:
    """Return a byte-level tokeniser that splits text by an expression first."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
COMMON = Vocabulary("qwen2", QWEN2, 384)
WHOLE_WORDS = WordVocabulary("qwen2", QWEN2, WORDS, FIRST_WORDS)
ALIEN = Vocabulary(
    "llama-bpe",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    512,
)
UNSURE = Vocabulary("qwen2", QWEN2, 576, "unsure", seed=11)
# A text's white space before a digit stays together, as where llama.cpp splits the digits off first.
SURE = Vocabulary(
    "smollm",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+",
    704,
    "sure",
    seed=23,
)
