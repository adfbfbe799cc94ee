"""Model cards made by hand: each model's figures follow from its name and from what it gets wrong."""

from __future__ import annotations

import hashlib

from hybrid.models import card as room
from hybrid.models.card import (
    GROUPS,
    AgreementSummary,
    Fingerprint,
    ModelCard,
    ModelCards,
    ModelShape,
    TaskFamilyScore,
    TrainingRun,
    group_of,
)
from hybrid.tasks.statistics import wilson

NUM = 30
NAMES = tuple(name for group in GROUPS for name in group.names)


def score(family, right=NUM):
    """Ten problems of each of three levels (fifteen of two), answered right from the easiest on."""
    of_level = NUM // len(family.levels)
    levels = tuple((min(max(right - of_level * i, 0), of_level), of_level) for i in range(NUM // of_level))
    share = wilson(right, NUM)
    return TaskFamilyScore(n=NUM, correct=right, low=round(share.low, 4), high=round(share.high, 4), levels=levels)


def summary(**other):
    figures = {"agreement": 0.875, "mean_kl": 0.125, "num_large_tokens": 800, "auroc": 0.75}
    return AgreementSummary(**(figures | {"num_differing": 90, "num_small_tokens": 900} | other))


def model_card(name, right):
    """A model whose file holds its name; ``right``: families that it does not answer all of, with how many."""
    group = group_of(name)
    beside, common = name not in {group.large, "alien"}, name != "alien"
    families = {family: score(known, right.get(family, NUM)) for family, known in group.families.items()}
    return ModelCard(
        file=Fingerprint(bytes=len(name), sha256=hashlib.sha256(name.encode()).hexdigest()),
        parameters=92_400 + len(name),
        num_tokens=384 if common else 640,
        pre_tokenizer="qwen2" if common else "gpt-2",
        shape=ModelShape(width=48, layers=2, heads=3, hidden=128, context=1024),
        training=TrainingRun(
            step=3100, tokens=38_000_000, answer_tokens=9_500_000, seconds=5400, seed=11, device="cpu"
        ),
        overall=round(sum(found.correct for found in families.values()) / NUM / len(families), 4),
        families=families,
        beside_large=summary() if beside else None,
        beside_large_by_family=dict.fromkeys(group.families, summary(agreement=0.5)) if beside else {},
    )


def made(**right):
    """A card of all models; ``right``: a model's families that it does not answer all of, with how many."""
    models = {name: model_card(name, right.get(name, {})) for name in NAMES}
    return ModelCards(split="test", num_problems=NUM, models=models)


def filled(folder):
    """Write a file of a few bytes for each model and their card; pages and sums need no weights."""
    for name in NAMES:
        (folder / f"{name}.gguf").write_bytes(name.encode())
    (folder / room.CARD).write_text(made().model_dump_json())
    return folder
