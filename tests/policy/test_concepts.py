"""Other words are no divergence: which tokens stand for that alone, and where nothing may."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases import each, each_of

from hybrid.policy import PolicyOptions, preset
from hybrid.policy.concepts import Concepts, WordingTest, is_formal
from hybrid.policy.judges import DraftedSpan
from hybrid.policy.requests import PendingToken
from hybrid.prob import Dense, Partition, TopK, concept_kl, kl_divergence

SIZE, LENGTH = 6, 12
# The models part over tokens 0 and 1 alone: KL 2.46 nats.
LARGE, SMALL = np.array([0.9, 0.05, 0.05]), np.array([0.05, 0.9, 0.05])
PAIRS = range(12)


def concepts(*groups, size=3, piece=lambda _: b"word "):
    return Concepts(Partition.of_groups(size, groups), piece)


def judge(known, threshold=0.5, **chosen):
    return preset(f"concepts:{threshold}", PolicyOptions(known_concepts=known, **chosen)).judge


def row(noise=0.0):
    return replace(TopK.from_dense(Dense.from_probs(LARGE), 2), noise=noise)


def pending():
    return PendingToken(1, "local", "unchecked", draft_row=Dense.from_probs(SMALL))


def span(*tokens, rows=None, after=None, at=()):
    rows = (row(),) * len(tokens) if rows is None else rows
    return DraftedSpan(tokens, rows, after, bonus=False, coin=None, at=at)


def test_a_token_of_the_clouds_concept_stands_and_says_that_it_is_wording():
    verdict = judge(concepts({0, 1}))(span(pending(), pending()))
    assert [token.id for token in verdict.accepted] == [1, 1]
    assert not verdict.rejected
    assert verdict.num_wording == 2
    token = verdict.accepted[0]
    assert token.kl.lower > 2.0
    assert token.concept_kl.lower == pytest.approx(0.0, abs=1e-9)


def test_what_divides_concepts_too_is_handed_over_and_says_both_numbers():
    verdict = judge(concepts({1, 2}))(span(pending()))
    assert verdict.rejected
    assert verdict.num_wording == 0
    assert verdict.next_token.id == 0
    assert verdict.next_token.concept_kl.lower == pytest.approx(concept_kl_of({1, 2}), abs=1e-9)
    assert verdict.why == "KL 2.46 nats, above 0.5; over concepts 2.38, above 0.5"


def concept_kl_of(group):
    return concept_kl(row(), Dense.from_probs(SMALL), Partition.of_groups(3, [group])).lower


def test_a_token_within_the_threshold_is_not_measured_again():
    """KL over concepts is never above that over tokens, and costs a pass over the vocabulary."""
    near = PendingToken(0, "local", "unchecked", draft_row=Dense.from_probs(LARGE))
    verdict = judge(concepts({0, 1}))(span(near))
    assert verdict.accepted[0].concept_kl is None
    assert verdict.num_wording == 0


@each("text", [b"```python\nx = ", b"Look:\n~~~\n", b"Call `len", b'{"a": ', b" [1, 2"])
def test_in_code_and_json_no_word_stands_for_another(text):
    known = concepts({0, 1}, piece=lambda token: text[token : token + 1])
    at = tuple(range(len(text)))
    assert judge(known)(span(pending(), at=at)).rejected
    written = PendingToken(0, "cloud", "written", draft_row=Dense.from_probs(SMALL), target_row=row())
    written = replace(written, kl=kl_divergence(row(), written.draft_row))
    assert judge(known).agrees(at, written) is False
    assert judge(concepts({0, 1})).agrees(at, written) is True


@each(
    "text, expected",
    [
        (b"", False),
        (b"A word.", False),
        (b"```\nx\n```\nSo", False),
        (b"```\nx\n```\n```\ny", True),
        (b"  ```\nx", True),
        (b"    ```\nx", False),  # an indented block: what begins it is no fence
        (b"~~~\n```\nx", True),
        (b"~~~\n```\nx\n~~~\n", False),
        (b"````\n```\nx", True),  # a shorter fence ends none
        (b"a ``` b", True),
        (b"It is `x` and `y", True),
        (b"It is `x`.\nSo", False),
        (b"An [aside]", False),
    ],
)
def test_code_is_told_by_its_fences_and_marks(text, expected):
    assert is_formal(text) is expected


def test_a_text_that_the_answer_continues_may_have_opened_the_fence():
    assert is_formal(b"x = 1", b"Write code:\n```python\n")
    assert not is_formal(b"x = 1", b'{"a": 1} is JSON. ')


def test_the_row_after_a_span_hands_nothing_over_for_its_wording():
    token = PendingToken(0, "local", "unchecked", draft_row=Dense.from_probs(LARGE))
    drafted = span(token, rows=(row(), row()), after=Dense.from_probs(SMALL))
    assert not judge(concepts({0, 1}))(drafted).rejected
    assert judge(concepts({1, 2}))(drafted).rejected


def test_the_thresholds_are_two_where_two_are_chosen():
    assert concept_kl_of({1, 2}) < 2.4
    assert judge(concepts({1, 2}), concept_threshold=2.4)(span(pending())).num_wording == 1
    assert str(judge(None, 0.5, concept_threshold=2.4)) == "concept:2.4:kl:0.5"
    assert str(judge(None, 0.5, strict=True)) == "concept:0.5:strict"


def test_the_deciding_end_is_moved_outwards_by_the_noise_of_both_rows():
    value = concept_kl_of({1, 2})
    test = WordingTest(value * 0.99, "lower", concepts({1, 2}))
    assert not test.is_wording(test.measure((), row(), Dense.from_probs(SMALL)))
    assert test.is_wording(test.measure((), row(noise=0.05), Dense.from_probs(SMALL)))


def test_strict_wants_the_upper_end_within_the_threshold():
    wide = TopK.from_dense(Dense.from_probs(np.array([0.5, 0.3, 0.1, 0.1])), 1)
    draft = Dense.from_probs(np.array([0.5, 0.05, 0.35, 0.1]))
    for end, expected in (("lower", True), ("upper", False)):
        test = WordingTest(0.2, end, concepts({0, 3}, size=4))
        assert test.is_wording(test.measure((), wide, draft)) is expected


def pairs(toys, share=0.6):
    for i in PAIRS:
        small = toys.Toy(f"small{i}", SIZE)
        yield small, toys.Mix(small, f"large{i}", share)


def played(toys, name, small, large, known=None, **chosen):
    policy = preset(name, PolicyOptions(known_concepts=known, span=3, **chosen))
    return toys.play(policy, small, large, None, LENGTH, k=3, end=-1)


def text(shown):
    return [token.id for token in shown]


def test_where_each_token_is_alone_or_nothing_is_known_it_is_kl(toys):
    for small, large in each_of(pairs(toys)):
        expected, requests = played(toys, "kl:0.3", small, large)
        for known in (None, concepts(size=SIZE)):
            shown, log = played(toys, "concepts:0.3", small, large, known)
            assert text(shown) == text(expected)
            assert list(map(type, log)) == list(map(type, requests))
            assert not any(token.is_wording for token in shown)


def test_with_one_concept_nothing_is_handed_over_and_each_divergence_is_counted(toys):
    everything = concepts(range(SIZE), size=SIZE)
    num_wording = 0
    for small, large in each_of(pairs(toys)):
        shown, _ = played(toys, "concepts:0.3", small, large, everything)
        alone, _ = played(toys, "local", small, large)
        assert text(shown) == text(alone)
        for token in each_of(shown):
            assert token.is_wording == (token.kl.lower > 0.3)
            num_wording += token.is_wording
    assert num_wording > 20


def test_every_hand_over_that_it_makes_kl_makes_after_the_same_text(toys):
    known, num = concepts({0, 1}, {2, 3}, size=SIZE), 0
    for small, large in each_of(pairs(toys)):
        shown, _ = played(toys, "concepts:0.3", small, large, known)
        for token in each_of(shown):
            if token.how == "recovered":
                num += 1
                assert token.kl.lower > 0.3
                assert token.concept_kl.lower > 0.3
            if token.is_wording:
                assert token.kl.lower > 0.3
                assert token.concept_kl.lower <= 0.3
    assert num > 10


def test_the_pen_comes_back_where_the_models_part_in_their_wording_alone(toys):
    """With a handback by tokens the cloud would keep writing where every word has another word."""
    small = toys.Made(lambda at: Dense.from_probs(SMALL if len(at) else np.array([0.05, 0.05, 0.9])))
    large = toys.Made(lambda _: Dense.from_probs(LARGE))
    shown, _ = played(toys, "concepts:0.3", small, large, concepts({0, 1}))
    assert [token.source for token in shown[:5]] == ["cloud"] * 5  # recovered, then a block of four
    assert all(token.source == "local" for token in shown[5:])
    alone, _ = played(toys, "kl:0.3", small, large)
    assert all(token.source == "cloud" for token in alone)


def test_a_policy_says_whether_it_asks_which_tokens_say_the_same():
    assert preset("concepts", PolicyOptions()).wants_concepts
    assert preset("kl", PolicyOptions(judge="concept:0.2")).wants_concepts
    assert preset("concepts", PolicyOptions(judge="kl")).wants_concepts  # the handback does
    assert not preset("concepts", PolicyOptions(judge="kl", hold="rest")).wants_concepts
    assert not preset("kl", PolicyOptions()).wants_concepts
    assert preset("kl", PolicyOptions()).reads_text
    assert not preset("concepts", PolicyOptions()).reads_text  # of another vocabulary's cells no concepts are known
