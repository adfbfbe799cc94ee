"""Concepts, text cells and transport along two texts: each measure against an oracle, the report by a second hand."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from functools import partial
from itertools import accumulate, combinations
from pathlib import Path

import numpy as np
import pytest
from cases import each_of
from scipy.stats import spearmanr
from vocabularies import Pieces

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.cli.experiment import DESIGNS
from hybrid.cloud.translation import ExactSplitter, RowTranslator, TokenizedAnswer
from hybrid.errors import UsageError
from hybrid.lab.experiments import position_table
from hybrid.lab.experiments.grid import GridRun, ModelPair
from hybrid.lab.experiments.questions import as_questions, draw_problems
from hybrid.lab.experiments.world import open_world
from hybrid.lab.study import concepts
from hybrid.lab.study.concepts import (
    FAVOURITES,
    MEASURES,
    compare_measures,
    concepts_document,
    concepts_grids,
    concepts_report,
    read_cells,
    try_concepts,
)
from hybrid.lab.study.design import Design, read_design
from hybrid.lab.study.sections import sections_of
from hybrid.partitions.partition_file import load_partition
from hybrid.prob import Dense, Partition, TopK
from hybrid.prob.concepts import EmbeddingCost
from hybrid.report import html
from hybrid.settings.names import MODELS

# The package POT warns of its own sources when they are first compiled.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:invalid escape:{kind}") for kind in ("DeprecationWarning", "SyntaxWarning")
]
FOREIGN = Path(__file__).parents[2] / "examples" / "train_reference_models" / "foreign"


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """Values do not hang on how often positions are drawn again."""
    monkeypatch.setattr(position_table, "NUM_RESAMPLES", 20)


class Words(Pieces):
    """A vocabulary that says which of its tokens are no text."""

    control_ids = frozenset()


def naive_kl(target, draft):
    return sum(p * (np.log(p) - np.log(q)) for p, q in zip(target, draft, strict=True) if p > 0)


def drawn_pairs(size, num):
    rng = np.random.default_rng(7)
    for spread in np.resize((0.1, 1.0), num):
        yield rng.dirichlet(np.full(size, spread), size=2) + 1e-9


def reading_of(ids, words, rows):
    """A text of the cloud's own tokens with its rows."""
    ends = tuple(accumulate(len(words.piece(token)) for token in ids))
    best = {place: row.best for place, row in enumerate(rows)}
    return TokenizedAnswer(ids, ends, (True,) * len(ids), dict(enumerate(rows)), best)


def cells_of(words, target, draft):
    """What text cells say of one place, all tokens shown."""
    row = TopK.from_dense(target, target.num_tokens)
    [found] = read_cells(
        RowTranslator(words, ExactSplitter(words)), reading_of((0,), words, [row]), (0,), [words.piece(0)]
    )
    return found


# The measures of a position.


def test_every_measure_is_that_of_an_oracle_and_the_coarser_one_is_the_smaller():
    import ot

    rng, size = np.random.default_rng(3), 12
    words = Words([f"{letter}" for letter in "abcdefghijkl"])
    for target, draft in each_of(drawn_pairs(size, 30)):
        vectors = rng.standard_normal((size, 3))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        groups = [{0, 5}, {2, 3, 7}]
        labels = np.array([0, 1, 2, 2, 3, 0, 4, 2, 5, 6, 7, 8])
        p, q = (Dense.from_probs(each / each.sum()) for each in (target, draft))
        costs = np.sqrt(np.clip((1 - vectors @ vectors.T) / 2, 0, 1))
        np.fill_diagonal(costs, 0.0)
        exact = ot.emd2(p.probs / p.probs.sum(), q.probs / q.probs.sum(), costs)
        for k in (size, 3):
            shown = TopK.from_dense(p, k)
            found = compare_measures(
                p, q, shown, cells_of(words, p, q), Partition.of_groups(size, groups), EmbeddingCost(vectors)
            )
            merged = [np.bincount(labels, weights=each.probs) for each in (p, q)]
            assert found["tokens"] == pytest.approx(naive_kl(p.probs, q.probs), abs=1e-6)
            assert found["concepts"] == pytest.approx(naive_kl(*merged), abs=1e-6)
            assert found["cells"] == pytest.approx(found["tokens"], abs=1e-6), "a token is a byte here"
            assert found["variation"] == pytest.approx(np.abs(p.probs - q.probs).sum() / 2, abs=1e-6)
            assert found["transport"] - 1e-6 <= exact <= found["transport"] + found["widths"][1] + 1e-6
            assert found["widths"][1] < (1e-6 if k == size else 1.0)
            assert found["concepts"] <= found["tokens"] + 1e-6
            assert found["transport"] <= found["variation"] + 1e-6
            assert found["agrees"] == (np.argmax(target) == np.argmax(draft))
            assert found["one_concept"] == (labels[np.argmax(target)] == labels[np.argmax(draft)])


