"""``hybrid batch --again``: some lines are asked anew, the others stay, and the newest line of a question counts."""

from __future__ import annotations

import json
import shlex
import signal

import pytest
from given_answers import answers, batch
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.errors import UsageError
from hybrid.record.state import Spent

opened = hybrid.open

__all__ = ["answers", "batch"]


@pytest.fixture
def begun(batch, answers, tmp_path):
    """An output in which lines 2 and 5 are degraded and 3 and 8 hold an error; the next answers say ``second``."""
    answers.degraded, answers.failing = {2, 5}, {3, 8}
    assert batch().exit_code == 5
    answers.said = "second"
    return (tmp_path / "out").read_bytes().splitlines()


def newest(tmp_path):
    """The line that counts of each question, in the order of the input."""
    found = {json.loads(line)["line"]: line for line in (tmp_path / "out").read_bytes().splitlines()}
    return [found[number] for number in sorted(found)]


def texts(tmp_path):
    return [each.get("text") or each["error"] for each in map(json.loads, newest(tmp_path))]


@pytest.mark.parametrize("parallel", ["1", "4"])
@pytest.mark.parametrize(
    ("words", "asked"), [("degraded", {2, 5}), ("failed", {3, 8}), ("failed, degraded", {2, 3, 5, 8})]
)
def test_the_lines_that_are_named_are_asked_anew_and_all_others_stay_byte_for_byte(
    batch, answers, begun, tmp_path, words, asked, parallel
):
    answers.degraded, answers.failing = {5}, set()
    done = batch("--again", words, "--json", "--parallel", parallel)
    assert sorted(answers.asked) == sorted(asked)
    after = newest(tmp_path)
    assert (tmp_path / "out").read_bytes().splitlines()[:8] == begun
    assert [i for i in range(1, 9) if after[i - 1] != begun[i - 1]] == sorted(asked - {5})
    assert texts(tmp_path) == [
        f"second {i}" if i in asked - {5} else json.loads(begun[i - 1]).get("text", "first fails") for i in range(1, 9)
    ]
    summary = json.loads(done.stdout)
    assert (summary["asked_again"], summary["better"]) == (len(asked), len(asked - {5}))
    assert summary["kept"] == 8 - len(asked)
    assert {each.name for each in tmp_path.iterdir()} == {"in", "out"}
    assert answers.spender == f"batch {tmp_path / 'out'}", "under the same cap"


def test_the_summary_says_how_many_are_better(batch, answers, begun):
    answers.degraded, answers.failing = {5}, set()
    assert "hybrid: 4 lines asked again, 3 of them better than before\n" in batch("--again", "degraded,failed").stderr


def test_an_answer_gives_way_only_to_a_better_one_and_the_newer_of_two_errors_stands(batch, answers, begun, tmp_path):
    answers.degraded, answers.failing = {5, 3}, {2, 8}
    summary = json.loads(batch("--again", "degraded,failed", "--json").stdout)
    assert texts(tmp_path) == [
        "first 1", "first 2", "second 3", "first 4", "first 5", "first 6", "first 7", "second fails"
    ]  # fmt: skip
    assert (summary["asked_again"], summary["better"]) == (4, 1)


@pytest.mark.parametrize("words", ["", "all", "degraded,", "degraded failed", "Failed"])
def test_other_words_are_refused_before_anything_is_touched(batch, answers, begun, tmp_path, words):
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    done = batch("--again", words)
    assert done.exit_code == 2
    assert "give degraded, failed or degraded,failed" in done.stderr
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_another_input_and_a_missing_output_are_refused(batch, answers, begun, tmp_path):
    before = (tmp_path / "out").read_bytes()
    (tmp_path / "in").write_text('"question 1"\n\n"another"\n')
    answers.failing = set()
    assert "line 3 there does not answer line 3 of the input" in batch("--again", "failed").stderr
    (tmp_path / "in").write_text('"question 1"\n')
    assert "holds more lines than the input" in batch("--again", "failed").stderr
    assert (tmp_path / "out").read_bytes() == before
    (tmp_path / "out").unlink()
    assert "is not there" in batch("--again", "failed").stderr
    assert {each.name for each in tmp_path.iterdir()} == {"in"}


