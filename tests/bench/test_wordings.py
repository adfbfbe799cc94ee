"""What is counted of the wordings pair: which pairs of words a partition knows, and which threshold is chosen."""

import asyncio
from pathlib import Path

import pytest
from cases import each

from hybrid import partitions
from hybrid.engine.llama import Weights
from hybrid.lab.experiments import wordings as room
from hybrid.lab.experiments.wordings import BestArm, MergedPairCounts, best_arms, count_pairs
from hybrid.lab.experiments.world import open_world
from hybrid.partitions.partition_file import PartitionFile, groups_with_text, load_partition
from hybrid.prob import Partition
from hybrid.settings.names import MODELS
from hybrid.tasks import split_of, wordings
from hybrid.types import Sampling


def tried(right, bill, handoffs=0, wording=0, kept=0, num=10):
    """An arm that has so many of ten problems right, each at the same bill; a cache halves it but for the cloud's."""
    bills = {"U": bill, "C": bill / 2 if bill < 100 else bill}
    own = {"bills": bills, "handoffs": handoffs, "wording": wording, "kept": kept}
    return [{"right": number < right} | own for number in range(num)]


@pytest.fixture(scope="module")
def engine():
    weights = Weights(MODELS / "wordings-small.gguf")
    context = weights.context(threads=1)
    yield context
    context.close()
    weights.close()


# ---- partitions ----------------------------------------------------------------------------------------------------


