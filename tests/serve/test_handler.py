"""Answers over the wire: what the client says, in OpenAI's shapes; a stream adds up to the whole."""

from __future__ import annotations

import asyncio
import gc
import math

import pytest
from cases import each, each_of
from scripted_house import LARGE, SMALL

from hybrid.errors import MissingCapability, Unreachable
from hybrid.prob import Dense
from hybrid.record.answer import Token
from hybrid.record.events import RecordingStarted, TokenEmitted
from hybrid.serve import handler, response
from hybrid.serve.app_state import ServeOptions
from hybrid.serve.monitor import Monitor
from hybrid.serve.replies import NOT_LISTED, RowKeeper, TokenLogprobs, legacy
from hybrid.types import Sampling

ASKED = {"seed": 5, "temperature": 0.8}
# The required keys of CreateChatCompletionResponse and ...StreamResponse (openai-openapi, f85dbe2).
WHOLE = {"id", "object", "created", "model", "choices"}
CHOICE = {"index", "message", "logprobs", "finish_reason"}
DELTA = {"index", "delta", "finish_reason"}


async def answer_of(house, **choices):
    return await house.client.generate([{"role": "user", "content": "a b c"}], max_tokens=12, **choices)


def test_an_answer_is_the_clients_in_openais_shape(endpoint, run):
    async def asked():
        served, alone = endpoint(), endpoint()
        return await served.chat(**ASKED), await answer_of(alone.house, **ASKED)

    heard, answer = run(asked())
    data, choice, usage = heard.data, heard.data["choices"][0], heard.data["usage"]
    assert heard.status == 200
    assert data.keys() >= WHOLE
    assert choice.keys() >= CHOICE
    assert (data["object"], data["model"]) == ("chat.completion", "hybrid")
    assert choice["message"] == {"role": "assistant", "content": answer.text, "refusal": None}
    assert choice["finish_reason"] == answer.finish_reason
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, len(answer.tokens))
    assert usage["total_tokens"] == 3 + len(answer.tokens)
    assert usage["cost"] == answer.bill.nanousd / 1e9 > 0
    own = usage["hybrid"]
    assert (own["local_tokens"], own["cloud_tokens"]) == (answer.usage.local_tokens, answer.usage.cloud_tokens)
    assert (own["checks"], own["bytes_sent"]) == (answer.usage.checks, answer.usage.bytes_sent)
    assert own["cloud_only_cost"] == answer.bill.cloud_only_nanousd / 1e9
    assert heard.headers["x-hybrid-mode"] == "hybrid"
    assert float(heard.headers["x-hybrid-cost"]) == pytest.approx(usage["cost"])
    assert heard.headers["x-request-id"]


@each("more", [{}, {"n": 3}, {"logprobs": True, "top_logprobs": 3}, {"model": "hybrid:kl:0.1"}, {"stop": ["d"]}])
def test_a_stream_adds_up_to_the_whole(endpoint, run, more):
    async def asked():
        whole, streamed = endpoint(parallel=3), endpoint(parallel=3)
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        return await whole.chat(**ASKED, **more), await streamed.chat(**ASKED, **more, **usage)

    whole, heard = run(asked())
    *chunks, last, done = heard.events
    assert heard.headers["content-type"].startswith("text/event-stream")
    assert done == "[DONE]"
    assert (last["choices"], last["usage"]) == ([], whole.data["usage"])
    assert all(chunk["usage"] is None for chunk in chunks)
    for choice in each_of(whole.data["choices"]):
        own = [each["choices"][0] for each in chunks if each["choices"][0]["index"] == choice["index"]]
        assert all(each.keys() >= DELTA for each in own)
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(each["delta"].get("content", "") for each in own) == choice["message"]["content"]
        assert [each["finish_reason"] for each in own] == [None] * (len(own) - 1) + [choice["finish_reason"]]
        told = [entry for each in own for entry in (each["logprobs"] or {"content": []})["content"]]
        assert told == (choice["logprobs"] or {"content": []})["content"]
    ends = [each for each in chunks if each["choices"][0]["finish_reason"]]
    assert sum(each["hybrid"]["cost"] for each in ends) == pytest.approx(whole.data["usage"]["cost"])
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_nobody_is_told_a_usage_who_did_not_ask(endpoint, run):
    heard = run(endpoint().chat(stream=True))
    assert all("usage" not in chunk for chunk in heard.events[:-1])
    assert all(chunk["choices"] for chunk in heard.events[:-1])


