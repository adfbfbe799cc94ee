"""``hybrid bench engine``: the cost of drafting over the bare llama.cpp loop, and over ``create_completion``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from hybrid.bench.speed import memory
from hybrid.bench.speed.measure import BenchmarkReport, Measurement, Spread, milliseconds, ratio, run_in_turn
from hybrid.bench.speed.random_model import HALF_BILLION
from hybrid.engine import Cursor
from hybrid.engine.bare import BareContext, completion_chunks
from hybrid.engine.llama import LlamaEngine, Weights

TOP_K = 20
PROMPT = tuple(range(300, 364))


def run(model: Path, report_progress: Callable[[str], None], repetitions: int) -> BenchmarkReport:
    """Time a drafting step against ``llama_decode`` alone and ``create_completion``, and weigh both loops."""
    weights = Weights(model)
    figures = [
        *_steps(weights, report_progress, repetitions),
        _completion(weights, model, report_progress, repetitions),
    ]
    weights.close()
    figures += _weigh(model, report_progress)
    millions = HALF_BILLION.num_parameters // 1_000_000
    setting = (
        f"{millions} M parameters, 8 bits, {HALF_BILLION.num_tokens} tokens, one thread, after {len(PROMPT)} tokens"
    )
    return BenchmarkReport("engine", setting, tuple(figures))


def _steps(weights: Weights, report_progress: Callable[[str], None], repetitions: int) -> Iterator[Measurement]:
    report_progress("a drafting step, in turn with the bare loop")
    num_context = len(PROMPT) + repetitions + 8
    bare, engine = BareContext(weights, num_context, 1, num_rows=1), weights.context(num_context, 1)
    bare.decode(PROMPT, rows=False)
    engine.extend(PROMPT, 0)
    step = _drafting_step(engine)
    ours, theirs = run_in_turn(step, lambda i: bare.decode((1000 + i,)), repetitions)
    bare.close()
    engine.close()
    yield Measurement("bare llama_decode, a token", milliseconds(theirs), "ms")
    what = f"decode, log-softmax, entropy, top-{TOP_K}"
    yield Measurement("drafting step over bare llama_decode", ratio(ours, theirs), "ratio", "<= 1.05", what)


def _drafting_step(engine: LlamaEngine) -> Callable[[int], None]:
    cursor = Cursor(engine)

    def step(i: int) -> None:
        row = cursor.row((*engine.ids, 1000 + i))
        cursor.forget_rows(before=len(engine.ids))
        row.entropy()
        row.top(TOP_K)

    return step


def _completion(weights: Weights, model: Path, report_progress: Callable[[str], None], repetitions: int) -> Measurement:
    report_progress(f"create_completion(logprobs={TOP_K}), in turn with a drafting step")
    engine = weights.context(len(PROMPT) + repetitions + 8, 1)
    engine.extend(PROMPT, 0)
    chunks = completion_chunks(model, PROMPT, repetitions + 8, TOP_K)
    next(chunks)  # the prompt is read before the first
    theirs, ours = run_in_turn(lambda _: next(chunks), _drafting_step(engine), repetitions)
    engine.close()
    return Measurement(
        "create_completion with log-probabilities over a drafting step", ratio(theirs, ours), "ratio", ">= 5", "a token"
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
