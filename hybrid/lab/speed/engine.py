"""The local model's own work: ``hybrid bench engine``, ``kl`` and ``recurrent``.

``engine``: the cost of drafting over the bare llama.cpp loop, and over ``create_completion``; the peak memory of the
loops, each in a fresh process that is watched while its loop runs. (The process's own record of its peak says nothing:
loading repacks the weights and has a higher peak than any loop.) ``kl``: the cost of one divergence, the local row
given. ``recurrent``: what a rejection costs a model whose layers keep a state.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, count, cycle, islice
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from hybrid.engine import Cursor
from hybrid.engine.bare import BareContext, completion_chunks
from hybrid.engine.llama import LlamaEngine, Weights
from hybrid.engine.recurrent import MOST_STATES, STEP
from hybrid.errors import EngineError
from hybrid.lab.speed.measure import (
    WARM_UP,
    Bench,
    BenchmarkLoad,
    NamedPair,
    Spread,
    check_same_vocabulary,
    milliseconds,
    mixed_questions,
    ratio,
    run_in_turn,
    turns,
)
from hybrid.lab.speed.random_model import FALCON, HALF_BILLION, MAMBA, write_random_model
from hybrid.policy import SeededCoin
from hybrid.policy.gates import ALWAYS
from hybrid.policy.requests import Draft, ids
from hybrid.prob import Dense, TopK, kl_divergence
from hybrid.run.drafting import Drafter
from hybrid.types import Divergence, Ids, Message, Sampling

TOP_K = 20
COMPLETION_ROOM = 8


def engine(bench: Bench) -> str:
    """Time a drafting step against ``llama_decode`` alone and ``create_completion``, and weigh both loops."""
    room = bench.num + WARM_UP + COMPLETION_ROOM
    load = bench.load(room)
    with closing(Weights(load.model)) as weights:
        text = load.text(weights, load.lengths[-1] + room)
        _time_steps(bench, weights, text, load.lengths)
        _time_completion(bench, weights, text[: load.lengths[0] + room], load.lengths[0])
        setting = f"{load.describe(weights)}, one thread"
    _weigh(bench, load.model)
    return setting


def _time_steps(bench: Bench, weights: Weights, text: Ids, lengths: Sequence[int]) -> None:
    with (
        closing(BareContext(weights, len(text), 1, num_rows=1)) as bare,
        closing(weights.context(len(text), 1)) as drafter,
    ):
        for length in lengths:
            after, held = f"after {length} tokens", min(len(drafter.ids), length - 1)
            bench.say(f"a drafting step {after}, in turn with the bare loop")
            bare.rewind(held)
            drafter.rewind(held)
            bare.read(text[held:length])
            drafter.extend(text[held:length], 0)
            following = text[length:]
            ours, theirs = run_in_turn(
                _drafting_step(drafter, following), partial(_decode_next, bare, following), bench.num
            )
            bench.add_ms(f"{after}: bare llama_decode, a token", theirs)
            note = f"decode, log-softmax, entropy, top-{TOP_K}"
            bench.add_ratio(f"{after}: drafting step over bare llama_decode", ours, theirs, "<= 1.05", note)


def _decode_next(bare: BareContext, following: Ids, i: int) -> float:
    return bare.decode(following[i : i + 1])


def _drafting_step(drafter: LlamaEngine, following: Ids) -> Callable[[int], None]:
    cursor = Cursor(drafter)

    def step(i: int) -> None:
        row = cursor.row((*drafter.ids, following[i]))
        cursor.forget_rows(before=len(drafter.ids))
        row.entropy()
        row.top(TOP_K)

    return step


def _time_completion(bench: Bench, weights: Weights, text: Ids, length: int) -> None:
    bench.say(f"create_completion(logprobs={TOP_K}), in turn with a drafting step")
    # A model that ends its text begins it again; what that takes, the median does not see.
    num_chunks = bench.num + COMPLETION_ROOM
    chunks = chain.from_iterable(completion_chunks(weights.path, text[:length], num_chunks, TOP_K) for _ in count())
    with closing(weights.context(len(text), 1)) as drafter:
        drafter.extend(text[:length], 0)
        next(chunks)  # the prompt is read before the first
        theirs, ours = run_in_turn(lambda _: next(chunks), _drafting_step(drafter, text[length:]), bench.num)
    name = f"after {length} tokens: create_completion with log-probabilities over a drafting step"
    bench.add_ratio(name, theirs, ours, ">= 5", "a token")


# ---- memory, in processes of their own -------------------------------------------------------------------------------

PROMPT = tuple(range(300, 364))
NUM_CONTEXT = 512
NUM_SPANS = 6
LOOPS = {
    "bare": "llama_decode, a token at a time",
    "spans of 8": "drafts of 8 and their rows, 8 more decoded ahead",
    "spans of 32": "drafts of 32 and their rows, 32 more decoded ahead",
}


def _weigh(bench: Bench, model: Path) -> None:
    """Compare the peaks of fresh processes, one a loop."""
    peaks = {}
    for loop in LOOPS:
        bench.say(f"peak memory of the {loop} loop")
        peaks[loop] = peak_mib(loop, model)
    bare = peaks.pop("bare")
    bench.add("peak memory of the bare loop", [bare], "MiB")
    for loop, peak in peaks.items():
        bench.add(f"peak memory above the bare loop, {loop}", [peak - bare], "MiB", "<= 64", LOOPS[loop])


def peak_mib(loop: str, model: Path) -> float:
    """Run a loop in a process of its own and return the largest resident set seen in it, in MiB."""
    return alone("from hybrid.lab.speed.engine import watch_loop as watch", f"the {loop} loop", loop, str(model))


def alone(imported: str, what: str, *args: str) -> float:
    """Import ``watch`` in a process of its own, call it, and return the number that it prints. Raises EngineError."""
    command = f"import sys; {imported}; watch(*sys.argv[1:])"
    done = subprocess.run([sys.executable, "-P", "-c", command, *args], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        msg = f"{what} did not end well in a process of its own: {last}"
        raise EngineError(msg)
    return float(done.stdout)


def watch_loop(loop: str, model: str) -> None:
    """Run the loop that is named and print the peak."""
    weights, resident = Weights(model), psutil.Process().memory_info
    steps = _decode_bare(weights) if loop == "bare" else _draft_spans(weights, int(loop.rsplit(maxsplit=1)[-1]))
    print(max(resident().rss for _ in steps) / 2**20)  # noqa: T201  (the answer)


def _decode_bare(weights: Weights) -> Iterator[None]:
    bare = BareContext(weights, NUM_CONTEXT, 1, num_rows=1)
    bare.decode(PROMPT, rows=False)
    for i in range(NUM_SPANS * 16):
        bare.decode((PROMPT[i % len(PROMPT)],))
        yield


def _draft_spans(weights: Weights, span: int) -> Iterator[None]:
    drafter = Drafter(Cursor(weights.context(NUM_CONTEXT, 1)), PROMPT, Sampling(), SeededCoin(0))
    request = Draft((), span, ALWAYS, wants_next_row=True)
    for _ in range(NUM_SPANS):
        drafted = drafter.draft(request, span, lambda: False)
        yield
        request = Draft(request.at + ids(drafted.span), span, ALWAYS, wants_next_row=True)
        drafter.look_ahead(request, span + 1, lambda: False)
        yield


# ---- a divergence ----------------------------------------------------------------------------------------------------

# Tokens of an answer, at most.
ANSWER = 32
# Standard deviations of random scores: the less they differ, the more mass lies outside the top 20.
SCALES = {"a steep row": 8.0, "a middling one": 4.5, "a shallow one": 3.0}
# What the interval of a sure local model needs more: its tail is too little to be what the shown tokens leave of one.
SURE = 40.0


def kl(bench: Bench) -> str:
    """Time the interval at a 152k vocabulary, beside one pass of numpy's exp; or on the rows of two models."""
    if bench.pair:
        return _kl_of_pair(bench, bench.pair)
    for name, (scores, dense) in _rows().items():
        bench.say(f"KL of {name}")
        target, local = TopK.from_dense(dense, TOP_K), Dense.from_logits(scores)
        interval, exp = _time_row(target, local, bench.num)
        note = f"unseen mass {target.tail:.2g}; {ratio(interval, exp).median:.1f} times one exp over the row"
        bench.add_ms(f"KL interval, {name}", interval, None if name.startswith("flat") else "<= 0.5", note)
    return f"{HALF_BILLION.num_tokens} tokens, k = {TOP_K}, float32 scores, one thread"


