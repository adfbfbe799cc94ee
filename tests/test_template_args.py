"""What a chat template is given by name: a table, JSON or NAME=VALUE say the same, and nothing else is taken."""

from __future__ import annotations

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from hybrid.errors import UsageError
from hybrid.settings.local_settings import arguments_of
from hybrid.settings.sources import choosing, load

WANTED = {"enable_thinking": False, "reasoning_effort": "low", "budget": 3, "style": None}


def test_a_dict_a_table_a_variable_and_flags_say_the_same(tmp_path, monkeypatch):
    assert load(template_args=WANTED).template_args == WANTED
    flags = ["enable_thinking=false", "reasoning_effort=low", "budget=3", "style=null"]
    assert load(template_args=flags).template_args == WANTED
    file = tmp_path / "own.toml"
    file.write_text('[template_args]\nenable_thinking = false\nreasoning_effort = "low"\nbudget = 3\n')
    assert load(config=file).template_args == {name: value for name, value in WANTED.items() if value is not None}
    monkeypatch.setenv(
        "HYBRID_TEMPLATE_ARGS", '{"enable_thinking": false, "reasoning_effort": "low", "budget": 3, "style": null}'
    )
    assert load().template_args == WANTED
    assert load(template_args=["budget=4"]).template_args == {"budget": 4}, "the more specific says all of it"
    assert choosing(load(), {"template_args": {"x": "a=b"}}).template_args == {"x": "a=b"}


@each(
    "wrong",
    [
        ["enable_thinking"], "enable_thinking", ["=1"], ["a b=1"], ["x=[1]"], ['x={"a": 1}'], {"x": [1]}, {1: 2}, 3,
        '{"a": ', ["x=1e999"], ["x=NaN"], [3], "{" * 100_000,
    ],
)  # fmt: skip
def test_anything_else_is_one_sentence(wrong):
    with pytest.raises(UsageError, match=r"^template_args: .*[a-z]") as refused:
        load(template_args=wrong)
    assert "\n" not in str(refused.value)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,5}", fullmatch=True), st.none() | st.booleans() | st.integers() | st.text()
    )
)
def test_what_is_taken_is_what_was_given(table):
    assert arguments_of(table) == table