def test_what_is_not_known_of_a_text_bounds_nothing():
    [(target, draft)] = drawn_pairs(4, 1)
    p, q = (Dense.from_probs(each / each.sum()) for each in (target, draft))
    cost = EmbeddingCost(np.eye(4))
    found = compare_measures(p, q, TopK.from_dense(p, 4), None, Partition.of_groups(4, []), cost)
    assert (found["cells"], found["widths"][0]) == (0.0, np.inf)
    assert found["concepts"] == pytest.approx(found["tokens"], abs=1e-6), "each token alone"


def test_distances_are_those_of_the_rows_whether_they_are_worked_out_once_or_at_every_place(monkeypatch):
    first, second = np.random.default_rng(0).integers(0, 384, size=(2, 40))
    found = []
    for most in (2048, 0):
        monkeypatch.setattr(concepts, "TABLED", most)
        found.append(concepts.read_embeddings.__wrapped__(BUNDLED_LOCAL)[1](first, second))
    assert found[0].shape == (40, 40)
    assert found[0] == pytest.approx(found[1], abs=1e-12)
    assert found[0] != pytest.approx(found[1].T, abs=0.1)


def test_cells_are_never_above_tokens_where_pieces_begin_alike():
    words, apart = Words(["a", "ab", "b", "ba", " a", "<end>"], ends=frozenset({5})), []
    for target, draft in each_of(drawn_pairs(6, 100)):
        p, q = (Dense.from_probs(each / each.sum()) for each in (target, draft))
        cells, tokens = cells_of(words, p, q).kl(q).lower, naive_kl(p.probs, q.probs)
        assert cells <= tokens + 1e-6
        apart.append(tokens - cells)
    assert max(apart) > 0.1


def test_inside_a_token_of_the_cloud_a_row_says_what_goes_on_from_the_bytes_before():
    """The cloud reads ab, b; a model of another vocabulary reads a, b, b."""
    theirs, ours = (
        Words(["a", "b", "ab", "<end>"], ends=frozenset({3})),
        Words(["b", "a", "<end>"], ends=frozenset({2})),
    )
    first, second = np.array([0.2, 0.1, 0.6, 0.1]), np.array([0.3, 0.5, 0.1, 0.1])
    rows = [TopK.from_dense(Dense.from_probs(each), 4) for each in (first, second)]
    reading = reading_of((2, 1), theirs, rows)
    found = read_cells(RowTranslator(theirs, ExactSplitter(ours)), reading, (1, 0, 0), [b"a", b"b", b"b"])
    at_start, inside, last = (dict(zip(row.strings, row.masses, strict=True)) for row in found)
    assert at_start == pytest.approx({b"a": 0.2, b"b": 0.1, b"ab": 0.6})
    assert inside == pytest.approx({b"b": 0.6 / 0.8})
    assert found[1].hidden == pytest.approx(0.2 / 0.8), "after the token a another row would stand"
    assert last == pytest.approx({b"a": 0.3, b"b": 0.5, b"ab": 0.1})
    assert [row.best for row in found] == [1, 0, 0]


# The report, of records made by hand.


def position(rng):
    values = {name: float(rng.exponential(0.5)) for name in MEASURES}
    values["concepts"] *= float(rng.uniform())
    agrees = bool(rng.uniform() < 0.6)
    same = agrees or bool(rng.uniform() < 0.5)
    return values | {"agrees": agrees, "one_concept": same, "widths": rng.uniform(size=2).tolist()}


def record(rng):
    texts = {
        name: {"positions": [position(rng) for _ in range(int(rng.integers(0, 14)))]} for name in ("cloud", "local")
    }
    foreign = [{"cells": float(rng.exponential()), "agrees": bool(rng.uniform() < 0.5)} for _ in range(8)]
    part = {"kept": False, "concepts": 380, "merged": 6}
    return {"texts": texts, "foreign": {"alien": foreign}, "partition": part}


def made(options=None):
    rng, pairs = np.random.default_rng(1), {name: ModelPair(BUNDLED_LOCAL, BUNDLED_CLOUD) for name in ("one", "two")}
    questions = as_questions(draw_problems("calibration", 1, 0)[:9])
    design = Design("made", ("concepts",), pairs, {0: dict.fromkeys(pairs, questions)}, options=options or {})
    return design, concepts_grids(design), [[record(rng) for _ in range(9)] for _ in pairs]


def naive_auroc(scores, positive):
    pairs = [(a > b) + (a == b) / 2 for a in scores[positive] for b in scores[~positive]]
    return np.mean(pairs)


