"""The threshold is the one that tells drafts that are the cloud's own from others."""

from __future__ import annotations

from dataclasses import replace

from bought_texts import questions
from cases import each

from hybrid.tune.threshold import CANDIDATES, ENOUGH, UNKNOWN, choose_threshold


def pairs(num_same, num_other, same_kl, other_kl):
    """Questions whose drafts have one KL at every token, some of them word for word the cloud's own."""
    found = []
    for number, question in enumerate(questions(num_same + num_other, length=2)):
        same = number < num_same
        kl = 0.0 * question.draft.kl + (same_kl if same else other_kl)
        written = question.draft if same else question.written
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
