"""``hybrid bench kl``: the cost of one divergence, the local row given."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from itertools import cycle, islice

import numpy as np
from numpy.typing import NDArray

from hybrid.engine import Cursor
from hybrid.engine.bare import BareContext
from hybrid.engine.llama import Weights
from hybrid.lab.speed.measure import (
    BenchmarkLoad,
    BenchmarkReport,
    Measurement,
    NamedPair,
    Spread,
    check_same_vocabulary,
    milliseconds,
    mixed_questions,
    ratio,
    run_in_turn,
)
from hybrid.lab.speed.random_model import HALF_BILLION
from hybrid.prob import Dense, TopK, kl_divergence
from hybrid.types import Divergence, Message

TOP_K, WARM_UP = 20, 2
# Tokens of an answer, at most.
ANSWER = 32
# Standard deviations of random scores: the less they differ, the more mass lies outside the top 20.
SCALES = {"a steep row": 8.0, "a middling one": 4.5, "a shallow one": 3.0}
# What the interval of a sure local model needs more: its tail is too little to be what the shown tokens leave of one.
SURE = 40.0


def run(report_progress: Callable[[str], None], repetitions: int, pair: NamedPair | None = None) -> BenchmarkReport:
    """Time the interval at a 152k vocabulary, beside one pass of numpy's exp; or on the rows of two models."""
    if pair:
        return _run_pair(pair, report_progress, repetitions)
    figures = []
    for name, (scores, target) in _rows().items():
        report_progress(f"KL of {name}")
        figures.append(_time(name, TopK.from_dense(target, TOP_K), Dense.from_logits(scores), repetitions))
    return BenchmarkReport(
        "kl", f"{HALF_BILLION.num_tokens} tokens, k = {TOP_K}, float32 scores, one thread", tuple(figures)
    )


def _run_pair(pair: NamedPair, report_progress: Callable[[str], None], repetitions: int) -> BenchmarkReport:
    """Time the interval at positions of the local model's own answers, in turn with its bare decoding."""
    num = repetitions + WARM_UP
    load = BenchmarkLoad.of(pair.local, num)
    with closing(Weights(pair.local)) as local, closing(Weights(pair.cloud)) as cloud:
        check_same_vocabulary(local, cloud)
        report_progress(f"{pair.local.name} answers questions, {pair.cloud.name} reads along")
        with closing(_answer_rows(local, cloud)) as positions:
            rows, targets = zip(*islice(positions, num), strict=True)
        report_progress(f"KL at {repetitions} positions, in turn with a bare decode")
        before, found = load.lengths[0], list[Divergence]()
        text = load.text(local, before + num)
        with closing(BareContext(local, len(text), 1, num_rows=1)) as bare:
            bare.read(text[:before])
            ours, theirs = run_in_turn(
                lambda i: found.append(kl_divergence(targets[i], rows[i])),
                lambda i: bare.decode((text[before + i],)),
                repetitions,
                WARM_UP,
            )
        setting = f"answers of {load.describe(local)}, checked by {pair.cloud.name}, k = {TOP_K}, one thread"
    figures = _pair_figures(targets[WARM_UP:], found[WARM_UP:], ours, theirs)
    return BenchmarkReport("kl", setting, tuple(figures))


def _answer_rows(local: Weights, cloud: Weights) -> Generator[tuple[Dense, TopK], None, None]:
    """Yield the local row and the reference's at each position of greedy answers to questions, for ever."""
    with closing(local.context(0, 1)) as drafter, closing(cloud.context(0, 1)) as reader:
        drafting, reading = Cursor(drafter), Cursor(reader)
        for question in cycle(mixed_questions()):
            text = prompt = local.render([Message("user", question)])
            rows = list[Dense]()
            while len(rows) < ANSWER and not (rows and text[-1] in local.end_ids):
                rows.append(drafting.row(text))
                rows[-1].entropy()  # what drafting has computed, too
                rows[-1].top(TOP_K)
                text += (rows[-1].best,)
            shown = reading.rows(text[:-1], len(text) - len(prompt))
            yield from zip(rows, (TopK.from_dense(row, TOP_K) for row in shown), strict=True)


def _pair_figures(
    targets: Sequence[TopK], found: Sequence[Divergence], ours: Sequence[float], theirs: Sequence[float]
) -> Iterator[Measurement]:
    """Yield the interval's time, alone and over a bare decode, and at the positions of least and most unseen mass."""
    tails = np.array([target.tail for target in targets])
    seconds = np.array(ours)
    widths = Spread.of([interval.upper - interval.lower for interval in found])
    yield Measurement("KL interval", milliseconds(ours), "ms", "<= 0.5", f"median width {widths.median:.2g} nats")
    yield Measurement("KL interval over a bare llama_decode of one token", ratio(ours, theirs), "ratio")
    for name, chosen in {
        "least": tails <= np.quantile(tails, 0.25),
        "most": tails >= np.quantile(tails, 0.75),
    }.items():
        note = f"unseen mass {tails[chosen].min():.2g} to {tails[chosen].max():.2g}"
        yield Measurement(
            f"KL interval, the quarter of {name} unseen mass", milliseconds(seconds[chosen]), "ms", None, note
        )


def _rows() -> dict[str, tuple[NDArray[np.float32], Dense]]:
    """Return local scores and the target's row, by name."""
    rng, size = np.random.default_rng(0), HALF_BILLION.num_tokens
    rows = {}
    for name, scale in SCALES.items():
        scores = rng.standard_normal(size).astype(np.float32) * scale
        rows[name] = scores, Dense.from_logits(scores + rng.standard_normal(size).astype(np.float32))
    scores, target = rows["a middling one"]
    for name, token in (("sure and right", target.best), ("sure and wrong", int(target.logits.argmin()))):
        sure = scores.copy()
        sure[token] = scores.max() + SURE
        rows[name] = sure, target
    flat = rng.standard_normal(size).astype(np.float32) * 0.01
    rows["flat: every token alike"] = flat, Dense.from_logits(-flat)
    return rows


def _time(name: str, target: TopK, local: Dense, repetitions: int) -> Measurement:
    whole = local.logprobs
    interval, exp = run_in_turn(lambda _: kl_divergence(target, local), lambda _: np.exp(whole), repetitions)
    note = f"unseen mass {target.tail:.2g}; {ratio(interval, exp).median:.1f} times one exp over the row"
    return Measurement(
        f"KL interval, {name}", milliseconds(interval), "ms", None if name.startswith("flat") else "<= 0.5", note
    )
