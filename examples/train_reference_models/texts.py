"""What a trained model writes to problems of the train split: texts that a model of another vocabulary learns from.

Drawn at temperature 1, so that whoever learns them learns the model's distribution; one in four is its greedy text,
which is what is asked for most. A file that is there is gone on with. One core writes some 30 answers a second.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from hybrid.engine.llama import LlamaEngine, Weights
from hybrid.settings.names import MODELS
from hybrid.tasks import MAX_TOKENS, training_stream
from hybrid.types import Message

NUM_TEXTS = 12_000
GREEDY_SHARE = 0.25
FLUSH_EVERY = 100


def write_texts(path: Path, model: str, num: int = NUM_TEXTS, seed: int = 0) -> None:
    """Write ``num`` lines, question and text, to a file, after those that it has."""
    done = len(path.read_text().splitlines()) if path.exists() else 0
    if done >= num:
        return
    with (
        closing(Weights(MODELS / f"{model}.gguf")) as weights,
        closing(weights.context(threads=1)) as engine,
        path.open("a") as file,
    ):
        for number in range(done, num):
            rng = random.Random(f"{seed}/{number}")
            problem, _ = next(training_stream("large", "train", rng))
            text = written(engine, problem.question, rng, greedy=rng.random() < GREEDY_SHARE)
            file.write(json.dumps([problem.question, text]) + "\n")
            if number % FLUSH_EVERY == 0:
                file.flush()
                print(f"{path.name}: {number:,} of {num:,}", file=sys.stderr, flush=True)


def written(engine: LlamaEngine, question: str, rng: random.Random, *, greedy: bool) -> str:
    """Return an answer's text; one that does not end is cut."""
    prompt = engine.render([Message("user", question)])
    engine.rewind(0)
    row, ids = engine.extend(prompt)[-1], ()
    while len(ids) < MAX_TOKENS:
        token = int(row.argmax()) if greedy else _drawn(row, rng)
        if token in engine.end_ids:
            break
        ids += (token,)
        row = engine.extend((token,))[-1]
    return b"".join(map(engine.piece, ids)).decode("utf-8", "replace")


def _drawn(row: np.ndarray, rng: random.Random) -> int:
    weights = np.exp(row.astype(np.float64) - row.max())
    return int(np.searchsorted(np.cumsum(weights), rng.random() * weights.sum()))


def read_texts(path: Path, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield questions and texts of a file in any order, for ever."""
    pairs = [(question, text) for question, text in map(json.loads, path.read_text().splitlines())]
    while True:
        yield rng.choice(pairs)
