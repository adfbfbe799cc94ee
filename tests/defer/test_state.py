"""What was learned, on disk: nothing that anybody added is lost, nothing foreign is believed, and no text is there."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hybrid.pairs.store
from hybrid.defer import DraftOutcome, DraftSignals, UninformedScore, word_buckets
from hybrid.defer.calibration import Calibration
from hybrid.pairs.store import STATE_VERSION, MeasuredBill, PairStore, keep_calibration
from hybrid.prob import Dense

JUDGE = "kl:0.7"


def outcome(number, turned_down=None):
    numbers = () if turned_down is None else tuple(n / 3 for n in range(15))
    return DraftOutcome(0.1 + 0.2, 1 / 3, True, 0.05, turned_down, "block", (3, 70), numbers, 0.7, number)


def number_of(each):
    return round(each.whole_cost)


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return PairStore("digest", "org/model")


def learned(store, judge=JUDGE):
    """Read outcomes under a judge, all of which must be believed."""
    found, note = store.learned(judge)
    assert note is None
    return found.outcomes


def path_of(store):
    return store.outcomes.path


def last_line(store):
    return json.loads(path_of(store).read_text().splitlines()[-1])


def write_lines(store, *lines):
    path_of(store).write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_what_was_added_is_read_again_to_the_last_bit_and_nobody_else_may_read_it(state):
    assert learned(state) == ()
    assert state.add(JUDGE, [outcome(1), outcome(2, True)])
    assert state.add(JUDGE, [outcome(3, False)])
    assert learned(state) == (outcome(1), outcome(2, True), outcome(3, False))
    assert path_of(state).stat().st_mode & 0o777 == 0o600
    folder = path_of(state).parent
    assert [path.name for path in folder.iterdir() if ".lock" not in path.name] == ["outcomes.jsonl"]


def test_a_line_is_added_and_those_before_are_not_written_again(state):
    state.add(JUDGE, [outcome(1)])
    before, inode = path_of(state).read_bytes(), path_of(state).stat().st_ino
    state.add(JUDGE, [outcome(2)])
    assert path_of(state).read_bytes().startswith(before)
    assert path_of(state).stat().st_ino == inode


def test_a_file_that_nobody_else_changed_is_read_once_and_one_that_somebody_did_is_read_again(state, monkeypatch):
    """What is added costs the same, however much was learned; another's lines, changes and damage are seen."""
    read, other = [], PairStore("digest", "org/model")
    with monkeypatch.context() as patched:
        patched.setattr("hybrid.store.json_store.read_regular", lambda path: read.append(path) or path.read_bytes())
        learned(state)
        for number in range(30):
            assert state.add(JUDGE, [outcome(number)])
        assert len(read) == 2, "once where nothing was, and once before the first line"
        assert other.add(JUDGE, [outcome(30)])
        assert state.add(JUDGE, [outcome(31)])
        assert len(read) == 4, "each reads what the other left"
    assert [number_of(each) for each in learned(state)] == [*range(32)]
    whole = path_of(state).read_bytes()
    for number, damaged in enumerate((whole.replace(b"0.05", b"9.05", 1), whole[:-9]), 1):
        path_of(state).write_bytes(damaged)
        os.utime(path_of(state), (number, number))  # the clock of a file may not tell two changes apart
        assert state.add(JUDGE, [outcome(40)])
        assert state.learned(JUDGE)[1] is None
        assert path_of(state).with_name(f"outcomes.jsonl.{number}.aside").read_bytes() == damaged
        path_of(state).write_bytes(whole)
        assert learned(state)
    path_of(state).unlink()
    assert state.add(JUDGE, [outcome(50)])
    assert [number_of(each) for each in learned(state)] == [50]


def test_what_was_measured_of_bills_adds_up_and_a_line_of_before_has_none(state):
    state.add(JUDGE, [outcome(1)])
    older = last_line(state)
    del older["measured"]
    write_lines(state, older)
    assert learned(state) == (outcome(1),)
    state.add(JUDGE, [], MeasuredBill(3, 10, 1))
    state.add(JUDGE, [outcome(2)], MeasuredBill(4, 10, 1))
    assert learned(state) == (outcome(1), outcome(2))
    assert state.learned(JUDGE)[0].measured == MeasuredBill(7, 20, 2)


def test_the_score_that_told_an_outcome_is_kept_with_it_and_a_line_of_before_names_none(state):
    state.add(JUDGE, [replace(outcome(1), score="digest")])
    assert [each.score for each in learned(state)] == ["digest"]
    older = last_line(state)
    del older["outcomes"][0]["score"]
    write_lines(state, older)
    assert learned(state) == (outcome(1),)


