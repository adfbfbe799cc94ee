"""What is known of a pair, on disk: found by the pair and the judge, one's own before a shipped one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cases import each
from critic_score import score_of

from hybrid.defer import Calibration, CalibrationQuestion, UninformedScore
from hybrid.errors import UsageError
from hybrid.pairs import store
from hybrid.pairs.knowledge import DAMAGED, UNREAD, read_knowledge
from hybrid.pairs.store import PairStore, calibration_for, keep_calibration, outranked

OURS = Calibration("abc", "big", "kl:0.7", "verdict", 2.2, UninformedScore("kl:0.7", chance=0.3))


def take_back(critic=None):
    return PairStore("abc", "big").take_back(critic)


def forget():
    return PairStore("abc", "big").forget()[0]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A home, and a package that ships nothing."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(store, "SHIPPED", tmp_path / "shipped")
    store._shipped.cache_clear()
    yield tmp_path
    store._shipped.cache_clear()


def ship(folder, *found):
    (folder / "shipped").mkdir()
    store._shipped.cache_clear()
    for number, calibration in enumerate(found):
        (folder / "shipped" / f"{number}.json").write_text(json.dumps(calibration.to_json()))


def test_what_was_kept_is_found_by_its_pair_and_judge_and_nothing_else(folder):
    for cloud in ("big", "small"):
        for judge in ("kl:0.7", "kl:0.2"):
            keep_calibration(replace(OURS, cloud=cloud, judge=judge, score=UninformedScore(judge)))
    path = keep_calibration(OURS)
    assert calibration_for("abc", "big", "kl:0.7") == OURS
    assert path.stat().st_mode & 0o777 == 0o600
    assert calibration_for("abc", "big", "kl:0.2").judge == "kl:0.2"
    assert calibration_for("abc", "small", "kl:0.2").cloud == "small"
    assert calibration_for("abc", "big", "kl:0.5") is None
    assert calibration_for("other", "big") is None
    assert calibration_for("abc", "other") is None


ASKED = CalibrationQuestion(20, 40, 50, 0.97, turned_down=True, excess_told=1.0, excess=1.2, first_rejection=12)


def test_a_small_calibration_of_ones_own_comes_first_and_that_is_told(folder):
    """Its first labels used to take the place of a thousand questions without a word."""
    many, few = replace(OURS, questions=(ASKED,) * 9), replace(OURS, questions=(ASKED,) * 3)
    ship(folder, many, replace(many, judge="kl:0.2"))
    shipped, other = (calibration_for("abc", "big", judge) for judge in ("kl:0.7", "kl:0.2"))
    assert outranked(shipped) is outranked(other) is outranked(other, "kl:0.2") is None
    assert read_knowledge("abc", "big", None).standing == ()
    keep_calibration(few)
    own = calibration_for("abc", "big")
    assert outranked(own) is outranked(own, "kl:0.7") is shipped
    assert outranked(own, "kl:0.1") is None, "nothing was shipped for that judge"
    [note] = read_knowledge("abc", "big", None).standing
    assert "of 3 questions, is taken in the place of the package's, of 9" in note
    assert read_knowledge("abc", "big", None, shipped_only=True).standing == ()
    keep_calibration(replace(OURS, questions=(ASKED,) * 9))
    assert read_knowledge("abc", "big", None).standing == ()


def test_without_a_judge_ones_own_newest_is_taken_and_before_a_shipped_one(folder):
    ship(folder, replace(OURS, judge="kl:0.9"), replace(OURS, judge="kl:0.7", worth=9.0))
    assert calibration_for("abc", "big").judge == "kl:0.9"
    assert calibration_for("abc", "big", "kl:0.7").worth == 9.0
    for judge in ("kl:0.3", "kl:0.1", "kl:0.7"):
        keep_calibration(replace(OURS, judge=judge))
    assert calibration_for("abc", "big").judge == "kl:0.7"
    assert calibration_for("abc", "big", "kl:0.7").worth == OURS.worth
    assert calibration_for("abc", "big", "kl:0.7", shipped_only=True).worth == 9.0
    assert calibration_for("abc", "big", shipped_only=True).judge == "kl:0.9"
    assert calibration_for("abc", "big", "kl:0.1", shipped_only=True) is None
    assert calibration_for("abc", "big", "kl:0.9").judge == "kl:0.9", "of another judge a shipped one is all there is"
    keep_calibration(replace(OURS, judge="concept:0.5"))
    assert calibration_for("abc", "big").judge == "kl:0.7", "a verdict over concepts is given where it is asked for"
    assert calibration_for("abc", "big", "concept:0.5").judge == "concept:0.5"


def test_a_file_that_cannot_be_read_is_none_and_what_is_forgotten_is_gone(folder):
    path = keep_calibration(OURS)
    path.write_text("[1]")
    assert calibration_for("abc", "big") is None
    ship(folder, OURS)
    assert calibration_for("abc", "big") == OURS
    keep_calibration(replace(OURS, judge="kl:0.1"))
    other = keep_calibration(replace(OURS, cloud="small"))
    assert forget() == 1
    assert not path.exists()
    assert other.exists()
    assert forget() == 0


def test_where_nothing_can_be_kept_that_is_one_sentence(folder, monkeypatch):
    (folder / "state").write_text("in the way")
    with pytest.raises(UsageError, match=r"cannot be written"):
        keep_calibration(OURS)
    assert calibration_for("abc", "big") is None


def test_what_was_fitted_with_a_critic_is_found_for_that_critic_alone(folder):
    """A score that reads one model's numbers says nothing where another's, or nobody's, are told."""
    without, with_it = OURS, replace(OURS, score=score_of("c1"))
    keep_calibration(without)
    keep_calibration(with_it)
    keep_calibration(without)
    assert calibration_for("abc", "big", critic="c1").critic == "c1"
    assert calibration_for("abc", "big", critic="c2") == calibration_for("abc", "big") == without
    assert read_knowledge("abc", "big", None, critic="c1").standing == ()
    assert read_knowledge("abc", "big", None, critic="c2").standing == (UNREAD,)
    assert read_knowledge("abc", "big", None, critic="c2").base.critic is None
    assert forget() == 2


