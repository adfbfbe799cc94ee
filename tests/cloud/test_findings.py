"""What probes found is kept whole or not at all, and forgotten when an answer contradicts it."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from dataclasses import replace

import pytest

from hybrid.cloud import WriteQuestion
from hybrid.cloud.dialects.completions import Completions
from hybrid.cloud.dialects.dialect import Setup
from hybrid.cloud.dialects.sglang import Sglang
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.find import capabilities_of
from hybrid.cloud.findings import VERSION, Findings, Notebook
from hybrid.errors import BadReply, MissingCapability
from hybrid.types import Sampling

KNOWN = Findings("http://there", "m", "sglang", rows=True, most_k=20, way="one request", ways={"one request": "agrees"})
OTHER = replace(KNOWN, model="n", grid=1e-4, noise_nats=0.01, same_words=False)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache" / "endpoints.json"


def test_what_was_found_is_read_again_by_endpoint_and_model(path):
    notebook = Notebook(path)
    assert notebook.read(KNOWN.url, "m") is None
    assert notebook.write(KNOWN)
    assert notebook.write(OTHER)
    assert Notebook(path).read(KNOWN.url, "m") == KNOWN
    assert Notebook(path).read(KNOWN.url, "n") == OTHER
    assert Notebook(path).read("http://elsewhere", "m") is None


def test_what_is_forgotten_is_gone_and_nothing_else(path):
    notebook = Notebook(path)
    notebook.write(KNOWN)
    notebook.write(OTHER)
    notebook.forget(KNOWN.url, "m")
    notebook.forget(KNOWN.url, "nobody")
    assert notebook.read(KNOWN.url, "m") is None
    assert notebook.read(KNOWN.url, "n") == OTHER


def test_forgetting_where_there_is_nothing_makes_no_file(path):
    Notebook(path).forget(KNOWN.url, "m")
    assert not path.exists()


def written(path, kept):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(kept if isinstance(kept, bytes) else json.dumps(kept).encode())


ENTRY = {"http://there m": KNOWN.to_json()}


@pytest.mark.parametrize(
    "kept",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        [],
        {"version": VERSION},
        {"version": VERSION + 1, "endpoints": ENTRY},
        {"version": VERSION, "endpoints": []},
        {"version": VERSION, "endpoints": {"http://there m": 1}},
        {"version": VERSION, "endpoints": {"http://there m": {}}},
        {"version": VERSION, "endpoints": {"http://there m": KNOWN.to_json() | {"later": 1}}},
        {"version": VERSION, "endpoints": {"http://there m": KNOWN.to_json() | {"most_k": "many"}}},
        {"version": VERSION, "endpoints": {"http://there m": KNOWN.to_json() | {"rows": "yes"}}},
        {"version": VERSION, "endpoints": {"http://there m": KNOWN.to_json() | {"ways": [1]}}},
    ],
    ids=range(15),
)
def test_a_file_that_cannot_be_believed_is_no_findings_and_is_written_over(path, kept):
    written(path, kept)
    notebook = Notebook(path)
    assert notebook.read(KNOWN.url, "m") is None
    assert notebook.write(KNOWN)
    assert notebook.read(KNOWN.url, "m") == KNOWN


def test_a_file_that_cannot_be_written_is_no_failure_and_leaves_nothing_behind(tmp_path):
    (tmp_path / "file").write_text("")
    assert not Notebook(tmp_path / "file" / "endpoints.json").write(KNOWN)
    (tmp_path / "folder").mkdir()
    assert not Notebook(tmp_path / "folder").write(KNOWN)
    assert Notebook(tmp_path / "folder").read(KNOWN.url, "m") is None
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "folder"]


def test_a_reader_sees_the_old_file_or_the_new_one(path, monkeypatch):
    """The file is made beside its place and moved there: a run that is killed in between has changed nothing."""
    notebook = Notebook(path)
    notebook.write(KNOWN)
    before = path.read_text()

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(path), "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        notebook.write(OTHER)
    assert path.read_text() == before


# ---- believed until an answer contradicts it -----------------------------------------------------------------------


class Line:
    """A wire that always gives the same answer."""

    url = "http://there"

    def __init__(self, answer):
        self.answer = answer

    def discreet(self):
        return nullcontext()

    async def stream(self, *_, **__):
        yield self.answer

    async def aclose(self):
        pass


def endpoint(path, answer, dialect):
    notebook = Notebook(path)
    notebook.write(KNOWN)
    made = Endpoint(Line(answer), "m", notebook=notebook)
    made.dialect = dialect
    return made, notebook


def write(made, question):
    async def run():
        return [chunk async for chunk in made.write(question)]

    return asyncio.run(run())


QUESTION = WriteQuestion((1,), 2, 5, Sampling(), "r")
ROWLESS = {"text": "a", "output_ids": [1], "meta_info": {"prompt_tokens": 1, "completion_tokens": 1}}


def test_what_an_answer_contradicts_is_forgotten(path):
    """A server that was restarted without log-probabilities is found out anew."""
    made, notebook = endpoint(path, ROWLESS, Sglang(Setup("m")))
    with pytest.raises(MissingCapability):
        write(made, QUESTION)
    assert notebook.read(KNOWN.url, "m") is None


@pytest.mark.parametrize("answer", [{"error": {"message": "worker died"}}, {"nonsense": 1}])
def test_a_bad_day_contradicts_nothing(path, answer):
    made, notebook = endpoint(path, answer, Sglang(Setup("m")))
    with pytest.raises(BadReply):
        write(made, QUESTION)
    assert notebook.read(KNOWN.url, "m") == KNOWN


def test_a_question_that_has_no_word_there_contradicts_nothing(path):
    """It was refused here; the endpoint was not asked."""
    from vocabularies import WORDS

    from hybrid.cloud.dialects.spelling import Spelling

    made, notebook = endpoint(path, {}, Completions(Setup("m", Spelling(WORDS))))
    with pytest.raises(MissingCapability, match="--top-k"):
        write(made, replace(QUESTION, sampling=Sampling(1.0, top_k=3)))
    assert notebook.read(KNOWN.url, "m") == KNOWN


def test_what_a_probe_has_shown_goes_before_what_documents_say(path):
    made, _ = endpoint(path, {}, Sglang(Setup("m")))
    said = capabilities_of(made.dialect, "m", 100)
    seen = replace(KNOWN, way=None, rows=False, continues=False, most_k=3, keeps_cache=False, candidates=False)
    can = made.believe(seen, said)
    assert can.abilities == {"open", "ids"}
    assert (can.way, can.rows, can.most_k, can.keeps_cache, can.candidates) == (None, False, 3, False, False)
    assert not made.dialect.rows
    nothing = made.believe(replace(KNOWN, most_k=None), said)
    assert (nothing.most_k, nothing.keeps_cache, nothing.candidates) == (said.most_k, True, True)


def test_what_was_found_of_another_dialect_is_not_believed(path):
    made, _ = endpoint(path, {}, Sglang(Setup("m")))
    said = capabilities_of(made.dialect, "m", 100)
    assert made.believe(replace(KNOWN, dialect="vllm", rows=False, way=None), said) == said
    assert made.dialect.rows
