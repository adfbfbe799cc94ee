"""What was learned, on disk: nothing that anybody added is lost, nothing foreign is believed, and no text is there."""

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hybrid.defer.state
from hybrid.defer import DraftOutcome, DraftSignals, KeptOutcomes, PairState, forget_outcomes, word_buckets
from hybrid.defer.state import STATE_VERSION, MeasuredBill
from hybrid.prob import Dense


def outcome(number, turned_down=None):
    numbers = () if turned_down is None else tuple(n / 3 for n in range(15))
    return DraftOutcome(0.1 + 0.2, 1 / 3, True, 0.05, turned_down, "block", (3, 70), numbers, 0.7, number)


def number_of(each):
    return round(each.whole_cost)


@pytest.fixture
def state(tmp_path):
    return PairState(tmp_path / "scores", "digest", "org/model", "kl:0.7")


def test_what_was_added_is_read_again_to_the_last_bit_and_nobody_else_may_read_it(state):
    assert state.read() == KeptOutcomes()
    assert state.add([outcome(1), outcome(2, True)])
    assert state.add([outcome(3, False)])
    assert state.read() == KeptOutcomes((outcome(1), outcome(2, True), outcome(3, False)))
    assert state.path.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in state.folder.iterdir() if ".lock" not in path.name] == [state.path.name]


def test_what_was_measured_of_bills_adds_up_and_a_file_of_before_has_none(state):
    state.add([outcome(1)])
    older = json.loads(state.path.read_text())
    del older["measured"]
    state.path.write_text(json.dumps(older))
    assert state.read() == KeptOutcomes((outcome(1),))
    state.add([], MeasuredBill(3, 10, 1))
    state.add([outcome(2)], MeasuredBill(4, 10, 1))
    assert state.read() == KeptOutcomes((outcome(1), outcome(2)), measured=MeasuredBill(7, 20, 2))


def test_the_score_that_told_an_outcome_is_kept_with_it_and_a_file_of_before_names_none(state):
    state.add([replace(outcome(1), score="digest")])
    assert [each.score for each in state.read().outcomes] == ["digest"]
    older = json.loads(state.path.read_text())
    del older["outcomes"][0]["score"]
    state.path.write_text(json.dumps(older))
    assert state.read() == KeptOutcomes((outcome(1),))


def test_the_newest_are_kept(state, monkeypatch):
    assert hybrid.defer.state.MOST_OUTCOMES == 5000
    monkeypatch.setattr(hybrid.defer.state, "MOST_OUTCOMES", 7)
    for first in (0, 5, 9):
        state.add([outcome(first + n) for n in range(5)])
    assert [number_of(each) for each in state.read().outcomes] == [8, 9, *range(9, 14)][-7:]


def test_nothing_on_disk_tells_a_question_or_an_answer(state):
    question = "Where does Grandmother Wilhelmina keep 31337 marbles?"
    rows = [Dense.from_logits(np.array([0.0, 1.0, 2.0]))] * 3
    signals = DraftSignals.of_rows(word_buckets(question), 9, 0, [1, 2, 0], rows, ended=True)
    state.add([DraftOutcome.of(signals, told=0.5, chance=0.5, keeps=False, floor=0.05, turned_down=True)])
    kept = json.loads(state.path.read_text())
    [row] = kept.pop("outcomes")
    assert kept.pop("measured") == {"nanousd": 0, "alone_nanousd": 0, "answers": 0}
    assert kept == {"version": STATE_VERSION, "local": "digest", "cloud": "org/model", "judge": "kl:0.7"}
    texts = {key: value for key, value in row.items() if isinstance(value, str)}
    assert texts == {"after": "start", "score": ""}
    assert all(0 <= bucket < 4096 for bucket in row["words"])
    assert len(row["statistics"]) == 15


def test_what_many_add_at_once_is_all_there(state):
    with ThreadPoolExecutor(8) as threads:
        added = list(
            threads.map(lambda n: PairState(state.folder, "digest", "org/model", "kl:0.7").add([outcome(n)]), range(24))
        )
    assert all(added)
    assert sorted(number_of(each) for each in state.read().outcomes) == list(range(24))


