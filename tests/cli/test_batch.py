"""``hybrid batch`` over scripted models: the real command and client, tables in the place of models."""

from __future__ import annotations

import io
import json
import signal

import pytest
from cases import each_of
from typer.testing import CliRunner

from hybrid.batch.questions import lines
from hybrid.cli import app
from hybrid.errors import AccessDenied, EngineError, MissingCapability, Unreachable


def lines_of(questions):
    return list(lines(io.BytesIO("".join(f"{each}\n" for each in questions).encode())))


GOOD = [json.dumps({"id": f"n{i}", "prompt": f"a {'b ' * i}c"}) for i in range(5)]
BAD = {
    '"nope': "cannot be read as JSON",
    '{"id": "z", "messages": []}': "at least one object",
    '{"id": "z", "prompt": " "}': "the prompt is empty",
    '{"id": "z", "prompt": "a", "policy": "nix"}': "no policy is called 'nix'",
    '{"id": "z", "prompt": "a", "max_tokens": -1}': "max_tokens: ",
    '{"id": "z", "prompt": "a", "cap": 1}': "no field called cap",
    json.dumps({"id": "z", "prompt": "a " * 50}): "the local context holds 40",
}


def test_every_line_is_answered_in_order_with_what_ask_prints(batch, out):
    done = batch(GOOD)
    assert (done.exit_code, done.stdout) == (0, "")
    assert [(line["line"], line["id"]) for line in out()] == [(i + 1, f"n{i}") for i in range(5)]
    assert list(out()[0]) == [
        "line", "input", "id", "text", "finish_reason", "tokens", "usage", "bill", "handoffs", "degraded",
        "degraded_kind", "notes", "seed", "policy", "guarantee", "thoughts", "experts",
        "degraded_cap", "cloud", "cloud_model",
    ]  # fmt: skip


def test_a_bad_line_costs_no_other_line_its_answer(batch, out):
    lines = [*BAD, *GOOD, *BAD]
    done = batch(lines)
    assert done.exit_code == 5
    found = out()
    assert [line["line"] for line in found] == list(range(1, len(lines) + 1))
    said = list(BAD.values())
    for line, words in each_of(zip(found[:7] + found[12:], said + said, strict=True)):
        assert list(line) == ["line", "input", "id", "error"]
        assert words in line["error"]
        assert line["id"] == (None if "JSON" in words else "z")
    assert all(line["text"] for line in found[7:12])
    assert "hybrid: 5 lines answered, 14 failed" in done.stderr
    assert "hybrid: the first that failed is line 1: the line cannot be read as JSON" in done.stderr


def test_a_line_may_choose_for_itself(batch, out):
    batch([GOOD[0], '{"prompt": "a c", "max_tokens": 2, "policy": "local"}', GOOD[0]])
    first, own, again = out()
    assert len(own["tokens"]) == 2
    assert own["usage"]["cloud_requests"] == 0
    assert {**first, "line": 3, "seed": again["seed"]} == again, "and for no other line"


@pytest.mark.parametrize("before", [1, 3, 5])
def test_interrupted_before_any_answer_it_goes_on_and_ends_in_the_same_file(scripted, batch, out, tmp_path, before):
    batch(GOOD)
    whole = out()
    (tmp_path / "out").unlink()
    scripted.asked, scripted.before, scripted.fault = 0, before, signal.SIGINT
    done = batch(GOOD)
    assert done.exit_code == 130
    num = before - 1
    kept = f"{num} line{' is' if num == 1 else 's are'} answered" if num else "nothing is answered yet"
    assert done.stderr == f"hybrid: {kept}; the same command goes on from there\n"
    assert out() == whole[: before - 1]
    scripted.fault, scripted.asked = None, 0
    assert batch(GOOD).exit_code == 0
    assert out() == whole
    assert scripted.asked == 6 - before


@pytest.mark.parametrize(
    ("fault", "code"),
    [(EngineError("said"), 3), (AccessDenied("said"), 4), (MissingCapability("said"), 4)],
    ids=["engine", "key", "capability"],
)
def test_what_is_no_lines_fault_ends_the_batch_and_is_in_no_line(scripted, batch, out, fault, code):
    """Else every line that is left would hold a wrong key's error, and be done with it."""
    scripted.before, scripted.fault = 3, fault
    done = batch(GOOD)
    assert done.exit_code == code
    assert done.stderr.splitlines() == [
        "hybrid: 2 lines are answered; the same command goes on from there",
        "hybrid: said",
    ]
    assert len(out()) == 2


