"""Checks over vLLM's token-in route that read the prefix cache, and V1, which such a check would end.

The laws. The rows are those of a check that reads no cache, however much was cached. All that was asked is charged and
within the worst case. A check that reads the cache leaves only for a server that has given candidates' values since its
connection was made, and only with candidates.
"""

from __future__ import annotations

import asyncio
import base64
import io
from contextlib import asynccontextmanager

import numpy as np
import pytest
from arithmetic import LIKELY, tolerance
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st
from wordlist import able, drive

from hybrid.cloud import ScoreQuestion
from hybrid.cloud.bounds import QuestionDeadlines, Timeouts
from hybrid.cloud.dialects.dialect import DialectConfig
from hybrid.cloud.dialects.vllm_tokens import BLOCK, CANDIDATES, VllmTokens
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.wire import Wire
from hybrid.errors import BadReply, CloudError, MissingCapability, Unreachable
from hybrid.types import CloudUsage

V2 = able(VllmTokens(DialectConfig("m")), same_words=True)
READ = "skip_reading_prefix_cache"


def question(prefix, span, *, candidates=True, after=True, k=2):
    """Ask about a draft of its own after texts that begin alike."""
    text = tuple(i * 7 % 300 for i in range(prefix)) + tuple((prefix * 31 + i) % 300 for i in range(span))
    asked = tuple((i, i + 1) for i in range(span)) + ((),) * after if candidates else ()
    return ScoreQuestion(text[:prefix], text[prefix:], after, k, asked)


def answered(body, cached):
    """Answer as V2 does that has cached so much, in numbers that tell where a row stood."""
    ids, drawn = body["token_ids"], body["sampling_params"]
    cached = min(cached, len(ids) - 1) if drawn.get(READ) is False else 0
    rows = [
        {str(token): {"logprob": -0.5 - at / 1000, "rank": 1}, str(token + 400): {"logprob": -3.0, "rank": 2}}
        for at, token in enumerate(ids)
    ]
    start, table = drawn.get("prompt_logprob_start", 0), drawn.get(CANDIDATES)
    raw = io.BytesIO()
    if table:
        assert len(table) == len(ids) - 1 - start
        np.save(raw, np.array([[-4.0 - i / 10 for i in range(len(row))] for row in table], dtype=np.float32))
    top = [{"token_id": 9, "logprob": -0.2, "rank": 1}]
    return {
        "choices": [{"token_ids": [9], "logprobs": {"content": [{"top_logprobs": top}]}}],
        "prompt_logprobs": [None, *rows[cached + 1 :]] if "prompt_logprobs" in drawn else None,
        "prompt_token_id_logprobs": base64.b64encode(raw.getvalue()).decode() if table and cached <= start else None,
        "usage": {
            "prompt_tokens": len(ids),
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": cached},
        },
    }


def scored(dialect, asked, cached, *, proven):
    """Drive a check to its end; return what left, and its scores."""
    scoring, left, reply = dialect.score(asked), [], None
    try:
        while True:
            put = scoring.send(reply)
            if put.proof == "needs" and not proven:
                reply = None
                continue
            proven = proven or put.proof == "gives"
            left.append(put)
            reply = answered(put.body, cached)
    except StopIteration as done:
        return left, done.value


def same(rows, others):
    def told(row):
        return dict(zip(row.ids.tolist(), row.logprobs.round(6).tolist(), strict=True)), round(row.tail_max, 9)

    return [told(row) for row in rows] == [told(row) for row in others]


@given(
    prefix=st.integers(BLOCK + 1, 70),
    span=st.integers(1, 40),
    blocks=st.integers(0, 7),
    after=st.booleans(),
    proven=st.booleans(),
)
def test_the_rows_are_those_of_a_check_that_reads_no_cache_and_all_that_was_asked_is_charged(
    prefix, span, blocks, after, proven
):
    asked, cached = question(prefix, span, after=after), 16 * blocks
    [plain], expected = scored(able(V2, same_words=None), asked, cached, proven=True)
    left, scores = scored(V2, asked, cached, proven=proven)
    assert same(scores.rows, expected.rows)
    again = min(cached, prefix + span - 1) >= prefix  # the first due row belongs to what was cached
    assert [READ in put.body["sampling_params"] for put in left] == [*[False] * (not proven), True, *[False] * again]
    assert not again or left[-1].body == plain.body
    whole = CloudUsage(prefix + span, 1, min(cached, prefix + span - 1))
    charged = [*[CloudUsage(2, 1)] * (not proven), whole, *[CloudUsage(prefix + span, 1)] * again]
    assert scores.usage == sum(charged[1:], charged[0])
    assert [put.before for put in left[1:]] == [sum(charged[1:i], charged[0]) for i in range(1, len(left))]
    worst = V2.max_usage(asked)
    assert worst.at_least(scores.usage) == worst, "never more than is reserved"


