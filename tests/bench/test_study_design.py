"""A study's design: whatever its file holds, it is a design or one sentence that says where it is wrong."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from cases import each_of
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.cli.experiment import DESIGNS
from hybrid.errors import UsageError
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.frame import SETTINGS, TokenPrices
from hybrid.lab.experiments.grid import ModelPair
from hybrid.lab.study.design import NamedTariff, read_design
from hybrid.lab.study.endpoint import EndpointPair
from hybrid.lab.study.section import Section
from hybrid.lab.study.sections import sections_of

DESIGN = """
sections = ["x"]
seeds = [3, 1]
cap = 0.5
tariffs = ["2/0.2/8 C"]
[pairs.bundled]
local = "small"
cloud = "large"
[questions]
split = "test"
[pairs.mine]
local = "small"
cloud = "http://127.0.0.1:1/v1"
model = "large-1"
price = "1/0.1/4"
questions = { kind = "file", path = "mine.jsonl", n = 2 }
[[arms]]
policy = "kl"
threshold = [0.1, 0.3]
span = [8, 32]
[[arms]]
policy = ["excess", "once"]
threshold = 0.5
[power]
half_width = 0.2
[options]
k = [1, 5]
"""
MINE = "".join(f'{{"question": "{n} * 7?", "grader": "number", "answer": {7 * n}}}\n' for n in range(5))


@pytest.fixture
def write(tmp_path):
    """Write a design beside its questions and return its path."""

    def written(text, questions=MINE):
        (tmp_path / "mine.jsonl").write_text(questions)
        path = tmp_path / "my.toml"
        path.write_text(text)
        return path

    return written


def test_a_file_is_what_is_run(write):
    design = read_design(write(DESIGN))
    assert (design.name, design.seeds, design.temperature, design.cap) == ("my", (3, 1), 0.0, 500_000_000)
    assert design.pairs["bundled"] == ModelPair(BUNDLED_LOCAL, BUNDLED_CLOUD)
    mine = design.pairs["mine"]
    assert isinstance(mine, EndpointPair)
    assert (mine.settings.cloud_model, str(mine.price)) == ("large-1", "1/0.1/4")
    assert design.tariffs == (NamedTariff("2/0.2/8 C", TokenPrices(0.1, 4.0), SETTINGS[1]),)
    assert design.arms == (
        *(Arm(f"kl:{x} span {k}", "kl", {"threshold": x, "span": k}) for x in (0.1, 0.3) for k in (8, 32)),
        Arm("excess", "excess", {"threshold": 0.5}),
        Arm("once", "once", {"threshold": 0.5}),
    )
    assert design.power.num_needed == 107  # 1.96^2 * 0.4 / 4 / (0.3 * 0.2)^2
    assert [len(each) for each in design.questions.values()] == [2 * 54, 2 * 2]
    assert pickle.loads(pickle.dumps(design)) == design


def test_seeds_draw_questions_of_their_own_and_one_seed_is_a_part_of_all(write):
    design = read_design(write(DESIGN))
    parts = [design.drawn[seed]["bundled"] for seed in design.seeds]
    assert design.questions["bundled"] == parts[0] + parts[1]
    for asked in each_of(design.questions.values()):
        assert len({each.text for each in asked}) == len(asked), "a question would count twice"
    assert parts[0] != parts[1]
    few = read_design(write(DESIGN.replace("[3, 1]", "[0, 1]"), "".join(MINE.splitlines(keepends=True)[:4]))).questions[
        "mine"
    ]
    assert {each.text for each in few} == {f"{n} * 7?" for n in range(4)}
    assert read_design(write(DESIGN)) == design
    quick = read_design(write(DESIGN), most=5)
    assert quick.seeds == (3,)
    assert [len(each) for each in quick.questions.values()] == [5, 2]
    assert quick.questions["bundled"] == parts[0][:5]


FAULTS = [
    ("seeds", "seed", "seed is not known: did you mean seeds?"),
    ("[3, 1]", "[3, -1]", "[seeds] 2 must be at least 0 (it is -1)"),
    ('["x"]', "[]", "sections must not be empty"),
    ("cap = 0.5", "cap = -1", "cap: '-1' is not an amount of USD"),
    ("cap = 0.5", "cap 0.5", "no TOML"),
    ('"2/0.2/8 C"', '"2/0.2/8"', "tariffs: '2/0.2/8' is no price with one of U, C, S, SU, new"),
    ("seeds = [3, 1]", "seeds = 0", "seeds must be a list (it is 0)"),
    ('local = "small"', "", "[pairs.bundled] local is missing"),
    ('local = "small"', 'lokal = "small"', "[pairs.bundled] lokal is not known: did you mean local?"),
    ("[pairs.bundled]", "[pair.bundled]", "pair is not known: did you mean pairs?"),
    ('local = "small"', 'local = "smal"', "[pairs.bundled] there is no model smal"),
    ('local = "small"', 'local = "smal.gguf"', "[pairs.bundled] there is no model smal.gguf"),
    ('cloud = "large"', 'cloud = "large"\nprice = "1/0.1/4"', "[pairs.bundled] price is of an endpoint"),
    ('price = "1/0.1/4"', "", "[pairs.mine] price is missing: what http://127.0.0.1:1/v1 charges"),
    ('price = "1/0.1/4"', 'price = "1/2"', "[pairs.mine] --price '1/2'"),
    ("n = 2", "n = 0", "[pairs.mine.questions] n must be at least 1 (it is 0)"),
    ('"file"', '"fil"', "[pairs.mine.questions] kind must be 'problems', 'assistant', 'ladder' or 'file'"),
    ('"file"', '"problems"', "[pairs.mine.questions] path is not for the kind problems"),
    ('path = "mine.jsonl", ', "", "[pairs.mine.questions] path is missing: the file of the kind file"),
    ('"mine.jsonl"', '"other.jsonl"', "other.jsonl cannot be read as questions"),
    ("threshold = [", "treshold = [", "[arms.1] treshold is no setting of an arm: did you mean threshold?"),
    ("threshold = [0.1,", "threshold = [-0.1,", "[arms.1] threshold: must be at least 0.0 (it is -0.1)"),
    ("[0.1, 0.3]", "[]", "[arms.1] threshold must not be empty"),
    ("span = [8, 32]", "entropy = 1", "[arms.1] entropy changes nothing in the policy kl"),
    ('policy = "kl"', "", "[arms.1] policy is missing"),
    ("n = 2", "n = 5", "[pairs.mine.questions] no question is left for seed 1"),
    ('"kl"', '"kll"', "[arms.1] no policy is called 'kll'"),
    ('["excess", "once"]\n', '"cloud"\nname = "cloud"\n', "[arms.2] "),
    ("half_width = 0.2", "half_width = 2", "[power] half_width must be less than 1.0 (it is 2)"),
    ("k = [1, 5]", "k = 0", "[options] k must be more than 0.0 (it is 0)"),
    ("k = [1, 5]", 'k = "x"', "[options] k must be a number (it is 'x')"),
    ("half_width", "halfwidth", "[power] halfwidth is not known: did you mean half_width?"),
]


@pytest.mark.parametrize(("old", "new", "told"), FAULTS, ids=[told[:30] for *_, told in FAULTS])
def test_a_mistake_is_one_sentence_that_names_file_table_and_key(write, old, new, told):
    assert old in DESIGN
    path = write(DESIGN.replace(old, new, 1))
    with pytest.raises(UsageError) as refused:
        read_design(path)
    assert str(path) in str(refused.value)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_byte_order_mark_before_a_design_or_its_questions_is_passed_over(write):
    assert read_design(write(f"\ufeff{DESIGN}", f"\ufeff{MINE}")) == read_design(write(DESIGN))


def test_more_problems_than_there_are_and_a_pair_without_a_common_vocabulary_are_refused(write):
    with pytest.raises(UsageError, match=r"\[questions\] n is too much for all seeds: family \w+ has only"):
        read_design(write(DESIGN.replace('split = "test"', 'split = "test"\nn = 3000')))
    with pytest.raises(UsageError, match=r"\[pairs.bundled\] small and alien split the same text into other tokens"):
        read_design(write(DESIGN.replace('"large"', '"alien"')))


def test_an_arm_twice_and_a_file_that_is_not_there_are_refused(write, tmp_path):
    with pytest.raises(UsageError, match="excess is an arm already"):
        read_design(write(DESIGN.replace('["excess", "once"]', '["excess", "excess"]')))
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_design(tmp_path / "none.toml")


@settings(max_examples=50)
@given(st.text(max_size=60), st.integers(0, len(DESIGN)))
def test_whatever_is_written_into_a_design_it_is_one_or_refused(tmp_path_factory, text, at):
    path = tmp_path_factory.mktemp("any") / "any.toml"
    path.write_text(DESIGN[:at] + text + DESIGN[at:], encoding="utf-8", errors="replace")
    (path.parent / "mine.jsonl").write_text(MINE)
    design, told = None, ""
    try:
        design = read_design(path, most=1)
    except UsageError as error:
        told = str(error)
    assert design is not None or str(path) in told
    assert "\n" not in told


def test_a_section_that_is_not_there_an_option_of_none_and_rows_of_an_endpoint_are_refused(write):
    def section(name, **more):
        return Section(name, "A title", lambda _: (), lambda *_: {}, lambda _: [], ("k",), **more)

    design = read_design(write(DESIGN))
    known = {"x": section("x", needs_rows=False), "rows": section("rows")}
    assert sections_of(design, known) == (known["x"],)
    alone = replace(design, arms=(), options={})
    assert sections_of(alone, known) == (known["x"],)
    with pytest.raises(UsageError, match="section loss compares arms, and there is none beside the two models"):
        sections_of(replace(alone, sections=("answers", "loss")))
    for old, new, told in each_of(
        (
            ('["x"]', '["row"]', "row is no section: did you mean rows?"),
            ("k = [1", "kk = [1", "kk is no option of these sections: did you mean k?"),
            ('["x"]', '["x", "rows"]', "section rows reads the large model's rows, and mine is an endpoint"),
        )
    ):
        with pytest.raises(UsageError) as refused:
            sections_of(read_design(write(DESIGN.replace(old, new))), known)
        assert told in str(refused.value)


def test_the_design_of_losses_has_every_rule_that_judges_greedy_text_on_two_pairs(tmp_path):
    """Its pairs are real models, which not every machine has: the bundled ones stand in their place."""
    told = (DESIGNS / "loss.toml").read_text(encoding="utf-8")
    for name, other in (("real:q3", "small"), ("real:d2", "small"), ("real", "large")):
        told = told.replace(f'"{name}"', f'"{other}"')
    (tmp_path / "loss.toml").write_text(told, encoding="utf-8")
    design = read_design(tmp_path / "loss.toml", most=1)
    assert [len(each) for each in design.questions.values()] == [1, 1]
    assert [tariff.setting for tariff in design.tariffs] == list(SETTINGS)
    rules = {arm.policy for arm in design.arms}
    assert not rules & {"exact", "block", "u-hlm"}
    assert {"kl", "doubt", "excess", "once", "random", "certified", "bild", "greedy-exact"} < rules
