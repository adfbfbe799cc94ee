"""The marks that a model writes around its thoughts, found in its chat template.

A pair is taken only where the template itself spells or writes both marks. The law
(``tests/engine/test_thought_marks.py``): of a template without such a pair nothing is taken for a
thought. How a text is divided by them is ``run/thoughts.py``.
"""

from __future__ import annotations

from dataclasses import dataclass


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