@given(
    prefix=st.integers(1, 40), span=st.integers(0, 9), candidates=st.booleans(), same_words=st.booleans() | st.none()
)
def test_nothing_that_v1_would_die_of_leaves_without_candidates_beside_it(prefix, span, candidates, same_words):
    """V1 refuses those by their name before it computes anything: of the two guards the one that needs no memory."""
    asked = question(prefix, span, candidates=candidates)
    left, _ = scored(able(V2, same_words=same_words), asked, 16, proven=True)
    deadly = [put for put in left if READ in put.body["sampling_params"]]
    assert all(put.proof == "needs" and put.body["sampling_params"][CANDIDATES] for put in deadly)
    assert bool(deadly) == (same_words is True and prefix > 16 and span > 0)


def test_a_check_without_candidates_of_its_own_asks_about_what_was_drafted_and_shows_nothing_more():
    asked = question(40, 3, candidates=False)
    left, scores = scored(V2, asked, 32, proven=True)
    assert left[0].body["sampling_params"][CANDIDATES] == [[token] for token in asked.span]
    _, plain = scored(able(V2, same_words=None), asked, 0, proven=True)
    assert [row.ids.tolist() for row in scores.rows] == [row.ids.tolist() for row in plain.rows]


def test_candidates_that_were_told_not_to_be_had_are_no_proof_and_none_is_tried():
    left, _ = scored(able(V2, candidates=False), question(40, 3), 32, proven=True)
    assert [READ in put.body["sampling_params"] for put in left] == [False]
    once, twice = (dialect.max_usage(question(40, 3)) for dialect in (able(V2, candidates=False), V2))
    assert (once, twice) == (CloudUsage(43, 1), CloudUsage(88, 3, requests=3))


def test_an_answer_without_values_is_no_proof_and_is_charged():
    """An older server takes any field, and knows nothing of candidates."""
    asked = question(40, 3)
    scoring = V2.score(asked)
    assert scoring.send(None).proof == "needs"
    proof = scoring.send(None)
    with pytest.raises(MissingCapability, match=CANDIDATES) as refused:
        scoring.send(answered(proof.body, 0) | {"prompt_token_id_logprobs": None})
    assert V2.check_usage(asked, answered(proof.body, 0)) == CloudUsage(2, 1)
    assert not V2.learn_from_error(asked, refused.value).can.candidates


@each("told", [None, {"prompt_tokens": 0, "completion_tokens": 0}, {"prompt_tokens": 9}])
def test_a_proof_that_is_none_is_charged_for_the_tokens_that_were_sent_whatever_is_told(told):
    class Untold:
        url, num_open = "http://there", 0
        hide_key = Wire.hide_key
        _key = None

        def question_deadlines(self, asked_at=None, before_send=None):
            return QuestionDeadlines(Timeouts(), self.url, asked_at)

        async def post(self, path, body, *_, **__):
            return {"choices": [{}], "usage": told}

    endpoint = Endpoint(Untold())
    endpoint.knowledge.dialect = V2
    with pytest.raises(Unreachable) as again:
        asyncio.run(endpoint.score(question(40, 3), "r"))
    assert (again.value.trouble, again.value.sent) == ("learned", False)
    assert again.value.charged == CloudUsage(9 if told and told["prompt_tokens"] else 2, 1)


def test_a_server_that_has_changed_in_between_is_asked_without_the_cache():
    """After the proof, before the check: neither leaves again in the same question."""
    asked = question(40, 3)
    proof = answered({"token_ids": [1, 2], "sampling_params": {CANDIDATES: [[1]]}}, 0)
    plain = answered(scored(able(V2, same_words=None), asked, 0, proven=True)[0][0].body, 0)
    left, scores = drive(V2.score(asked), None, proof, None, plain)
    assert [put.proof for put in left] == ["needs", "gives", "needs", None]
    assert scores.usage == CloudUsage(45, 2, requests=2)