def test_a_policy_that_a_line_chose_and_the_endpoint_cannot_is_the_lines_error(scripted, batch, out):
    scripted.before, scripted.fault = 1, MissingCapability("said")
    assert batch(['{"prompt": "a", "policy": "exact"}', GOOD[0]]).exit_code == 5
    assert [line.get("error") for line in out()] == ["said", None]


def test_where_the_cap_is_reached_the_local_model_answers_the_rest_and_says_so(batch, out):
    done = batch(GOOD * 4, "--price", "1/0.1/4", "--cap", "0.0003", "--json")
    assert done.exit_code == 6
    found, summary = out(), json.loads(done.stdout)
    reasons = [line["degraded"] for line in found]
    assert reasons[0] is None
    assert all("0.0003 USD does not allow another request" in reason for reason in reasons[-5:])
    assert summary["bill"]["nanousd"] == sum(line["bill"]["nanousd"] for line in found) <= 300_000
    assert summary["degraded"] == len(reasons) - reasons.count(None)
    assert f"line {reasons.index(summary['first_reason'].partition(': ')[2]) + 1}: " in summary["first_reason"]


def test_a_dead_endpoint_costs_no_line_its_answer(scripted, batch, out):
    scripted.cloud_fault = Unreachable("nobody is there")
    done = batch(GOOD)
    assert done.exit_code == 6
    assert {line["degraded"] for line in out()} == {"nobody is there"}
    assert "0 USD (the cloud alone, of the texts as they stand: unknown)" in done.stderr, "those are the local model's"
    assert (
        "in 5 lines less was asked of the cloud than is due (5 unreachable); the first is line 1: nobody is there"
        in done.stderr
    )


def test_a_finished_batch_is_summed_up_again_and_loads_no_model(scripted, batch, out):
    first = json.loads(batch(GOOD, "--json", "--price", "1/0.1/4").stdout)
    again = json.loads(batch(GOOD, "--json").stdout)
    assert (first["kept"], again["kept"]) == (0, 5)
    assert {**first, "kept": 5} == again
    for name in ("nanousd", "cloud_only_nanousd", "cloud_only_cached_nanousd"):
        assert first["bill"][name] == sum(line["bill"][name] for line in out())
    assert first["local_tokens"] + first["cloud_tokens"] == sum(len(line["tokens"]) for line in out())
    assert scripted.opened == 1
    assert "5 lines answered (5 by an earlier run), " in batch(GOOD).stderr


def test_lines_that_their_checks_made_dearer_than_the_cloud_alone_are_told_of_once_with_their_sum(batch, out):
    """Ten lines cost 3.6 times the cloud alone, and no line but one said a word of it."""
    done = batch(GOOD, "--price", "1/0.1/4")
    ours, alone = (sum(line["bill"][name] for line in out()) for name in ("nanousd", "cloud_only_nanousd"))
    said = f"with their checks they cost {ours / alone:.1f} times what the cloud alone would have: --policy auto weighs"
    assert ours > 1.1 * alone
    assert done.stderr.count(said) == 1
    assert [sum("its checks made" in note for note in line["notes"]) for line in out()] == [1, 0, 0, 0, 0]
    [note] = json.loads(batch(GOOD, "--json").stdout)["notes"]
    assert note.startswith(said)


def test_a_price_nobody_stated_makes_the_bill_unknown(batch):
    done = batch(GOOD)
    assert "cost unknown: no price was stated" in done.stderr
    bill = json.loads(batch(GOOD, "--json").stdout)["bill"]
    assert set(bill) >= {"nanousd", "cloud_only_nanousd", "cloud_only_cached_nanousd"}
    assert set(bill.values()) == {None}


def test_another_input_is_refused_before_a_model_is_loaded(scripted, batch, out):
    batch(GOOD[:2])
    before = out()
    done = batch(GOOD[1:])
    assert done.exit_code == 2
    assert "line 1 there does not answer line 1 of the input" in done.stderr
    assert (out(), scripted.opened) == (before, 1)