def _time_row(target: TopK, local: Dense, num: int) -> tuple[list[float], list[float]]:
    whole = local.logprobs
    return run_in_turn(lambda _: kl_divergence(target, local), lambda _: np.exp(whole), num)


def _kl_of_pair(bench: Bench, pair: NamedPair) -> str:
    """Time the interval at positions of the local model's own answers, in turn with its bare decoding."""
    num = bench.num + WARM_UP
    load = BenchmarkLoad.of(pair.local, num)
    before, found = load.lengths[0], list[Divergence]()
    with closing(Weights(pair.local)) as local, closing(Weights(pair.cloud)) as cloud:
        check_same_vocabulary(local, cloud)
        bench.say(f"{pair.local.name} answers questions, {pair.cloud.name} reads along")
        with closing(_answer_rows(local, cloud)) as positions:
            rows, targets = zip(*islice(positions, num), strict=True)
        bench.say(f"KL at {bench.num} positions, in turn with a bare decode")
        text = load.text(local, before + num)
        with closing(BareContext(local, len(text), 1, num_rows=1)) as bare:
            bare.read(text[:before])
            ours, theirs = run_in_turn(
                lambda i: found.append(kl_divergence(targets[i], rows[i])),
                lambda i: bare.decode((text[before + i],)),
                bench.num,
            )
        setting = f"answers of {load.describe(local)}, checked by {pair.cloud.name}, k = {TOP_K}, one thread"
    tails = np.array([target.tail for target in targets[WARM_UP:]])
    widths = Spread.of([interval.upper - interval.lower for interval in found[WARM_UP:]])
    bench.add_ms("KL interval", ours, "<= 0.5", f"median width {widths.median:.2g} nats")
    bench.add_ratio("KL interval over a bare llama_decode of one token", ours, theirs)
    least, most = tails <= np.quantile(tails, 0.25), tails >= np.quantile(tails, 0.75)
    for name, chosen in {"least": least, "most": most}.items():
        note = f"unseen mass {tails[chosen].min():.2g} to {tails[chosen].max():.2g}"
        bench.add_ms(f"KL interval, the quarter of {name} unseen mass", np.array(ours)[chosen].tolist(), None, note)
    return setting


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


