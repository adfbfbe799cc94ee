"""Open the local models: the one whose law a draft has, and those that stand beside it in every context.

All of them read the same text, so they have one vocabulary and one length of context. Each context has a thread of its
own, which drives all its models in turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from hybrid.assemble.reaching import PROBE, served_here
from hybrid.engine import Engine, IsCancelled, Worker
from hybrid.engine.gguf_header import shard_files
from hybrid.engine.identity import LocalNoise, NoiseCache, drafting_ms, identify, measure
from hybrid.engine.llama import Weights
from hybrid.engine.local_memory import as_size
from hybrid.engine.real_models import model_file
from hybrid.engine.vocabulary import share_words
from hybrid.errors import EngineError, UsageError
from hybrid.partitions.partition_file import load_partition
from hybrid.prob import Partition
from hybrid.run import FurtherModel, LocalModel
from hybrid.run.contexts import DomainCheck
from hybrid.run.experts import ExpertRecord
from hybrid.settings.config import Settings
from hybrid.settings.names import MODELS, NAMED
from hybrid.settings.sources import cache_file, counts_file
from hybrid.spend import endpoint_id

# Which tokens of the local vocabulary say the same: read where the settings say, when a policy first asks.


def partition_of(settings: Settings, words: Weights) -> Partition:
    """Read the partition that the settings name, or the one kept for the local vocabulary. Raises UsageError."""
    if settings.concepts == "off":
        raise UsageError("concepts off contradicts a policy that asks which tokens say the same")
    path = None if settings.concepts in {None, "auto"} else Path(str(settings.concepts)).expanduser()
    return load_partition(path, words.vocabulary_digest, words.num_tokens)


BUNDLED_LOCAL = MODELS / "small.gguf"
# The speed and the noise of a model of so many parameters are measured whenever it is opened (20 ms for the bundled
# small one, 75 ms for the large one); of others by answers and by ``hybrid probe``, for nobody should wait for it.
MEASURED_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class OpenedModels:
    """The local models, and what else is known of the first: its file and its weights; and the critic's file.

    ``experts``: what identifies the models that write as one; None: one writes alone, or no file tells.
    """

    local: LocalModel
    path: Path
    weights: Weights
    critic: Path | None = None
    experts: str | None = None

    @property
    def engine(self) -> Engine:
        """The first context of the first model."""
        return self.local.contexts[0][0]


def first_model(settings: Settings) -> Path:
    """Return the model whose vocabulary, prompts and records count: the local one, or the first expert."""
    return settings.local or (settings.experts[0] if settings.experts else BUNDLED_LOCAL)


def further_models(settings: Settings) -> tuple[Path, ...]:
    """Return the models beside it, each once: those that draft for it, the other experts, the critic."""
    critic = (settings.critic,) if settings.critic else ()
    named = (*_active_drafters(settings), *settings.experts[1:], *critic)
    return tuple(path for path in dict.fromkeys(named) if path != first_model(settings))


def name_of(model: Path) -> str:
    """Return what a model is called in answers: its name, or its file's without the ending.

    >>> name_of(Path("small")), name_of(Path("models/qwen-0.5b.gguf"))
    ('small', 'qwen-0.5b')
    """
    return model.name.removesuffix(".gguf")


async def open_local_models(settings: Settings, families: DomainCheck | None, stack: AsyncExitStack) -> OpenedModels:
    """Load the models and open as many contexts as are wanted and memory allows, each with a thread of its own.

    Raises EngineError where a model or not even one context can be opened, UsageError for models that cannot read one
    text.
    """
    worker = Worker("hybrid-engine")
    stack.callback(worker.close)
    path = await worker.do(lambda _: model_file(first_model(settings)))
    weights = await worker.do(lambda _: _load(path, settings))
    stack.callback(weights.close)
    _mind_length(weights, settings.ctx)
    names, others = {first_model(settings): name_of(first_model(settings))}, dict[str, Weights]()
    for model in further_models(settings):
        names[model] = _unused(name_of(model), names.values())
        others[names[model]] = await _load_beside(weights, model, settings, worker, stack)
    critic = names[settings.critic] if settings.critic in further_models(settings) else None
    if settings.critic:
        _mind_critic(settings, others[critic].path if critic else path, path)
    ctx = settings.ctx or (min(each.default_length for each in (weights, *others.values())) if others else 0)
    contexts, beside = await _contexts(settings, ctx, [weights, *others.values()], worker, stack)
    engine = contexts[0][0]
    noise = await worker.do(lambda _: _local_noise(weights, engine))
    speed = await worker.do(lambda _: _measured_ms(weights, engine))
    further = {
        name: await worker.do(partial(_further, other, engines))
        for (name, other), engines in zip(others.items(), beside, strict=True)
    }
    # Of the bundled models nobody needs to know where they lie, unless layers were asked for.
    told = weights.memory(ctx, len(contexts)).notes if settings.gpu_layers or speed is None else ()
    notes = (*told, *_told_of_contexts(len(contexts), settings.parallel))
    notes += _told_of_order([*(others[names[model]] for model in _active_drafters(settings)), weights])
    notes += _told_of_memory((weights, *others.values()), ctx, len(contexts))
    experts = tuple(names[model] for model in settings.experts)
    together = await worker.do(lambda _: _identity_of([others.get(name, weights).path for name in experts]))
    nearest = None if together is None else _record(settings, together, len(experts))
    local = LocalModel(
        contexts,
        noise.nats,
        noise.shift,
        speed,
        notes,
        families,
        names[first_model(settings)],
        further,
        critic,
        experts,
        nearest,
        tuple(names[model] for model in _active_drafters(settings)),
        partial(partition_of, settings, weights),
        partial(_check_files, (weights, *others.values())),
    )
    return OpenedModels(local, path, weights, None if critic is None else others[critic].path, together)


async def _load_beside(
    first: Weights, model: Path, settings: Settings, worker: Worker, stack: AsyncExitStack
) -> Weights:
    """Load a model that reads the same text as the first. Raises UsageError where it cannot."""
    loaded = await worker.do(lambda _: _load(model_file(model), settings, beside=first))
    stack.callback(loaded.close)
    await worker.do(lambda _: _mind_vocabulary(first, loaded))
    _mind_length(loaded, settings.ctx)
    return loaded


def _identity_of(experts: Sequence[Path]) -> str | None:
    """Return what identifies several models that write as one; None for one, and where nothing can be kept."""
    with contextlib.suppress(OSError, UsageError):
        return " ".join(identify(each, cache_file()) for each in experts) if len(experts) > 1 else None
    return None


def _record(settings: Settings, experts: str, num: int) -> ExpertRecord | None:
    """Return where it is counted which expert is the nearest to the cloud; None without a home."""
    cloud = settings.cloud
    beside = "bundled" if cloud is None else cloud if cloud in NAMED else endpoint_id(cloud)
    with contextlib.suppress(UsageError):
        return ExpertRecord(counts_file(), f"{experts} {beside}", num)
    return None


def _further(weights: Weights, engines: Sequence[Engine], _: IsCancelled) -> FurtherModel:
    """Measure a model that stands beside the first, or take what is kept of it."""
    noise = _local_noise(weights, engines[0])
    return FurtherModel(engines, noise.nats, noise.shift, _measured_ms(weights, engines[0]))


def _load(path: Path, settings: Settings, beside: Weights | None = None) -> Weights:
    """Load a model. One context's models run on one thread anyway; of several contexts they decode in turn."""
    turns = beside if settings.parallel > 1 else None
    return Weights(path, gpu_layers=settings.gpu_layers, kv_type=settings.kv_type, beside=turns)


