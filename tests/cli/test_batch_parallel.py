"""``hybrid batch`` with several lines at once, over scripted models: the lines of one at a time, whatever ends it."""

from __future__ import annotations

import asyncio
import json
import re
import signal

import pytest

from hybrid.cli import batch_work
from hybrid.errors import EngineError
from hybrid.run import AsyncClient

GOOD = [json.dumps({"id": f"n{i}", "prompt": f"a {'b ' * i}c"}) for i in range(5)]
BAD = ['"nope', '{"id": "z", "prompt": " "}', '{"id": "z", "prompt": "a", "policy": "nix"}']
HOT = [json.dumps("a b c")] * 6


def ordered(found):
    return sorted(found, key=lambda line: line["line"])


@pytest.fixture
def tables_are_slow(monkeypatch):
    """Let every answer take so long by its line's text: ``a b b c`` is two moments."""
    generate = AsyncClient.generate

    async def slow(self, prompt, **choices):
        await asyncio.sleep(0.005 * (4 - str(prompt).count("b") % 5))
        return await generate(self, prompt, **choices)

    monkeypatch.setattr(AsyncClient, "generate", slow)


@pytest.fixture
def the_shortest_ends_late(monkeypatch):
    """Let ``a c`` end after two others that are under way beside it, however slow the machine is."""
    generate, under_way, ended = AsyncClient.generate, [], []

    async def late(self, prompt, **choices):
        under_way.append(prompt)
        before = len(ended)
        try:
            while str(prompt) == "a c" and len(under_way) > 1 and len(ended) < before + 2:  # noqa: ASYNC110  (no event says it)
                await asyncio.sleep(0.001)
            return await generate(self, prompt, **choices)
        finally:
            under_way.remove(prompt)
            ended.append(prompt)

    monkeypatch.setattr(AsyncClient, "generate", late)


@pytest.mark.parametrize("parallel", [2, 4, 8])
def test_answered_several_at_once_the_lines_are_those_of_one_at_a_time(batch, out, scripted, tmp_path, parallel):
    lines = [*GOOD, *BAD, *GOOD, *HOT]
    flags = ("--price", "1/0.1/4", "--temperature", "1.5", "--policy", "cloud", "--json")
    first = json.loads(batch(lines, *flags).stdout)
    expected = out()
    done = batch(lines, *flags, "--parallel", str(parallel), again=True)
    assert (done.exit_code, json.loads(done.stdout)) == (5, first)
    assert ordered(out()) == expected
    assert {each.name for each in tmp_path.iterdir()} == {"in", "out"}


@pytest.mark.usefixtures("the_shortest_ends_late")
def test_interrupted_with_several_under_way_it_ends_in_the_same_lines_and_asks_no_finished_line_again(
    scripted, batch, out, tmp_path
):
    lines, early = [*GOOD, *GOOD], 0
    batch(lines)
    expected = out()
    for before in (1, 4, 7, 10):
        scripted.asked, scripted.before, scripted.fault = 0, before, signal.SIGINT
        done = batch(lines, "--parallel", "4", again=True)
        assert done.exit_code == 130
        kept = out()
        num = len(kept)
        said = f"{num} line{' is' if num == 1 else 's are'} answered" if kept else "nothing is answered yet"
        assert done.stderr == f"hybrid: {said}; the same command goes on from there\n"
        assert all(line in expected for line in kept)
        early += [line["line"] for line in kept] != list(range(1, num + 1))
        scripted.fault, scripted.asked = None, 0
        summary = json.loads(batch(lines, "--parallel", "4", "--json").stdout)
        assert ordered(out()) == expected
        assert out()[:num] == kept
        assert scripted.asked == 10 - num
        assert (summary["kept"], summary["answered"]) == (num, 10)
    assert early > 0, "some were finished before an earlier line"


@pytest.mark.usefixtures("tables_are_slow")
def test_a_failure_that_is_no_lines_ends_it_and_keeps_what_is_finished(scripted, batch, out):
    scripted.before, scripted.fault = 6, EngineError("said")
    assert batch(GOOD * 2, "--parallel", "3").exit_code == 3
    num_kept = len(out())
    scripted.fault, scripted.asked = None, 0
    assert batch(GOOD * 2).exit_code == 0
    assert scripted.asked == 10 - num_kept
    assert [line["line"] for line in ordered(out())] == list(range(1, 11))


def test_where_a_cap_is_reached_with_several_under_way_it_is_not_passed(batch, out):
    done = batch(GOOD * 4, "--price", "1/0.1/4", "--cap", "0.0003", "--json", "--parallel", "4")
    found, summary = out(), json.loads(done.stdout)
    assert done.exit_code == 6
    assert 0 < summary["bill"]["nanousd"] == sum(line["bill"]["nanousd"] for line in found) <= 300_000
    assert summary["degraded"] > 0


def test_progress_is_told_to_a_file_rarely_and_not_at_all_with_json(batch, monkeypatch, tables_are_slow):
    monkeypatch.setattr(batch_work, "FILE_EVERY_S", 0.004)
    batch(GOOD, "--price", "1/0.1/4", "--cap", "1", "--json", again=False)
    said = batch([*GOOD, *GOOD], "--price", "1/0.1/4", "--cap", "1", "--parallel", "2").stderr
    told = said.partition("hybrid: 10 lines answered")[0].splitlines()
    money = r"0(\.\d+)?( spent and 0\.\d+ reserved)? of 1 USD"
    shown = rf"hybrid: ([5-9]|10) of 10 lines, {money}(, [\d.]+ lines/s(, 0:\d\d left)?)?$"
    assert [each for each in told if not re.match(shown, each)] == []
    assert len(told) > 1
    quiet = batch([*GOOD, *GOOD, *GOOD], "--json")
    assert quiet.stderr == ""
