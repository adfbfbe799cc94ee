"""``hybrid bench recurrent``: what a rejection costs a model whose layers keep a state.

Two contexts over one file take turns: one that saves states, and one without, as before, which reads the whole text
again. Both draft a span, token by token, and a few tokens more, as during a check. Then the span is rejected at one of
its places, another one each time, and the row after the token in its place is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from hybrid.engine.llama import LlamaEngine, Weights
from hybrid.engine.recurrent import MOST_STATES, STEP
from hybrid.lab.speed.measure import BenchmarkReport, Measurement, Spread, milliseconds, ratio, run_in_turn
from hybrid.lab.speed.recurrent_model import FALCON, MAMBA, RecurrentShape, write_recurrent_model

# A mixed model and a purely recurrent one.
SHAPES = (FALCON, MAMBA)
PROMPT, SPAN, AHEAD, CONTEXT = 500, 8, 4, 2048
# States saved and loaded to time one.
COPIES = 20
WARM_UP = STEP * MOST_STATES
FIRST_TOKEN = 3  # those before it are special


def run(
    folder: Path, report_progress: Callable[[str], None], repetitions: int, shapes: Sequence[RecurrentShape] = SHAPES
) -> BenchmarkReport:
    """Measure each shape; the models are written to ``folder`` unless they are there."""
    figures: list[Measurement] = []
    for shape in shapes:
        report_progress(f"a random {shape.architecture} is written, or used again where it is kept")
        model = write_recurrent_model(folder / f"{shape.architecture}.gguf", shape)
        with closing(Weights(model)) as weights:
            figures += _measure(weights, shape, report_progress, repetitions)
    setting = (
        f"a prompt of {PROMPT} tokens, drafts of {SPAN} and {AHEAD} tokens ahead, one thread, a state every {STEP}"
    )
    return BenchmarkReport("recurrent", setting, tuple(figures))


def _measure(
    weights: Weights, shape: RecurrentShape, report_progress: Callable[[str], None], repetitions: int
) -> list[Measurement]:
    name = f"{shape.architecture}, {weights.num_parameters / 1e6:.0f} million parameters"
    with closing(weights.context(CONTEXT, 1)) as saving, closing(weights.context(CONTEXT, 1)) as plain:
        plain._states = None
        rng = np.random.default_rng(0)
        text = tuple(rng.integers(FIRST_TOKEN, weights.num_tokens, PROMPT).tolist())
        report_progress(f"{name}: the prompt is read")
        for engine in (saving, plain):
            engine.extend(text, 1)
        report_progress(f"{name}: drafting steps")
        figures = _step_figures(name, saving, plain, repetitions)
        rejections: dict[bool, list[tuple[int, float]]] = {True: [], False: []}
        for i in range(repetitions):
            report_progress(f"{name}: rejections: {i} of {repetitions}")
            for is_saving in (True, False) if i % 2 else (False, True):
                rejections[is_saving].append(_reject(saving if is_saving else plain, text[-SPAN - AHEAD :], i % SPAN))
    return figures + _rejection_figures(name, rejections[True], rejections[False])


def _reject(engine: LlamaEngine, drafted: Sequence[int], place: int) -> tuple[int, float]:
    """Draft, go back to ``place`` tokens after the beginning, read another token; tokens decoded again, and seconds."""
    start = len(engine.ids)
    engine.settle(start)
    for token in drafted:
        engine.extend((token,))
    num_decoded, began = engine.num_decoded, time.perf_counter()
    engine.rewind(start + place)
    engine.extend((FIRST_TOKEN,))
    return engine.num_decoded - num_decoded - 1, time.perf_counter() - began


def _step_figures(name: str, saving: LlamaEngine, plain: LlamaEngine, repetitions: int) -> list[Measurement]:
    """Draft with both in turn: one step in ``STEP`` saves a state. The first ones (new memory) are left out."""
    steps = run_in_turn(
        lambda _: saving.extend((FIRST_TOKEN,)), lambda _: plain.extend((FIRST_TOKEN,)), repetitions * STEP, WARM_UP
    )
    with_states, without = ([sum(each[i : i + STEP]) for i in range(0, len(each), STEP)] for each in steps)
    return [
        *_state_figures(name, saving, steps[1]),
        Measurement(
            f"{name}: drafting that saves states over drafting that does not",
            ratio(with_states, without),
            "ratio",
            "<= 1.1",
        ),
    ]


def _state_figures(name: str, engine: LlamaEngine, decodes: Sequence[float]) -> list[Measurement]:
    """Save the state of the whole text, and load it, some times each."""
    states, length, saved, loaded = engine._states, len(engine.ids), [], []
    if states is None:  # a state of this model is not all of its memory
        return []
    for _ in range(COPIES):
        began = time.perf_counter()
        states.save(length)
        between = time.perf_counter()
        states.load(length)
        saved.append(between - began)
        loaded.append(time.perf_counter() - between)
    size = states.num_bytes / len(states) / 2**20
    decode = milliseconds(decodes).median
    return [
        Measurement(f"{name}: a state", Spread.of([size]), "MiB", None, f"{len(states)} of them are kept"),
        Measurement(f"{name}: to save one", milliseconds(saved), "ms", None, f"a decode takes {decode:.3g} ms"),
        Measurement(f"{name}: to load one", milliseconds(loaded), "ms"),
    ]


def _rejection_figures(
    name: str, saving: Sequence[tuple[int, float]], plain: Sequence[tuple[int, float]]
) -> list[Measurement]:
    (again, seconds), (again_before, seconds_before) = zip(*saving, strict=True), zip(*plain, strict=True)
    most = f"at most {max(again)}"
    return [
        Measurement(f"{name}: tokens a rejection decodes again", Spread.of(again), "tokens", f"<= {SPAN}", most),
        Measurement(f"{name}: the same without states", Spread.of(again_before), "tokens"),
        Measurement(f"{name}: from a rejection to the next row", milliseconds(seconds), "ms"),
        Measurement(f"{name}: the same without states", milliseconds(seconds_before), "ms"),
        Measurement(f"{name}: with states over without", ratio(seconds, seconds_before), "ratio"),
    ]
