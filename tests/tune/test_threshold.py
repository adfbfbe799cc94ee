"""The threshold is the one that tells drafts that are the cloud's own from others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from bought_texts import VOCABULARY, questions
from cases import each

from hybrid.tune.calibrating import CANDIDATES, ENOUGH, UNKNOWN, choose_threshold, is_clouds_own


def with_tokens(text, tokens, *, ended=True):
    """A text of other tokens."""
    return replace(text, signals=replace(text.signals.part(slice(len(tokens))), tokens=np.array(tokens), ended=ended))


def pairs(num_same, num_other, same_kl, other_kl):
    """Questions whose drafts have one KL at every token, some of them word for word the cloud's own."""
    found = []
    for number, question in enumerate(questions(num_same + num_other, length=2)):
        same = number < num_same
        kl = 0.0 * question.draft.kl + (same_kl if same else other_kl)
        written = (
            question.draft if same else with_tokens(question.written, question.written.signals.tokens + VOCABULARY)
        )
        found.append(replace(question, draft=replace(question.draft, kl=kl), written=written))
    return found


@each("kls", [(0.05, 0.15), (0.25, 0.6), (0.6, 1.7), (1.2, 9.0)])
def test_it_lies_between_what_the_same_words_and_other_words_have(kls):
    found = choose_threshold(pairs(12, 15, *kls))
    assert (found.same, found.other, found.known) == (12, 15, True)
    assert kls[0] < found.nats < kls[1]
    assert found.nats == max(nats for nats in CANDIDATES if nats < kls[1]), "of equals the one that asks for least"
    best = next(trial for trial in found.trials if trial.nats == found.nats)
    assert (best.false_alarms, best.caught) == (0.0, 1.0)


def test_too_few_of_either_kind_say_nothing():
    for same, other in ((ENOUGH - 1, 20), (20, ENOUGH - 1)):
        found = choose_threshold(pairs(same, other, 0.05, 0.15))
        assert (found.known, found.nats) == (False, UNKNOWN)
    assert choose_threshold([]).nats == UNKNOWN


@each(
    ("draft", "written", "same"),
    [
        (((5, 6, 2), True), ((5, 6, 0), True), True),
        (((5, 6, 2), True), ((5, 7, 2), True), False),
        (((5, 6, 2), True), ((5, 6), False), False),
        (((5, 6), False), ((5, 6), False), True),
        (((5, 6), False), ((5, 7), False), False),
    ],
)
def test_by_which_token_a_text_ended_does_not_count_and_that_it_ended_does(draft, written, same):
    """Of several end tokens an endpoint that tells none stands for the first; one of other tokens always does."""
    (question,) = questions(1, length=3)
    (drafted, ends), (wrote, ended) = draft, written
    draft, written = with_tokens(question.draft, drafted, ended=ends), with_tokens(question.written, wrote, ended=ended)
    assert is_clouds_own(replace(question, draft=draft, written=written)) == same