def test_what_reads_numbers_over_concepts_is_told_until_the_pair_is_calibrated_anew(folder):
    """An earlier version kept such; its numbers say nothing here, and the others of the pair are used."""
    path = keep_calibration(OURS)
    kept = json.loads(path.read_text())
    kept |= {"version": 3, "score": kept["score"] | {"concepts": "p1"}}
    path.write_text(both := path.read_text() + json.dumps(kept) + "\n")
    assert calibration_for("abc", "big") == OURS
    assert DAMAGED.format(path=path) in read_knowledge("abc", "big", None).standing
    keep_calibration(newer := replace(OURS, worth=4.0))
    assert read_knowledge("abc", "big", None).standing == ()
    assert calibration_for("abc", "big") == newer
    assert [each.read_text() for each in path.parent.glob("*.aside")] == [both]
    assert take_back()
    assert calibration_for("abc", "big") == OURS


def test_a_shipped_score_with_a_critic_comes_before_ones_own_without(folder):
    """Whoever names a critic wants it read; of two with it, one's own comes first."""
    ship(folder, replace(OURS, score=score_of("c1"), worth=1.0))
    keep_calibration(OURS)
    assert calibration_for("abc", "big", critic="c1").worth == 1.0
    keep_calibration(replace(OURS, score=score_of("c1"), worth=3.0))
    assert calibration_for("abc", "big", critic="c1").worth == 3.0
    assert outranked(calibration_for("abc", "big", critic="c1")) is None


def test_what_is_learned_with_a_critic_is_kept_apart(folder):
    """Outcomes are corrected from what one score told; another score told something else."""
    for critic in (None, "c1", "c2"):
        keep_calibration(replace(OURS, score=score_of(critic)))
    judged = {read_knowledge("abc", "big", None, critic=critic).judged for critic in (None, "c1", "c2")}
    assert len(judged) == 3


@each("num", range(5))
def test_taking_back_walks_from_the_newest_to_the_packages_and_round_again_and_loses_nothing(folder, num):
    """What a user has bought is worth money: whatever is put aside is on the disk, and comes again."""
    shipped = replace(OURS, questions=(ASKED,) * 9)
    if not (folder / "shipped").exists():
        ship(folder, shipped)
    forget()
    own = [replace(OURS, worth=1.0 + number) for number in range(num)]
    for mine in own:
        keep_calibration(mine)
        keep_calibration(mine)
    for _ in range(2):
        for expected in (*reversed(own), shipped):
            assert calibration_for("abc", "big") == expected
            texts = [
                line
                for path in (folder / "state").rglob("calibrations.jsonl")
                for line in path.read_text().splitlines()
            ]
            assert {json.loads(text).get("worth", 1.0) for text in texts} >= {mine.worth for mine in own}
            assert take_back() is bool(num)
    keep_calibration(replace(OURS, worth=50.0))
    assert calibration_for("abc", "big").worth == 50.0
    assert take_back()
    assert calibration_for("abc", "big") == (own[-1] if own else shipped)
    assert not PairStore("abc", "small").take_back()
    assert forget() == bool(num)
    assert not list((folder / "state").rglob("calibrations.jsonl"))