def _mind_critic(settings: Settings, critic: Path | None, local: Path) -> None:
    """Raise UsageError for a critic that writes itself: it would say nothing of its own draft."""
    if critic == local or settings.critic in {*settings.drafters, *settings.experts}:
        msg = f"critic: {settings.critic} drafts already, and a critic is another model"
        raise UsageError(msg)


def _active_drafters(settings: Settings) -> Sequence[Path]:
    """Return the drafters that may be loaded beside the local model: the largest, where not all of them may."""
    if settings.max_active is None:
        return settings.drafters
    room = settings.max_active - 1
    return settings.drafters[-room:] if room else ()


async def _contexts(
    settings: Settings, ctx: int, models: Sequence[Weights], worker: Worker, stack: AsyncExitStack
) -> tuple[list[tuple[Engine, Worker]], list[list[Engine]]]:
    """Return the first model's contexts, each with its thread, and those of each other model, in the same order."""
    # With the bundled server on the same machine, one thread each: two that spin for one core stand still.
    threads = settings.threads or (1 if served_here(settings) else None)
    first, contexts, others = models[0], list[tuple[Engine, Worker]](), [list[Engine]() for _ in models[1:]]
    for number in range(first.contexts_that_fit(ctx, settings.parallel, models[1:])):
        own = Worker(f"hybrid-engine-{number}") if number else worker
        if number:
            stack.callback(own.close)
        opened: list[Engine] = []
        try:
            for model in models:
                opened.append(await own.do(partial(_open_context, model, ctx, threads)))
                stack.callback(opened[-1].close)
        except EngineError:
            if not contexts:
                raise
            break  # what is free is an estimate: another program may have taken it
        contexts.append((opened[0], own))
        for engines, engine in zip(others, opened[1:], strict=True):
            engines.append(engine)
    return contexts, others