CHILD = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_state import PairState, outcome
state = PairState(Path({folder!r}), "digest", "org/model", "kl:0.7")
first, step = int(sys.argv[1]), sys.argv[2]
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
write, replace = Path.write_bytes, Path.replace
if step == "half written":
    Path.write_bytes = lambda path, raw: (write(path, raw[: len(raw) // 2]), die())
elif step == "not in place":
    Path.replace = die
elif step == "in place":
    Path.replace = lambda path, to: (replace(path, to), die())
for number in range(first, first + 12):
    assert state.add([outcome(number)])
"""


def child(state, first, step):
    command = CHILD.format(tests=str(Path(__file__).parent), folder=str(state.folder))
    return subprocess.Popen([sys.executable, "-c", command, str(first), step], stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_processes_that_add_at_once_lose_nothing_and_one_that_is_killed_only_what_it_was_adding(state):
    """Three are killed at each step of their first write; their locks go with them."""
    state.add([outcome(1000)])
    running = {
        step: child(state, 100 * n, step) for n, step in enumerate(("", "half written", "not in place", "in place"))
    }
    for step, process in running.items():
        _, errors = process.communicate(timeout=60)
        assert process.returncode == (-signal.SIGKILL if step else 0), errors
    kept = state.read()
    assert kept.note is None
    assert sorted(number_of(each) for each in kept.outcomes) == [*range(12), 300, 1000]
    assert state.add([outcome(5000)])


FOREIGN = {
    "local": "another local model",
    "cloud": "another model in the cloud",
    "judge": "the judge kl:0.5",
    "version": "another version",
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_was_learned_of_something_else_is_refused_with_a_reason_and_put_aside_by_the_next_that_is_added(
    state, what
):
    state.add([outcome(1)])
    kept = json.loads(state.path.read_text())
    kept[what] = {"judge": "kl:0.5", "version": STATE_VERSION + 1}.get(what, "other")
    if what == "version":
        kept["outcomes"] = "in another shape"
    state.path.write_text(foreign := json.dumps(kept))
    read = state.read()
    assert read.outcomes == ()
    assert FOREIGN[what] in read.note
    assert state.path.read_text() == foreign
    assert state.add([outcome(2)])
    assert state.read() == KeptOutcomes((outcome(2),))
    assert state.path.with_name(f"{state.path.name}.1.aside").read_text() == foreign


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-40],
        lambda raw: b"",
        lambda raw: b"\xff\xfe",
        lambda raw: b"[]",
        lambda raw: raw.replace(b"0.05", b"9.05"),
    ],
)
def test_a_file_that_is_damaged_is_not_believed_and_not_lost(state, damage):
    for number in (1, 2):
        state.add([outcome(number)])
        state.path.write_bytes(damaged := damage(state.path.read_bytes()))
        assert "damaged" in state.read().note
        assert state.add([outcome(number + 5)])
        assert [number_of(each) for each in state.read().outcomes] == [number + 5]
        assert state.path.with_name(f"{state.path.name}.{number}.aside").read_bytes() == damaged
        state.path.unlink()


def test_each_pair_and_judge_has_a_file_of_its_own(state):
    others = [
        PairState(state.folder, "digest", "org/model", "kl:0-7"),
        PairState(state.folder, "digest", "org/model", "kl:0.5"),
        PairState(state.folder, "digest", "org", "kl:0.7"),
        PairState(state.folder, "digest2", "org/model", "kl:0.7"),
        PairState(state.folder, "digest\norg", "model", "kl:0.7"),
    ]
    for number, each in enumerate([state, *others]):
        each.add([outcome(number)])
    for number, each in enumerate([state, *others]):
        assert each.read() == KeptOutcomes((outcome(number),))


def test_a_pair_is_forgotten_under_every_judge_with_what_was_put_aside_and_no_other(state):
    other, more = (
        PairState(state.folder, "digest", "org", "kl:0.7"),
        PairState(state.folder, "digest", "org/model", "js:0.1"),
    )
    for each in (state, other, more):
        each.add([outcome(1)])
    state.path.write_text("damaged")
    state.add([outcome(2)])
    state.path.with_name(f"{state.path.name}.4711-1").write_text("what a process left that was killed")
    assert forget_outcomes(state.folder, "digest", "org/model") == 4
    assert [path.suffix for path in state.folder.glob("*4711*")] == [".lock"]
    assert state.read() == more.read() == KeptOutcomes()
    assert other.read().outcomes == (outcome(1),)
    assert forget_outcomes(state.folder, "digest", "org/model") == 0


def test_where_nothing_can_be_written_nothing_fails(tmp_path):
    (tmp_path / "file").write_text("")
    state = PairState(tmp_path / "file", "digest", "model", "kl:0.7")
    assert not state.add([outcome(1)])
    assert "cannot be read" in state.read().note


def test_the_judge_of_a_foreign_file_is_told_on_one_line_without_control_characters(state):
    state.add([outcome(1)])
    state.path.write_text(json.dumps(json.loads(state.path.read_text()) | {"judge": "kl\n\x1b[31m"}))
    assert state.read().note.isprintable()
