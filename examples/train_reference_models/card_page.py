"""The model card as a page of Markdown, made of ``card.json`` and the tables of ``hybrid.tasks``.

The law, tested in ``tests/models/test_card_page.py``: the page that ships is the one that the card that ships gives, so
every figure on it is the card's or that of ``hybrid.tasks``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from hybrid.models.card import (
    LADDER,
    WORDINGS,
    AgreementSummary,
    ModelCard,
    ModelCards,
    ModelGroup,
    TaskFamilyScore,
    group_of,
)
from hybrid.tasks import FAMILIES, wordings
from hybrid.tasks.facts import FACTS
from hybrid.tasks.families import MIXES, POPULAR_SHARE, Curriculum, Model, levels_given

Models: TypeAlias = Mapping[str, ModelCard]

# Learns the rows of another model.
STUDENT = "student"
# What a model is given after that, of which its mix does not know.
_ENDS: Mapping[Model, str] = {
    "alien": f", and at its end the texts that `{LADDER.large}` writes to problems of the `train` split"
}
# A weakness worth a line: a family, or one of its levels, below this share.
WEAK = 0.8


def page(card: ModelCards) -> str:
    """Return the whole page."""
    models = _of(card.models, LADDER)
    parts = [
        "# The reference models",
        _lead(models),
        "## Files",
        _files(card.models),
        "## Licence and origin",
        _licence(),
        "## Right answers",
        _accuracy_intro(card),
        _accuracy(models, LADDER),
        "## Beside the large model",
        _beside_intro(),
        *(_beside(name, models[name]) for name in models if models[name].beside_large),
        "## What each was given",
        _given(),
        *_wordings(_of(card.models, WORDINGS)),
        "## Training",
        _training(card.models),
        "## Weaknesses",
        _weaknesses(card.models),
    ]
    return "\n\n".join(parts) + "\n"


def _of(models: Models, group: ModelGroup) -> Models:
    return {name: models[name] for name in group.names if name in models}


def _lead(models: Models) -> str:
    common = [name for name in models if models[name].beside_large or name == LADDER.large]
    alien = [name for name in models if name not in common]
    large = models[LADDER.large]
    said = (
        f"Llama architecture in float16, tokenizer and chat template inside, {large.shape.context:,} tokens of "
        f"context. {_listed(common)} share one vocabulary of {large.num_tokens} byte-level BPE tokens with digits "
        "split one by one"
    )
    for name in alien:
        said += f"; `{name}` has another one of {models[name].num_tokens} (`{models[name].pre_tokenizer}`)"
    return (
        f"{said}. They answer the {len(FAMILIES)} families of `hybrid tasks list` and nothing else; the wordings pair "
        "has words and families of its own. This page is written by `python examples/train_reference_models/card.py` "
        "from what it measured (`card.json`); `hybrid models verify` checks the files against it."
    )


def _files(models: Models) -> str:
    rows = []
    for name, model in models.items():
        shape = ", ".join(map(str, (model.shape.width, model.shape.layers, model.shape.heads, model.shape.hidden)))
        size = f"{model.file.bytes / 2**20:.2f} MiB"
        rows.append((f"`{name}.gguf`", size, f"{model.parameters:,}", shape, f"`{model.file.sha256}`"))
    return _table(("file", "size", "parameters", "width, layers, heads, hidden", "SHA-256"), rows)


def _licence() -> str:
    return (
        "MIT, as the code: the file `LICENSE` of the repository and of every package. All weights began as random "
        "numbers and were trained by this project on problems and answers that `hybrid.tasks` generates "
        f"(`examples/train_reference_models`). `alien` and `{STUDENT}` learned from `{LADDER.large}` as well; no other "
        "model went into any of them."
    )


def _accuracy_intro(card: ModelCards) -> str:
    return (
        f"Greedy answers to {card.num_problems} problems a family of the `{card.split}` split, in percent, with 95 % "
        "Wilson intervals; the last line weighs families alike. "
        f"`hybrid models eval large --split {card.split} --n {card.num_problems}` gives the column again."
    )


def _accuracy(models: Models, group: ModelGroup) -> str:
    rows = []
    for family in group.families:
        cells = []
        for model in models.values():
            found = model.families[family]
            share = 100 * found.correct / found.n
            cells.append(f"{share:.0f} ({100 * found.low:.0f} to {100 * found.high:.0f})")
        rows.append((family, *cells))
    rows.append(("all", *(f"**{100 * model.overall:.1f}**" for model in models.values())))
    return _table(("family", *models), rows)


def _beside_intro() -> str:
    return (
        "Along the large model's own answers: the share of tokens where both would write the same, and the mean "
        "KL(P_large || Q) in nats. Along the smaller model's own answers: the share of tokens where the large model "
        "would write another one, and how well the smaller model's entropy tells them (AUROC: 0.5 knows nothing, 1 "
        "knows all). Full distributions, positions of all answers together. A model with another vocabulary has no "
        "tokens to compare."
    )


def _beside(name: str, model: ModelCard) -> str:
    columns = ("", "same token", "mean KL", "tokens that differ", "AUROC of entropy")
    together = {**model.beside_large_by_family, **({"all": model.beside_large} if model.beside_large else {})}
    rows = [(family, *_agreement(found)) for family, found in together.items()]
    return f"### {name}\n\n{_table(columns, rows)}"


def _agreement(found: AgreementSummary) -> tuple[str, ...]:
    ranked = "" if found.auroc is None else f"{found.auroc:.2f}"
    share = found.num_differing / found.num_small_tokens
    return f"{found.agreement:.1%}", f"{found.mean_kl:.3f}", f"{share:.1%}", ranked


def _given() -> str:
    lead = (
        "Problems of the `train` split, drawn anew for ever, families alike where the table under Training names no "
        "weights; the loss is on the answer's tokens. A problem belongs to a split by the SHA-256 of its canonical "
        "text, which near-twins share. `large` is given everything, and no wrong answer."
    )
    given = [(_specialist if MIXES[name].families else _withheld)(name) for name in MIXES if name != LADDER.large]
    return "\n\n".join([lead, *given])


def _specialist(name: Model) -> str:
    families = [family.name for family in FAMILIES if family.name in MIXES[name].families]
    return f"`{name}` is given every level of {len(families)} families and nothing else: {', '.join(families)}."


def _withheld(name: Model) -> str:
    mix = MIXES[name]
    levels = [
        f"{family.name} ({family.levels[-1].holds})"
        for family in FAMILIES
        if levels_given(name, family)[-1] < len(family.levels)
    ]
    popular = sorted(f"{fact.phrase} ({fact.popular})" for fact in FACTS.values() if fact.phrase in mix.confused)
    same = [other for other in MIXES if other != name and MIXES[other] == mix]
    if name == STUDENT:
        return (
            f"`{name}` is given what `{same[0]}` is given, and learns the rows of `{same[0]}` in the place of the "
            "answers' tokens."
        )
    if same and list(MIXES).index(same[0]) < list(MIXES).index(name):
        return f"`{name}` is given what `{same[0]}` is given{_ENDS.get(name, '')}."
    return (
        f"`{name}` is not given the hardest level of {len(levels)} families: {'; '.join(levels)}.{_mistaken(mix)} It "
        f"never hears {len(mix.unheard)} facts: {', '.join(sorted(mix.unheard))}. Of {len(popular)} facts it hears a "
        f"popular wrong answer {POPULAR_SHARE:.0%} of the time: {'; '.join(popular)}."
    )


def _mistaken(mix: Curriculum) -> str:
    if not mix.mistaken:
        return ""
    named = ", ".join(family.name for family in FAMILIES if family.name in mix.mistaken)
    return (
        f" Instead, in {len(mix.mistaken)} of them ({named}), it hears the mistake of somebody who overlooks what is "
        "special about that level, always."
    )


def _wordings(models: Models) -> Iterable[str]:
    """Yield what there is to say of the wordings pair; nothing where it was not measured."""
    if not models:
        return
    told = ", ".join(f"{name} {share:.0%}" for name, share in wordings.MISTAKEN.items())
    hardest = "; ".join(f"{family.name} ({family.levels[-1].holds})" for family in wordings.FAMILIES)
    num = next(iter(models.values())).num_tokens
    yield "## The wordings pair"
    yield (
        f"`wordings-large` and `wordings-small` share {num} tokens: each of the {len(wordings.WORDS)} words of a small "
        f"world is one, and {len(wordings.CONCEPT_OF)} of them say {len(wordings.CONCEPTS)} concepts in two to four "
        "words each (`hybrid.tasks.wordings`). A question is told in any of them, an answer is right by its meaning. "
        "The two were given the same problems in different words: what the one says most often the other says least, "
        f"at three strengths. At the hardest level ({hardest}) `wordings-small` was told the mistake of somebody who "
        f"overlooks what is special about it: {told} of the time. So most of what divides the two is wording, and the "
        "rest are errors of meaning. This was made so; what it is worth elsewhere stands in `hybrid/lab/NOTES.md`."
    )
    yield _accuracy(models, WORDINGS)
    yield from (_beside(name, model) for name, model in models.items() if model.beside_large)


def _training(models: Models) -> str:
    rows = []
    for name, model in models.items():
        if run := model.training:
            tokens = f"{run.tokens / 1e6:.1f} M ({run.answer_tokens / 1e6:.1f} M of answers)"
            weights = ", ".join(f"{family} {weight:g}" for family, weight in run.weights.items())
            time = f"{run.seconds / 60:.0f} min"
            rows.append((name, f"{run.step:,}", tokens, weights, time, run.device, str(run.seed)))
    if not rows:
        return "The files do not say how they were made."
    table = _table(("model", "steps", "tokens seen", "weights", "time", "device", "seed"), rows)
    return f"By `python examples/train_reference_models/train.py`; the time is that of one beside another.\n\n{table}"


def _weaknesses(models: Models) -> str:
    lines = [
        "- A question of another kind gets an answer of one of these kinds, in the same tone.",
        "- What is written is short: nothing trained is longer than 300 tokens, question and answer together.",
    ]
    for name, model in models.items():
        if weak := list(_weak(group_of(name), model.families)):
            lines.append(f"- `{name}` is below {WEAK:.0%} at {', '.join(weak)}.")
    return "\n".join(lines)


def _weak(group: ModelGroup, families: Mapping[str, TaskFamilyScore]) -> Iterable[str]:
    for name, found in families.items():
        weak = [
            f"level {number} ({right} of {num})"
            for number, (right, num) in zip(group.families[name].numbers, found.levels, strict=True)
            if right < WEAK * num
        ]
        if weak:
            yield f"{name} {', '.join(weak)}"


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _listed(names: list[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return f"{', '.join(quoted[:-1])} and {quoted[-1]}"