def test_the_newest_are_kept(state, monkeypatch):
    assert hybrid.pairs.store.MOST_OUTCOMES == 5000
    monkeypatch.setattr(hybrid.pairs.store, "MOST_OUTCOMES", 7)
    for first in (0, 5, 9):
        state.add(JUDGE, [outcome(first + n) for n in range(5)])
    assert [number_of(each) for each in learned(state)] == [8, 9, *range(9, 14)][-7:]


def test_many_lines_are_folded_into_one_a_judge_and_say_the_same(state, monkeypatch):
    """So the file stays small, however many answers there were."""
    monkeypatch.setattr(hybrid.pairs.store, "MOST_OUTCOMES", 9)
    monkeypatch.setattr(type(state.outcomes), "most", 20)
    object.__setattr__(state.outcomes, "most", 20)
    for number in range(50):
        state.add("kl:0.2" if number % 2 else JUDGE, [outcome(number)], MeasuredBill(1, 2, 1))
        assert len(path_of(state).read_bytes().splitlines()) <= 21
    for judge, first in ((JUDGE, 0), ("kl:0.2", 1)):
        assert [number_of(each) for each in learned(state, judge)] == [*range(first, 50, 2)][-9:]
        assert state.learned(judge)[0].measured == MeasuredBill(25, 50, 25)


def test_nothing_on_disk_tells_a_question_or_an_answer(state):
    question = "Where does Grandmother Wilhelmina keep 31337 marbles?"
    rows = [Dense.from_logits(np.array([0.0, 1.0, 2.0]))] * 3
    signals = DraftSignals.of_rows(word_buckets(question), 9, 0, [1, 2, 0], rows, ended=True)
    state.add(JUDGE, [DraftOutcome.of(signals, told=0.5, chance=0.5, keeps=False, floor=0.05, turned_down=True)])
    kept = last_line(state)
    [row] = kept.pop("outcomes")
    assert kept.pop("measured") == {"nanousd": 0, "alone_nanousd": 0, "answers": 0}
    assert kept == {"version": STATE_VERSION, "local": "digest", "cloud": "org/model", "judge": JUDGE}
    texts = {key: value for key, value in row.items() if isinstance(value, str)}
    assert texts == {"after": "start", "score": ""}
    assert all(0 <= bucket < 4096 for bucket in row["words"])
    assert len(row["statistics"]) == 15


def test_what_many_add_at_once_is_all_there(state):
    with ThreadPoolExecutor(8) as threads:
        added = list(threads.map(lambda n: PairStore("digest", "org/model").add(JUDGE, [outcome(n)]), range(24)))
    assert all(added)
    assert sorted(number_of(each) for each in learned(state)) == list(range(24))


CHILD = """
import io, os, signal, sys
sys.path.insert(0, {tests!r})
import hybrid.store.json_store as room
from test_state import JUDGE, PairStore, outcome
state = PairStore("digest", "org/model")
first, step = int(sys.argv[1]), sys.argv[2]
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
class Killed(io.FileIO):
    def write(self, raw):
        super().write(raw if step == "written" else raw[: len(raw) // 2])
        die()
put_in_place = room._put_in_place  # which writes the file anew where another process was killed before
if step == "not written":
    room.open = room._put_in_place = die
elif step:
    room.open = lambda path, mode, opener: Killed(path, mode, opener=opener)
    room._put_in_place = lambda *rest: (step == "written" and put_in_place(*rest), die())
for number in range(first, first + 12):
    assert state.add(JUDGE, [outcome(number)])
"""