def columns(records, text):
    flat = [each for one in records for each in one["texts"][text]["positions"]]
    return flat, {name: np.array([each[name] for each in flat]) for name in (*MEASURES, *FAVOURITES)}


def test_what_each_measure_tells_is_what_a_second_hand_counts():
    design, grids, found = made({"threshold": 0.4})
    report = concepts_report(design, grids, found)
    of_pair = dict(zip(("one", "two"), found, strict=True))
    assert len(report["rows"]) == 2 * 2 * len(MEASURES)
    for row in each_of(report["rows"]):
        flat, own = columns(of_pair[row["pair"]], row["text"])
        assert (row["positions"], row["questions"]) == (len(flat), 9)
        values = own[row["measure"]]
        assert row["mean"]["value"] == pytest.approx(values.mean(), abs=1e-5)
        assert row["0.9"]["value"] == pytest.approx(np.quantile(values, 0.9, method="inverted_cdf"), abs=1e-5)
        for name, what in each_of(FAVOURITES.items()):
            auroc, plain = (naive_auroc(each, ~own[name]) for each in (values, own["tokens"]))
            assert row[f"AUROC, {what}"]["value"] == pytest.approx(auroc, abs=1e-4)
            assert row[f"beyond tokens, {what}"]["value"] == pytest.approx(auroc - plain, abs=2e-4)
    for row in each_of(report["texts"]):
        flat, own = columns(of_pair[row["pair"]], row["text"])
        beyond = {name: own[name] > 0.4 for name in ("tokens", "concepts", "cells")}
        for name in ("concepts", "cells"):
            assert row[f"{name} beyond"]["value"] == pytest.approx(beyond[name].mean(), abs=1e-4)
            differs = np.mean(beyond[name] ^ beyond["tokens"])
            assert row[f"{name} differs"]["value"] == pytest.approx(differs, abs=1e-4)
        for name, what in each_of(FAVOURITES.items()):
            assert row[what]["value"] == pytest.approx(np.mean(~own[name]), abs=1e-4)
            adds = naive_auroc(own["transport"], ~own[name]) - naive_auroc(own["variation"], ~own[name])
            assert row[f"embeddings, {what}"]["value"] == pytest.approx(adds, abs=2e-4)
        for a, b in each_of(combinations(MEASURES, 2)):
            assert row[f"{a}, {b}"]["value"] == pytest.approx(spearmanr(own[a], own[b]).statistic, abs=1e-4)
        widths = np.quantile([each["widths"][1] for each in flat], 0.99, method="inverted_cdf")
        assert row["width of transport"]["value"] == pytest.approx(widths, abs=1e-8)


def test_another_vocabulary_is_told_by_its_own_positions():
    design, grids, found = made()
    for row, records in each_of(zip(concepts_report(design, grids, found)["foreign"], found, strict=True)):
        flat = [each for one in records for each in one["foreign"]["alien"]]
        cells, agrees = (np.array([each[name] for each in flat]) for name in ("cells", "agrees"))
        assert row["positions"] == len(flat)
        assert row["mean"]["value"] == pytest.approx(cells.mean(), abs=1e-5)
        assert row["AUROC"]["value"] == pytest.approx(naive_auroc(cells, ~agrees), abs=1e-4)
        assert row["another token"]["value"] == pytest.approx(np.mean(~agrees), abs=1e-4)


def test_the_summary_names_a_winner_only_where_its_interval_is_above_that_of_tokens():
    design, grids, found = made()
    for each in (each for records in found for one in records for each in one["texts"]["cloud"]["positions"]):
        each["tokens"] = each["cells"] = each["variation"] = each["transport"] = 1.0 if each["agrees"] else 2.0
        each["concepts"] = 1.0 if each["one_concept"] else 2.0
    for said in each_of(concepts_report(design, grids, found)["summary"]):
        assert (
            "a favourite that is another token is told by no measure better than by KL over tokens (AUROC 1.000" in said
        )
        assert "a favourite that is another concept is told best by concepts (AUROC 1.000" in said
    for [first, *_] in found:  # one text of nine, which a resample may lack
        first["texts"]["cloud"]["positions"] += [position(np.random.default_rng(0)) | dict.fromkeys(MEASURES, 1.0)]
        first["texts"]["cloud"]["positions"][-1] |= {"agrees": False, "variation": 2.0}
    report = concepts_report(design, grids, found)
    of_variation = [row for row in report["rows"] if (row["measure"], row["text"]) == ("variation", "cloud")]
    for row, said in each_of(zip(of_variation, report["summary"], strict=True)):
        assert row["beyond tokens, another token"]["value"] > row["beyond tokens, another token"]["low"] == 0.0
        assert (
            "a favourite that is another token is told by no measure better than by KL over tokens (AUROC 0.9" in said
        )


