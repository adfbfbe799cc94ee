"""The model card: what it says is kept, and a file that changed does not pass."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import card as script
import numpy as np
import pytest
from arithmetic import tolerance
from card_page import page
from cases import each, each_of
from made_cards import NAMES, NUM, filled, made
from scripted_engine import ScriptedEngine

import hybrid
from hybrid.errors import EngineError, UsageError
from hybrid.models.card import (
    GROUPS,
    LADDER,
    AnsweringModel,
    Fingerprint,
    GradedAnswer,
    ModelAnswer,
    ModelCards,
    differences,
    fingerprint,
    group_of,
    load,
)
from hybrid.tasks import Problem

MODELS = Path(hybrid.__file__).parent / "models"


@pytest.fixture
def folder(tmp_path):
    return filled(tmp_path)


# ---- files ---------------------------------------------------------------------------------------------------------


def test_a_card_survives_its_file(tmp_path):
    """What is None, a pair of numbers or a share included."""
    card = made(small={"gcd": 7})
    (tmp_path / "card.json").write_text(card.model_dump_json(indent=1))
    assert load(tmp_path) == card


def test_files_that_are_what_the_card_says_differ_in_nothing(folder):
    assert differences(folder, load(folder)) == dict.fromkeys(NAMES)


def test_a_fingerprint_is_the_size_and_the_sha256_of_all_bytes(tmp_path):
    """Longer than what is read at once, and different in its last byte only."""
    content = bytes(range(256)) * 2000
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "b").write_bytes(content[:-1] + b"!")
    expected = Fingerprint(bytes=512_000, sha256=hashlib.sha256(content).hexdigest())
    assert fingerprint(tmp_path / "a") == expected
    assert fingerprint(tmp_path / "b").sha256 != expected.sha256


@each("name", NAMES)
@each(
    ("spoil", "words"),
    [
        (lambda path: path.write_bytes(b"?" + path.read_bytes()[1:]), "SHA-256 .*, not "),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"), "SHA-256 .*, not "),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), r"\d+ bytes, not \d"),
        (lambda path: path.write_bytes(path.read_bytes() + b"\0"), r"\d+ bytes, not \d"),
        (lambda path: path.write_bytes(b""), r"0 bytes, not \d"),
        (Path.unlink, "No such file"),
        (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
    ],
    ids=["first byte", "last byte", "truncated", "longer", "empty", "missing", "a folder"],
)
def test_a_file_that_is_another_one_is_told_and_the_others_are_not(name, spoil, words):
    with TemporaryDirectory() as fresh:
        folder = filled(Path(fresh))
        spoil(folder / f"{name}.gguf")
        found = differences(folder, load(folder))
    assert re.match(words, found.pop(name))
    assert set(found.values()) == {None}


@each(
    "content",
    [
        *(None, b"", b"{", b"[]", b"\xff", b"null"),
        b'{"split": "test", "num_problems": 5}',
        b'{"split": "test", "num_problems": 5, "models": {}}',
        made().model_dump_json().replace('"sha256"', '"md5"', 1).encode(),
        made().model_dump_json().replace('"num_problems"', '"more":1,"num_problems"', 1).encode(),
        made().model_dump_json().replace(f'"n":{NUM}', '"n":"many"', 1).encode(),
    ],
    ids=[
        "none",
        "empty",
        "half",
        "a list",
        "no text",
        "null",
        "no models",
        "not one model",
        "a name",
        "one more",
        "no number",
    ],
)
def test_what_is_no_card_is_refused_with_its_path(tmp_path, content):
    if content is not None:
        (tmp_path / "card.json").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load(tmp_path)
    said = "No such file or directory" if content is None else "it is no model card"
    assert str(caught.value) == f"{tmp_path / 'card.json'}: {said}"


@each("said", [None, "", "{", '{"steps": 3}', "[]"])
def test_of_a_file_that_another_script_made_no_training_is_known(said):
    assert script._training(said) is None


# ---- measured ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """One model under every name, measured on two problems a family: its folder, its card, what was told meanwhile."""
    where, told = tmp_path_factory.mktemp("models"), []
    for name in NAMES:
        shutil.copy(MODELS / "small.gguf", where / f"{name}.gguf")
    return where, script.measure_models(where, told.append, 2), told


@pytest.mark.slow
def test_a_measured_card_says_what_the_files_are(measured):
    where, card, _ = measured
    content = (MODELS / "small.gguf").read_bytes()
    assert (card.split, card.num_problems, list(card.models)) == ("test", 2, list(NAMES))
    for said in each_of(card.models.values()):
        assert said.file == Fingerprint(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        assert said.parameters * 2 < len(content)  # float16
        assert min(said.shape.model_dump().values()) > 0
        assert said.num_tokens > 256
    assert differences(where, card) == dict.fromkeys(NAMES)
    assert ModelCards.model_validate_json(card.model_dump_json()) == card
    assert page(card) == page(ModelCards.model_validate_json(card.model_dump_json()))


def test_levels_add_up_to_their_family(measured):
    _, card, _ = measured
    for model, said in each_of(card.models.items()):
        families = group_of(model).families
        assert list(said.families) == list(families)
        for name, found in each_of(said.families.items()):
            assert [sum(column) for column in zip(*found.levels, strict=True)] == [found.correct, found.n]
            assert len(found.levels) == len(families[name].levels)
            assert found.n == 2


def test_right_answers_are_counted_by_level():
    """Also of a level of which nothing was asked."""
    given = [(1, True), (3, False), (1, False), (3, True), (3, True)]
    answers = [
        GradedAnswer(Problem("gcd", level, "", "", "", ""), ModelAnswer((), (), np.empty((0, 2)), ""), right)
        for level, right in given
    ]
    assert script._levels(LADDER, answers) == ((1, 2), (0, 0), (2, 3))


def test_a_model_beside_the_large_one_that_it_is_agrees_with_it_and_the_large_one_stands_beside_nobody(measured):
    _, card, told = measured
    for group in each_of(GROUPS):
        large = card.models[group.large]
        assert (large.beside_large, large.beside_large_by_family) == (None, {})
    for name in each_of({*NAMES} - {group.large for group in GROUPS}):
        said = card.models[name]
        by_family = said.beside_large_by_family.values()
        assert len(by_family) == len(group_of(name).families)
        assert said.beside_large.agreement == pytest.approx(1, abs=0.05)  # float16 sums may part near ties
        assert said.beside_large.mean_kl == pytest.approx(0, abs=tolerance().nats ** 2)
        assert said.beside_large.num_large_tokens == sum(found.num_large_tokens for found in by_family)
        assert said.beside_large.num_small_tokens == sum(found.num_small_tokens for found in by_family)
        assert f"{name} answers {next(iter(group_of(name).families))}" in told


def test_a_folder_that_lacks_a_model_is_not_measured(tmp_path):
    with pytest.raises(EngineError, match="no model file"):
        script.measure_models(tmp_path, lambda _: None, 1)


def compared(large, other):
    """A family's comparison by name; a model is its vocabulary and the token that it writes first."""

    def model(pieces, first):
        rows = np.eye(len(pieces))
        return AnsweringModel(
            ScriptedEngine(pieces, lambda ids: rows[first if len(ids) == 1 else 0], end_ids=frozenset({0}))
        )

    models = {"large": model(*large), "mid": model(*other)}
    problem = Problem("gcd", 1, "b", "", "", "")
    graded = {name: {"gcd": [GradedAnswer(problem, model.write("b"), correct=True)]} for name, model in models.items()}
    return script._beside("mid", "large", models, graded)


@each(
    ("words", "same"),
    [(["a", "b"], True), (["b", "a"], False), (["a", "b", "c"], False), (["a"], False), (["a", "B"], False)],
)
def test_models_are_compared_where_every_piece_has_the_same_number(words, same):
    """Only then may one read what the other wrote."""
    assert list(compared((["a", "b"], 0), (words, 0))) == (["gcd"] if same else [])


def test_each_models_own_answer_is_read_by_the_other():
    """The large one ends at once, the other says a word before; after it both end."""
    found = compared((["a", "b"], 0), (["a", "b"], 1))["gcd"]
    assert (found.same.tolist(), found.differs.tolist()) == ([False], [True, False])