def test_the_input_may_come_from_standard_input_and_go_on_there(scripted, tmp_path):
    def run(lines):
        text = "".join(f"{line}\n" for line in lines)
        return CliRunner().invoke(app, ["batch", "-", str(tmp_path / "out")], input=text)

    assert run(GOOD[:2]).exit_code == 0
    assert run(GOOD).exit_code == 0
    assert scripted.asked == 5
    assert len((tmp_path / "out").read_text().splitlines()) == 5


@pytest.mark.parametrize("parallel", ["1", "3"])
def test_standard_output_gets_the_lines_of_a_file_and_leaves_none_behind(scripted, batch, tmp_path, parallel):
    batch([*GOOD[:2], "a plain question", *GOOD[2:]], "--parallel", parallel)
    whole = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    before = {each.name for each in tmp_path.iterdir()}
    done = CliRunner().invoke(app, ["batch", str(tmp_path / "in"), "-", "--parallel", parallel])
    assert done.exit_code == 0
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for line in whole + found:
        line.pop("timing")
    whole, found = (sorted(each, key=lambda line: line["line"]) for each in (whole, found))
    assert (found, len(found)) == (whole, 6)
    assert {each.name for each in tmp_path.iterdir()} == before
    assert scripted.asked == 12, "nothing is known of an earlier run"


def test_what_standard_output_cannot_be_asked_is_refused_before_a_model_is_loaded(scripted, tmp_path):
    (tmp_path / "in").write_text("a\n")
    for flags, said in (
        (["--again", "failed"], "--again asks"),
        (["--json"], "--json prints"),
        (["--sort"], "--sort writes"),
    ):
        done = CliRunner().invoke(app, ["batch", str(tmp_path / "in"), "-", *flags])
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"OUT is standard output, and {said}" in done.stderr
    assert scripted.opened == 0


def test_interrupted_what_was_answered_is_printed_and_it_says_that_nothing_goes_on(scripted, tmp_path):
    (tmp_path / "in").write_text("".join(f"{each}\n" for each in GOOD))
    for before in (1, 4):
        scripted.asked, scripted.before, scripted.fault = 0, before, signal.SIGINT
        done = CliRunner().invoke(app, ["batch", str(tmp_path / "in"), "-"])
        assert done.exit_code == 130
        assert [json.loads(line)["line"] for line in done.stdout.splitlines()] == list(range(1, before))
        assert "; the same command begins anew, and with a file as OUT it would go on\n" in done.stderr


def test_lines_that_failed_name_the_command_that_asks_them_corrected_and_it_does(scripted, batch, out, tmp_path):
    """Whoever has bought the other lines buys none of them again."""
    done = batch([GOOD[0], '"torn', GOOD[1]], "--parallel", "2")
    again = f"hybrid batch {tmp_path / 'in'} {tmp_path / 'out'} --again failed --parallel 2"
    assert done.stderr.splitlines()[-1] == f"hybrid: correct such lines in the input, then: {again}"
    first, _, third = out()
    refused = batch([GOOD[0], "mended", GOOD[1]])
    assert refused.exit_code == 2
    assert "line 2 of the input: it holds an error, and --again failed asks such lines as the input has them now" in (
        refused.stderr
    )
    scripted.asked = 0
    assert batch([GOOD[0], "mended", GOOD[1]], "--again", "failed").exit_code == 0
    assert (out()[0], out()[2], scripted.asked) == (first, third, 1)
    assert (out()[3]["line"], len(out())) == (2, 4)
    assert out()[3]["text"]
    assert "give another file" in batch([GOOD[0], "mended", "another"], "--again", "failed").stderr


def test_a_printed_line_that_failed_is_asked_from_a_file(batch, tmp_path):
    (tmp_path / "in").write_text('"torn\n')
    done = CliRunner().invoke(app, ["batch", str(tmp_path / "in"), "-"])
    assert done.exit_code == 5
    again = f"hybrid batch {tmp_path / 'in'} OUT --again failed"
    assert done.stderr.splitlines()[-1] == (
        f"hybrid: correct such lines in the input, then, with the printed lines in a file OUT: {again}"
    )


