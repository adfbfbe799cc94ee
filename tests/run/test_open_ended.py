"""An answer without a limit of its own: the rest of the context, written and reserved block by block."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import asdict

import pytest
from cases import each, each_of

from hybrid.cloud import WriteQuestion
from hybrid.policy import PRESETS
from hybrid.record.events import TRACE_VERSION, Finished, RecordingStarted, to_json
from hybrid.run import RequestSent, TokenEmitted
from hybrid.run import cloud_verifier as verifying
from hybrid.run.composition import policy_of
from hybrid.run.replay import replay
from hybrid.settings.config import Settings
from hybrid.spend import Price
from hybrid.types import CloudUsage

PROMPT, PROMPT_TOKENS = "a b c", 3
ROOM = 57
WRITING = {
    **{name: {"policy": name} for name in PRESETS},
    "kl to the end": {"policy": "kl", "hold": "rest"},
    "kl in blocks": {"policy": "kl:0.05", "hold": 2},
    "auto early": {"policy": "auto", "stream": "early", "worth": "50"},
}
SMALL = {"threshold": 0.1}
BILLED = Price.parse("1/0.1/4")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """The first block is so short that every answer has several."""
    monkeypatch.setattr(verifying, "BLOCK", 3)


@pytest.fixture
def open_house(house):
    """A house whose context holds the prompt and an answer of ``ROOM`` tokens."""
    return lambda **given: house(num_context=PROMPT_TOKENS + ROOM, **given)


def told(answer):
    return [(token.id, token.source, token.how, token.why, token.kl) for token in answer.tokens], answer.finish_reason


async def gather(client, **choices):
    return [event async for event in client.stream(PROMPT, **choices)]


def writes(house):
    return [question for question in house.cloud.questions if isinstance(question, WriteQuestion)]


@pytest.mark.slow
@each("name", WRITING)
def test_blocks_change_no_token_of_what_one_limit_would_give(open_house, run, name):
    choices = {**WRITING[name], **(SMALL if name == "kl" else {})}
    whole, parts = open_house(), open_house()
    expected = run(whole.client.generate(PROMPT, max_tokens=ROOM, **choices))
    answer = run(parts.client.generate(PROMPT, max_tokens=0, **choices))
    assert told(answer) == told(expected)
    assert answer.policy == expected.policy
    assert answer.guarantee == expected.guarantee
    assert len(writes(parts)) >= len(writes(whole))


def test_the_clouds_text_takes_blocks_that_double_up_to_the_end_of_the_context(open_house, run):
    h = open_house()
    answer = run(h.client.generate(PROMPT, policy="cloud", max_tokens=0))
    assert tuple(token.id for token in answer.tokens) == h.large(ROOM)
    assert {token.source for token in answer.tokens} == {"cloud"}
    limits = [question.limit for question in writes(h)]
    assert limits[:4] == [3, 3, 6, 12]
    assert [question.begun for question in writes(h)] == [sum(limits[:i]) for i in range(len(limits))]
    assert sum(limits) == ROOM
    assert answer.finish_reason == "length"


def test_a_limit_that_was_chosen_is_asked_for_at_once(open_house, run):
    h = open_house()
    run(h.client.generate(PROMPT, policy="cloud", max_tokens=ROOM))
    assert [question.limit for question in writes(h)] == [ROOM]


@each("name", WRITING)
def test_no_request_reserves_more_than_a_blocks_worst_case(open_house, run, name):
    h = open_house()
    events = run(gather(h.client, max_tokens=0, **WRITING[name]))
    for event in each_of(events):
        if isinstance(event, RequestSent) and event.kind == "write":
            block = max(3, event.position)
            assert event.num_tokens <= block
            assert event.reserved_nanousd <= BILLED.worst_case(PROMPT_TOKENS + event.position, block, 1)
    answer = next(event.answer for event in events if isinstance(event, Finished))
    charged = sum(h.cloud.charged.values(), CloudUsage(0, 0))
    assert answer.usage.cloud_prompt_tokens == charged.prompt_tokens, "every block pays for what is before it"
    assert (h.ledger.settled_nanousd, h.ledger.reserved_nanousd) == (answer.bill.nanousd, 0)


@each("name", WRITING)
@each("cap", [0, 23_000, 150_000])
def test_a_cap_holds_and_the_local_model_finishes(open_house, run, name, cap):
    h = open_house(cap=cap)
    answer = run(h.client.generate(PROMPT, max_tokens=0, **WRITING[name]))
    assert h.ledger.settled_nanousd + h.ledger.reserved_nanousd <= cap
    assert len(answer.tokens) == ROOM or answer.finish_reason == "stop"


def test_who_leaves_early_is_charged_a_block_and_not_the_rest(open_house, run, monkeypatch):
    h, write, came = open_house(), None, 0

    async def hanging_after_eight(question, *attempt):
        nonlocal came
        async for chunk in write(question, *attempt):
            yield chunk
            came += len(chunk.ids)
            if came == 8:  # in the third block, of six tokens
                await asyncio.sleep(60)

    async def leave():
        async with aclosing(h.client.stream(PROMPT, policy="cloud", max_tokens=0)) as events:
            async for event in events:
                if isinstance(event, TokenEmitted) and event.position == 7:
                    break

    write = h.cloud.write
    monkeypatch.setattr(h.cloud, "write", hanging_after_eight)
    run(leave())
    costs = [BILLED.cost(CloudUsage(PROMPT_TOKENS + begun, limit)) for begun, limit in ((0, 3), (3, 3), (6, 6))]
    assert (h.ledger.settled_nanousd, h.ledger.reserved_nanousd) == (sum(costs), 0)


@each("cap, limit", [(None, ROOM), (43_000, 10)])
def test_where_a_partial_answer_cannot_be_continued_all_is_asked_for_lowered_to_the_cap(open_house, run, cap, limit):
    h = open_house(can={"continues": False}, cap=cap)
    answer = run(h.client.generate(PROMPT, policy="cloud", max_tokens=0))
    assert writes(h)[0].limit == limit
    assert [token.source for token in answer.tokens[: limit + 1]][:limit] == ["cloud"] * limit


@each("prompt, limit", [(20, 30), (90, 3)])
def test_a_chat_services_own_template_is_left_room_in_its_context(open_house, run, monkeypatch, prompt, limit):
    """What its prompt may have at the most; a bound that leaves nothing is no reason to ask for nothing."""
    h = open_house(can={"continues": False}, cloud_context=50)
    monkeypatch.setattr(h.cloud, "max_usage", lambda question: CloudUsage(prompt, question.limit))
    run(h.client.generate(PROMPT, policy="cloud", max_tokens=0))
    assert writes(h)[0].limit == limit


@pytest.mark.slow
@each("name", WRITING)
def test_a_recording_has_the_number_and_is_replayed_with_its_requests(open_house, run, tmp_path, name):
    path = tmp_path / "trace.jsonl"
    events = run(gather(open_house().client, raw=True, trace_rows=True, max_tokens=0, **WRITING[name]))
    path.write_text("\n".join(json.dumps(line) for line in [{"trace": TRACE_VERSION}, *map(to_json, events)]))
    answer = next(event.answer for event in events if isinstance(event, Finished))
    assert [event.max_tokens for event in events if isinstance(event, RecordingStarted)] == [ROOM]
    again = run(replay(path))
    assert told(again) == told(answer)
    assert asdict(again.usage) == asdict(answer.usage)


def test_a_text_for_labels_is_asked_for_whole(open_house, run):
    h = open_house()
    found = run(h.client.text_rows(PROMPT, "cloud", max_tokens=0))
    assert found.tokens == h.large(ROOM)
    assert [question.limit for question in writes(h)] == [ROOM]


def test_a_draft_of_an_endless_answer_is_bounded():
    """A row of the whole vocabulary is kept for each of its tokens."""
    for name in ("once", "auto"):
        assert policy_of(Settings(policy=name, max_tokens=0)).span == 512
        assert policy_of(Settings(policy=name, max_tokens=0), room=40).span == 40
