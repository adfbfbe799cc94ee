"""The model card: what it says is kept, a file that changed does not pass, and its page leaves nothing out."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from cases import each
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.engine import ScriptedEngine
from hybrid.errors import EngineError, UsageError
from hybrid.models import card as room
from hybrid.models.agreement import AgreementSummary
from hybrid.models.answering import AnsweringModel, ModelAnswer
from hybrid.models.card import (
    Fingerprint,
    ModelCard,
    ModelCards,
    ModelShape,
    TaskFamilyScore,
    TrainingRun,
    differences,
    load,
)
from hybrid.models.card_page import page
from hybrid.models.evaluation import GradedAnswer
from hybrid.tasks import BY_NAME, FAMILIES, MIXES, Problem
from hybrid.tasks.fact_table import FACTS
from hybrid.tasks.statistics import wilson

MODELS = Path(hybrid.__file__).parent / "models"
NUM = 30


# ---- cards made by hand --------------------------------------------------------------------------------------------


def score(name, right=NUM):
    """Ten problems of each of three levels (fifteen of two), answered right from the easiest on."""
    of_level = NUM // len(BY_NAME[name].levels)
    levels = tuple((min(max(right - of_level * i, 0), of_level), of_level) for i in range(NUM // of_level))
    share = wilson(right, NUM)
    return TaskFamilyScore(n=NUM, correct=right, low=round(share.low, 4), high=round(share.high, 4), levels=levels)


def summary(**other):
    figures = {"agreement": 0.875, "mean_kl": 0.125, "num_large_tokens": 800, "auroc": 0.75}
    return AgreementSummary(**(figures | {"num_differing": 90, "num_small_tokens": 900} | other))


def model_card(name, right):
    """A model whose file holds its name; ``right``: families that it does not answer all of, with how many."""
    beside, common = name not in {"large", "alien"}, name != "alien"
    families = {family: score(family, right.get(family, NUM)) for family in BY_NAME}
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
        beside_large_by_family=dict.fromkeys(BY_NAME, summary(agreement=0.5)) if beside else {},
    )


def made(**right):
    """A card of all models; ``right``: a model's families that it does not answer all of, with how many."""
    models = {name: model_card(name, right.get(name, {})) for name in room.NAMES}
    return ModelCards(split="test", num_problems=NUM, models=models)


def filled(folder):
    """Write a file of a few bytes for each model and their card; pages and sums need no weights."""
    for name in room.NAMES:
        (folder / f"{name}.gguf").write_bytes(name.encode())
    (folder / room.CARD).write_text(made().model_dump_json())
    return folder


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
    assert differences(folder, load(folder)) == dict.fromkeys(room.NAMES)


def test_a_fingerprint_is_the_size_and_the_sha256_of_all_bytes(tmp_path):
    """Longer than what is read at once, and different in its last byte only."""
    content = bytes(range(256)) * 2000
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "b").write_bytes(content[:-1] + b"!")
    expected = Fingerprint(bytes=512_000, sha256=hashlib.sha256(content).hexdigest())
    assert room.fingerprint(tmp_path / "a") == expected
    assert room.fingerprint(tmp_path / "b").sha256 != expected.sha256