def test_many_calibrations_are_folded_and_the_file_of_all_stays_beside(folder, monkeypatch):
    monkeypatch.setattr(store, "MOST_CALIBRATIONS", 6)
    kept = [replace(OURS, worth=float(number), judge=f"kl:{number % 2}") for number in range(1, 8)]
    paths = {keep_calibration(each) for each in kept}
    (path,) = paths
    assert len(path.read_bytes().splitlines()) == 5
    assert len(path.with_name(f"{path.name}.1.aside").read_bytes().splitlines()) == 6
    assert [calibration_for("abc", "big", judge) for judge in ("kl:1", "kl:0", None)] == [kept[6], kept[5], kept[6]]
    assert take_back()
    assert calibration_for("abc", "big", "kl:1") == kept[4]
    assert calibration_for("abc", "big", "kl:0") == kept[5]


def bought_before(folder, *found):
    """Files of before there were folders: the last is in force, those before it were replaced."""
    (scores := folder / "state" / "hybrid-llm" / "scores").mkdir(parents=True)
    digest = PairStore("abc", "big")._digest
    *earlier, newest = found
    for number, calibration in enumerate(earlier, start=1):
        path = scores / f"{digest}-0.calibration.json.earlier-{number}"
        path.write_text(json.dumps(calibration.to_json()))
    (scores / f"{digest}-0.calibration.json").write_text(json.dumps(newest.to_json()))


@pytest.mark.parametrize("in_folder", [0, 5])
def test_what_was_bought_before_is_moved_whole_before_anything_is_folded(folder, monkeypatch, in_folder):
    former = [replace(OURS, worth=float(number)) for number in range(1, 9)]
    newer = [replace(OURS, worth=float(number)) for number in range(11, 11 + in_folder)]
    for each_one in newer:
        keep_calibration(each_one)
    monkeypatch.setattr(store, "MOST_CALIBRATIONS", 6)
    bought_before(folder, *former)
    kept = [replace(OURS, worth=float(number)) for number in (21, 22)]
    paths = {keep_calibration(each_one) for each_one in kept}
    (path,) = paths
    files = [*path.parent.glob("calibrations.jsonl*"), *(folder / "state" / "hybrid-llm" / "scores").glob("*")]
    held = [line for file in files for line in file.read_text().splitlines()]
    assert {json.loads(line)["worth"] for line in held} == {each_one.worth for each_one in (*former, *newer, *kept)}
    assert calibration_for("abc", "big") == kept[1]
    assert take_back()
    assert calibration_for("abc", "big") == kept[0]


def test_calibrations_are_folded_before_their_file_is_too_long_to_be_read(folder, monkeypatch):
    monkeypatch.setattr("hybrid.store.json_store.MOST_BYTES", 3000)
    monkeypatch.setattr("hybrid.store.files.MOST_BYTES", 3000)
    kept = [replace(OURS, worth=float(number)) for number in range(1, 30)]
    for each_one in kept:
        path = keep_calibration(each_one)
        assert path.stat().st_size < 3000
        assert calibration_for("abc", "big") == each_one
    assert list(path.parent.glob("*.aside"))


def test_what_is_taken_back_is_the_pairs_own_with_the_same_critic(folder):
    keep_calibration(replace(OURS, score=score_of("c1")))
    keep_calibration(OURS)
    assert take_back()
    assert calibration_for("abc", "big") is None
    assert calibration_for("abc", "big", critic="c1").critic == "c1"
    keep_calibration(replace(OURS, score=score_of("c1"), worth=9.0))
    assert take_back("c1")
    assert take_back()
    assert calibration_for("abc", "big") == OURS
    assert calibration_for("abc", "big", critic="c1").worth == OURS.worth
    assert take_back("c1")
    assert take_back("c1")
    assert calibration_for("abc", "big", critic="c1").worth == 9.0


def test_what_stands_is_in_force_until_the_next_is_whole(folder, monkeypatch):
    """A full disk between both used to leave neither, and no way back."""
    keep_calibration(OURS)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("hybrid.store.json_store.open", full, raising=False)
        with pytest.raises(UsageError, match="No space left"):
            keep_calibration(replace(OURS, worth=5.0))
    assert calibration_for("abc", "big") == OURS
    keep_calibration(replace(OURS, worth=5.0))
    assert take_back()
    assert calibration_for("abc", "big") == OURS
