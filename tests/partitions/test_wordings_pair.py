"""The wordings pair, of whose words it is known which say the same: what ships, and what the builder finds of it."""

from __future__ import annotations

from contextlib import closing
from itertools import combinations
from pathlib import Path

import pytest
from cases import each

from hybrid import partitions
from hybrid.engine.llama import Weights
from hybrid.engine.token_table import read_token_table
from hybrid.partitions.building import build_groups
from hybrid.partitions.partition_file import PartitionFile, groups_with_text, load_partition
from hybrid.prob import Partition
from hybrid.settings.names import MODELS
from hybrid.tasks import wordings


def pairs_of(partition, words):
    """The pairs of different words of which any two tokens are one concept, however many tokens spell a word."""
    labels = partition.labels
    return {
        frozenset((words[a], words[b]))
        for a, b in combinations(words, 2)
        if words[a] != words[b] and labels[a] == labels[b]
    }


@pytest.fixture(scope="module")
def known():
    """The vocabulary, the tokens that are words of the world, and the groups that are true of it."""
    with closing(Weights(MODELS / "wordings-small.gguf")) as weights:
        found = {text: weights.tokenize(text) for text in (*(f" {e}" for e in wordings.WORDS), *wordings.FIRST_WORDS)}
        words = {ids[0]: text.strip() for text, ids in found.items() if len(ids) == 1}
        groups: dict[str, list[int]] = {}
        for token, word in words.items():
            groups.setdefault(wordings.CONCEPT_OF.get(word, word), []).append(token)
        pieces = [weights.piece(token) for token in range(weights.num_tokens)]
        true = sorted(tuple(sorted(group)) for group in groups.values() if len(group) > 1)
        yield weights.vocabulary_digest, pieces, words, true


def test_every_word_of_the_world_is_a_token_and_words_of_one_concept_are_held_for_one(known):
    _, pieces, words, groups = known
    assert {*words.values()} == {*wordings.WORDS, *wordings.FIRST_WORDS}
    labels, ids = Partition.of_groups(len(pieces), groups).labels, {word: token for token, word in words.items()}
    assert labels[ids["bigger"]] == labels[ids["larger"]] != labels[ids["smaller"]]
    assert labels[ids["anna"]] != labels[ids["ben"]]
    first, later = pieces.index(b"hence"), pieces.index(b" so")
    assert labels[first] == labels[later]
    told = {frozenset(pair) for said in wordings.CONCEPTS.values() for pair in combinations(said, 2)}
    assert pairs_of(Partition.of_groups(len(pieces), groups), words) == told


def test_what_is_true_of_the_world_ships_as_the_partition_of_its_vocabulary(known):
    """So that ``--policy concepts`` works with the pair as it comes. A new vocabulary wants this text in a new file."""
    digest, pieces, _, groups = known
    built = {"from": "the concepts of hybrid.tasks.wordings"}
    expected = PartitionFile(digest, len(pieces), groups_with_text(groups, pieces), built).dumps()
    shipped = Path(partitions.__file__).parent / "data" / f"{digest}.json"
    assert shipped.read_text(encoding="utf-8") == expected
    found = load_partition(shipped, digest, len(pieces))
    assert found.labels.tolist() == Partition.of_groups(len(pieces), groups).labels.tolist()


@each("model, num_found", [("wordings-small", 113), ("wordings-large", 90)])
def test_the_builder_finds_most_pairs_of_words_that_say_the_same_and_no_wrong_one(known, model, num_found):
    """Recall and precision of a rule for merging, where they are known: precision 1, recall 0.83 and 0.66."""
    _, pieces, words, groups = known
    table = read_token_table(MODELS / f"{model}.gguf")
    found = build_groups(table.pieces, table.special_ids, table.rows)
    pairs, true = (pairs_of(Partition.of_groups(len(pieces), joined), words) for joined in (found, groups))
    assert len(true) == 136
    assert pairs - true == set()
    assert len(pairs) == num_found
