"""Buying labels: nothing twice, never past the cap, and whatever ends it keeps what was bought."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from cases import each, each_of
from scripted_house import LARGE

from hybrid.errors import AccessDenied, MissingCapability, Unreachable, UsageError
from hybrid.tune.buying import LabelRequest, buy, critiqued

WORDS = "abcdefgh"
ASKED = [LabelRequest(f"{x} {y} c", {"max_tokens": 6}) for x, y in itertools.product("abc", "de")]


def bought(run, h, file, asked=ASKED):
    told = []
    found = run(buy(h.client, asked, file, told.append, itertools.count().__next__))
    return found, told


def test_every_question_has_its_two_texts_and_what_they_cost_is_what_was_charged(house, run, label_file):
    h, file = house(), label_file()
    found, told = bought(run, h, file)
    assert (len(found.questions), found.bought_now, found.skipped, found.ended) == (6, 6, 0, None)
    assert len(h.cloud.questions) == 12
    costs = [text.nanousd for question in found.questions for text in (question.draft, question.written)]
    assert sum(costs) == h.ledger.settled_nanousd == h.client.spent.nanousd == told[-1].nanousd
    assert [each.done for each in told] == [1, 2, 3, 4, 5, 6]
    assert {each.total for each in told} == {6}
    assert told[-1].left_s == 0.0
    assert told[0].left_s > told[2].left_s > 0.0


def test_what_was_bought_is_not_bought_again_and_what_is_new_is_added(house, run, label_file):
    h, file = house(), label_file()
    bought(run, h, file, ASKED[:3])
    file.close()
    again = label_file()
    found, told = bought(run, h, again, [*ASKED, ASKED[0]])
    assert (len(found.questions), found.bought_now) == (6, 3)
    assert len(h.cloud.questions) == 12
    assert [each.done for each in told] == [4, 5, 6]
    assert bought(run, h, again)[0].bought_now == 0


@pytest.mark.slow
def test_interrupted_at_any_request_it_goes_on_with_that_request(house, run, label_file, tmp_path):
    """The texts before it are kept: a question's draft, too, whose other text was under way."""
    for stop_at in range(12):
        h, path = house(), tmp_path / f"{stop_at}.jsonl"
        file = label_file(path)

        async def interrupted(h=h, file=file, stop_at=stop_at):
            task = asyncio.create_task(buy(h.client, ASKED, file, lambda _: None))
            h.cloud._fault = lambda number: task.cancel() if number > stop_at else None
            with pytest.raises(asyncio.CancelledError):
                await task

        run(interrupted())
        h.cloud._fault = lambda _: None
        assert h.ledger.reserved_nanousd == h.cloud.num_open == 0
        kept = len(file)
        assert kept == stop_at
        file.close()
        asked_before = len(h.cloud.questions)
        found, _ = bought(run, h, label_file(path))
        assert len(found.questions) == 6
        assert len(h.cloud.questions) - asked_before == 12 - kept


def test_the_cap_is_not_passed_and_what_it_allowed_is_kept(house, run, label_file, tmp_path):
    for number, cap in enumerate(range(0, 260_000, 19_000)):
        h, file = house(cap=cap), label_file(tmp_path / f"{number}.jsonl")
        found, _ = bought(run, h, file)
        assert h.ledger.settled_nanousd <= cap
        assert found.ended is None or found.ended[0] == "cap"
        assert (len(found.questions) == 6) == (found.ended is None)
        assert len(file) == len(h.cloud.questions)
    assert found.ended is None
    assert "cap" in bought(run, house(cap=50_000), label_file(tmp_path / "x"))[0].ended[1]


@pytest.mark.slow
@each("down", [set(range(1, 99)), set(range(5, 99)), set(range(1, 99, 2)), {3}])
def test_a_dead_or_half_dead_cloud_ends_with_what_was_bought_kept(house, run, label_file, tmp_path, down):
    path = tmp_path / f"{min(down)}-{len(down)}.jsonl"
    h, file = house(fault=lambda n: Unreachable("it is away") if n in down else None, retries=0), label_file(path)
    found, _ = bought(run, h, file)
    assert found.ended == ("cloud", found.ended[1])
    assert "it is away" in found.ended[1]
    assert len(found.questions) < 6
    file.close()
    healthy = house()
    again, _ = bought(run, healthy, label_file(path))
    assert (len(again.questions), again.ended) == (6, None)
    assert len(healthy.cloud.questions) == 12 - len(_texts(path, len(again.questions), healthy))


def _texts(path, _, healthy):
    """Texts that stood in the file before the healthy cloud was asked."""
    return range(path.read_bytes().count(b"\n") - 1 - len(healthy.cloud.questions))


def test_a_refusal_in_the_middle_keeps_what_was_bought(house, run, label_file):
    h, file = house(fault=lambda n: AccessDenied("no more") if n > 4 else None), label_file()
    with pytest.raises(AccessDenied):
        bought(run, h, file)
    assert len(file) == 4


def test_a_question_that_is_too_long_costs_its_own_label_alone(house, run, label_file):
    h, file = house(num_context=12), label_file()
    long = LabelRequest(" ".join(WORDS * 3), {"max_tokens": 6})
    found, _ = bought(run, h, file, [long, *ASKED])
    assert (len(found.questions), found.skipped, found.ended) == (6, 1, None)


def test_without_rows_there_is_nothing_to_buy_and_that_is_found_out_once(house, run, label_file):
    h, file = house(rows=False, can={"scoring_method": None}), label_file()
    for _ in range(2):
        with pytest.raises(MissingCapability, match="tells none"):
            bought(run, h, file)
        assert len(h.cloud.questions) == 1


def test_where_drafts_cannot_be_scored_the_clouds_own_text_is_the_label(house, run, label_file):
    h, file = house(can={"scoring_method": None}), label_file()
    found, _ = bought(run, h, file)
    assert len(h.cloud.questions) == len(found.questions) == 6
    for question in each_of(found.questions):
        assert question.judged is question.written
        assert len(question.judged) == len(question.written.signals)


def test_another_length_or_system_message_is_another_question():
    names = {
        LabelRequest(prompt, choices).name
        for prompt in ("a", "b")
        for choices in ({}, {"max_tokens": 5}, {"max_tokens": 6}, {"system": "x"}, {"raw": True})
    }
    assert len(names) == 10


def test_a_critic_reads_labels_that_were_bought_before_there_was_one_and_costs_nothing(house, run, label_file):
    file = label_file()
    before = bought(run, house(), file)[0].questions
    h = house(critic=LARGE)
    found = run(critiqued(h.client, [*ASKED, ASKED[0]], file))
    assert [each.draft for each in found] == [each.draft for each in before]
    assert h.cloud.questions == []
    for question in each_of(found):
        label = question.labelled("kl:0.7").draft
        assert label.signals.critic is not None
        assert label.signals.critic.kl == pytest.approx(question.judged.kl, abs=1e-5), "the critic is the cloud's table"
    with pytest.raises(UsageError, match="--critic"):
        run(critiqued(house().client, ASKED, file))
