"""Caps and the ledger as a person meets them: readable, in JSON, and never made by looking."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace

import pytest
from cases import each_of
from money import max_cost_of, settled
from typer.testing import CliRunner

from hybrid.cli import app
from hybrid.cli.budget import STATES, _print_entries
from hybrid.spend import SpendScope
from hybrid.spend.durable import FileLedger, LedgerAdmin

SPENDER = SpendScope("https://api.example.com", "question", "talk", "client")


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Where this test's ledger is; HYBRID_LEDGER names it."""
    path = tmp_path / "own" / "ledger.sqlite"
    monkeypatch.setenv("HYBRID_LEDGER", str(path))
    return path


@pytest.fixture
def ledger(path):
    ledger = FileLedger(path)
    yield ledger
    ledger.close()


def budget(*args, code=0):
    done = CliRunner().invoke(app, ["budget", *args])
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


def plain(*args):
    return json.loads(budget(*args, "--json"))


@pytest.mark.parametrize("command", [["show"], ["log"], ["reconcile"], ["reconcile", "--all-as-charged", "--clock"]])
def test_looking_at_a_ledger_makes_none(path, command):
    assert "Nothing was spent yet" in budget(*command)
    plain(*command)
    assert not path.parent.exists()


def test_caps_are_set_shown_and_removed(path):
    budget("set", "--total", "20", "--month", "5", "--day", "0.5", "--conversation", "0.1", "--request", "0.01")
    caps = {row["level"]: row["cap_nanousd"] for row in plain("show")["caps"]}
    assert caps == {
        "request": 10_000_000, "conversation": 100_000_000, "day": 500_000_000, "month": 5 * 10**9, "total": 20 * 10**9
    }  # fmt: skip
    found = plain("set", "--day", "none", "--total", "0")
    caps = {row["level"]: row["cap_nanousd"] for row in found["caps"]}
    assert (caps["day"], caps["total"], caps["month"]) == (None, 0, 5 * 10**9)
    assert found["ledger"] == str(path)


def test_what_has_gone_against_a_cap_is_shown_with_what_is_left(ledger):
    LedgerAdmin(ledger).set_cap("day", 1_000)
    ledger.settle(settled(ledger.reserve(max_cost_of(300), SPENDER), 120))
    ledger.reserve(max_cost_of(50), SPENDER)
    row = next(row for row in plain("show")["caps"] if row["level"] == "day")
    assert [row[f"{name}_nanousd"] for name in ("spent", "reserved", "left")] == [120, 50, 830]
    text = budget("show")
    assert all(word in text for word in ("0.000001", "0.00000012", "0.00000005", "0.00000083", "1 open", "each"))


def test_the_log_tells_the_newest_first(ledger):
    ledger.settle(settled(ledger.reserve(max_cost_of(300), SPENDER), 120))
    ledger.reserve(max_cost_of(50), SPENDER)
    found = plain("log")["entries"]
    assert [(entry["id"], entry["state"], entry["charged_nanousd"]) for entry in found] == [
        (2, "reserved", 0),
        (1, "settled", 120),
    ]
    assert found[0]["endpoint"] == "https://api.example.com"
    assert found[0]["at"].endswith("Z")
    assert "stated by --price" in found[0]["price"]
    assert len(plain("log", "--n", "1")["entries"]) == 1
    text = budget("log")
    assert all(word in text for word in ("https://api.example.com", "0.00000012", "not sent"))


def test_the_log_fits_80_columns_and_names_an_endpoint_once_above_what_went_to_it(ledger, capsys):
    """With an amount to the nano-dollar and the longest state a line had 109."""
    other = SpendScope("https://another-endpoint.europe-west.example.com", "question", "talk", "client")
    for spender, amount in ((SPENDER, 1), (SPENDER, 123_456_789_012), (other, 3), (SPENDER, 4)):
        ledger.settle(settled(ledger.reserve(max_cost_of(amount), spender), amount))
    ledger.reserve(max_cost_of(123_456_789_012), SPENDER)
    head, *lines, last = budget("log").splitlines()
    assert (head.split(), last) == (["UTC", "requests", "reserved", "charged", "state"], "Amounts in USD.")
    assert [line.split()[0] for line in lines] == [
        SPENDER.endpoint,
        "5",
        "4",
        other.endpoint,
        "3",
        SPENDER.endpoint,
        *"21",
    ]
    amounts = {line.split()[0]: line for line in lines}
    assert amounts["5"][: head.index("reserved") + len("reserved")].endswith(" 123.456789012")
    assert all(amounts[number].endswith(f" {said}") for number, said in (("1", "0.000000001"), ("2", "123.456789012")))
    entries = LedgerAdmin(ledger).log(9)
    for state in each_of(STATES):
        _print_entries([replace(entry, state=state, id=entry.id + 10_000) for entry in entries])
        shown = capsys.readouterr().out.splitlines()
        assert max(map(len, shown)) <= 80
        assert sum(line.endswith(f"  {STATES[state]}") for line in shown) == len(entries)


def test_an_open_entry_is_reconciled_by_hand(ledger):
    LedgerAdmin(ledger).set_cap("total", 1_000)
    ledger.reserve(max_cost_of(300), SPENDER)
    ledger.reserve(max_cost_of(400), SPENDER)
    assert [entry["id"] for entry in plain("reconcile")["open"]] == [1, 2]
    assert "2 open (0.0000007 USD reserved, whatever is charged): hybrid budget reconcile lists them." in budget("show")
    assert [entry["id"] for entry in plain("reconcile", "1", "--charged", "0.0000001")["open"]] == [2]
    assert "Nothing is open" in budget("reconcile", "--all-as-charged")
    assert plain("show")["open_nanousd"] == 0
    row = plain("show")["caps"][-1]
    assert (row["spent_nanousd"], row["reserved_nanousd"], row["left_nanousd"]) == (500, 0, 500)
    assert {entry["state"] for entry in plain("log")["entries"]} == {"reconciled"}
    assert "by hand" in budget("log")