def test_answers_of_one_request_draw_from_seeds_of_their_own(endpoint, run):
    async def asked():
        together = await endpoint(parallel=2).chat(**ASKED, n=3)
        alone = [await endpoint().chat(temperature=0.8, seed=5 + i) for i in range(3)]
        return together, alone

    together, alone = run(asked())
    texts = [choice["message"]["content"] for choice in together.data["choices"]]
    assert texts == [each.data["choices"][0]["message"]["content"] for each in alone]
    assert len(set(texts)) > 1
    assert together.data["usage"]["prompt_tokens"] == 3
    assert together.data["usage"]["completion_tokens"] == sum(each.data["usage"]["completion_tokens"] for each in alone)


@each("policy", ["local", "cloud", "kl"])
def test_a_log_probability_is_of_whoever_wrote_the_token(endpoint, run, policy):
    heard = run(endpoint().chat(model=f"hybrid:{policy}", logprobs=True, top_logprobs=2))
    content = heard.data["choices"][0]["logprobs"]["content"]
    assert "".join(each["token"] for each in content) == heard.data["choices"][0]["message"]["content"]
    prefix = (0, 1, 2)
    for each_token in each_of(content):
        assert bytes(each_token["bytes"]).decode() == each_token["token"]
        token = "abcdefgh".index(each_token["token"].strip())
        told = [float(Dense.from_logits(table(prefix)).logprobs[token]) for table in (SMALL, LARGE)]
        own = told[:1] if policy == "local" else told[1:] if policy == "cloud" else told
        assert any(math.isclose(each_token["logprob"], value, abs_tol=1e-4) for value in own)
        tops = [top["logprob"] for top in each_token["top_logprobs"]]
        assert tops == sorted(tops, reverse=True)
        assert len(tops) == 2
        prefix += (token,)


def test_a_token_that_is_not_listed_says_so(endpoint, run):
    """The endpoint lists two of eight, and draws hot."""
    heard = run(endpoint(can={"most_k": 2}).chat(model="hybrid:cloud", logprobs=True, temperature=5.0, seed=1))
    told = [each["logprob"] for each in heard.data["choices"][0]["logprobs"]["content"]]
    assert all(value == NOT_LISTED or value <= 0 for value in told)


def test_a_text_is_continued_and_its_tokens_have_offsets(endpoint, run):
    served = endpoint()
    body = {"model": "hybrid:local", "prompt": "a b c", "max_tokens": 6, "logprobs": 1}
    whole = run(served.ask("/v1/completions", body))
    streamed = run(endpoint().ask("/v1/completions", {**body, "stream": True}))
    choice = whole.data["choices"][0]
    assert whole.data["object"] == "text_completion"
    told = choice["logprobs"]
    assert [choice["text"][at:].startswith(word) for at, word in zip(told["text_offset"], told["tokens"], strict=True)]
    chunks = [each["choices"][0] for each in streamed.events[:-1]]
    assert "".join(each["text"] for each in chunks) == choice["text"]
    offsets = [at for each in chunks if each["logprobs"] for at in each["logprobs"]["text_offset"]]
    assert offsets == told["text_offset"]


def test_what_the_template_never_reads_is_named_and_not_refused(endpoint, run):
    heard = run(endpoint().chat(reasoning_effort="low", user="u"))
    assert heard.status == 200
    assert set(heard.headers["x-hybrid-ignored"].split(", ")) == {"user", "reasoning_effort"}


@each(("model", "mode"), [("hybrid", "hybrid"), ("hybrid:local", "local"), ("hybrid:cloud", "hybrid")])
def test_the_mode_says_whether_the_cloud_may_be_asked(endpoint, run, model, mode):
    assert run(endpoint().chat(model=model)).headers["x-hybrid-mode"] == mode


