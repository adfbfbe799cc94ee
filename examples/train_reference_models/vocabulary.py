"""The shared vocabulary: byte-level BPE of a few hundred entries, and the chat template.

The pre-tokeniser is Qwen2's own expression (``tokenizer.ggml.pre = qwen2``), so that llama.cpp and the training script
split text alike; it keeps digits single, without which arithmetic is not learnable at this size.
"""

from __future__ import annotations

import random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from hybrid.bench.tasks import FAMILIES, stream

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END_OF_TEXT, TURN_START, TURN_END)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build_tokenizer(num_tokens: int = 384) -> Tokenizer:
    """Train the tokeniser on generated problems; the same call gives the same vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rng = random.Random(1)
    streams = [stream(family, "train", rng) for family in FAMILIES]
    texts = (f"user\n{p.question}\nassistant\n{p.worked}" for _ in range(4000) for p in map(next, streams))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
