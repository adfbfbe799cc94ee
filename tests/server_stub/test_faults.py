"""Every fault does what its name says, strikes whom it should, and leaves the account true."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections import Counter
from contextlib import ExitStack, suppress

import httpx
import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st

from server_stub.app import ChargeLog
from server_stub.ask import Row
from server_stub.completion import Charge
from server_stub.faults import NAMES, ONLY_STREAMS, Faults, share
from server_stub.wire import WireError

PATH = "/v1/completions"
BODY = {"prompt": [1, 2, 0, 5], "max_tokens": 4, "temperature": 0, "logprobs": 3, "return_token_ids": True}
COMPUTED = {"prompt_tokens": 4, "cached_tokens": 0, "completion_tokens": 4}
BEFORE = ["stalled", "429", "429-retry-after", "500", "503", "page", "after-headers", "redirect-loop", "header-bomb"]


class Client:
    """A client of the one server, which has forgotten what others asked and met before it."""

    def __init__(self, http: httpx.Client) -> None:
        self.post, self.get, self.stream = http.post, http.get, http.stream
        self.name = uuid.uuid4().hex
        self.before = Counter(self.counts())
        self.known = {entry["id"] for entry in self.charges()}

    def charges(self) -> list[dict]:
        return self.get("/v1/charges").json()["data"]

    def counts(self) -> dict[str, int]:
        return self.get("/v1/faults").json()["data"]


def struck(client, fault: str, *, timeout: float = 5, **fields) -> httpx.Response:
    """Ask with a fault, and without a cache."""
    headers = {"x-fault": fault, "x-request-id": client.name}
    fields = {"cache_salt": uuid.uuid4().hex} | fields
    return client.post(PATH, json=BODY | fields, headers=headers, timeout=timeout)


def events(client, fault: str, **fields) -> list[str]:
    """Return what came of a stream, and how it ended, as its last entry, where it did not end well."""
    came = []
    headers = {"x-request-id": client.name} | ({"x-fault": fault} if fault else {})
    body = BODY | {"stream": True, "cache_salt": uuid.uuid4().hex} | fields
    try:
        with client.stream("POST", PATH, json=body, headers=headers, timeout=0.3) as reply:
            came.extend(reply.iter_text())
    except httpx.HTTPError as error:
        came.append(type(error).__name__)
    return came


def charged(client) -> dict | None:
    """Return the charge of this client, who has asked for nothing under another name."""
    entries = [entry for entry in client.charges() if entry["id"] not in client.known]
    assert len(entries) <= 1
    return {key: value for key, value in entries[0].items() if key != "id"} if entries else None


def counted(client) -> dict[str, int]:
    return dict(Counter(client.counts()) - client.before)


@pytest.fixture(scope="module")
def http(listening):
    return listening()


@pytest.fixture
def client(http):
    return Client(http)


def test_without_a_fault_nothing_strikes(client):
    assert client.post(PATH, json=BODY).status_code == 200
    assert counted(client) == {}


@pytest.mark.parametrize(("fault", "status"), [("429", 429), ("429-retry-after:3", 429), ("500", 500), ("503", 503)])
def test_an_error_is_told_in_the_familys_shape_and_costs_nothing(client, fault, status):
    reply = struck(client, fault)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, status)
    assert reply.headers.get("retry-after") == ("3" if ":" in fault else None)
    assert charged(client) is None
    assert counted(client) == {fault.split(":")[0]: 1}


def test_a_familys_errors_are_its_own(listening):
    reply = listening(dialect="sglang").post("/generate", json={}, headers={"x-fault": "503"})
    assert (reply.status_code, set(reply.json()["error"])) == (503, {"message"})


def test_slow_is_as_slow_as_one_says(client):
    started = time.monotonic()
    assert struck(client, "slow:0.2").status_code == 200
    assert time.monotonic() - started >= 0.2
    assert charged(client) == COMPUTED


def test_a_stalled_answer_has_headers_and_nothing_else(client):
    with client.stream("POST", PATH, json=BODY, headers={"x-fault": "stalled"}, timeout=0.3) as reply:
        assert reply.status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            reply.read()
    assert charged(client) is None


def test_a_stalled_stream_keeps_no_slot(client):
    """Two slots, two stalled streams, and a third who wants an answer."""
    texts = []
    with ExitStack() as open_streams:
        for _ in range(2):
            body = BODY | {"stream": True}
            stream = client.stream("POST", PATH, json=body, headers={"x-fault": "stalled-midway"})
            texts.append(open_streams.enter_context(stream).iter_text())  # one that nobody holds closes its stream
            assert next(texts[-1]).startswith("data: {")
        assert client.post(PATH, json=BODY, timeout=2).status_code == 200


def test_an_answer_that_stalls_midway_has_been_computed_and_may_be_left(client):
    with pytest.raises(httpx.ReadTimeout):
        struck(client, "stalled-midway", timeout=0.3)
    came = events(client, "stalled-midway")
    assert came[0].startswith("data: {")
    assert (len(came), came[1]) == (2, "ReadTimeout")
    both = charged(client)
    assert both["prompt_tokens"] == 8
    assert 5 <= both["completion_tokens"] <= 8
    assert [client.post(PATH, json=BODY).status_code for _ in range(3)] == [200] * 3


def test_a_cut_answer_breaks_off_and_is_charged(client):
    with pytest.raises(httpx.RemoteProtocolError):
        struck(client, "cut")
    assert charged(client) == COMPUTED
    came = events(client, "cut")
    assert came[-1] == "RemoteProtocolError"
    assert not came[-2].endswith("\n\n")
    assert counted(client) == {"cut": 2}


def test_malformed_json_comes_with_a_good_status(client):
    reply = struck(client, "malformed")
    assert reply.status_code == 200
    with pytest.raises(json.JSONDecodeError):
        reply.json()
    came = "".join(events(client, "malformed")).split("\n\n")
    assert [valid(event) for event in came[:4]] == [True, False, True, True]
    assert came[4] == "data: [DONE]"


def valid(event: str) -> bool:
    try:
        json.loads(event.removeprefix("data: "))
    except json.JSONDecodeError:
        return False
    return True


def test_a_duplicated_event_comes_twice(client):
    plain = "".join(events(client, "")).split("\n\n")
    came = "".join(events(client, "duplicated")).split("\n\n")
    texts = [[json.loads(event[6:])["choices"][0]["token_ids"] for event in told[:-2]] for told in (plain, came)]
    assert texts[1] == [texts[0][0], texts[0][1], *texts[0][1:]]


def test_a_stream_without_its_end_just_ends(client):
    came = "".join(events(client, "missing-done"))
    assert came.count("data: ") == 4
    assert "[DONE]" not in came


@each("name", sorted(ONLY_STREAMS))
def test_what_only_a_stream_can_meet_leaves_whole_answers_alone(client, name):
    assert struck(client, name).status_code == 200
    assert counted(client) == {}


def test_a_wrong_usage_tells_less_than_is_charged(client):
    usage = struck(client, "wrong-usage", prompt=[1] * 40).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (4, 0)
    assert charged(client) == {"prompt_tokens": 40, "cached_tokens": 0, "completion_tokens": 4}


@pytest.mark.parametrize("stream", [False, True])
def test_an_overcharge_is_told_and_charged_and_what_was_computed_stands_beside_it(client, stream):
    options = {"stream": stream, "stream_options": {"include_usage": True} if stream else None}
    text = struck(client, "overcharge", **options).text
    usage = json.loads(text.split("data: ")[-2] if stream else text)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (40, 40)
    tenfold = {key: 10 * value for key, value in COMPUTED.items()}
    assert charged(client) == tenfold | {"computed": COMPUTED}


def test_rows_may_be_no_numbers_missing_or_short(client):
    fields = {"prompt_logprobs": 3, "max_tokens": 1}
    rows = {
        name: struck(client, name, **fields).json()["choices"][0] for name in ("nan-rows", "null-rows", "short-top-k")
    }
    plain = client.post(PATH, json=BODY | fields).json()["choices"][0]
    for name, told in rows.items():
        assert told["prompt_logprobs"][:-1] == plain["prompt_logprobs"][:-1], name
    nan, null, short = (told["prompt_logprobs"][-1] for told in rows.values())
    assert all(math.isnan(entry["logprob"]) for entry in nan.values())
    assert null is None
    assert len(short) < len(plain["prompt_logprobs"][-1])
    assert short.items() <= plain["prompt_logprobs"][-1].items()
    assert math.isnan(rows["nan-rows"]["logprobs"]["token_logprobs"][0])
    assert rows["null-rows"]["logprobs"]["top_logprobs"] == [None]
    assert len(rows["short-top-k"]["logprobs"]["top_logprobs"][0]) == 1


def test_a_page_is_no_json(client):
    reply = struck(client, "page")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")


def test_a_connection_may_close_after_the_headers(client):
    with pytest.raises(httpx.RemoteProtocolError):
        struck(client, "after-headers")


def test_a_redirect_leads_to_itself(client):
    reply = struck(client, "redirect-loop")
    assert reply.status_code == 307
    assert httpx.URL(reply.headers["location"]).path == PATH
    with pytest.raises(httpx.TooManyRedirects):
        client.post(PATH, json=BODY, headers={"x-fault": "redirect-loop"}, follow_redirects=True)


def test_a_huge_body_is_as_huge_as_one_says_and_stops_when_its_reader_leaves(client):
    assert len(struck(client, "huge:3").content) == 3 * 2**20 + 2
    with client.stream("POST", PATH, json=BODY, headers={"x-fault": "huge"}) as reply:
        next(reply.iter_bytes())
    assert client.get("/health").status_code == 200


def test_headers_may_be_larger_than_any_reader_bears(client):
    with pytest.raises(httpx.RemoteProtocolError):
        struck(client, "header-bomb")
    assert len(struck(client, "header-bomb:4").headers) >= 4


@pytest.mark.parametrize("fault", BEFORE)
def test_what_strikes_before_the_work_strikes_every_route_by_header_and_costs_nothing(client, fault):
    with pytest.raises((httpx.HTTPError, json.JSONDecodeError)):
        client.get("/v1/models", headers={"x-fault": fault}, timeout=0.3).raise_for_status().json()
    assert charged(client) is None
    assert counted(client) == {fault: 1}


@each("asked", ["nothing", "slow:soon", ""])
def test_a_fault_that_is_none_is_refused(client, asked):
    reply = struck(client, asked)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "x-fault")


def test_a_share_of_the_requests_is_struck_and_a_seed_repeats_which(listening):
    def statuses(seed: int) -> list[int]:
        client = Client(listening(("500", 0.3), ("429", 0.3), seed=seed))
        found = [client.post(PATH, json=BODY | {"max_tokens": 1}).status_code for _ in range(30)]
        assert Counter(found) == Counter({200: 30 - sum(counted(client).values())}) + Counter(
            {int(name): number for name, number in counted(client).items()}
        )
        return found

    first = statuses(1)
    assert first == statuses(1) != statuses(2)
    assert set(first) == {200, 429, 500}


def test_flags_strike_only_what_generates_and_a_header_comes_before_them(listening):
    client = Client(listening(("500", 1.0)))
    assert client.get("/v1/models").status_code == 200
    assert struck(client, "429").status_code == 429
    assert client.post(PATH, json=BODY).status_code == 500


@given(probability=st.floats(0, 1), seed=st.integers(0, 99))
def test_whom_a_fault_strikes_depends_on_the_seed_and_the_order_alone(probability, seed):
    both = [Faults([("500", probability), ("cut", 0.5)], seed) for _ in range(2)]
    struck_by = [[faults.pick(None, generates=True).name for _ in range(20)] for faults in both]
    assert struck_by[0] == struck_by[1]


@each("text", ["nothing", "500:2", "500:-1", "500:x", "500:nan", ""])
def test_a_share_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="share"):
        share(text)


def test_a_share_is_all_unless_it_is_told():
    assert (share("cut"), share("cut:0.25")) == (("cut", 1.0), ("cut", 0.25))


def test_every_name_is_one_that_a_header_may_hold():
    for name in each_of(NAMES):
        assert Faults().pick(name, generates=False).name == name
    with pytest.raises(WireError):
        Faults().pick("others", generates=True)


def test_a_spoilt_row_still_knows_its_token():
    """The shapes ask every row for its actual token; a fault must not end in an error of ours."""
    row = Row(((3, -0.1), (1, -2.0), (5, -3.0)), None, ((6, -9.0),))
    for name in ("nan-rows", "short-top-k"):
        spoilt = Faults().pick(name, generates=True).prompt_rows([None, row], (0, 5))[1]
        assert spoilt.knows(5)
        assert [token for token, _ in spoilt.watched] == [6]


def test_an_id_that_is_used_again_owes_the_sum():
    """A client that retries under one id has been charged for every attempt."""
    accounts = ChargeLog()
    for times, charge in ((1, Charge(5, 2, 3)), (10, Charge(1, 0, 1))):
        vars(accounts.open("mine", times)).update(vars(charge))
    assert accounts.told() == [
        {
            "id": "mine",
            "prompt_tokens": 15,
            "cached_tokens": 2,
            "completion_tokens": 13,
            "computed": {"prompt_tokens": 6, "cached_tokens": 2, "completion_tokens": 4},
        }
    ]


@pytest.mark.slow
def test_the_process_meets_its_faults_quietly(start_server):
    """A traceback on standard error would be a fault that nobody asked for."""
    server = start_server("--fault", "cut:0.5", "--fault", "stalled-midway:0.5", "--fault-seed", "3")
    client = Client(server.client)
    for stream in (False, True):
        for _ in range(6):
            with suppress(httpx.HTTPError):
                client.post(PATH, json=BODY | {"stream": stream}, timeout=0.5)
    for name in set(NAMES) - {"huge", "slow"}:
        with suppress(httpx.HTTPError):
            client.post(PATH, json=BODY, headers={"x-fault": name}, timeout=0.5)
    assert set(counted(client)) == set(NAMES) - {"huge", "slow"} - ONLY_STREAMS
    assert client.post(PATH, json=BODY, headers={"x-fault": "slow:0"}).status_code == 200
    assert server.stderr == ""


@pytest.mark.slow
@each("flag", ["nothing", "cut:2"])
def test_a_bad_fault_is_explained(refused_start, flag):
    ended = refused_start("--fault", flag)
    assert ended.returncode == 2
    assert "NAME:P" in ended.stderr.splitlines()[-1]