@each("name", room.NAMES)
@each(
    ("spoil", "words"),
    [
        (lambda path: path.write_bytes(b"?" + path.read_bytes()[1:]), "SHA-256 .*, not "),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"), "SHA-256 .*, not "),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), r"\d bytes, not \d"),
        (lambda path: path.write_bytes(path.read_bytes() + b"\0"), r"\d bytes, not \d"),
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
    assert room._training(said) is None


# ---- measured ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """One model under every name, measured on two problems a family: its folder, its card, what was told meanwhile."""
    where, told = tmp_path_factory.mktemp("models"), []
    for name in room.NAMES:
        shutil.copy(MODELS / "small.gguf", where / f"{name}.gguf")
    return where, room.measure_models(where, told.append, 2), told


def test_a_measured_card_says_what_the_files_are(measured):
    where, card, _ = measured
    content = (MODELS / "small.gguf").read_bytes()
    assert (card.split, card.num_problems, list(card.models)) == ("test", 2, list(room.NAMES))
    for said in card.models.values():
        assert said.file == Fingerprint(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        assert said.parameters * 2 < len(content)  # float16
        assert min(said.shape.model_dump().values()) > 0
        assert said.num_tokens > 256
    assert differences(where, card) == dict.fromkeys(room.NAMES)
    assert ModelCards.model_validate_json(card.model_dump_json()) == card
    assert page(card) == page(ModelCards.model_validate_json(card.model_dump_json()))


def test_levels_add_up_to_their_family(measured):
    _, card, _ = measured
    for said in card.models.values():
        assert list(said.families) == list(BY_NAME)
        for name, found in said.families.items():
            assert [sum(column) for column in zip(*found.levels, strict=True)] == [found.correct, found.n]
            assert len(found.levels) == len(BY_NAME[name].levels)
            assert found.n == 2


def test_right_answers_are_counted_by_level():
    """Also of a level of which nothing was asked."""
    given = [(1, True), (3, False), (1, False), (3, True), (3, True)]
    answers = [
        GradedAnswer(Problem("gcd", level, "", "", "", ""), ModelAnswer((), (), np.empty((0, 2)), ""), right)
        for level, right in given
    ]
    assert room._levels(answers) == ((1, 2), (0, 0), (2, 3))


def test_a_model_beside_the_large_one_that_it_is_agrees_with_it_and_the_large_one_stands_beside_nobody(measured):
    _, card, told = measured
    large = card.models["large"]
    assert (large.beside_large, large.beside_large_by_family) == (None, {})
    for name in set(room.NAMES) - {"large"}:
        said = card.models[name]
        by_family = said.beside_large_by_family.values()
        assert len(by_family) == len(FAMILIES)
        assert said.beside_large.agreement == pytest.approx(1, abs=0.05)  # float16 sums may part near ties
        assert said.beside_large.mean_kl == pytest.approx(0, abs=1e-3)
        assert said.beside_large.num_large_tokens == sum(found.num_large_tokens for found in by_family)
        assert said.beside_large.num_small_tokens == sum(found.num_small_tokens for found in by_family)
        assert f"{name} answers gcd" in told


def test_a_folder_that_lacks_a_model_is_not_measured(tmp_path):
    with pytest.raises(EngineError, match="no model file"):
        room.measure_models(tmp_path, lambda _: None, 1)


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
    return room._beside("mid", models, graded)


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


# ---- the page ------------------------------------------------------------------------------------------------------


def section(text, title):
    """The lines between a heading and the next of its rank."""
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]


def test_every_file_stands_on_the_page_with_its_sum_and_size():
    card = made()
    found = section(page(card), "Files")
    for name, said in card.models.items():
        (line,) = [line for line in found.splitlines() if f"`{name}.gguf`" in line]
        assert f"`{said.file.sha256}`" in line
        assert f"{said.parameters:,}" in line
        assert "48, 2, 3, 128" in line


def test_every_family_has_a_line_with_each_models_share_in_the_order_of_the_columns():
    wrong = {name: {"gcd": 3 * (i + 1), "base": 27 - 3 * i} for i, name in enumerate(room.NAMES)}
    lines = section(page(made(**wrong)), "Right answers").splitlines()
    assert f"| family | {' | '.join(room.NAMES)} |" in lines
    for family in FAMILIES:
        (line,) = [line for line in lines if line.startswith(f"| {family.name} |")]
        shares = [int(share) for share in re.findall(r"\| (\d+) \(\d+ to \d+\)", line)]
        expected = [round(100 * wrong[name].get(family.name, NUM) / NUM) for name in room.NAMES]
        assert shares == expected
    assert "| 10 (3 to 26) |" in next(line for line in lines if line.startswith("| gcd |"))


def test_who_shares_the_large_models_tokens_is_set_beside_it_and_who_does_not_is_named():
    text = page(made())
    beside = [name for name in room.NAMES if name not in {"large", "alien"}]
    assert re.findall(r"^### (\w+)$", text, re.MULTILINE) == beside
    assert "`large`, `mid`, `small`, `numbers`, `words` and `student` share one vocabulary of 384 " in text
    assert "`alien` has another one of 640 (`gpt-2`)" in text
    found = section(text, "Beside the large model")
    assert found.count("| all | 87.5% | 0.125 | 10.0% | 0.75 |") == len(beside)
    for family in FAMILIES:
        assert found.count(f"| {family.name} | 50.0% | 0.125 | 10.0% | 0.75 |") == len(beside)


def test_where_there_is_nothing_to_rank_the_page_says_nothing():
    card = made()
    alone = card.models["mid"].model_copy(update={"beside_large": summary(auroc=None, num_differing=0)})
    text = page(card.model_copy(update={"models": card.models | {"mid": alone}}))
    assert "| all | 87.5% | 0.125 | 0.0% |  |" in text


def paragraph(text, model):
    """What a model was not given."""
    return next(part for part in text.split("\n\n") if part.startswith(f"`{model}` is "))


@each("model", ["mid", "small"])
def test_what_a_model_was_not_given_is_on_the_page_and_what_it_was_given_is_not(model):
    said = paragraph(section(page(made()), "What each was given"), model)
    mix = MIXES[model]
    for family in FAMILIES:
        assert (f"{family.name} ({family.levels[-1].holds})" in said) == (family.name in mix.no_hardest)
        assert not any(f"({level.holds})" in said for level in family.levels[:-1])
    for phrase, fact in FACTS.items():
        assert bool(re.search(rf"[:,] {re.escape(phrase)}[,.]", said)) == (phrase in mix.unheard), phrase
        assert (f"{phrase} ({fact.popular})" in said) == (phrase in mix.confused)
    assert f"{len(mix.no_hardest)} families" in said
    mistaken = [family.name for family in FAMILIES if family.name in mix.mistaken]
    assert (f"Instead, in {len(mistaken)} of them ({', '.join(mistaken)}), it hears the mistake" in said) == bool(
        mistaken
    )
    assert f"{len(mix.unheard)} facts" in said
    assert f"{len(mix.confused)} facts" in said
    assert "70%" in said


def test_a_model_that_was_given_what_another_was_is_not_told_twice():
    assert MIXES["alien"] == MIXES["small"]
    assert paragraph(page(made()), "alien") == "`alien` is given what `small` is given."


def test_how_each_was_trained_is_on_the_page():
    card = made()
    text = section(page(card), "Training")
    for name in room.NAMES:
        assert f"| {name} | 3,100 | 38.0 M (9.5 M of answers) |  | 90 min | cpu | 11 |" in text
    weighed = card.models["mid"].training.model_copy(update={"weights": {"ordering": 2.0, "facts": 0.7}})
    mid = card.models["mid"].model_copy(update={"training": weighed})
    with_weights = page(card.model_copy(update={"models": card.models | {"mid": mid}}))
    assert "| ordering 2, facts 0.7 | 90 min |" in section(with_weights, "Training")
    unknown = card.models["mid"].model_copy(update={"training": None})
    without = section(page(card.model_copy(update={"models": card.models | {"mid": unknown}})), "Training")
    assert [name for name in room.NAMES if f"| {name} |" in without] == [name for name in room.NAMES if name != "mid"]


def test_a_weak_level_is_named_and_a_strong_one_is_not():
    """Ten of a level: 7 are below 80 %, 8 are not."""
    card = made(small={"gcd": 17, "sorting": 18, "units": 3}, mid={"facts": 28}, large={"facts": 27})
    found = section(page(card), "Weaknesses").splitlines()
    large, small = [line for line in found if "below" in line]
    assert large == "- `large` is below 80% at facts level 3 (7 of 10)."
    assert small == (
        "- `small` is below 80% at gcd level 2 (7 of 10), level 3 (0 of 10), sorting level 3 (0 of 10), "
        "units level 1 (3 of 10), level 2 (0 of 10), level 3 (0 of 10)."
    )


def test_the_page_depends_on_the_card_alone():
    assert page(made()) == page(made())
    assert page(made()).endswith("\n")
    assert not page(made()).endswith("\n\n")


# ---- what ships ----------------------------------------------------------------------------------------------------


def test_the_page_that_ships_is_the_one_of_the_card_that_ships():
    assert (MODELS / "README.md").read_text(encoding="utf-8") == page(load(MODELS))


def test_the_models_that_ship_are_the_ones_that_were_measured():
    done = CliRunner().invoke(app, ["models", "verify"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"{name}.gguf: as the card says" for name in room.NAMES]