# ---- a rejection, where layers keep a state --------------------------------------------------------------------------
#
# Two contexts over one file take turns: one that saves states, and one without, as before, which reads the whole text
# again. Both draft a span, token by token, and a few tokens more, as during a check. Then the span is rejected at one
# of its places, another one each time, and the row after the token in its place is read.

# A mixed model and a purely recurrent one.
SHAPES = (FALCON, MAMBA)
BEFORE, SPAN, AHEAD, CONTEXT = 500, 8, 4, 2048
# States saved and loaded to time one.
COPIES = 20
FIRST_TOKEN = 3  # those before it are special


def recurrent(bench: Bench) -> str:
    """Count and time rejections of each shape, with saved states and without."""
    for shape in SHAPES:
        bench.say(f"a random {shape.architecture} is written, or used again where it is kept")
        model = write_random_model(bench.folder / f"{shape.architecture}.gguf", shape)
        with closing(Weights(model)) as weights:
            name = f"{shape.architecture}, {weights.num_parameters / 1e6:.0f} million parameters"
            with closing(weights.context(CONTEXT, 1)) as saving, closing(weights.context(CONTEXT, 1)) as plain:
                plain._states = None
                text = tuple(np.random.default_rng(0).integers(FIRST_TOKEN, weights.num_tokens, BEFORE).tolist())
                bench.say(f"{name}: the prompt is read")
                saving.extend(text, 1)
                plain.extend(text, 1)
                _time_states(bench, name, saving, plain)
                _count_rejections(bench, name, saving, plain, text[-SPAN - AHEAD :])
    return f"a prompt of {BEFORE} tokens, drafts of {SPAN} and {AHEAD} tokens ahead, one thread, a state every {STEP}"


