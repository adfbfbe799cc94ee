"""Concepts and tokenizers: how far two models are apart over tokens, concepts and text, and in embedding space.

Along both greedy texts every measure is taken of the same two rows, and has to tell where the local model's favourite
is another than the cloud's. KL over tokens and concepts and the total variation are of dense rows. Text cells and
transport are of the cloud's ``k`` likeliest tokens, for a linear program over a vocabulary is slow: their lower ends
are compared. A model of another vocabulary (option ``foreign``) has text cells alone. The laws (``tests/bench/
test_study_concepts.py``): KL over concepts and over cells is at most KL over tokens, transport is that of a linear
program and at most the total variation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import accumulate, combinations
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.cloud.translation import ExactSplitter, RowTranslator, TokenizedAnswer
from hybrid.engine import Cursor
from hybrid.engine.llama import Weights
from hybrid.engine.real_models import model_file
from hybrid.engine.token_table import read_token_table
from hybrid.engine.vocabulary import VocabularyFile
from hybrid.errors import UsageError
from hybrid.lab.arms import estimate_to_json, fingerprint
from hybrid.lab.experiments import position_table as table
from hybrid.lab.experiments.grid import CLOUD, LOCAL, CheckAnswer, GradedQuestion, Grid, ModelPair, Record
from hybrid.lab.experiments.questions import THRESHOLD
from hybrid.lab.experiments.trials import answer_arms
from hybrid.lab.experiments.world import World
from hybrid.lab.study.design import Design
from hybrid.lab.study.row_sections import pair_texts
from hybrid.lab.study.rows import DIGITS, TEXTS, read_questions
from hybrid.lab.study.section import Section
from hybrid.partitions.building import build_groups
from hybrid.partitions.embedding import directions
from hybrid.partitions.partition_file import kept_file, load_partition
from hybrid.prob import Dense, Floats, FullRow, Partition, TextRow, TopK, concept_kl
from hybrid.prob.concepts import EmbeddingCost, TransportCost, transport
from hybrid.report import Document, Text
from hybrid.report.tables import Cell, at, estimate, table_of, with_interval
from hybrid.types import Ids, Message, Sampling

MEASURES, BOUNDED = ("tokens", "concepts", "cells", "variation", "transport"), ("cells", "transport")
FAVOURITES, SHARES = {"agrees": "another token", "one_concept": "another concept"}, (0.5, 0.9, 0.99)
# So many of the cloud's tokens are shown: transport is then known to 1e-3 on every bundled pair.
LISTED = 64
# Of so many tokens all distances are worked out once: 32 MiB, and a product of matrices less at every place.
TABLED = 2048
NOTE = """Tokens, concepts: KL of dense rows. Cells: KL over the bytes that come next. Transport: what it costs to move
one row to the other by distances of the local model's embeddings. Both are lower ends, by the cloud's {} likeliest
tokens. Variation: transport where all tokens are equally far. AUROC: how well a measure tells where the local favourite
is another token, or says another concept, than the cloud's; beyond tokens: less that of KL over tokens. Four measures
are tried beside it, so one whose interval nearly holds 0 may win by chance. Embeddings: transport less variation."""


def concepts_grids(design: Design) -> tuple[Grid, ...]:
    """Return each pair's questions; options ``k``, ``foreign``, ``read``. Raises UsageError, without POT as well."""
    if find_spec("ot") is None:
        raise UsageError("section concepts needs the package POT: pip install 'hybrid-llm[transport]'")
    k, grids = int(design.options.get("k", LISTED)), []
    foreign = {name: model_file(name) for name in design.options.get("foreign", ())}
    if missing := [name for name, path in foreign.items() if not path.is_file()]:
        msg = f"[options] foreign: there is no model {missing[0]}"
        raise UsageError(msg)
    others = [fingerprint(path) for path in foreign.values()]
    for name, asked in read_questions(design).items():
        pair = design.pairs[name]
        assert isinstance(pair, ModelPair)  # an endpoint shows no rows
        with closing(VocabularyFile(pair.local)) as words:
            own, num = words.vocabulary_digest, words.num_tokens
        kept = load_partition(None, own, num) if kept_file(own) else None
        trial = partial(try_concepts, pair, kept, k, foreign)
        grids.append(Grid(f"concepts of {name}", name, asked, trial, ("concepts", kept and kept.digest, k, others), 2))
    return tuple(grids)


