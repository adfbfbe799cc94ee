"""``hybrid concepts`` over model files whose neighbours are known."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner
from word_model import write_word_model

from hybrid.cli import app
from hybrid.engine.llama import Weights
from hybrid.engine.token_table import read_token_table
from hybrid.partitions import building, partition_file
from hybrid.partitions.partition_file import load_partition

FILLER = [f" {chr(97 + i % 26)}{chr(97 + i // 26)}qq" for i in range(80)]
WORDS = ["<end>", "<turn>", " big", " large", " Large", " more", " less", " not", "7", "8", "(", "[", *FILLER]
ALIKE = [(2, 3, 4), (5, 6), (1, 7, 8, 9, 10, 11)]


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A model of three directions among strangers, and a home of its own."""
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(len(WORDS), 64))
    for group in ALIKE:
        rows[list(group)] = rows[group[0]] + 0.1 * rng.normal(size=(len(group), 64))
    rows += 20 * rng.normal(size=(len(WORDS), 3)) @ rng.normal(size=(3, 64)) + 10 * rng.normal(size=64)
    monkeypatch.setattr(partition_file, "concepts_folder", lambda: tmp_path / "concepts")
    model = write_word_model(tmp_path / "words.gguf", WORDS, rows)
    untied = write_word_model(tmp_path / "untied.gguf", WORDS, rows[:, ::-1] * 2, tied=False)
    return SimpleNamespace(model=model, untied=untied, kept=tmp_path / "concepts", folder=tmp_path)


def invoke(*args):
    return CliRunner().invoke(app, ["concepts", *map(str, args)], env={"COLUMNS": "200"})


def told(*args):
    done = invoke(*args, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_what_is_built_is_kept_for_the_vocabulary_and_found_again(house):
    found = told("build", "--local", house.model)
    assert (found["groups"], found["tokens"], found["concepts"]) == (1, 3, len(WORDS) - 2)
    assert found["built"]["rows"] == "token_embd.weight"
    weights = Weights(house.untied)  # another model with this vocabulary
    partition = load_partition(None, weights.vocabulary_digest, weights.num_tokens)
    weights.close()
    assert partition.num_concepts == len(WORDS) - 2
    assert len(set(partition.labels[[2, 3, 4]])) == 1
    assert "\n[[2, " in (house.kept / f"{found['vocabulary']}.json").read_text()
    assert str(house.folder) not in (house.kept / f"{found['vocabulary']}.json").read_text()


def test_control_and_end_tokens_are_told_apart_before_anything_is_joined(house):
    table = read_token_table(house.model)
    assert (table.special_ids, len(table.pieces)) == ({0, 1}, len(WORDS))


def test_an_untied_model_is_read_from_its_output_matrix(house):
    found = told("build", "--local", house.untied, "--out", house.folder / "c.json")
    assert (found["groups"], found["built"]["rows"]) == (1, "output.weight")
    assert not list(house.kept.glob("*")) if house.kept.exists() else True


def test_texts_alone_join_spellings_only(house):
    assert told("build", "--local", house.model, "--texts-only")["tokens"] == 2


def test_a_cosine_that_nothing_reaches_joins_spellings_only(house):
    found = told("build", "--local", house.model, "--cosine", "0.999")
    assert (found["tokens"], found["built"]["cosine"], found["built"]["average"]) == (2, 0.999, 0.899)
    assert invoke("build", "--local", house.model, "--cosine", "1.5").exit_code == 2


def test_a_file_that_is_there_is_not_written_over(house):
    """Somebody may have spent an hour on it."""
    first = told("build", "--local", house.model)
    path = house.kept / f"{first['vocabulary']}.json"
    path.write_text(path.read_text().replace('[3, " large"], ', ""))
    edited = path.read_text()
    again = invoke("build", "--local", house.model)
    assert (again.exit_code, path.read_text()) == (2, edited)
    assert "somebody may have edited it: --replace writes it anew" in again.stderr
    assert told("build", "--local", house.model, "--replace")["tokens"] == 3


def test_an_interruption_leaves_no_file(house, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "build_groups", interrupted)
    assert invoke("build", "--local", house.model).exit_code == 130
    assert list(house.kept.iterdir()) == []


def test_a_word_is_shown_with_what_it_joins_in_any_spelling(house):
    invoke("build", "--local", house.model)
    shown = invoke("show", "LARGE", "--local", house.model)
    assert shown.stdout == '" big" 2, " large" 3, " Large" 4\n'
    assert told("show", "7", "--local", house.model) == {"word": "7", "may_merge": False, "alone": [8], "groups": []}
    assert "the builder merges nothing with it" in invoke("show", "not", "--local", house.model).stdout
    assert "no token is the word zebra" in invoke("show", "zebra", "--local", house.model).stdout
    assert invoke("show", "--all", "--local", house.model).stdout == shown.stdout
    summary = invoke("show", "--local", house.model).stdout
    assert "3 of 92 tokens (3%) are in 1 groups of at most 3: 90 concepts" in summary


def test_without_a_file_the_command_that_builds_one_is_named(house):
    shown = invoke("show", "--local", house.model)
    assert shown.exit_code == 2
    assert "build them with hybrid concepts build" in shown.stderr


def test_a_file_that_cannot_be_read_is_refused_with_its_line(house):
    (house.folder / "c.json").write_text('{\n"version": 1,\noops}')
    shown = invoke("show", "--local", house.model, "--concepts", house.folder / "c.json")
    assert (shown.exit_code, "c.json, line 3: Expecting" in shown.stderr) == (2, True)


def test_two_models_are_compared_on_the_words_that_both_have(house):
    found = told("compare", house.model, house.untied)
    assert (found["words"], found["shared"]) == (85, 85)
    assert found["cka"]["value"] == pytest.approx(1.0, abs=1e-3)
    assert found["overlap"]["value"] > 0.99
    said = invoke("compare", house.model, house.untied).stdout
    assert said.startswith("one vocabulary, 85 of 85 shared words compared\nCKA 1.000")
    assert invoke("compare", house.model, "nowhere.gguf").exit_code == 3
