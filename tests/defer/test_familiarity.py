"""Strange words: replacing a known word by an unknown one never makes a question more familiar."""

import json
import math

import numpy as np
import pytest
from cases import each_of

from hybrid.defer import BUCKETS, NOTHING_FAMILIAR, NoveltyScore
from hybrid.defer.words import STRANGE, USUAL_NOVELTY, USUAL_SHARE


def draw_questions(seed, num, first=0, width=300):
    rng = np.random.default_rng(seed)
    return [tuple(sorted(set((first + rng.zipf(1.5, 8) % width).tolist()))) for _ in range(num)]


def naive_novelty(questions, words):
    parts = [1 / (1 + sum(word in each for each in questions)) for word in words]
    return math.sqrt(sum(part**2 for part in parts) / len(parts))


def test_strangeness_is_how_far_beyond_the_usual_the_root_mean_square_of_one_over_the_questions_seen_is():
    questions = draw_questions(1, 60)
    familiarity = NoveltyScore.of(questions)
    others = [naive_novelty(questions[:i] + questions[i + 1 :], words) for i, words in enumerate(questions)]
    assert familiarity.usual == pytest.approx(np.quantile(others, USUAL_SHARE))
    for words in each_of(draw_questions(2, 30, width=900)):
        over = naive_novelty(questions, words) / familiarity.usual
        expected = min(1.0, max(0.0, (over - 1) / (STRANGE - 1)))
        assert familiarity.strangeness(words) == pytest.approx(expected)


def test_a_word_that_was_never_seen_makes_no_question_more_familiar_and_a_question_seen_makes_none_stranger():
    questions = draw_questions(3, 80)
    familiarity = NoveltyScore.of(questions)
    unseen = [bucket for bucket in range(BUCKETS) if not familiarity.counts[bucket]]
    grew = 0
    for words in each_of(draw_questions(4, 40)):
        before = familiarity.strangeness(words)
        for known in each_of(words):
            changed = familiarity.strangeness((*[word for word in words if word != known], unseen[known]))
            assert changed >= before
            grew += changed > before
        for more in (words, questions[0], tuple(unseen[:5])):
            assert familiarity.and_seen([more]).strangeness(words) <= before
    assert grew
    assert familiarity.strangeness(tuple(unseen[:6])) == 1.0


def test_nine_of_ten_that_were_seen_are_not_strange_and_other_words_are():
    questions = draw_questions(5, 200)
    familiarity = NoveltyScore.of(questions)
    assert np.mean([familiarity.strangeness(words) > 0 for words in questions]) <= 0.1
    assert min(familiarity.strangeness(words) for words in draw_questions(6, 50, first=2000)) == 1.0


def test_of_few_questions_or_none_the_usual_is_a_stated_one():
    assert NOTHING_FAMILIAR.usual == NoveltyScore.of(draw_questions(7, 5)).usual == USUAL_NOVELTY
    assert NOTHING_FAMILIAR.strangeness((3, 4)) == NOTHING_FAMILIAR.strangeness(()) == 1.0


def test_a_question_may_count_as_a_part_of_one():
    familiarity = NoveltyScore.of(draw_questions(9, 50))
    words = draw_questions(10, 1, width=900)[0]
    five, one = familiarity.and_seen([words] * 5, 0.2), familiarity.and_seen([words])
    assert five.counts == pytest.approx(one.counts)
    assert familiarity.strangeness(words) > familiarity.and_seen([words] * 3).strangeness(words)


def test_it_is_read_as_it_was_written():
    familiarity = NoveltyScore.of(draw_questions(8, 50)).and_seen(draw_questions(9, 3), 0.2)
    again = NoveltyScore.from_json(json.loads(json.dumps(familiarity.to_json())))
    assert again.usual == familiarity.usual
    assert np.array_equal(again.counts, familiarity.counts)