@pytest.mark.parametrize("num", [9, 0])
def test_the_section_is_shown_whatever_was_read(num):
    design, grids, found = made()
    if not num:
        empty = {"texts": {name: {"positions": []} for name in ("cloud", "local")}, "foreign": {"alien": []}}
        found = [[each | empty for each in records] for records in found]
    report = json.loads(json.dumps(concepts_report(design, grids, found)))
    shown = html.page("title", concepts_document(report))
    assert "alien" in shown
    assert "64 likeliest" in shown.replace("\n", " ")


# What is run.


def test_a_record_depends_on_the_concepts_the_list_and_the_other_models(monkeypatch):
    pairs = {"wordings": ModelPair(MODELS / "wordings-small.gguf", MODELS / "wordings-large.gguf")}
    questions = {0: {"wordings": as_questions(draw_problems("calibration", 1, 0)[:1])}}
    design = Design("made", ("concepts",), pairs, questions)

    def key(**options):
        [grid] = grids = concepts_grids(replace(design, options=options))
        return GridRun(grids, pairs, BUNDLED_LOCAL.parent).key((0, 0)), grid.trial.args[1]

    kept, partition = key()
    assert partition.digest == load_partition(None, "a7c48416255e5441", 1023).digest, "those that decide for the user"
    others = [key(k=20)[0], key(foreign=("alien",))[0]]
    monkeypatch.setattr(concepts, "kept_file", lambda digest: None)
    built, none = key()
    assert none is None
    assert len({kept, built, *others}) == 4


def test_what_cannot_be_measured_is_refused_before_anything_runs(monkeypatch):
    with pytest.raises(UsageError, match="foreign: there is no model nowhere"):
        made({"foreign": ("nowhere.gguf",)})
    monkeypatch.setattr(concepts, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"hybrid-llm\[transport\]"):
        made()


def test_the_design_that_ships_is_one(tmp_path):
    for ladder in ("sure", "unsure"):
        (tmp_path / "ladders" / ladder).mkdir(parents=True)
        for size in ("small", "large"):
            shutil.copy(FOREIGN / f"{ladder}-{size}.gguf", tmp_path / "ladders" / ladder / f"{size}.gguf")
        lines = [{"split": "test", "kind": "sum", "question": f"{n}?", "answer": "1"} for n in range(90)]
        (tmp_path / "ladders" / ladder / "problems.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "wordings.jsonl").write_text("\n".join(json.dumps({"question": f"{n}?"}) for n in range(60)))
    design = read_design(DESIGNS / "concepts.toml", folder=tmp_path)
    assert [section.name for section in sections_of(design)] == ["concepts"]
    assert set(design.options) == {"k", "threshold", "foreign"}
    assert {name: len(asked) for name, asked in design.questions.items()}["wordings"] == 60


@pytest.mark.slow
def test_on_the_bundled_pair_the_laws_hold_at_every_token():
    question = replace(as_questions(draw_problems("calibration", 1, 3))[4], max_tokens=24)
    pairs = {"bundled": ModelPair(BUNDLED_LOCAL, BUNDLED_CLOUD)}
    design = Design("x", ("concepts",), pairs, {0: {"bundled": (question,)}}, options={"foreign": ("alien",)})
    [grid] = concepts_grids(design)
    answers = []

    async def check(arm, sampling, answered):
        answers.append(answered)

    async def run(of):
        async with open_world(BUNDLED_LOCAL, BUNDLED_CLOUD) as world:
            return await of.answer(world, 0, 0, check)

    found = json.loads(json.dumps(asyncio.run(run(grid))))
    for answered, text in each_of(zip(answers[:2], ("cloud", "local"), strict=True)):
        positions = found["texts"][text]["positions"]
        assert len(positions) == len(answered.ids) > 5
        for each in each_of(positions):
            assert 0.0 <= each["concepts"] <= each["tokens"] + 1e-6
            assert 0.0 <= each["cells"] <= each["tokens"] + 1e-6
            assert 0.0 <= each["transport"] <= each["variation"] + 1e-6
    assert sum(not each["agrees"] for each in found["foreign"]["alien"]) < len(found["foreign"]["alien"])
    assert (found["partition"]["kept"], found["partition"]["concepts"]) == (False, 381)
    assert concepts_document(concepts_report(design, [grid], [[found]]))
    everything = Partition(np.zeros(384, dtype=np.int64), 1)
    own = replace(grid, trial=partial(try_concepts, pairs["bundled"], everything, 20, {}))
    of_one = asyncio.run(run(own))
    assert (of_one["partition"]["kept"], of_one["partition"]["merged"]) == (True, 384)
    assert max(each["concepts"] for text in of_one["texts"].values() for each in text["positions"]) < 1e-6
