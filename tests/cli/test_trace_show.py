"""``hybrid trace show``: a recorded answer on the terminal, and as one page that asks nothing of any host."""

from __future__ import annotations

import gzip
import json
import re
from html import unescape
from pathlib import Path

import pytest
from cases import each_of
from typer.testing import CliRunner

from hybrid.cli import app
from hybrid.record.answer import Token
from hybrid.record.events import TRACE_VERSION, Started, TokenEmitted, to_json

RECORDED = Path(__file__).parent / "recorded_trace.jsonl.gz"
HOSTILE = '</script><script>alert(1)</script><img src="http://evil.example/x" onerror=alert(2)>\x1b[31m'


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(gzip.decompress(RECORDED.read_bytes()))
    return path


def run(*args):
    return CliRunner().invoke(app, ["trace", "show", *map(str, args)])


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="recorded">(.*?)</script>', page, re.DOTALL)[1])


def test_without_a_page_the_answer_and_its_figures_are_told(trace):
    done = run(trace)
    assert done.exit_code == 0
    for said in ('{"tool": "light", "rs"}', "17 tokens: 6 by the cloud, 11 checked", "not known at 2", "0.000508 USD"):
        assert said in done.output
    assert "exact sampling drew another token" in done.output


def test_the_page_is_one_file_with_every_token_its_interval_and_both_sides_candidates(trace, tmp_path):
    page = tmp_path / "page.html"
    done = run(trace, "--html", page)
    assert done.exit_code == 0, done.output
    text = page.read_text()
    told = data_of(text)
    recorded = [json.loads(line) for line in trace.read_text().splitlines()]
    tokens = [line["token"] for line in recorded if line.get("event") == "token_emitted"]
    drawn = [token for _, token in told["answers"][0]["tokens"]]
    assert [token["text"] for token in drawn] == [token["text"] for token in tokens]
    assert [token["kl"] and token["kl"][0] for token in drawn] == [t["kl"] and t["kl"]["lower"] for t in tokens]
    for token in each_of(drawn):
        stands = [row for row in token["candidates"]["local"] + token["candidates"]["cloud"] if row[2]]
        assert {row[0] for row in stands} <= {token["text"]}
    assert any(token["candidates"]["cloud"] for token in drawn)
    assert page.stat().st_mode & 0o777 == 0o600


def test_the_page_names_no_host_and_its_policy_allows_its_own_script_alone(trace, tmp_path):
    page = tmp_path / "page.html"
    run(trace, "--html", page)
    text = page.read_text()
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) <= {"http://www.w3.org/2000/svg"}
    policy = unescape(re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1])
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert not re.search(r"(src|href)=\"(?!data:,)", text)


def test_what_a_model_wrote_stays_text(tmp_path):
    """A trace is somebody else's text in one's own browser."""
    path, page = tmp_path / f"{HOSTILE.replace('/', '_')[:40]}.jsonl", tmp_path / "page.html"
    token = TokenEmitted(0, Token(1, HOSTILE, "cloud", "written", why=HOSTILE))
    lines = [{"trace": TRACE_VERSION}, to_json(Started((1,), HOSTILE, HOSTILE)), to_json(token)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run(path, "--html", page).exit_code == 0
    text = page.read_text()
    assert data_of(text)["answers"][0]["tokens"][0][1]["text"] == HOSTILE
    assert text.count("<script") == text.count("</script>") == 2
    assert "<img" not in text
    assert "\x1b" not in run(path).output


def test_what_cannot_be_read_or_written_is_a_sentence(trace, tmp_path):
    for args in ((tmp_path / "nowhere",), (trace, "--html", tmp_path / "no" / "folder"), (trace, "--html", tmp_path)):
        done = run(*args)
        assert done.exit_code == 2
        assert "Traceback" not in done.output
    damaged = tmp_path / "damaged"
    damaged.write_text('{"trace": 5}\n7\n7\n')
    page = tmp_path / "page.html"
    page.write_text("as it was")
    assert run(damaged, "--html", page).exit_code == 2
    assert page.read_text() == "as it was"


def test_a_divergence_without_a_lower_end_is_one_that_is_not_known(trace):
    text, number = re.subn(r'"lower":\s*[-+.0-9e]+', '"lower":null', trace.read_text())
    assert number
    trace.write_text(text)
    done = run(trace)
    assert (done.exit_code, "KL not known at any of " in done.stdout) == (0, True)
