"""``hybrid bench engine``: the cost of drafting over the bare llama.cpp loop, and over ``create_completion``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path

from hybrid.engine import Cursor
from hybrid.engine.bare import BareContext, completion_chunks
from hybrid.engine.llama import LlamaEngine, Weights
from hybrid.lab.speed import memory
from hybrid.lab.speed.measure import (
    BenchmarkLoad,
    BenchmarkReport,
    Measurement,
    Spread,
    milliseconds,
    ratio,
    run_in_turn,
)
from hybrid.types import Ids

TOP_K = 20
WARM_UP = 2
COMPLETION_ROOM = 8


def room(repetitions: int) -> int:
    """Return how many tokens a context needs beyond the text that it holds at first."""
    return repetitions + WARM_UP + COMPLETION_ROOM


def run(load: BenchmarkLoad, report_progress: Callable[[str], None], repetitions: int) -> BenchmarkReport:
    """Time a drafting step against ``llama_decode`` alone and ``create_completion``, and weigh both loops."""
    weights = Weights(load.model)
    text = load.text(weights, load.lengths[-1] + room(repetitions))
    figures = [
        *_steps(weights, load.lengths, text, report_progress, repetitions),
        _completion(weights, text, load.lengths[0], report_progress, repetitions),
    ]
    setting = f"{load.describe(weights)}, one thread"
    weights.close()
    figures += _weigh(load.model, report_progress)
    return BenchmarkReport("engine", setting, tuple(figures))


def _steps(
    weights: Weights, lengths: Sequence[int], text: Ids, report_progress: Callable[[str], None], repetitions: int
) -> Iterator[Measurement]:
    bare, engine = BareContext(weights, len(text), 1, num_rows=1), weights.context(len(text), 1)
    for length in lengths:
        report_progress(f"a drafting step after {length} tokens, in turn with the bare loop")
        held = min(len(engine.ids), length)
        bare.rewind(held)
        engine.rewind(held)
        if held < length:
            bare.read(text[held:length])
            engine.extend(text[held:length], 0)
        step = _drafting_step(engine, text[length:])
        ours, theirs = run_in_turn(step, partial(_bare_step, bare, text[length:]), repetitions, WARM_UP)
        yield Measurement(f"after {length} tokens: bare llama_decode, a token", milliseconds(theirs), "ms")
        yield Measurement(
            f"after {length} tokens: drafting step over bare llama_decode",
            ratio(ours, theirs),
            "ratio",
            "<= 1.05",
            f"decode, log-softmax, entropy, top-{TOP_K}",
        )
    bare.close()
    engine.close()


def _bare_step(bare: BareContext, following: Ids, i: int) -> float:
    return bare.decode(following[i : i + 1])


def _drafting_step(engine: LlamaEngine, following: Ids) -> Callable[[int], None]:
    cursor = Cursor(engine)

    def step(i: int) -> None:
        row = cursor.row((*engine.ids, following[i]))
        cursor.forget_rows(before=len(engine.ids))
        row.entropy()
        row.top(TOP_K)

    return step


def _completion(
    weights: Weights, text: Ids, length: int, report_progress: Callable[[str], None], repetitions: int
) -> Measurement:
    report_progress(f"create_completion(logprobs={TOP_K}), in turn with a drafting step")
    engine = weights.context(length + room(repetitions), 1)
    engine.extend(text[:length], 0)
    # A model that ends its text begins it again; what that takes, the median does not see.
    num_chunks = repetitions + COMPLETION_ROOM
    chunks = chain.from_iterable(completion_chunks(weights.path, text[:length], num_chunks, TOP_K) for _ in count())
    next(chunks)  # the prompt is read before the first
    step = _drafting_step(engine, text[length:])
    theirs, ours = run_in_turn(lambda _: next(chunks), step, repetitions, WARM_UP)
    engine.close()
    return Measurement(
        f"after {length} tokens: create_completion with log-probabilities over a drafting step",
        ratio(theirs, ours),
        "ratio",
        ">= 5",
        "a token",
    )


def _weigh(model: Path, report_progress: Callable[[str], None]) -> Iterator[Measurement]:
    """Compare the peaks of fresh processes, one a loop."""
    peaks = {}
    for loop in memory.LOOPS:
        report_progress(f"peak memory of the {loop} loop")
        peaks[loop] = memory.peak_mib(loop, model)
    yield Measurement("peak memory of the bare loop", Spread.of([peaks["bare"]]), "MiB")
    for loop, what in memory.LOOPS.items():
        if loop != "bare":
            more = Spread.of([peaks[loop] - peaks["bare"]])
            yield Measurement(f"peak memory above the bare loop, {loop}", more, "MiB", "<= 64", what)