def test_a_cloud_that_fails_leaves_an_answer_that_says_why(endpoint, run):
    heard = run(endpoint(connect=Unreachable("no route", sent=False)).chat(model="hybrid:cloud"))
    assert heard.status == 200
    assert "no route" in heard.headers["x-hybrid-degraded"]
    assert "no route" in heard.data["hybrid"]["degraded"]


@each(
    ("fields", "status", "code"),
    [
        ({"messages": [{"role": "user", "content": "a " * 2000}]}, 400, "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": " "}]}, 400, None),
        ({"tools": [{"type": "function"}]}, 400, "unsupported_parameter"),
    ],
)
@each("streamed", [False, True])
def test_what_cannot_be_answered_is_an_error_with_four_keys(endpoint, run, fields, status, code, streamed):
    heard = run(endpoint().chat(stream=streamed, **fields))
    assert (heard.status, heard.error["code"]) == (status, code)
    assert heard.error.keys() == {"message", "type", "param", "code"}


def test_a_full_queue_is_a_503_with_a_time(endpoint, run):
    async def asked():
        served = endpoint(queue={"max_queued": 0})
        async with served.house.client._contexts.pool.borrow((0,)):
            return await served.chat()

    heard = run(asked())
    assert (heard.status, heard.error["code"]) == (503, "overloaded")
    assert int(heard.headers["retry-after"]) > 0


def test_a_caller_in_line_is_told_that_the_connection_lives(endpoint, run, monkeypatch):
    monkeypatch.setattr(response, "PING_S", 0.01)

    async def asked():
        served = endpoint()
        async with served.house.client._contexts.pool.borrow((0,)):
            waiting = asyncio.create_task(served.chat(stream=True))
            await asyncio.sleep(0.1)
        return await waiting

    heard = run(asked())
    assert heard.body.startswith(response.PING * 2)
    assert heard.events[-1] == "[DONE]"


def test_a_stream_that_breaks_says_so_and_has_no_clean_end(endpoint, run):
    from hybrid.errors import EngineError

    def breaking(prefix):
        if len(prefix) > 6:
            raise EngineError("the model cannot decode")
        return SMALL(prefix)

    heard = run(endpoint(small=breaking).chat(model="hybrid:local", stream=True, hybrid={"offline": True}))
    assert heard.status == 200 or heard.error["code"] == "local_model_unusable"
    assert b"[DONE]" not in heard.body
    assert heard.ended


def test_a_fault_of_ours_is_a_500_that_quotes_nothing(endpoint, run, monkeypatch, capsys):
    def broken(*_):
        raise ValueError("a b c")

    monkeypatch.setattr(handler, "usage_of", broken)
    monkeypatch.setattr("hybrid.serve.replies.usage_of", broken)
    heard = run(endpoint().chat())
    assert (heard.status, heard.error["code"]) == (500, "internal_error")
    assert "a b c" not in heard.body.decode() + "".join(capsys.readouterr())


def test_texts_are_kept_from_whoever_watches_unless_they_were_asked_for(endpoint, run, monkeypatch):
    """Whoever watches is not even handed a prompt."""
    handed = []

    async def asked(shows):
        served, begin = endpoint(options=ServeOptions(shows_texts=shows)), Monitor.begin
        with monkeypatch.context() as patched:
            patched.setattr(Monitor, "begin", lambda *asked, **named: handed.append(asked[3]) or begin(*asked, **named))
            heard = await served.chat()
        told = await served.ask("/monitor/events", method="GET", leave=lambda heard: bool(heard.body))
        return heard.data["choices"][0]["message"]["content"], told.body.decode()

    for shows in (False, True):
        text, told = run(asked(shows))
        assert ("a b c" in told) is shows
        assert (handed.pop() is not None) is shows
        handed.clear()
        assert (text.split()[0] + " " in told) is shows or not shows


