"""``kl:adaptive`` through the client: answers of kl, counts that are kept for the pair, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from cases import each, each_of

from hybrid.errors import Unreachable, UsageError
from hybrid.pairs.profile import PairObserver, PairRecord
from hybrid.policy.adaptive import ADAPTIVE, ARMS, PRESET_ARM, ArmCounts, lost_share, reward
from hybrid.run.composition import Decoding
from hybrid.settings.config import Settings
from hybrid.settings.sources import choosing

PROMPT, OTHER = "a b c", "threshold 0.1, span 128, handoff 96"
PROVEN = {str(PRESET_ARM): ArmCounts(500, 500, -250.0, 130.0), OTHER: ArmCounts(500, 500, -50.0, 7.0)}


@pytest.fixture
def record(tmp_path):
    return PairRecord(tmp_path / "state" / "counts.json", "digest", "http://there")


def observed(h, record):
    """Have a client keep what it learns in a record; None: in memory alone."""
    h.client._memory.pair = PairObserver(record)
    return h


async def answered(h, seeds, **choices):
    choices = {"policy": ADAPTIVE, "max_tokens": 12} | choices
    answers = [await h.client.generate(PROMPT, raw=True, seed=seed, **choices) for seed in seeds]
    await h.client._memory.pair.aclose()
    return answers


def arm_of(answer):
    [note] = [note for note in answer.notes if note.startswith(ADAPTIVE)]
    return next(arm for arm in ARMS if f"chose {arm}:" in note)


# ---- the law by replay ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_answer_is_an_answer_of_kl_with_its_arms_settings(house, run, temperature):
    """Whatever arms follow one another: token for token, with its requests, its bill and its guarantee."""
    answers = run(answered(house(), range(14), temperature=temperature))
    arms = [arm_of(answer) for answer in answers]
    assert len(set(arms)) > 2, "several arms were tried"
    for seed, (arm, answer) in each_of(enumerate(zip(arms, answers, strict=True))):
        [again] = run(answered(house(), [seed], policy="kl", temperature=temperature, **arm._asdict()))
        same = {"timing": answer.timing, "notes": answer.notes}
        assert replace(again, **same) == answer, arm
        assert f"judge=kl:{arm.threshold:g} hold={arm.hold}" in answer.policy


def test_a_cap_binds_every_arm(house, run):
    h = house(cap=300_000)
    answers = run(answered(h, range(12)))
    assert 0 < h.client.spent.nanousd <= 300_000
    assert answers[-1].degraded_kind == "budget"


def test_the_trace_and_the_answer_name_the_arm_and_why(house, run):
    async def events():
        return [
            e async for e in house().client.stream(PROMPT, raw=True, policy=ADAPTIVE, max_tokens=6, trace_rows=True)
        ]

    told = run(events())
    note = f"{ADAPTIVE} chose {PRESET_ARM}: none is known to be better than the preset's own"
    assert note in [getattr(event, "why", None) for event in told]
    assert told[-1].answer.notes[0] == note
    [begun] = [event for event in told if hasattr(event, "pieces")]
    assert [begun.choices[name] for name in ("policy", "threshold", "span", "hold")] == ["kl", "0.5", "32", "4"]


# ---- what is learned -----------------------------------------------------------------------------------------------


def test_an_answer_teaches_its_bill_and_the_nats_of_its_local_tokens(house, run, record):
    [answer] = run(answered(observed(house(), record), [0]))
    local = [token.kl.lower for token in answer.tokens if token.source == "local"]
    assert local
    assert lost_share(local) > 0.0
    earned = reward(answer.bill.nanousd / answer.bill.cloud_only_nanousd, lost_share(local))
    assert record.read_arms("scripted") == {str(PRESET_ARM): ArmCounts(1, 1, earned, earned**2)}


def test_the_same_seed_and_the_same_state_give_the_same_answer_and_another_client_goes_on(house, run, record):
    first = run(answered(observed(house(), record), range(12)))
    kept = record.read_arms("scripted")
    assert sum(counts.tried for counts in kept.values()) == 12
    twice = [run(answered(observed(house(), record), [7], learn=False))[0] for _ in range(2)]
    assert twice[0].tokens == twice[1].tokens
    assert record.read_arms("scripted") == kept
    fresh = run(answered(observed(house(), None), range(12)))
    assert [arm_of(answer) for answer in fresh] == [arm_of(answer) for answer in first]
    record._arms.change(lambda entries: dict.fromkeys(entries, PROVEN))
    [taken] = run(answered(observed(house(), record), [7], learn=False))
    assert str(arm_of(taken)) == OTHER, "what was proven in one process is taken in another"


def test_without_leave_nothing_is_tried_and_nothing_written(house, run, record):
    answers = run(answered(observed(house(), record), range(10), learn=False))
    assert {arm_of(answer) for answer in answers} == {PRESET_ARM}
    assert not record._arms.read_entries()


@each("price", [None, "0/0/0"])
def test_where_nothing_is_charged_nothing_is_learned_and_the_answer_says_so(house, run, record, price):
    answers = run(answered(observed(house(price=price), record), range(10)))
    assert {arm_of(answer) for answer in answers} == {PRESET_ARM}
    assert "nothing is learned where no price is known" in answers[0].notes[0]
    assert not record._arms.read_entries()


def test_an_outage_teaches_nothing_of_an_arm_and_money_that_ran_out_teaches_the_worst(house, run, record):
    [failed] = run(answered(observed(house(fault=lambda _: Unreachable("503")), record), [0]))
    assert failed.degraded_kind == "unreachable"
    assert record.read_arms("scripted") == {str(PRESET_ARM): ArmCounts(1)}
    [poor] = run(answered(observed(house(cap=1), record), [0]))
    assert poor.degraded_kind == "budget"
    assert record.read_arms("scripted") == {str(PRESET_ARM): ArmCounts(2, 1, -1.0, 1.0)}


# ---- the state -----------------------------------------------------------------------------------------------------


def test_what_many_processes_add_at_once_adds_up_beside_what_else_is_counted(record):
    with ThreadPoolExecutor(8) as threads:
        alone = [PairRecord(record.path, record.local, record.endpoint) for _ in range(24)]
        list(threads.map(lambda one: one.add_arm("m", OTHER, ArmCounts(1, 1, -0.5, 0.25)), alone))
    assert record.read_arms("m") == {OTHER: ArmCounts(24, 24, -12.0, 6.0)}
    assert record.read("m") == {} == record.read_arms("other")


ADDS = """
import sys
from pathlib import Path
from hybrid.pairs.profile import PairRecord
from hybrid.policy.adaptive import ArmCounts
record = PairRecord(Path(sys.argv[1]), "digest", "http://there")
for _ in range(int(sys.argv[2])):
    assert record.add_arm("m", sys.argv[3], ArmCounts(1, 1, -0.5, 0.25))
    print("added", flush=True)