@pytest.mark.parametrize("parallel", ["1", "4"])
@pytest.mark.parametrize("last", [2, 3, 5, 8])
def test_interrupted_it_keeps_what_came_to_more_and_the_same_command_asks_the_rest(
    batch, answers, begun, tmp_path, last, parallel
):
    flags = ("--again", "failed,degraded", "--parallel", parallel)
    answers.degraded, answers.failing, answers.faults = {5}, set(), {last: signal.SIGINT}
    assert batch(*flags).exit_code == 130
    assert (tmp_path / "out").read_bytes().splitlines()[:8] == begun
    better = {json.loads(line)["line"] // 2 + 1 for line in (tmp_path / "out").read_bytes().splitlines()[8:]}
    assert better <= set(answers.asked) - {last}
    answers.faults = {}
    summary = json.loads(batch(*flags, "--json").stdout)
    assert set(answers.asked) == {2, 3, 5, 8} - better
    assert texts(tmp_path) == [f"{'second' if i in {2, 3, 8} else 'first'} {i}" for i in range(1, 9)]
    assert (summary["asked_again"], summary["answered"]) == (4 - len(better), 8)
    assert {each.name for each in tmp_path.iterdir()} == {"in", "out"}


def test_an_output_that_is_not_finished_is_finished_too(batch, answers, tmp_path):
    answers.degraded, answers.faults = {2}, {4: signal.SIGINT}
    assert batch("--parallel", "4").exit_code == 130
    held = {json.loads(line)["line"] for line in (tmp_path / "out").read_bytes().splitlines()}
    answers.degraded, answers.faults, answers.said = set(), {}, "second"
    assert batch("--again", "degraded").exit_code == 0
    expected = {i for i in range(1, 9) if 2 * i - 1 not in held} | {2}
    assert set(answers.asked) == expected
    assert texts(tmp_path) == [f"{'second' if i in expected else 'first'} {i}" for i in range(1, 9)]


def test_a_sorted_output_has_the_mode_of_the_old_one_and_a_link_leads_to_it(batch, answers, begun, tmp_path):
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").chmod(0o640)
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    answers.degraded, answers.failing = set(), set()
    assert batch("--again", "failed", "--sort", "--allow-degraded").exit_code == 0
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "out").read_bytes().splitlines() == newest(tmp_path)
    assert texts(tmp_path)[2] == "second 3"


def test_where_nothing_is_to_be_asked_nobody_is(batch, answers, tmp_path):
    batch()
    before = (tmp_path / "out").read_bytes()
    assert batch("--again", "degraded,failed").exit_code == 0
    assert (answers.asked, (tmp_path / "out").read_bytes()) == ([], before)


def test_what_is_booked_at_most_is_told_however_the_batch_ends(batch, answers):
    answers.spent = Spent(7, 1, 1, 0, 5_000)
    for answers.faults, code in (({4: signal.SIGINT}, 130), ({}, 0)):
        done = batch()
        assert (done.exit_code, done.stderr.count("0.000005 USD is booked for requests that broke off")) == (code, 1)


# ---- degraded lines are counted, and what repairs them is named ------------------------------------------------------


def test_degraded_lines_are_counted_by_kind_and_the_last_line_names_the_command_that_repairs(batch, answers, tmp_path):
    answers.degraded = {2, 3, 5, 8}
    answers.kinds = {2: "paced", 5: "paced", 8: "unreachable"}
    command = f"hybrid batch {tmp_path / 'in'} {tmp_path / 'out'} --again degraded"
    for done, whose in ((batch(), ""), (batch(), ", from an earlier run")):
        said = done.stderr.splitlines()
        assert done.exit_code == 6
        assert (
            "hybrid: in 4 lines less was asked of the cloud than is due (1 budget, 2 paced, 1 unreachable)" in said[-2]
        )
        assert said[-2].endswith(f"the first is line 3{whose}: the cap")
        assert said[-1].startswith(
            "hybrid: with more money, and with a higher cap (hybrid budget set --day X) or after"
        )
        assert said[-1].endswith(f" 00:00 UTC, and once the endpoint answers: {command}")
    summary = json.loads(batch("--json").stdout)
    assert summary["degraded_kinds"] == {"budget": 1, "paced": 2, "unreachable": 1}
    assert (summary["degraded"], summary["repairable"], summary["repair"]) == (4, 4, command)
    assert batch("--allow-degraded").exit_code == 0
    answers.degraded = set()
    done = batch("--again", "degraded")
    assert (done.exit_code, sorted(answers.asked)) == (0, [2, 3, 5, 8])
    assert "4 lines asked again, 4 of them better than before" in done.stderr
    assert "--again" not in batch().stderr


def test_what_another_try_does_not_change_is_counted_and_is_no_failure(batch, answers):
    answers.degraded, answers.kinds = {2, 5}, {2: "context", 5: "capability"}
    done = batch()
    assert done.exit_code == 0
    assert "(1 capability, 1 context)" in done.stderr.splitlines()[-1]
    assert json.loads(batch("--json").stdout)["repair"] is None