@each("configured", [None, 5])
def test_answers_of_one_request_differ_whatever_seed_was_configured(endpoint, run, configured):
    heard = run(endpoint(seed=configured).chat(model="hybrid:local", n=3, temperature=2.0))
    texts = [choice["message"]["content"] for choice in heard.data["choices"]]
    assert len(set(texts)) > 1
    if configured is not None:
        again = run(endpoint(seed=None).chat(model="hybrid:local", n=3, temperature=2.0, seed=configured))
        assert texts == [choice["message"]["content"] for choice in again.data["choices"]]


@each("max_queued", [0, 1])
def test_answers_of_one_request_do_not_stand_in_each_others_way(endpoint, run, max_queued):
    assert run(endpoint(queue={"max_queued": max_queued}).chat(n=4)).status == 200


@each("streamed", [False, True])
@each("n", [2, 3])
def test_answers_that_are_left_leave_nothing_to_report(endpoint, run, streamed, n):
    """Nor what asyncio reports of a result that nobody took, once it is collected."""

    async def asked():
        reported = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: reported.append(told["message"]))
        served, gone = endpoint(parallel=2), asyncio.Event()
        waiting = asyncio.create_task(served.chat(n=n, stream=streamed, gone=gone, max_tokens=200))
        await asyncio.sleep(0.02)
        gone.set()
        heard = await waiting
        gc.collect()
        await asyncio.sleep(0)
        return heard, reported

    heard, reported = run(asked())
    assert not heard.ended
    assert reported == []


def retried_then_refused():
    tries = []

    async def reach(_):
        tries.append(1)
        raise Unreachable("busy", sent=False, trouble="connect") if len(tries) == 1 else MissingCapability("no rows")

    return reach


@each("streamed", [False, True])
@each("begun", [False, True])
def test_what_the_endpoint_cannot_do_is_a_status_while_there_is_no_text(endpoint, run, streamed, begun):
    """A stream, too: whatever happened before, and though the answer was begun."""
    served = endpoint(fault=lambda _: MissingCapability("no rows")) if begun else endpoint()
    if not begun:
        served.house.client._connection._connect = retried_then_refused()
    heard = run(served.chat(model="hybrid:cloud", stream=streamed))
    assert (heard.status, heard.error["code"]) == (400, "unsupported_by_endpoint")


def test_what_is_ignored_fits_a_header_however_much_it_is(endpoint, run):
    heard = run(endpoint().chat(**{f"field_{i}": 1 for i in range(5000)}))
    told = heard.headers["x-hybrid-ignored"]
    assert len(told) < 4096  # aiohttp takes 8,190 bytes a header, Python's own client 65,536
    *names, more = told.split(", ")
    assert names == [f"field_{i}" for i in range(len(names))]
    assert more == f"and {5000 - len(names)} more"


@each("streamed", [False, True])
def test_what_no_utf_8_can_hold_is_told_in_an_error_all_the_same(endpoint, run, streamed):
    heard = run(endpoint().chat(messages=[{"role": "user", "content": [{"type": "\ud800"}]}], stream=streamed))
    assert (heard.status, heard.error["code"]) == (400, "unsupported_parameter")


def scores_of(*pieces, at_a_time=1):
    """What is told of these tokens, in parts of so many."""
    keeper = RowKeeper(1)
    keeper.observe(RecordingStarted(pieces, (), Sampling(), 9))
    tokens = [Token(i, "", "local", "draft") for i in range(len(pieces))]
    scored = [keeper.observe(TokenEmitted(i, token)) for i, token in enumerate(tokens)]
    return [legacy(scored[i : i + at_a_time], 1) for i in range(0, len(scored), at_a_time)]


@each("at_a_time", [1, 2, 4])
def test_an_offset_is_a_place_in_the_text_though_a_token_holds_a_part_of_a_character(at_a_time):
    told = scores_of(b"\xf0\x9f", b"\x98\x80", b"xy", b"z", at_a_time=at_a_time)
    assert [at for each in told for at in each["text_offset"]] == [0, 0, 1, 3]  # in "\U0001f600xyz"


def test_a_token_that_cannot_be_is_not_listed():
    told = legacy([TokenLogprobs(b"a", -math.inf, ((b"b", -math.inf),), 0)], 1)
    assert (told["token_logprobs"], told["top_logprobs"]) == ([NOT_LISTED], [{"b": NOT_LISTED}])