@lru_cache(maxsize=4)
def read_embeddings(path: Path) -> tuple[Partition, TransportCost]:
    """Return the concepts that ``hybrid concepts build`` finds in a model's file, and the distances of its tokens."""
    tokens = read_token_table(path)
    every = np.arange(num := len(tokens.pieces))
    cost = EmbeddingCost(directions(tokens.rows, num, every, lambda _: None).rows.astype(np.float64))
    groups = Partition.of_groups(num, build_groups(tokens.pieces, tokens.special_ids, tokens.rows))
    known = cost(every, every) if num <= TABLED else np.zeros(0)
    return groups, (lambda first, second: known[np.ix_(first, second)]) if known.size else cost


@lru_cache(maxsize=4)
def translator(cloud: Path, local: Path) -> RowTranslator:
    """Return what reads the rows of one vocabulary in tokens of another. Both stay open until the process ends."""
    return RowTranslator(VocabularyFile(cloud), ExactSplitter(VocabularyFile(local)))


async def try_concepts(
    pair: ModelPair,
    kept: Partition | None,
    k: int,
    foreign: Mapping[str, Path],
    world: World,
    question: GradedQuestion,
    sampling: Sampling,
    check: CheckAnswer,
) -> Record:
    """Take every measure along both texts, and text cells of models of other vocabularies along the cloud's."""
    answers = await answer_arms(world, question, (CLOUD, LOCAL), sampling, check)
    built, cost = read_embeddings(pair.local)
    groups, texts, others = kept or built, dict[str, Any](), dict[str, Any]()
    for name in TEXTS:
        prompt, ids = answers[name].prompt, answers[name].ids
        drafts, targets = world.rows(prompt, ids) if ids else ([], [])
        pieces, shown = [world.cloud.piece(token) for token in ids], [TopK.from_dense(row, k) for row in targets]
        ends, best = tuple(accumulate(map(len, pieces))), {place: row.best for place, row in enumerate(shown)}
        reading = TokenizedAnswer(ids, ends, (True,) * len(ids), dict(enumerate(shown)), best)
        cells = read_cells(translator(pair.cloud, pair.local), reading, ids, pieces)
        rows = zip(targets, drafts, shown, cells, strict=True)
        texts[name] = {"positions": [compare_measures(*each, groups, cost) for each in rows]}
        for other, path in foreign.items() if name == CLOUD.name else ():
            others[other] = foreign_cells(pair, path, question.text, reading, b"".join(pieces))
    own = {"kept": kept is not None, "concepts": groups.num_concepts, "merged": sum(map(len, groups.groups))}
    return {"text": question.text, "kind": question.kind, "texts": texts, "foreign": others, "partition": own}


def read_cells(across: RowTranslator, reading: TokenizedAnswer, ids: Ids, pieces: list[bytes]) -> list[TextRow | None]:
    """Return what the cloud's rows along a text say before each token that it is read in; None: not known."""
    text, starts = b"".join(pieces), accumulate(map(len, pieces), initial=0)
    return [across.row_at(reading, text, start, token) for start, token in zip(starts, ids, strict=False)]


def compare_measures(
    target: Dense, draft: Dense, shown: TopK, cells: TextRow | None, groups: Partition, cost: TransportCost
) -> dict[str, Any]:
    """Return the measures of a position, nats or shares; ``widths``: of the intervals of cells and of transport."""
    rows, moved = table.compare_rows(target, draft), transport(shown, draft, cost)
    low, high = (0.0, np.inf) if cells is None else ((found := cells.kl(draft)).lower, found.upper)
    values = rows["kl"], concept_kl(FullRow(target), draft, groups).estimate, low, 1.0 - rows["overlap"], moved.lower
    told: dict[str, Any] = {name: round(float(each), DIGITS) for name, each in zip(MEASURES, values, strict=True)}
    same = bool(groups.labels[target.best] == groups.labels[draft.best])
    return told | {"agrees": rows["agrees"], "one_concept": same, "widths": [high - low, moved.upper - moved.lower]}