def test_what_no_usage_is_told_of_is_charged_for_the_tokens_that_were_sent():
    """Not for the worst case, which would be twice as much: how often was asked is known."""
    asked = question(40, 3)
    proof = answered({"token_ids": [1, 2], "sampling_params": {CANDIDATES: [[1]]}}, 0) | {"usage": None}
    from_cache = answered(scored(V2, asked, 48, proven=True)[0][0].body, 48)
    whole = answered(scored(V2, asked, 48, proven=True)[0][1].body, 48) | {"usage": None}
    _, once = drive(V2.score(asked), None, proof, whole)
    assert once.usage == CloudUsage(45, 2, requests=2)
    _, twice = drive(V2.score(asked), None, proof, from_cache, whole)
    assert twice.usage == CloudUsage(88, 3, 42, requests=3)


@each("listed", [[], [None], None])
def test_a_reply_without_rows_is_asked_for_again(listed):
    asked = question(40, 3)
    reply = answered(scored(V2, asked, 32, proven=True)[0][0].body, 32) | {"prompt_logprobs": listed}
    left, _ = drive(V2.score(asked), reply)
    assert [READ in put.body["sampling_params"] for put in left] == [True, False]


def test_more_rows_than_there_are_tokens_are_not_believed():
    asked = question(40, 3)
    reply = answered(scored(V2, asked, 0, proven=True)[0][0].body, 0)
    reply["prompt_logprobs"].insert(1, reply["prompt_logprobs"][1])
    with pytest.raises(BadReply):
        drive(V2.score(asked), reply)


# ---- over HTTP -----------------------------------------------------------------------------------------------------

ROUTE = ("--enable-scale-out", "--enable-prompt-tokens-details", "--block-size", "16")


@asynccontextmanager
async def connected(url):
    wire = Wire(url, None, Timeouts(), through_proxies=False)
    endpoint = Endpoint(wire, None, None, None, "vllm-tokens")
    sent = []

    async def request(request):
        sent.append(request.content)

    wire._client.event_hooks = {"request": [request]}
    try:
        await endpoint.discover("a", (1,))
        endpoint.knowledge.dialect = able(endpoint.knowledge.dialect, same_words=True)
        sent.clear()
        yield endpoint, sent
    finally:
        await endpoint.aclose()


def num_reading(sent):
    return sum(READ.encode() in body for body in sent)


def test_over_v2_the_second_check_pays_for_what_is_new_and_its_rows_are_the_same(start_server):
    server = start_server(*ROUTE, "--v2-runner")
    longer = question(200, 8)

    async def check():
        async with connected(server.url) as (endpoint, sent):
            first = await endpoint.score(longer, "r")
            second = await endpoint.score(question(203, 8), "r")
            number = num_reading(sent)
            endpoint.knowledge.dialect = able(endpoint.knowledge.dialect, same_words=None)
            return (
                first,
                second,
                number,
                await endpoint.score(question(203, 8), "r"),
                endpoint.knowledge.dialect.can.keeps_cache,
            )

    first, second, number, plain, keeps_cache = asyncio.run(check())
    assert (first.usage, number) == (CloudUsage(210, 2, 0, 2), 2), "a proof and a check, then checks alone"
    assert second.usage == CloudUsage(211, 1, 192, 1)
    assert plain.usage == CloudUsage(211, 1, 0, 1)
    assert keeps_cache, "as it has shown"
    for row, other in each_of(zip(second.rows, plain.rows, strict=True)):
        found, expected = (dict(zip(each.ids.tolist(), each.logprobs.tolist(), strict=True)) for each in (row, other))
        likely = [token for token, logprob in expected.items() if logprob > np.log(LIKELY)]
        assert likely
        assert all(abs(found[token] - expected[token]) <= tolerance().nats for token in likely)


def test_rows_that_the_cache_has_swallowed_are_asked_for_once_more(start_server):
    """The same check again: its draft was cached, up to the last whole block."""
    server = start_server(*ROUTE, "--v2-runner")

    async def check():
        async with connected(server.url) as (endpoint, _):
            asked = question(64, 20)
            return [await endpoint.score(asked, "r") for _ in range(2)]

    first, again = asyncio.run(check())
    assert again.usage == CloudUsage(168, 2, 80, 2)
    assert len(again.rows) == len(first.rows) == 21