def _time_states(bench: Bench, name: str, saving: LlamaEngine, plain: LlamaEngine) -> None:
    """Draft with both in turn: one step in ``STEP`` saves a state. The first ones (new memory) are left out."""
    bench.say(f"{name}: drafting steps")
    steps = run_in_turn(
        lambda _: saving.extend((FIRST_TOKEN,)),
        lambda _: plain.extend((FIRST_TOKEN,)),
        bench.num * STEP,
        STEP * MOST_STATES,
    )
    states, length = saving._states, len(saving.ids)
    if states is not None:  # else a state of this model is not all of its memory
        copies = [(_timed(states.save, length), _timed(states.load, length)) for _ in range(COPIES)]
        size = states.num_bytes / len(states) / 2**20
        bench.add(f"{name}: a state", [size], "MiB", None, f"{len(states)} of them are kept")
        decode = f"a decode takes {milliseconds(steps[1]).median:.3g} ms"
        bench.add_ms(f"{name}: to save one", [saved for saved, _ in copies], None, decode)
        bench.add_ms(f"{name}: to load one", [loaded for _, loaded in copies])
    with_states, without = ([sum(each[i : i + STEP]) for i in range(0, len(each), STEP)] for each in steps)
    bench.add_ratio(f"{name}: drafting that saves states over drafting that does not", with_states, without, "<= 1.1")


def _timed(work: Callable[[int], object], length: int) -> float:
    began = time.perf_counter()
    work(length)
    return time.perf_counter() - began


def _count_rejections(bench: Bench, name: str, saving: LlamaEngine, plain: LlamaEngine, drafted: Sequence[int]) -> None:
    rejections: tuple[list[tuple[int, float]], ...] = [], []
    for i, which in turns(bench.num, 2):
        bench.say(f"{name}: rejections: {i} of {bench.num}")
        rejections[which].append(_reject((saving, plain)[which], drafted, i % SPAN))
    (again, seconds), (again_before, seconds_before) = (zip(*each, strict=True) for each in rejections)
    most = f"at most {max(again)}"
    bench.add(f"{name}: tokens a rejection decodes again", again, "tokens", f"<= {SPAN}", most)
    bench.add(f"{name}: the same without states", again_before, "tokens")
    bench.add_ms(f"{name}: from a rejection to the next row", seconds)
    bench.add_ms(f"{name}: the same without states", seconds_before)
    bench.add_ratio(f"{name}: with states over without", seconds, seconds_before)


def _reject(context: LlamaEngine, drafted: Sequence[int], place: int) -> tuple[int, float]:
    """Draft, go back to ``place`` tokens after the beginning, read another token; tokens decoded again, and seconds."""
    start = len(context.ids)
    context.settle(start)
    for token in drafted:
        context.extend((token,))
    num_decoded, began = context.num_decoded, time.perf_counter()
    context.rewind(start + place)
    context.extend((FIRST_TOKEN,))
    return context.num_decoded - num_decoded - 1, time.perf_counter() - began