"""


@pytest.mark.slow
def test_of_two_processes_nothing_is_lost_beside_a_third_that_is_killed(record):
    """What was added stands, whole, whenever another one dies."""

    def adding(num):
        command = [sys.executable, "-c", ADDS, str(record.path), str(num), OTHER]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    with adding(10_000) as killed, adding(8) as one, adding(8) as other:
        killed.stdout.readline()
        killed.kill()
        told = 1 + killed.stdout.read().count("added\n")
        assert [each.wait() for each in (one, other)] == [0, 0]
    [counts] = record.read_arms("m").values()
    assert counts.tried == counts.num == -2.0 * counts.total
    assert 16 + told <= counts.tried <= 16 + told + 1, "one may have been added and not told"
    assert record._arms.damage is None


@each("text", ["", "nonsense", '{"version": 1}', '{"version": 2, "adaptive": {}}'])
def test_a_file_that_cannot_be_read_holds_nothing_is_told_and_put_aside(record, text):
    record.path.parent.mkdir(exist_ok=True)
    record.path.write_text(text)
    aside = len(list(record.path.parent.glob("*.aside")))
    assert record.read_arms("m") == {}
    assert record._arms.damage
    assert record.add_arm("m", OTHER, ArmCounts(1, 1, -0.5, 0.25))
    assert record.read_arms("m") == {OTHER: ArmCounts(1, 1, -0.5, 0.25)}
    assert record.path.with_name(f"counts.json.{aside + 1}.aside").read_text() == text


def test_a_digit_that_turned_into_another_is_seen(record):
    record.add_arm("m", OTHER, ArmCounts(3, 3, -1.5, 0.75))
    record.path.write_text(record.path.read_text().replace("-1.5", "-0.5"))
    assert record.read_arms("m") == {}


@each(
    "counts",
    [
        [2, 3, -1.0, 0.5],
        [3, 2, 1.0, 0.5],
        [3, 2, -3.0, 0.5],
        [3, 2, -1.0, 1.5],
        [3, 2, -1.0],
        [3, 2, float("nan"), 0.1],
    ],
    ids=repr,
)
def test_what_no_rewards_add_up_to_is_nothing(record, counts):
    record._arms.change(lambda _: {"digest http://there m": {OTHER: counts}})
    assert record.read_arms("m") == {}


def test_a_process_that_is_killed_loses_the_answer_that_it_was_writing_and_no_other(house, run, record):
    async def left():
        h = observed(house(), record)
        await answered(h, [0])
        stream = h.client.stream(PROMPT, raw=True, policy=ADAPTIVE, max_tokens=12)
        await anext(stream)
        await stream.aclose()
        await h.client._memory.pair.aclose()

    run(left())
    assert [counts.tried for counts in record.read_arms("scripted").values()] == [1]


def test_a_file_that_cannot_be_written_is_no_failure(house, run, tmp_path):
    (tmp_path / "file").write_text("")
    unwritable = PairRecord(tmp_path / "file" / "counts.json", "digest", "http://there")
    assert run(answered(observed(house(), unwritable), [0, 1]))[1].degraded is None


def test_no_text_is_kept(house, run, record):
    run(answered(observed(house(), record), range(3)))
    kept = json.loads(record.path.read_text())["entries"]
    [arms] = [entry for key, entry in kept.items() if key == "adaptive digest http://there scripted"]
    assert all(name in map(str, ARMS) and len(counts) == 4 for name, counts in arms.items())
    assert record.path.stat().st_mode & 0o777 == 0o600


# ---- what is refused -----------------------------------------------------------------------------------------------


@each(
    "choices",
    [
        {"threshold": 0.0},
        {"span": 4},
        {"span": "auto"},
        {"hold": "rest"},
        {"judge": "js:0.1"},
        {"gate": "entropy:0.5"},
        {"strict": True},
        {"lead": 0},
        {"drafters": ("small",)},
    ],
    ids=repr,
)
def test_what_it_chooses_itself_is_refused_beside_it(choices):
    [name] = choices
    with pytest.raises(UsageError, match="a second local model" if name == "drafters" else name) as error:
        Decoding.of(Settings(policy=ADAPTIVE, **choices))
    assert f"beside {ADAPTIVE}: it chooses threshold, span and handoff itself" in str(error.value)


def test_branches_are_drawn_in_its_place_and_teach_nothing(house, run, record):
    """A file may name it as the usual policy, and a command draws branches for once."""
    client = observed(house(), record)
    [answer] = run(answered(client, [0], branches=2, temperature=0.7, choose="majority"))
    assert not any(ADAPTIVE in note for note in answer.notes)
    assert not record._arms.read_entries()
    settings = choosing(Settings(policy=ADAPTIVE, temperature=0.7), {"branches": 3})
    assert Decoding.of(settings).policy == Decoding.of(Settings(branches=3, temperature=0.7)).policy


def test_a_threshold_and_adaptive_are_one_choice_of_which_the_nearer_level_counts():
    below = Settings(policy=ADAPTIVE)
    assert (choosing(below, {"threshold": 0.3}).policy, choosing(below, {"threshold": 0.3}).threshold) == ("kl", 0.3)
    assert choosing(Settings(policy="kl", threshold=0.3), {"policy": ADAPTIVE}).threshold is None