def test_over_several_connections_no_check_pays_for_a_proof_that_cannot_be_used(start_server):
    """Of two connections nobody knows which one a request takes, so what one has proven is of no use."""
    server = start_server(*ROUTE, "--v2-runner")

    async def check():
        async with connected(server.url) as (endpoint, sent):
            await asyncio.gather(*(endpoint.score(question(60 + i, 8), "r") for i in range(2)))
            sent.clear()
            told = await asyncio.gather(*(endpoint.score(question(70 + i, 8), "r") for i in range(2)))
            return [scores.usage.requests for scores in told], len(sent), num_reading(sent)

    assert asyncio.run(check()) == ([1, 1], 2, 0)


def test_v1_that_takes_v2s_place_between_two_checks_survives(start_server):
    """Remembering would kill it: what was proven holds for a connection, and this is another one."""
    v2 = start_server(*ROUTE, "--v2-runner")
    port = v2.url.rpartition(":")[2]

    async def check():
        async with connected(v2.url) as (endpoint, sent):
            before = [await endpoint.score(question(200 + i, 8), "r") for i in range(2)]
            assert num_reading(sent) == 2
            v2.process.kill()
            v2.process.wait()
            v1 = start_server(*ROUTE, "--port", port)
            sent.clear()
            after = [await endpoint.score(question(202 + i, 8), "r") for i in range(3)]
            return before, after, num_reading(sent), endpoint.knowledge.dialect.can.candidates, v1

    before, after, number, candidates, v1 = asyncio.run(check())
    assert v1.client.get("/health").status_code == 200
    assert number == 0
    assert not candidates, "V1 has said so, at no charge"
    assert [scores.usage.requests for scores in after] == [1, 1, 1]
    assert [len(scores.rows) for scores in (*before, *after)] == [9] * 5


@each("proven", [False, True])
def test_the_field_is_as_deadly_as_the_test_above_believes(start_server, proven):
    """Without candidates V1 dies of it; beside them it refuses the request. Else no test would see a guard gone."""
    v1 = start_server(*ROUTE)
    ids = list(range(60))
    drawn = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 1, "prompt_logprob_start": 55}
    if not proven:
        del drawn["prompt_logprob_start"]
    v1.client.post("/inference/v1/generate", json={"token_ids": ids, "sampling_params": {"max_tokens": 1}})
    if proven:
        drawn[CANDIDATES] = [[1]] * 4
    reply = v1.client.post("/inference/v1/generate", json={"token_ids": ids, "sampling_params": drawn | {READ: False}})
    assert reply.status_code == (400 if proven else 500)
    if proven:
        assert v1.client.get("/health").status_code == 200


def test_a_proxy_whose_server_was_exchanged_is_asked_for_another_proof(start_server):
    """Its connection to us stands; the 503 it said in between is all that tells."""
    server = start_server(*ROUTE, "--v2-runner")

    async def check():
        async with connected(server.url) as (endpoint, sent):
            await endpoint.score(question(200, 8), "r")
            proofs = len(sent)
            endpoint.wire._client.headers["x-fault"] = "503"
            with pytest.raises(Unreachable):
                await endpoint.score(question(201, 8), "r")
            del endpoint.wire._client.headers["x-fault"]
            sent.clear()
            again = await endpoint.score(question(202, 8), "r")
            asked, later = len(sent), await endpoint.score(question(203, 8), "r")
            return proofs, asked, again.usage.requests, later.usage.requests

    assert asyncio.run(check()) == (2, 2, 2, 1), "one proof holds for every check until the server may be another"


def test_what_a_check_was_charged_that_broke_off_after_its_proof_is_within_its_worst_case(start_server):
    server = start_server(*ROUTE, "--v2-runner")
    asked = question(200, 8)

    async def check():
        async with connected(server.url) as (endpoint, _):
            post = endpoint.wire.post

            async def breaking(path, body, *more, **how):
                if READ in body["sampling_params"]:
                    raise Unreachable("it broke off")
                return await post(path, body, *more, **how)

            endpoint.wire.post = breaking
            with pytest.raises(CloudError) as broken:
                await endpoint.score(asked, "r")
            return broken.value, endpoint.max_usage(asked)

    error, worst = asyncio.run(check())
    assert (error.sent, error.charged) == (True, CloudUsage(2, 1, requests=1))
    assert worst == CloudUsage(418, 3, requests=3)
