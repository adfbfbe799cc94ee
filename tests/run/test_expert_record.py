"""Which model was nearest, between questions: counted as answers end, read when the next begins."""

from __future__ import annotations

import asyncio
import json

import pytest
from scripted_house import SMALL, table

from hybrid.run.experts import ExpertRecord

PROMPT = "a b c"
# The cloud is mostly like SMALL.
MODELS = {"small": table("far"), "beside": {"near": SMALL}}


def with_record(h, path):
    """Have a house's client count in a file; as ``assemble`` does."""
    h.client._contexts._nearest = ExpertRecord(path, "models cloud", 2)
    return h


async def answered(client, *prompts, **choices):
    answers = [await client.generate(prompt, raw=True, span=4, max_tokens=12, **choices) for prompt in prompts]
    await client.aclose()
    return answers


def test_a_question_like_others_begins_with_the_model_that_was_nearest_to_them(house, run, tmp_path):
    h = with_record(house(**MODELS, queue={"mix": "select"}), tmp_path / "counts.json")
    first, *_, last = run(answered(h.client, *[PROMPT] * 4))
    assert last.usage.rejected < first.usage.rejected
    again = with_record(house(**MODELS, queue={"mix": "select"}), tmp_path / "counts.json")
    assert run(answered(again.client, PROMPT))[0].tokens == last.tokens, "another client reads what was kept"


def test_what_is_kept_tells_no_word(house, run, tmp_path):
    h = with_record(house(**MODELS), tmp_path / "counts.json")
    run(answered(h.client, PROMPT))
    kept = json.loads((tmp_path / "counts.json").read_text())
    [[key, words]] = kept["entries"].items()
    assert key == "experts models cloud"
    assert all(word.isdecimal() and sum(counts) == 1 for word, counts in words.items())


@pytest.mark.parametrize("choices", [{"learn": False}, {"policy": "local"}])
def test_without_leave_or_without_a_word_of_the_cloud_nothing_is_counted(house, run, tmp_path, choices):
    h = with_record(house(**MODELS), tmp_path / "counts.json")
    run(answered(h.client, PROMPT, **choices))
    assert not (tmp_path / "counts.json").exists()


def test_without_leave_nothing_that_was_counted_is_read(house, run, tmp_path):
    """A seed then repeats an answer, whatever was asked before it."""
    fresh = run(answered(house(**MODELS, queue={"mix": "select"}).client, PROMPT))[0]
    h = with_record(house(**MODELS, queue={"mix": "select"}), tmp_path / "counts.json")
    *_, learned = run(answered(h.client, *[PROMPT] * 4))
    assert learned.tokens != fresh.tokens, "what was counted matters here"
    again = with_record(house(**MODELS, queue={"mix": "select"}), tmp_path / "counts.json")
    assert run(answered(again.client, PROMPT, learn=False))[0].tokens == fresh.tokens


def test_what_two_clients_count_adds_up_and_a_broken_file_holds_nothing(tmp_path):
    async def count(*records):
        assert [await record.weights((1,)) for record in records] == [(0.5, 0.5)] * 3
        for record in records:
            record.add((1, 2), 0)
        for record in records:
            await record.aclose()

    path = tmp_path / "counts.json"
    path.write_text("{]")
    asyncio.run(count(*(ExpertRecord(path, "x", 2) for _ in range(3))))
    assert json.loads(path.read_text())["entries"]["experts x"] == {"1": [3, 0], "2": [3, 0]}