def _open_context(weights: Weights, ctx: int, threads: int | None, cancelled: IsCancelled) -> Engine:
    with contextlib.suppress(UsageError):  # --raw needs no template
        weights.check_template(cancelled)
    return weights.context(ctx, threads)


def _measured_ms(weights: Weights, engine: Engine) -> float | None:
    """Return how long a drafted token takes, where that is known at once."""
    return drafting_ms(engine, engine.tokenize(PROBE)) if weights.num_parameters <= MEASURED_AT_ONCE else None


def _check_files(models: Iterable[Weights]) -> None:
    """Raise EngineError where a file of a model was changed since it was loaded."""
    for model in models:
        model.check_files()


def _local_noise(weights: Weights, engine: Engine) -> LocalNoise:
    """Return what is kept of the local model's noise, or measure it where that is done at once, or assume it."""
    with contextlib.suppress(OSError, UsageError):  # no file, or no home to keep one in
        cache, placed = NoiseCache(cache_file()), weights.placement
        known = cache.read(weights.path, placed.on_gpu, weights.kv_type)
        if known is None and placed.on_gpu == placed.total:
            known = cache.read(weights.path, -1, weights.kv_type)  # as earlier programs kept "all of them"
        if known is not None:
            return known
    return measure(engine, engine.tokenize(PROBE)) if weights.num_parameters <= MEASURED_AT_ONCE else LocalNoise()


def _unused(name: str, names: Collection[str]) -> str:
    """Return a name that no other model has."""
    return next(each for each in (name, *(f"{name}-{number}" for number in range(2, 99))) if each not in names)


def _told_of_contexts(num: int, wanted: int) -> tuple[str, ...]:
    """Return a sentence where memory allows fewer contexts than were wanted."""
    if num == wanted:
        return ()
    mend = "a lower --ctx or a smaller --kv-type fits more"
    return (f"memory has room for {num} of {wanted} contexts, so {num} at a time are answered ({mend})",)


def _told_of_order(chain: Sequence[Weights]) -> tuple[str, ...]:
    """Return which model of a chain drafts for a smaller one, as a sentence; the chain goes on as it was named."""
    wrong = next((pair for pair in pairwise(chain) if pair[0].num_parameters > pair[1].num_parameters), None)
    if wrong is None:
        return ()
    large, small = (each.path.stem for each in wrong)
    return (f"{large} drafts for {small}, which is smaller: the order of --local is the smallest model first",)


def _told_of_memory(models: Sequence[Weights], ctx: int, num_contexts: int) -> tuple[str, ...]:
    """Return what several models take together, as a sentence."""
    if len(models) == 1:
        return ()
    held = sum(file.stat().st_size for model in models for file in shard_files(model.path))
    caches = sum(model.memory(ctx, num_contexts).cache_bytes for model in models)
    return (f"{len(models)} local models take {as_size(held)}, and their KV caches {as_size(caches)}",)


def _mind_length(weights: Weights, ctx: int) -> None:
    """Raise UsageError for a longer context than a model was trained with: llama.cpp opens it, and nonsense follows."""
    if (longest := weights.longest_context) is not None and ctx > longest:
        msg = f"ctx: {ctx} tokens are more than the {longest} that {weights.path} was trained with"
        raise UsageError(msg)


def _mind_vocabulary(weights: Weights, other: Weights) -> None:
    """Raise UsageError where two models do not name tokens alike."""
    names, num = f"{weights.path.name} and {other.path.name}", weights.num_tokens
    if num != other.num_tokens:
        msg = f"{names} have {num} and {other.num_tokens} tokens: models that read one text need one vocabulary"
        raise UsageError(msg)
    if not share_words(weights, other):
        msg = f"{names} have different vocabularies: models that read one text need one"
        raise UsageError(msg)
