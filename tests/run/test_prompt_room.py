"""What cannot fit the context is refused before the one thread in which prompts are read, and nothing else is."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine

import hybrid
from hybrid.engine import Worker
from hybrid.engine.llama import Weights
from hybrid.errors import ContextOverflow
from hybrid.run.contexts import LocalContexts, LocalModel
from hybrid.settings.config import Settings
from hybrid.settings.sources import choosing
from hybrid.types import Message

BUNDLED = Path(hybrid.__file__).parent / "models" / "small.gguf"
MEND = "shorten the text, or raise --ctx to at most what the model was trained with"


class CountedEngine(ScriptedEngine):
    """Says which texts were read in its thread."""

    def __init__(self, words, num_context):
        super().__init__(words, lambda _: [0.0] * len(words), num_context=num_context)
        self.read = []

    def tokenize(self, text, *, special=False):
        self.read.append(text)
        return super().tokenize(text, special=special)


def refusal(engine, prompt, **choices):
    """Return what is said of a prompt that does not fit; None: it fits."""

    async def ask():
        worker = Worker("test")
        contexts = LocalContexts(LocalModel([(engine, worker)]), Settings())
        try:
            await contexts.read(prompt, choosing(Settings(), choices))
        except ContextOverflow as error:
            return str(error)
        finally:
            await contexts.aclose()
            worker.close()
        return None

    return asyncio.run(ask())


def test_more_turns_than_tokens_are_not_read():
    engine = CountedEngine(("a", "bcd"), num_context=10)
    said = refusal(engine, (Message("user", "a"),) * 11)
    assert said == f"the prompt has 11 turns and the local context holds 10: {MEND}"
    assert engine.read == []
    assert refusal(engine, (Message("user", "a"),) * 9) is None
    assert "11 turns" in refusal(engine, (Message("user", "a"),) * 10, system="a"), "a system message is one of them"


def test_more_bytes_than_so_many_of_the_longest_tokens_are_not_read():
    """A token here is at most a word of three letters and a space."""
    engine = CountedEngine(("a", "bcd"), num_context=10)
    for prompt in ("é" * 21, (Message("user", "é" * 11), Message("assistant", "é" * 10))):
        for choices in ({"raw": True}, {}):
            said = refusal(engine, prompt, **choices)
            assert said == f"the prompt has 11 tokens at least and the local context holds 10: {MEND}"
    assert engine.read == []
    assert refusal(engine, "bcd " * 9) is None
    assert engine.read
    assert refusal(engine, "a " * 12) == f"the prompt has 12 tokens and the local context holds 10: {MEND}"


def test_whatever_is_refused_unread_does_not_fit():
    """Held against the tokens of the bundled model, whose texts the check never splits."""
    texts = st.sampled_from(["a", " ", "\n", "é", "\U0001f600", "Differentiate ", "\ud800", "<|im_end|>"])
    turns = st.lists(
        st.tuples(st.sampled_from(["user", "assistant", "system"]), texts, st.integers(0, 300)), min_size=1
    )
    refused = 0
    with closing(Weights(BUNDLED)) as weights, closing(weights.context(32, threads=1)) as engine:

        @settings(max_examples=60)
        @given(turns)
        @example([("user", " answer", 6)])  # more bytes than there is room for tokens, and it fits
        def law(turns):
            nonlocal refused
            prompt = tuple(Message(role, text * num) for role, text, num in turns)
            fits = len(engine.render(prompt)) < engine.num_context
            said = refusal(engine, prompt)
            assert (said is None) == fits
            refused += said is not None and ("turns" in said or "at least" in said)

        law()
    assert refused > 10


def test_whoever_left_while_in_line_is_not_read_for():
    """The thread read on for callers who had left, one after another, while others waited."""
    engine = CountedEngine(("a",), num_context=100)
    go, read = threading.Event(), engine.tokenize
    engine.tokenize = lambda text, **given: go.wait() and read(text, **given)

    async def ask():
        contexts = LocalContexts(LocalModel([(engine, Worker("test"))]), Settings())
        first, *left = (asyncio.create_task(contexts.read(f"a {i}", Settings())) for i in range(20))
        await asyncio.sleep(0)  # all stand in line
        for task in left:
            task.cancel()
        await asyncio.sleep(0)
        go.set()
        await asyncio.wait([first, *left])
        await contexts.aclose()
        return first.cancelled(), [task.cancelled() for task in left]

    assert asyncio.run(ask()) == (False, [True] * 19)
    assert engine.read == ["a 0"]