def test_an_input_that_cannot_be_read_is_a_sentence_and_makes_no_output(scripted, tmp_path):
    for source in (tmp_path / "none", tmp_path):
        done = CliRunner().invoke(app, ["batch", str(source), str(tmp_path / "out")])
        assert done.exit_code == 2
        assert done.stderr.startswith(f"hybrid: {source}: ")
    assert not (tmp_path / "out").exists()


def test_an_empty_input_is_answered_at_once(batch, out, scripted):
    assert batch([]).exit_code == 0
    assert batch(["", " "]).stderr.startswith("hybrid: 0 lines answered, ")
    assert (out(), scripted.opened) == ([], 0)


def test_settings_that_cannot_be_are_told_before_anything_is_touched(tmp_path):
    (tmp_path / "in").write_text('"a"\n')
    done = CliRunner().invoke(app, ["batch", str(tmp_path / "in"), str(tmp_path / "out"), "--policy", "nix"])
    assert (done.exit_code, "no policy is called 'nix'" in done.stderr) == (2, True)
    assert not (tmp_path / "out").exists()


def test_the_help_has_examples_and_says_what_the_exit_codes_mean():
    said = CliRunner().invoke(app, ["batch", "--help"]).stdout
    assert "Examples" in said
    assert "5 finished, but" in said


def test_sorted_at_the_end_or_when_nothing_is_left_to_ask_it_has_one_line_a_question_in_order(
    scripted, batch, out, tmp_path
):
    lines = [GOOD[0], '"torn', GOOD[1]]
    batch(lines)
    lines[1] = "mended"
    batch(lines, "--again", "failed")
    assert [line["line"] for line in out()] == [1, 2, 3, 2]
    first, _, third, second = out()
    scripted.opened = 0
    assert batch(lines, "--sort").exit_code == 0
    assert (out(), scripted.opened) == ([first, second, third], 0)
    assert batch([*lines, GOOD[2]], "--sort").exit_code == 0
    assert [line["line"] for line in out()] == [1, 2, 3, 4]
    assert {each.name for each in tmp_path.iterdir()} == {"in", "out"}


HOT = [json.dumps("a b c")] * 6


def test_sampled_lines_draw_from_seeds_of_their_own_which_give_the_same_text_again(batch, out):
    """The same question six times was one text six times."""
    batch(HOT, "--temperature", "1.5", "--policy", "local")
    seeds, texts = [line["seed"] for line in out()], [line["text"] for line in out()]
    assert seeds == [lines_of(HOT)[i].seed for i in range(6)]
    assert len(set(seeds)) == 6
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert len(set(texts)) > 2
    named = [json.dumps({"prompt": "a b c", "seed": seed}) for seed in seeds[::-1]]
    batch(named, "--temperature", "1.5", "--policy", "local", again=True)
    assert [line["text"] for line in out()] == texts[::-1]
    assert [line["seed"] for line in out()] == seeds[::-1], "a line keeps the seed that it names"


def test_a_sampled_batch_that_was_killed_ends_in_the_lines_of_one_that_was_not(batch, out, scripted):
    flags = ("--temperature", "1.5", "--policy", "local")
    batch(HOT, *flags)
    expected = out()
    for before in range(1, 7):
        scripted.asked, scripted.fault, scripted.before = 0, signal.SIGINT, before
        assert batch(HOT, *flags, again=True).exit_code == 130
        assert out() == expected[: before - 1]
        scripted.fault = None
        assert batch(HOT, *flags).exit_code == 0
        assert out() == expected


def test_a_seed_on_the_command_line_is_that_of_every_line_that_names_none(batch, out):
    batch([*HOT[:2], json.dumps({"prompt": "a", "seed": 4}), json.dumps({"prompt": "a", "seed": None})], "--seed", "9")
    assert [line["seed"] for line in out()] == [9, 9, 4, 9]


def test_a_line_that_is_corrected_once_more_after_an_interruption_is_asked_as_it_is_now(scripted, batch, out, tmp_path):
    again = ("--again", "failed")
    assert batch(['"torn', '"torn', GOOD[0]]).exit_code == 5
    scripted.asked, scripted.before, scripted.fault = 0, 1, signal.SIGINT
    assert batch(['"torn again', "mended", GOOD[0]], *again).exit_code == 130
    scripted.fault = None
    assert batch(["mended, too", "mended", GOOD[0]], *again, "--sort").exit_code == 0
    assert [bool(line["text"]) for line in out()] == [True] * 3