def test_a_line_that_was_charged_too_much_is_whole_and_is_not_bought_again(batch, answers, tmp_path):
    """Its endpoint is closed: the last line says how it is opened, whether or not other lines are to be asked."""
    why = "http://x:1 is closed (it charged 2 USD for a request that may cost 1 USD at most): see hybrid budget"
    answers.degraded, answers.kinds = {1, 4}, {1: "charge", 4: "budget"}
    answers.whys = dict.fromkeys((1, 4), f"{why} reconcile")
    done = batch()
    opening = "hybrid budget reconcile --reopen http://x:1"
    command = f"hybrid batch {tmp_path / 'in'} {tmp_path / 'out'} --again degraded"
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (6, f"hybrid: first: {opening}; then: {command}")
    answers.said, answers.kinds[4] = "second", "charge"
    done = batch("--again", "degraded")
    assert (done.exit_code, answers.asked, texts(tmp_path)[:4:3]) == (0, [4], ["first 1", "second 4"])
    assert "1 line asked again, 1 of them better than before" in done.stderr
    *_, found, last = done.stderr.splitlines()
    charged = "for 2 lines the endpoint charged more than was reserved"
    assert found == f"hybrid: {charged}; the first is line 1, from an earlier run: {answers.whys[1]}"
    assert last.endswith(f" is closed; if it still is: {opening}")
    assert json.loads(batch("--json").stdout)["repair"] is None
    batch("--again", "degraded")
    assert answers.asked == []


def test_a_line_of_before_kinds_were_told_counts_as_unknown_and_may_be_repaired(batch, answers, tmp_path):
    answers.degraded = {2}
    batch()
    out = tmp_path / "out"
    out.write_bytes(out.read_bytes().replace(b',"degraded_kind":"budget"', b""))
    done = batch("--json")
    assert done.exit_code == 6
    assert json.loads(done.stdout)["degraded_kinds"] == {"unknown": 1}


def test_an_error_is_the_worse_end_and_the_command_that_repairs_is_named_all_the_same(batch, answers):
    answers.degraded, answers.failing = {2}, {3}
    for flags in ((), ("--allow-degraded",)):
        done = batch(*flags)
        assert done.exit_code == 5
        assert "--again degraded" in done.stderr.splitlines()[-1]


def test_questions_of_standard_input_are_repaired_from_a_file(answers, tmp_path):
    answers.degraded = {1}
    done = CliRunner().invoke(app, ["batch", "-", str(tmp_path / "out")], input='"question 1"\n')
    assert done.exit_code == 6
    command = f"hybrid batch IN {tmp_path / 'out'} --again degraded"
    assert done.stderr.splitlines()[-1].endswith(f"with the lines of standard input in a file IN: {command}")


def test_pasted_as_printed_it_asks_the_same_endpoint(batch, answers, tmp_path):
    """But not without a cap where one was given: a word that is no amount stands in its place, in ``--json``, too."""
    answers.degraded, answers.whys = {2}, {2: "the cap of 0.002 USD does not allow another request (0 USD left)"}
    flags = ("--local", "my model.gguf", "--cloud", "http://there:1", "--price", "1/0.1/4", "--cap", "0.002")
    said = batch(*flags).stderr.splitlines()[-1]
    before, command = answers.flags, said[said.index("hybrid batch") :]
    assert said.startswith("hybrid: with more money (give an amount above 0.002 for HIGHER): ")
    assert json.loads(batch(*flags, "--json").stdout)["repair"] == command
    answers.degraded = set()
    assert CliRunner().invoke(app, shlex.split(command)[1:]).exit_code == 0
    with pytest.raises(UsageError, match="'HIGHER' is not an amount"):
        opened(**answers.flags)
    assert CliRunner().invoke(app, shlex.split(command.replace("HIGHER", "0.004"))[1:]).exit_code == 0
    assert answers.flags == before | {"cap": "0.004"}


@pytest.mark.parametrize(
    ("kind", "why", "said"),
    [
        ("paced", "ahead", "with a higher cap (hybrid budget set --day X --ledger L) or after 00:00 UTC: "),
        (
            "budget",
            "the month's cap of 1 USD does not allow another request (0 USD left)",
            "budget set --month X --led",
        ),
        (
            "budget",
            "http://x is closed (it charged 2 USD): see hybrid budget reconcile",
            "--reopen http://x --ledger L; ",
        ),
        ("refused", "401", "hybrid: once the endpoint answers: "),
    ],
)
def test_the_last_line_says_what_comes_first(batch, answers, kind, why, said):
    """A cap that was not in the way stays in the command."""
    answers.degraded, answers.kinds, answers.whys = {4}, {4: kind}, {4: why}
    last = batch("--cap", "5", "--ledger", "L").stderr.splitlines()[-1]
    assert said in last
    assert last.endswith("--again degraded --cap 5 --ledger L")