def foreign_cells(pair: ModelPair, path: Path, question: str, reading: TokenizedAnswer, text: bytes) -> list[Record]:
    """Return KL over text cells, and whether both go on alike, before each token of another vocabulary's reading."""
    with closing(Weights(path)) as weights, ExitStack() as stack:
        longest = min(pair.num_context, weights.longest_context or pair.num_context)
        stack.callback((engine := weights.context(longest, threads=1)).close)
        ids, prompt = ExactSplitter(weights).split(text), engine.render((Message("user", question),))
        drafts = Cursor(engine).rows(prompt + ids[:-1], len(ids)) if ids else []
        cells = read_cells(translator(pair.cloud, path), reading, ids, [weights.piece(token) for token in ids])
    known = [(row, draft) for row, draft in zip(cells, drafts, strict=True) if row is not None]
    return [{"cells": round(row.kl(draft).lower, DIGITS), "agrees": row.best == draft.best} for row, draft in known]


def concepts_report(design: Design, grids: Sequence[Grid], found: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """Return the measures by pair and text, their ranks, verdicts at ``threshold`` nats, and other vocabularies."""
    limit, rows, texts = float(design.options.get("threshold", THRESHOLD)), [], []
    for own, read in pair_texts(grids, found):
        flat, all_of = table.flattened([text["positions"] for text in read])
        values = {name: np.array([each[name] for each in flat], dtype=np.float64) for name in MEASURES}
        apart = {what: np.array([not each[name] for each in flat], bool) for name, what in FAVOURITES.items()}
        aurocs = {what: {n: table.weighted_auroc(values[n], where) for n in MEASURES} for what, where in apart.items()}
        for name in MEASURES:
            row = own | {"measure": name} | _spread(values[name], all_of)
            for what, each in aurocs.items():
                row[f"AUROC, {what}"] = estimate_to_json(all_of.estimate(each[name]))
                row[f"beyond tokens, {what}"] = estimate_to_json(all_of.estimate(_less(each[name], each["tokens"])))
            rows.append(row)
        beyond = {name: values[name] > limit for name in MEASURES[:3]}
        shares = apart | {f"{name} beyond": each for name, each in beyond.items()}
        shares |= {f"{name} differs": beyond[name] != beyond["tokens"] for name in ("concepts", "cells")}
        told = own | {name: estimate_to_json(all_of.mean(each)) for name, each in shares.items()}
        for a, b in combinations(MEASURES, 2):
            told[f"{a}, {b}"] = estimate_to_json(all_of.estimate(table.weighted_spearman(values[a], values[b])))
        for what, each in aurocs.items():
            told[f"embeddings, {what}"] = estimate_to_json(all_of.estimate(_less(each["transport"], each["variation"])))
        for number, name in enumerate(BOUNDED):
            widths = np.array([each["widths"][number] for each in flat], dtype=np.float64)
            told[f"width of {name}"] = estimate_to_json(all_of.quantile(widths, 0.99), DIGITS)
        texts.append(told)
    parts = [{"pair": grid.pair} | records[0]["partition"] for grid, records in zip(grids, found, strict=True)]
    said = [_said(each, rows, limit) for each in texts if each["text"] == CLOUD.name]
    report = {"threshold": limit, "k": int(design.options.get("k", LISTED)), "partitions": parts, "rows": rows}
    return report | {"texts": texts, "foreign": [*_foreign_rows(grids, found)], "summary": said}


def _spread(values: Floats, all_of: table.Positions) -> dict[str, Any]:
    spread = {f"{share:g}": all_of.quantile(values, share) for share in SHARES}
    return {name: estimate_to_json(each, 6) for name, each in ({"mean": all_of.mean(values)} | spread).items()}


def _less(first: table.Statistic, other: table.Statistic) -> table.Statistic:
    return lambda drawn: None if (one := first(drawn)) is None or (two := other(drawn)) is None else one - two


def _foreign_rows(grids: Sequence[Grid], found: Sequence[Sequence[Record]]) -> Iterator[dict[str, Any]]:
    for grid, records in zip(grids, found, strict=True):
        for name in records[0]["foreign"]:
            flat, all_of = table.flattened([record["foreign"][name] for record in records])
            cells, agrees = (np.array([each[what] for each in flat], np.float64) for what in ("cells", "agrees"))
            told = {"another token": all_of.mean(1.0 - agrees), "AUROC": all_of.auroc(cells, agrees == 0.0)}
            row = {"cloud of": grid.pair, "model": name, "positions": len(flat)} | _spread(cells, all_of)
            yield row | {what: estimate_to_json(each) for what, each in told.items()}


def _said(text: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], limit: float) -> str:
    """Say which measure wins along a pair's text, or that none does, and what concepts change there."""
    own = [row for row in rows if (row["pair"], row["text"]) == (text["pair"], text["text"])]
    won = "; ".join(f"a favourite that is {what} is told {_winner(own, what)}" for what in FAVOURITES.values())
    adds, turned = estimate(text["embeddings, another concept"], 3), estimate(text["concepts differs"], 3)
    said = f"embeddings add {adds} to variation there; concepts turn {turned} of the verdicts at {limit:g} nats."
    return f"{text['pair']}: {won}; {said}"