def test_every_word_of_the_world_is_a_token_and_words_of_one_concept_are_held_for_one(engine):
    words, true = room.words_of(engine), room.world_partition(engine)
    assert {*words.values()} == {*wordings.WORDS, *wordings.FIRST_WORDS}
    ids = {word: token for token, word in words.items()}
    assert true.labels[ids["bigger"]] == true.labels[ids["larger"]] != true.labels[ids["smaller"]]
    assert true.labels[ids["anna"]] != true.labels[ids["ben"]]
    (first,), (later,) = engine.tokenize("hence"), engine.tokenize(" so")
    assert first != ids["so"]
    assert true.labels[first] == true.labels[later]
    found = count_pairs(true, true, words)
    sizes = [len(each) for each in wordings.CONCEPTS.values()]
    assert found == MergedPairCounts(*[sum(size * (size - 1) // 2 for size in sizes)] * 3)


def test_pairs_are_counted_once_however_many_tokens_spell_a_word():
    """Tokens 0 and 1 are one word in two forms: that they are together counts for nothing."""
    words = {0: "so", 1: "so", 2: "thus", 3: "ben", 4: "anna"}
    true = Partition.of_groups(6, [{0, 1, 2}])
    assert count_pairs(Partition.of_groups(6, [{0, 1}, {3, 4}]), true, words) == MergedPairCounts(1, 1, 0)
    assert count_pairs(Partition.of_groups(6, [{1, 2, 3}]), true, words) == MergedPairCounts(3, 1, 1)
    assert count_pairs(Partition.of_groups(6, []), true, words).to_json()["precision"] is None


def test_what_is_true_of_the_world_ships_as_the_partition_of_its_vocabulary(engine):
    """So that ``--policy concepts`` works with the pair as it comes. A new vocabulary wants this text in a new file."""
    pieces = [engine.piece(token) for token in range(engine.num_tokens)]
    groups = groups_with_text(room.world_groups(engine), pieces)
    digest, built = engine.weights.vocabulary_digest, {"from": "the concepts of hybrid.tasks.wordings"}
    expected = PartitionFile(digest, engine.num_tokens, groups, built).dumps()
    shipped = Path(partitions.__file__).parent / "data" / f"{digest}.json"
    assert shipped.read_text(encoding="utf-8") == expected
    found = load_partition(shipped, digest, engine.num_tokens)
    assert found.labels.tolist() == room.world_partition(engine).labels.tolist()


# ---- choices -------------------------------------------------------------------------------------------------------


def test_of_the_arms_within_a_bill_the_one_that_is_right_most_often_is_chosen_and_of_equals_the_cheapest():
    found = {
        "cloud": tried(10, 100),
        "kl:0.1": tried(9, 95),
        "kl:0.5": tried(9, 90),
        "kl:2": tried(7, 40),
        "kl:4": tried(6, 30),
        "concepts:2": tried(10, 20),
    }
    assert best_arms(found, "kl", "U", (0.2, 0.35, 0.5, 1.0)) == [
        BestArm("U", 0.35, "kl:4"),
        BestArm("U", 0.5, "kl:2"),
        BestArm("U", 1.0, "kl:0.5"),
    ]
    assert best_arms(found, "kl", "C", (0.2, 0.5)) == [BestArm("C", 0.2, "kl:2"), BestArm("C", 0.5, "kl:0.5")]


def test_a_report_compares_the_rules_within_the_same_bill_by_the_test_split():
    calibration = {"local": tried(5, 0), "cloud": tried(10, 100), "kl:1": tried(8, 80), "concepts:1": tried(9, 50)}
    test = {
        "local": tried(5, 0),
        "cloud": tried(10, 100),
        "kl:1": tried(6, 90, handoffs=2, wording=1),
        "concepts:1": tried(8, 55, handoffs=1, kept=3),
    }
    chosen = {rule: best_arms(calibration, rule, "C", (1.0,)) for rule in room.RULES}
    found = room.wordings_report(calibration, test, chosen)
    assert found["test"]["kl:1"]["right"]["value"] == pytest.approx(0.6)
    assert found["test"]["kl:1"]["bill"]["U"]["value"] == pytest.approx(0.9)
    assert found["test"]["kl:1"]["over_a_coin"]["U"]["value"] == pytest.approx(0.2 - 0.9)
    assert found["test"]["kl:1"]["wording"]["value"] == pytest.approx(0.5)
    assert found["test"]["local"]["wording"] is None
    assert (found["test"]["concepts:1"]["handoffs"], found["test"]["concepts:1"]["kept"]) == (10, 30)
    (gain,) = found["concepts_over_kl"]
    assert (gain["tariff"], gain["budget"], gain["arm"], gain["other"]) == ("C", 1.0, "concepts:1", "kl:1")
    assert gain["low"] < gain["value"] < gain["high"]
    assert gain["value"] == pytest.approx(0.2)


@each("split", ["calibration", "test"])
def test_families_take_turns_and_keep_to_the_split(split):
    problems = room.problems_with_wordings(split, 3)
    assert [problem.family for problem in problems] == [family.name for family in wordings.FAMILIES] * 3
    assert {split_of(problem) for problem in problems} == {split}


# ---- the pair itself -----------------------------------------------------------------------------------------------


async def compared(problems):
    async with open_world(MODELS / "wordings-small.gguf", MODELS / "wordings-large.gguf") as world:
        partitions = room.world_partition(world.local), Partition.of_groups(world.local.num_tokens, [])
        return [await room.compare_tokens(world, problems, each) for each in partitions]


def test_along_the_large_models_answers_most_of_the_divergence_is_wording():
    """KL over concepts is never above that over tokens, and is it where each token is alone."""
    problems = [each for each in room.problems_with_wordings("test", 2) if not each.mistake]
    true, alone = asyncio.run(compared(problems))
    assert (true.concepts <= true.tokens + 1e-9).all()
    assert alone.concepts == pytest.approx(alone.tokens)
    assert true.concepts.mean() < 0.2 * true.tokens.mean()
    found = true.to_json()
    assert found["tokens"] == true.tokens.size > 50
    assert found["beyond"]["value"] == pytest.approx((true.tokens > 0.5).mean())
    assert alone.to_json()["of_these_wording"]["value"] == 0.0


async def two_answers(threshold):
    """The arms on one problem of a family's hardest level, at which the small model overlooks something."""
    async with open_world(MODELS / "wordings-small.gguf", MODELS / "wordings-large.gguf") as world:
        true = world.partition = room.world_partition(world.local)
        problem = next(
            each for each in room.problems_with_wordings("test", 30) if each.family == "compare" and each.mistake
        )
        arms = [arm for rule in room.RULES for arm in room.arms_of(rule, [threshold])]
        found = await room.try_arms(world, arms, [problem], true, lambda _: None)
        alone = await world.answer(problem.question, arms[1], Sampling(0.0), wordings.MAX_TOKENS)
        return {name: each[0] for name, each in found.items()}, alone.answer


def test_the_small_model_is_wrong_alone_and_right_with_a_hand_over_that_is_no_wording():
    found, answer = asyncio.run(two_answers(0.5))
    assert not found["local"]["right"]
    assert found["cloud"]["right"]
    assert found["kl:0.5"]["right"]
    assert found["concepts:0.5"]["right"]
    assert found["kl:0.5"]["wording"] > 0
    assert found["concepts:0.5"]["kept"] > 0
    assert found["concepts:0.5"]["handoffs"] > found["concepts:0.5"]["wording"]
    assert found["concepts:0.5"]["bills"]["C"] < found["kl:0.5"]["bills"]["C"]
    assert answer.tokens[0].source == "local", "its first word is another than the cloud's, and stands"
