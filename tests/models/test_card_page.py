"""The model card as a page: it leaves nothing out, and the page and the files that ship are those of the card."""

from __future__ import annotations

import re
from pathlib import Path

from card_page import page
from cases import each, each_of
from made_cards import NAMES, NUM, made, summary
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.models.card import LADDER, WORDINGS, load
from hybrid.tasks import FAMILIES, MIXES, wordings
from hybrid.tasks.facts import FACTS

MODELS = Path(hybrid.__file__).parent / "models"


def section(text, title):
    """The lines between a heading and the next of its rank."""
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]


def test_every_file_stands_on_the_page_with_its_sum_and_size():
    card = made()
    found = section(page(card), "Files")
    for name, said in each_of(card.models.items()):
        (line,) = [line for line in found.splitlines() if f"`{name}.gguf`" in line]
        assert f"`{said.file.sha256}`" in line
        assert f"{said.parameters:,}" in line
        assert "48, 2, 3, 128" in line


def test_every_family_has_a_line_with_each_models_share_in_the_order_of_the_columns():
    wrong = {name: {"gcd": 3 * (i + 1), "base": 27 - 3 * i} for i, name in enumerate(LADDER.names)}
    lines = section(page(made(**wrong)), "Right answers").splitlines()
    assert f"| family | {' | '.join(LADDER.names)} |" in lines
    for family in each_of(FAMILIES):
        (line,) = [line for line in lines if line.startswith(f"| {family.name} |")]
        shares = [int(share) for share in re.findall(r"\| (\d+) \(\d+ to \d+\)", line)]
        expected = [round(100 * wrong[name].get(family.name, NUM) / NUM) for name in LADDER.names]
        assert shares == expected
    assert "| 10 (3 to 26) |" in next(line for line in lines if line.startswith("| gcd |"))


def test_who_shares_the_large_models_tokens_is_set_beside_it_and_who_does_not_is_named():
    text = page(made())
    beside = [name for name in LADDER.names if name not in {"large", "alien"}]
    assert re.findall(r"^### (.+)$", text, re.MULTILINE) == [*beside, "wordings-small"]
    assert "`large`, `mid`, `small`, `numbers`, `words` and `student` share one vocabulary of 384 " in text
    assert "`alien` has another one of 640 (`gpt-2`)" in text
    found = section(text, "Beside the large model")
    assert found.count("| all | 87.5% | 0.125 | 10.0% | 0.75 |") == len(beside)
    for family in each_of(FAMILIES):
        assert found.count(f"| {family.name} | 50.0% | 0.125 | 10.0% | 0.75 |") == len(beside)


def test_the_wordings_pair_has_a_part_of_its_own():
    """Its families, what each of the two has right of them, its mistakes, and how far the one is from the other."""
    found = section(page(made(**{"wordings-small": {"gift": 21}})), "The wordings pair")
    assert "| family | wordings-large | wordings-small |" in found
    for family in each_of(WORDINGS.families.values()):
        assert f"{family.name} ({family.levels[-1].holds})" in found
        assert f"{family.name} {wordings.MISTAKEN[family.name]:.0%}" in found
        assert f"| {family.name} | 50.0% | 0.125 | 10.0% | 0.75 |" in found
    assert "| gift | 100 (89 to 100) | 70 (52 to 83) |" in found
    assert f"{len(wordings.CONCEPTS)} concepts" in found


def test_a_card_without_the_wordings_pair_has_a_page_without_it():
    """As a folder's that was measured before there was one."""
    card = made()
    ladder = {name: card.models[name] for name in LADDER.names}
    assert "wordings-small" not in page(card.model_copy(update={"models": ladder}))


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
    for family in each_of(FAMILIES):
        assert (f"{family.name} ({family.levels[-1].holds})" in said) == (family.name in mix.no_hardest)
        assert not any(f"({level.holds})" in said for level in family.levels[:-1])
    for phrase, fact in each_of(FACTS.items()):
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
    assert paragraph(page(made()), "alien").startswith(
        "`alien` is given what `small` is given, and at its end the texts"
    )


def test_how_each_was_trained_is_on_the_page():
    card = made()
    text = section(page(card), "Training")
    for name in each_of(NAMES):
        assert f"| {name} | 3,100 | 38.0 M (9.5 M of answers) |  | 90 min | cpu | 11 |" in text
    weighed = card.models["mid"].training.model_copy(update={"weights": {"ordering": 2.0, "facts": 0.7}})
    mid = card.models["mid"].model_copy(update={"training": weighed})
    with_weights = page(card.model_copy(update={"models": card.models | {"mid": mid}}))
    assert "| ordering 2, facts 0.7 | 90 min |" in section(with_weights, "Training")
    unknown = card.models["mid"].model_copy(update={"training": None})
    without = section(page(card.model_copy(update={"models": card.models | {"mid": unknown}})), "Training")
    assert [name for name in NAMES if f"| {name} |" in without] == [name for name in NAMES if name != "mid"]


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
    assert (MODELS / "CARD.md").read_text(encoding="utf-8") == page(load(MODELS))


def test_the_models_that_ship_are_the_ones_that_were_measured():
    done = CliRunner().invoke(app, ["models", "verify"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"{name}.gguf: as the card says" for name in NAMES]