def _winner(own: Sequence[Mapping[str, Any]], what: str) -> str:
    """Say whose AUROC is the highest of those that are above that of KL over tokens with their whole interval."""
    auroc, beyond = f"AUROC, {what}", f"beyond tokens, {what}"
    better = [row for row in own if (row[beyond]["low"] or 0.0) > 0.0]
    if not better:
        return f"by no measure better than by KL over tokens (AUROC {estimate(own[0][auroc], 3)})"
    best = max(better, key=lambda row: row[auroc]["value"])
    return f"best by {best['measure']} (AUROC {estimate(best[auroc], 3)}, {estimate(best[beyond], 3)} beyond tokens)"


def concepts_document(report: dict[str, Any]) -> Document:
    """Return how each measure is taken, what each tells, how they go together, and other vocabularies."""
    name: dict[str, Cell] = {"pair, text": lambda row: f"{row['pair']}, {row['text']}"}
    spread: dict[str, Cell] = {"positions": at("positions"), "mean": with_interval("mean", digits=4)}
    spread |= {f"{share:.0%}": at(f"{share:g}", "value", form=".2g") for share in SHARES}
    measures = name | {"measure": at("measure")} | spread
    told = [each for what in FAVOURITES.values() for each in (f"AUROC, {what}", f"beyond tokens, {what}")]
    measures |= {each: with_interval(each, digits=3) for each in told}
    ranks = name | {each: with_interval(each) for each in (f"{a}, {b}" for a, b in combinations(MEASURES, 2))}
    turned = ["tokens beyond", "concepts beyond", "concepts differs", "cells beyond", "cells differs"]
    turned = [*FAVOURITES.values(), *turned, *(f"embeddings, {what}" for what in FAVOURITES.values())]
    shares = name | {each: with_interval(each, digits=4) for each in turned}
    shares |= {f"width of {each}, 99 %": at(f"width of {each}", "value", form=".2g") for each in BOUNDED}
    groups: dict[str, Cell] = {each: at(each) for each in ("pair", "concepts", "merged", "kept")}
    foreign: dict[str, Cell] = {"cloud of": at("cloud of"), "model": at("model")} | spread
    foreign |= {each: with_interval(each, digits=3) for each in ("another token", "AUROC")}
    return [
        Text(NOTE.format(report["k"])),
        table_of("Concepts and merged tokens, built for this study unless they are kept", report["partitions"], groups),
        table_of("The measures, and how well they tell another favourite", report["rows"], measures),
        table_of("Rank correlation of the measures over positions", report["texts"], ranks),
        table_of(f"Favourites, verdicts at {report['threshold']:g} nats, embeddings", report["texts"], shares),
        table_of("Models of other vocabularies along the cloud's text: KL over cells", report["foreign"], foreign),
    ]


OPTIONS, TITLE = ("k", "threshold", "foreign", "read"), "Concepts, text cells and transport"
CONCEPTS_SECTION = Section("concepts", TITLE, concepts_grids, concepts_report, concepts_document, OPTIONS)
