"""Other people's routers: what the large model was asked is counted at its servers, and an interrupted run goes on."""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from importlib.util import find_spec

import numpy as np
import pytest
from cases import each_of

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.errors import BadReply, CloudError, UsageError
from hybrid.lab.experiments import foreign_peers
from hybrid.lab.experiments.foreign_peers import PEERS, ForeignPeer, ForeignRecord, foreign_answers, run_peer
from hybrid.lab.experiments.questions import bundled_ground

GROUND = bundled_ground(BUNDLED_LOCAL, BUNDLED_CLOUD, "test", 1)
TEXTS = [each.text for each in GROUND.questions]


@pytest.fixture
def fake(monkeypatch):
    """A peer of no package: ``ask`` takes the models' wires by name and a question; text and writer."""

    def make(ask, *, judges=False):
        @asynccontextmanager
        async def start(package, urls, folder):
            assert (package, sorted(urls)) == (json, sorted({"small", "large"} | ({"judge"} if judges else set())))
            async with AsyncExitStack() as stack:
                wires = {name: await stack.enter_async_context(foreign_peers._wire(url)) for name, url in urls.items()}
                yield lambda question: ask(wires, question)

        monkeypatch.setitem(PEERS, "fake", ForeignPeer("numpy", "json", start, judges))

    return make


@pytest.fixture
def no_servers(monkeypatch):
    """Peers that ask nobody need none."""

    class Uncharged:
        async def get(self, _):
            return {"data": []}

    monkeypatch.setattr(foreign_peers, "bundled_server", lambda *_: nullcontext("http://nowhere"))
    monkeypatch.setattr(foreign_peers, "_wire", lambda _: nullcontext(Uncharged()))


async def chat(wires, name, question, max_tokens=8):
    said = [{"role": "user", "content": question.text}]
    body = {"model": name, "messages": said, "temperature": 0, "max_tokens": max_tokens}
    return await wires[name].post("/v1/chat/completions", body)


def run(folder, num=3, name="fake"):
    return run_peer(name, GROUND, folder, num, lambda _: None)


@pytest.mark.parametrize("name", sorted(PEERS))
def test_a_peer_without_its_package_is_refused_before_anything_is_written(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, PEERS[name].module, None)
    with pytest.raises(UsageError, match=r"needs the package \S+: pip install '\.\[peers\]'"):
        run(tmp_path / "peers", name=name)
    assert not (tmp_path / "peers").exists()


def test_a_name_that_no_peer_has_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(UsageError, match="no peer none: cascadeflow, switchyard-auto"):
        run(tmp_path, name="none")


def test_every_request_that_reached_the_large_model_counts_with_its_servers_own_tokens(tmp_path, fake):
    """The second question asks twice for the same, the third is refused once; what the small one does is free."""
    told = {text: [] for text in TEXTS[:3]}

    async def ask(wires, question):
        number = TEXTS.index(question.text)
        draft = await chat(wires, "small", question)
        for name in (*["large"] * number, *["judge"] * (number == 1)):
            usage = (await chat(wires, name, question, 4 + number))["usage"]
            kind = "write" if name == "large" else "judge"
            told[question.text].append((kind, usage["prompt_tokens"], usage["completion_tokens"]))
        if number == 2:
            with pytest.raises(CloudError, match="context"):
                await chat(wires, "large", question, 4096)
        return draft["choices"][0]["message"]["content"], "large" if number else "small"

    fake(ask, judges=True)
    records = run(tmp_path)
    assert [sorted(each.requests) for each in records] == [sorted(told[text]) for text in TEXTS[:3]]
    assert [len(each.requests) for each in records] == [0, 2, 2]
    assert [(each.sent, each.kept) for each in records] == [(False, True), (True, False), (True, False)]
    assert records[2].requests[0] == records[2].requests[1]


@pytest.mark.usefixtures("no_servers")
def test_an_interrupted_run_goes_on_and_a_broken_line_is_asked_again(tmp_path, fake):
    asked = []

    async def ask(_, question):
        asked.append(question.text)
        if len(asked) == 3:
            raise BadReply("the peer is away")
        return question.problem.worked, "small"

    fake(ask)
    with pytest.raises(BadReply):
        run(tmp_path)
    [path] = tmp_path.iterdir()
    lines = path.read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["question"] for line in lines] == TEXTS[:2]

    # The first is broken in the middle of the file, the second has lost its end with the line break.
    path.write_bytes(b'{"question": "?"}\n' + lines[1] + b"\xff[\n" + lines[0][:-20])
    records = run(tmp_path)
    assert asked[3:] == [TEXTS[0], TEXTS[2]]
    assert [each.question for each in records] == TEXTS[:3]
    assert run(tmp_path) == records
    assert len(asked) == 5
    assert run(tmp_path, 1) == records[:1]


@pytest.mark.usefixtures("no_servers")
def test_a_record_of_other_models_is_not_taken(tmp_path, fake, monkeypatch):
    asked = []

    async def ask(_, question):
        asked.append(question.text)
        return "", "small"

    fake(ask)
    run(tmp_path, 1)
    monkeypatch.setattr(foreign_peers, "version", lambda _: "another")
    run(tmp_path, 1)
    assert asked == TEXTS[:1] * 2


def test_records_become_arrays_and_a_judges_tokens_are_paid():
    def record(right, requests, kept):
        return ForeignRecord("fake", "?", right, bool(requests), kept, requests, 0.0)

    records = [record(True, (), True), record(False, (("judge", 100, 5), ("write", 20, 10)), False)]
    found = foreign_answers([*records, record(True, (("judge", 100, 5),), True)], 8.0)
    np.testing.assert_array_equal(found.right, [1, 0, 1])
    np.testing.assert_array_equal(found.paid, [0, 240, 140])
    np.testing.assert_array_equal(found.requests, [0, 2, 1])
    np.testing.assert_array_equal(found.sent, [0, 1, 1])
    assert foreign_answers([], 4.0).right.shape == foreign_answers([], 4.0).paid.shape == (0,)


@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize("name", ["cascadeflow", "switchyard-capability"])
def test_a_real_peer_says_who_wrote_what_it_shows_and_its_requests_agree(tmp_path, monkeypatch, name):
    """And no proxy of the environment comes between: nothing leaves loopback."""
    if find_spec(PEERS[name].module.partition(".")[0]) is None:
        pytest.skip("other people's routers are not installed: pip install '.[peers]'")
    for each in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(each, "http://127.0.0.1:9")
    records = run(tmp_path, 2, name)
    assert [each.question for each in records] == TEXTS[:2]
    for each in each_of(records):
        kinds = [kind for kind, *_ in each.requests]
        assert each.kept == ("write" not in kinds)
        assert ("judge" in kinds) == PEERS[name].judges
        assert all(prompt > 0 and completion > 0 for _, prompt, completion in each.requests)
