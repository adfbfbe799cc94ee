"""Branches by the whole client: one prefix, one check each, one bill, and what is said where the cloud gives none."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from cases import each, each_of
from scripted_house import END, LARGE, SMALL, WORDS

from hybrid.errors import MissingCapability, Unreachable, UsageError
from hybrid.policy import CoinKey, SeededCoin
from hybrid.policy.branches import final_answer
from hybrid.prob import Dense, warp
from hybrid.record.events import Finished, NoteAdded, RequestSent, RequestSettled, TokenEmitted, to_json
from hybrid.run import BranchDrawn
from hybrid.run.replay import replay
from hybrid.types import Sampling

PROMPT = "a b c"
AT = {"temperature": 1.2, "seed": 3, "max_tokens": 6}
NUM = 5


def own_branches(h, num=NUM, stops=()):
    """The same draws by hand: one coin, and the number of the branch in its key."""
    coin, drawn = SeededCoin(AT["seed"]), {}
    for number in range(num):
        text = ()
        while len(text) < AT["max_tokens"] and END not in text and not (set(text) & set(stops)):
            row = Dense.from_logits(np.array(SMALL(h.prompt + text)))
            text += (coin(warp(row, Sampling(AT["temperature"])).probs, CoinKey(len(text), "draft", number)),)
        drawn.setdefault(text, []).append(number)
    return drawn


def logprob(scores, h, text):
    rows = [Dense.from_logits(np.array(scores(h.prompt + text[:i]))) for i in range(len(text))]
    return sum(float(row.logprobs[token]) for row, token in zip(rows, text, strict=True))


def shown(text):
    return tuple(token for token in text if token != END)


def spelled(text):
    return "".join(WORDS[token] + " " for token in shown(text))


async def gather(h, **choices):
    return [event async for event in h.client.stream(PROMPT, branches=NUM, **AT | choices)]


def told(events, kind):
    return [event for event in events if isinstance(event, kind)]


def at_rest(h):
    assert h.cloud.num_open == h.ledger.reserved_nanousd == 0
    assert h.engine.ids[: len(h.prompt)] == h.prompt[: len(h.engine.ids)]


def test_the_best_of_the_draws_is_shown_and_everything_is_told_and_charged(house, run):
    h = house()
    events = run(gather(h))
    answer, drawn = events[-1].answer, own_branches(h)
    assert len(drawn) > 1
    branches = told(events, BranchDrawn)
    assert [branch.draws for branch in branches] == [tuple(numbers) for numbers in drawn.values()]
    for branch, text in each_of(zip(branches, drawn, strict=True)):
        assert (branch.num_tokens, branch.text) == (len(text), spelled(text))
        assert branch.local_logprob == pytest.approx(logprob(SMALL, h, text), abs=1e-4)
        assert branch.cloud_logprob == pytest.approx(logprob(LARGE, h, text), abs=1e-4)
    best = max(drawn, key=lambda text: logprob(LARGE, h, text) / len(text))
    assert tuple(token.id for token in answer.tokens) == shown(best)
    assert [branch.chosen for branch in branches] == [text == best for text in drawn]
    assert {(token.source, token.how, token.kl) for token in answer.tokens} == {("local", "unchecked", None)}
    assert answer.policy.startswith("branches ")
    assert f"of {NUM} draws of the local model's own distribution" in answer.guarantee
    # One check each, of the whole branch behind the prompt; the bill is what the server charged.
    assert [(question.prefix, question.span) for question in h.cloud.questions] == [(h.prompt, text) for text in drawn]
    assert answer.usage.checks == answer.usage.cloud_requests == len(drawn)
    charged = sum(map(h.price.cost, h.cloud.charged.values()))
    assert answer.bill.nanousd == h.ledger.settled_nanousd == h.client.spent.nanousd == charged
    assert len(told(events, RequestSent)) == len(told(events, RequestSettled)) == len(drawn)
    at_rest(h)


def test_a_prompt_is_read_once_for_all_branches(house, run):
    h = house()
    run(gather(h, choose="majority"))
    texts = own_branches(h)
    # A branch's last token is not decoded, and the first row after the prompt may take the prompt's last token again.
    assert h.engine.num_decoded <= len(h.prompt) + sum(len(text) * len(n) for text, n in texts.items())


def test_overlap_and_contexts_change_nothing(house, run):
    first, *others = (
        run(gather(house(parallel=n), overlap=o))[-1].answer for n, o in ((1, True), (1, False), (3, True))
    )
    for other in each_of(others):
        assert (other.tokens, other.usage, other.bill) == (first.tokens, first.usage, first.bill)


@each("num_paid", range(6))
def test_a_cap_leaves_out_what_it_does_not_pay_for_and_says_so(house, run, num_paid):
    drawn = own_branches(house())
    costs = [1000 * (3 + len(text)) + 4000 for text in drawn]
    cap = sum(costs[:num_paid])
    h = house(cap=cap)
    events = run(gather(h))
    answer, scored = events[-1].answer, [each.cloud_logprob is not None for each in told(events, BranchDrawn)]
    assert h.ledger.settled_nanousd == answer.bill.nanousd <= cap
    at_rest(h)
    whole = num_paid >= len(drawn)
    assert all(scored) == whole
    assert (answer.degraded_kind, answer.degraded_cap) == ((None, None) if whole else ("budget", answer.degraded_cap))
    notes = [event.why for event in told(events, NoteAdded) if "left out" in event.why]
    left = len(drawn) - sum(scored)
    assert notes == (
        [] if whole else [f"{left} of {len(drawn)} different branches have no score of the cloud's, and are left out"]
    )
    texts = [text for text, known in zip(drawn, scored, strict=True) if known]
    if texts:
        best = max(texts, key=lambda text: logprob(LARGE, h, text) / len(text))
        assert tuple(token.id for token in answer.tokens) == shown(best)


def locally_best(h, drawn):
    votes = {}
    for text, numbers in drawn.items():
        votes[final_answer(spelled(text))] = votes.get(final_answer(spelled(text)), 0) + len(numbers)
    return max(drawn, key=lambda text: (votes[final_answer(spelled(text))], logprob(SMALL, h, text) / len(text)))


@each(
    ("built", "choices", "kind"),
    [
        ({"connect": Unreachable("it is away")}, {}, "unreachable"),
        ({"fault": lambda _: Unreachable("it is away")}, {}, "unreachable"),
        ({}, {"choose": "majority"}, None),
        ({}, {"offline": True}, None),
    ],
)
def test_without_the_cloud_the_majority_is_shown_and_only_a_cloud_that_failed_degrades(
    house, run, built, choices, kind
):
    h = house(**built)
    answer = run(gather(h, **choices))[-1].answer
    assert tuple(token.id for token in answer.tokens) == shown(locally_best(h, own_branches(h)))
    assert answer.degraded_kind == kind
    assert (answer.degraded or "").startswith("it is away" if kind else "")
    assert answer.bill.nanousd == 0 or kind
    assert answer.usage.checks == 0
    assert h.cloud.num_open == 0


def test_a_cloud_that_dies_between_two_checks_leaves_the_scored_ones(house, run):
    h = house(fault=lambda n: Unreachable("gone") if n > 1 else None, retries=0)
    events = run(gather(h))
    drawn = list(own_branches(h))
    assert [branch.cloud_logprob is not None for branch in told(events, BranchDrawn)] == [True] + [False] * (
        len(drawn) - 1
    )
    assert tuple(token.id for token in events[-1].answer.tokens) == shown(drawn[0])
    assert events[-1].answer.degraded == "gone"


def test_an_endpoint_that_gives_no_log_probabilities_is_refused_before_anything_is_sent(house, run):
    for can in each_of(({"scoring_method": None}, {"rows": False})):
        h = house(can=can)
        with pytest.raises(MissingCapability, match="policy branches needs an endpoint that can"):
            run(gather(h))
        assert not h.cloud.questions
        assert h.ledger.settled_nanousd == h.ledger.reserved_nanousd == 0
        assert run(gather(h, choose="majority"))[-1].answer.bill.nanousd == 0


def test_where_all_branches_are_the_same_nothing_is_asked_but_of_one_alone(house, run):
    h = house()
    answer = run(h.client.generate(PROMPT, branches=NUM, **AT | {"top_k": 1}))
    assert tuple(token.id for token in answer.tokens) == h.small(AT["max_tokens"])
    assert not h.cloud.questions
    run(h.client.generate(PROMPT, branches=1, max_tokens=6))
    assert len(h.cloud.questions) == 1, "whoever asks for one wants its score"


def test_a_grader_is_a_choice_of_the_answer(house, run):
    h = house()
    answer = run(gather(h, choose=lambda text: text.count("a")))[-1].answer
    assert tuple(token.id for token in answer.tokens) == shown(max(own_branches(h), key=lambda text: text.count(0)))
    assert not h.cloud.questions
    assert "grader" in answer.policy


def test_what_ends_at_a_stop_string_is_scored_to_its_end_and_no_further(house, run):
    h = house()
    events = run(gather(h, stop=["c"]))
    drawn = own_branches(h, stops=(2,))
    assert any(text[-1] == 2 for text in drawn)
    assert [question.span for question in h.cloud.questions] == list(drawn)
    for branch, text in each_of(zip(told(events, BranchDrawn), drawn, strict=True)):
        assert branch.text == spelled(text).split("c")[0]
    answer = events[-1].answer
    assert answer.text == next(branch.text for branch in told(events, BranchDrawn) if branch.chosen)


@each("moment", ["check", "drawing", "shown"])
def test_who_leaves_leaves_nothing_reserved(house, run, moment):
    h, reached = house(), asyncio.Event()
    score, num = h.cloud.score, 0

    async def hang(question, request_id, before_send):
        nonlocal num
        num += 1
        if num == 2 and moment == "check":
            await before_send()
            reached.set()
            await asyncio.sleep(60)
        return await score(question, request_id, before_send)

    h.cloud.score = hang

    async def leave():
        seen = []

        def publish(event):
            seen.append(event)
            if (moment == "drawing" and len(seen) == 4) or (moment == "shown" and isinstance(event, TokenEmitted)):
                reached.set()

        stream = h.client.stream(PROMPT, branches=NUM, on_event=publish, **AT)
        task = asyncio.create_task(anext(stream))
        await task

        async def rest():
            async for _ in stream:
                pass

        task = asyncio.create_task(rest())
        await reached.wait()
        task.cancel()
        await asyncio.wait([task])
        await stream.aclose()

    run(leave())
    assert h.ledger.reserved_nanousd == h.cloud.num_open == 0
    assert len(run(h.client.generate(PROMPT, branches=2, choose="majority", **AT)).tokens) > 0


@each("choose", [None, "majority"])
def test_a_trace_is_replayed(house, run, tmp_path, choose):
    h, path = house(), tmp_path / "trace.jsonl"
    events = run(gather(h, choose=choose, trace_rows=True))
    path.write_text("".join(json.dumps(line) + "\n" for line in [{"trace": 5}, *map(to_json, events)]))
    heard = []
    again = run(replay(path, heard.append))
    answer = events[-1].answer
    assert (again.text, again.policy, again.usage.checks) == (answer.text, answer.policy, answer.usage.checks)
    assert [branch.draws for branch in told(heard, BranchDrawn)] == [b.draws for b in told(events, BranchDrawn)]


def test_several_experts_are_refused(house, run):
    h = house(beside={"other": LARGE}, queue={"experts": ("local", "other")})
    with pytest.raises(UsageError, match="give no --expert"):
        run(gather(h))
    assert told(run(gather(house())), Finished)