def test_a_closed_endpoint_is_shown_and_opened_again(ledger):
    ledger.settle(settled(ledger.reserve(max_cost_of(300), SPENDER), 500, excess="it charged more"))
    for command in ("show", "reconcile"):
        assert "it charged more" in budget(command)
        assert plain(command)["closed"][0]["endpoint"] == "https://api.example.com"
    assert "not closed" in budget("reconcile", "--reopen", "https://other.example.com", code=2)
    assert plain("reconcile", "--reopen", "https://API.example.com/v1")["closed"] == []
    assert ledger.reserve(max_cost_of(1), SPENDER).nanousd == 1


def test_entries_of_a_clock_that_was_wrong_are_told_and_counted_as_made_now(path):
    future = FileLedger(path, clock=lambda: 4e9)
    future.reserve(max_cost_of(300), SPENDER)
    future.close()
    assert plain("show")["clock_behind_s"] > 10**8
    assert "--clock" in budget("show")
    found = plain("reconcile", "--clock")
    assert found["clock_behind_s"] == 0
    assert plain("show")["caps"][-1]["reserved_nanousd"] == 300
    with sqlite3.connect(path) as db:
        windows = {window for (window,) in db.execute("SELECT window FROM totals WHERE level = 'day'")}
    db.close()
    assert len(windows) == 1
    assert min(windows) < "2090"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["set"], "say which cap"),
        (["set", "--day", "five"], "--day: 'five' is not an amount"),
        (["set", "--day", "-1"], "--day"),
        (["set", "--total", "1e20"], "a cap is at most"),
        (["reconcile", "3"], "belong together"),
        (["reconcile", "--charged", "1"], "belong together"),
        (["reconcile", "3", "--charged", "1"], "nothing was spent yet"),
        (["show", "--ledger", "none"], "no ledger is kept"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(path, args, said):
    assert said in budget(*args, code=2)


def test_what_was_disputed_is_listed_and_mended_and_opens_nothing(ledger):
    """Endpoint and cap are two questions: what is right, and whether it may be asked again."""
    LedgerAdmin(ledger).set_cap("total", 1_000)
    ledger.settle(settled(ledger.reserve(max_cost_of(300), SPENDER), 10**30, excess="it charged more"))
    assert plain("show")["caps"][-1]["left_nanousd"] < 0
    [shown] = [line for line in budget("show").splitlines() if line.strip().startswith("total")]
    assert shown.rstrip().endswith("  0, over by 9007199.254739992")
    assert [(entry["id"], entry["state"]) for entry in plain("reconcile")["disputed"]] == [(1, "disputed")]
    assert "disputed" in budget("reconcile")
    found = plain("reconcile", "1", "--charged", "0.0000004")
    assert (found["disputed"], len(found["closed"])) == ([], 1)
    assert plain("show")["caps"][-1]["left_nanousd"] == 600


def test_any_entry_can_be_reconciled_and_one_that_is_not_there_is_named(ledger):
    ledger.settle(settled(ledger.reserve(max_cost_of(300), SPENDER), 120))
    budget("reconcile", "1", "--charged", "0.0000001")
    assert plain("show")["caps"][-1]["spent_nanousd"] == 100
    assert "entry 9 is not in the ledger" in budget("reconcile", "9", "--charged", "0", code=2)
    assert "a charge is at most" in budget("reconcile", "1", "--charged", "1e20", code=2)


def test_what_reconcile_did_is_said_before_what_is_left(path, ledger):
    ledger.settle(settled(ledger.reserve(max_cost_of(300), SPENDER), 120))
    for nanousd in (62, 400, 30):
        ledger.reserve(max_cost_of(nanousd), SPENDER)
    said = budget("reconcile", "2", "--charged", "0.00000005")
    assert said.splitlines()[0] == "entry 2: charged 0.00000005 USD (was: 0.000000062 USD reserved)"
    assert "entry 2:" not in budget("reconcile")
    assert plain("reconcile", "1", "--charged", "0")["done"] == ["entry 1: charged 0 USD (was: 0.00000012 USD charged)"]
    done = budget("reconcile", "--all-as-charged").splitlines()
    assert done == ["2 entries charged in full, 0.00000043 USD in all", "Nothing is open."]
    future = FileLedger(path, clock=lambda: 4e9)
    future.settle(settled(future.reserve(max_cost_of(300), SPENDER), 500, excess="it charged more"))
    future.close()
    found = plain("reconcile", "--all-as-charged", "--reopen", "https://API.example.com/v1", "--clock")
    assert found["done"] == ["no entry was open", "https://api.example.com is open again", "1 entry re-dated to now"]
    assert plain("reconcile")["done"] == []


def test_the_help_of_the_log_explains_every_state_that_a_line_shows():
    said = budget("log", "--help").splitlines()
    for state in each_of(STATES.values()):
        assert sum(line.strip().startswith(f"{state}  ") for line in said) == 1, state


def test_a_ledger_that_cannot_be_used_is_one_sentence_that_says_what_to_do(path):
    path.parent.mkdir()
    path.write_bytes(b"this is no database" * 100)
    assert "is damaged" in budget("show", code=2)
    assert "HYBRID_LEDGER" in budget("set", "--day", "1", code=2)


@pytest.mark.parametrize("command", ["show", "set", "log", "reconcile"])
def test_every_command_has_examples_in_its_help(command):
    assert f"hybrid budget {command}" in budget(command, "--help")