def child(first, step):
    command = CHILD.format(tests=str(Path(__file__).parent))
    return subprocess.Popen([sys.executable, "-c", command, str(first), step], stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_processes_that_add_at_once_lose_nothing_and_one_that_is_killed_only_what_it_was_adding(state):
    """Three are killed at each step of their first line; their locks go with them."""
    state.add(JUDGE, [outcome(1000)])
    running = {step: child(100 * n, step) for n, step in enumerate(("", "half written", "not written", "written"))}
    for step, process in running.items():
        _, errors = process.communicate(timeout=60)
        assert process.returncode == (-signal.SIGKILL if step else 0), errors
    assert state.add(JUDGE, [outcome(5000)]), "what half a line says is put aside"
    assert sorted(number_of(each) for each in learned(state)) == [*range(12), 300, 1000, 5000]


FOREIGN = {"local": "other", "cloud": "other", "version": STATE_VERSION + 1}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_was_learned_of_something_else_is_refused_with_a_reason_and_put_aside_by_the_next_that_is_added(
    state, what
):
    state.add(JUDGE, [outcome(1)])
    state.add(JUDGE, [outcome(2)])
    kept = last_line(state) | {what: FOREIGN[what]}
    if what == "version":
        kept["outcomes"] = "in another shape"
    path_of(state).write_text(foreign := path_of(state).read_text().splitlines()[0] + f"\n{json.dumps(kept)}\n")
    found, note = state.learned(JUDGE)
    assert found.outcomes == (outcome(1),)
    assert "of another pair" in note
    assert note.isprintable()
    assert path_of(state).read_text() == foreign
    assert state.add(JUDGE, [outcome(3)])
    assert learned(state) == (outcome(1), outcome(3))
    assert path_of(state).with_name("outcomes.jsonl.1.aside").read_text() == foreign


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-40],
        lambda raw: b"\xff\xfe",
        lambda raw: b"[]",
        lambda raw: raw.replace(b"0.05", b"9.05"),
    ],
)
def test_a_line_that_is_damaged_is_not_believed_and_not_lost(state, damage):
    state.add(JUDGE, [outcome(1)])
    whole = path_of(state).read_bytes()
    for number in (1, 2):
        path_of(state).write_bytes(damaged := whole + damage(whole))
        assert "damaged" in state.learned(JUDGE)[1]
        assert state.add(JUDGE, [outcome(number + 5)])
        assert [number_of(each) for each in learned(state)] == [1, number + 5]
        assert path_of(state).with_name(f"outcomes.jsonl.{number}.aside").read_bytes() == damaged


def test_a_line_that_was_cut_by_its_end_alone_stays_and_the_next_does_not_go_on_in_it(state):
    state.add(JUDGE, [outcome(1)])
    path_of(state).write_bytes(path_of(state).read_bytes().removesuffix(b"\n"))
    assert state.add(JUDGE, [outcome(2)])
    assert learned(state) == (outcome(1), outcome(2))


def test_what_is_killed_while_it_puts_a_damaged_file_aside_loses_no_other_line(state, monkeypatch):
    """The file had its other name before the new one was there, and nobody knew what it held."""
    state.add(JUDGE, [outcome(1)])
    with path_of(state).open("a") as file:
        file.write("damaged\n")

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("hybrid.store.json_store.replace_content", killed)
        with pytest.raises(KeyboardInterrupt):
            state.add(JUDGE, [outcome(2)])
    assert state.learned(JUDGE)[0].outcomes == (outcome(1),)
    assert state.add(JUDGE, [outcome(3)])
    assert learned(state) == (outcome(1), outcome(3))


def test_each_pair_and_judge_is_learned_apart(state):
    others = [
        (state, JUDGE),
        (state, "kl:0-7"),
        (state, "kl:0.5"),
        (PairStore("digest", "org"), JUDGE),
        (PairStore("digest2", "org/model"), JUDGE),
        (PairStore("digest\norg", "model"), JUDGE),
    ]
    for number, (store, judge) in enumerate(others):
        store.add(judge, [outcome(number)])
    for number, (store, judge) in enumerate(others):
        assert learned(store, judge) == (outcome(number),)


def test_a_pair_is_forgotten_under_every_judge_with_what_was_put_aside_and_no_other(state):
    other = PairStore("digest", "org")
    for store, judge in ((state, JUDGE), (state, "js:0.1"), (other, JUDGE)):
        store.add(judge, [outcome(1)])
    with path_of(state).open("a") as file:
        file.write("damaged\n")
    state.add(JUDGE, [outcome(2)])
    keep_calibration(Calibration("digest", "org/model", JUDGE, "verdict", 1.0, UninformedScore(JUDGE)))
    path_of(state).with_name("outcomes.jsonl.4711").write_text("what a process left that was killed")
    assert state.forget() == (1, 3)
    assert {path.suffix for path in path_of(state).parent.iterdir()} == {".lock"}
    assert learned(state) == learned(state, "js:0.1") == ()
    assert learned(other) == (outcome(1),)
    assert state.forget() == (0, 0)


def test_where_nothing_can_be_written_nothing_fails(tmp_path, state):
    (tmp_path / "state").write_text("")
    assert not state.add(JUDGE, [outcome(1)])
    assert state.learned(JUDGE)[0].outcomes == ()
    assert "is not used" in state.learned(JUDGE)[1]
