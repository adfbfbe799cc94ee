"""An initial threshold, from exploratory tests: which KL best tells drafts that are the cloud's own text from others.

A draft that is word for word what the cloud writes loses nothing, so to turn it down is a false alarm; another draft
says something else, in other words or wrongly. Between the two a threshold is chosen as in Youden (1950): the one with
the largest difference of the two shares. What a task can bear is not known here: the table tells all thresholds, for
whoever knows better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybrid.defer import DraftSignals
from hybrid.tune.bought import BoughtQuestion

CANDIDATES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)
# Fewer drafts of either kind say nothing; then the preset kl's own threshold is proposed.
ENOUGH, UNKNOWN = 10, 0.5


@dataclass(frozen=True)
class ThresholdTrial:
    """A threshold in nats: the share of drafts like the cloud's own text that it turns down, and of the others."""

    nats: float
    false_alarms: float
    caught: float


@dataclass(frozen=True)
class ThresholdChoice:
    """The threshold that is proposed, and what speaks for it: drafts of either kind, and every threshold's trial."""

    nats: float
    same: int
    other: int
    trials: tuple[ThresholdTrial, ...]

    @property
    def known(self) -> bool:
        """Whether there are enough drafts of either kind to choose by."""
        return min(self.same, self.other) >= ENOUGH


def choose_threshold(questions: Sequence[BoughtQuestion]) -> ThresholdChoice:
    """Try every candidate on the drafts that were checked; of equals the largest is taken, which asks for least."""
    checked = [each for each in questions if len(each.draft)]
    same = [each for each in checked if is_clouds_own(each)]
    other = [each for each in checked if not is_clouds_own(each)]
    trials = tuple(ThresholdTrial(nats, _share(same, nats), _share(other, nats)) for nats in CANDIDATES)
    choice = ThresholdChoice(UNKNOWN, len(same), len(other), trials)
    if not choice.known:
        return choice
    best = max(trials, key=lambda trial: (trial.caught - trial.false_alarms, trial.nats))
    return ThresholdChoice(best.nats, len(same), len(other), trials)


def is_clouds_own(question: BoughtQuestion) -> bool:
    """Whether a draft is, token for token, what the cloud itself wrote, and both ended or neither did.

    By which token a text ended does not count: an endpoint seldom tells, and one of other tokens cannot.
    """
    draft, written = question.draft.signals, question.written.signals
    return draft.ended == written.ended and bool(np.array_equal(_said(draft), _said(written)))


def _said(text: DraftSignals) -> NDArray[np.int64]:
    """Return the tokens before the one that ends a text."""
    return text.tokens[:-1] if text.ended else text.tokens


def _share(questions: Sequence[BoughtQuestion], nats: float) -> float:
    turned_down = sum(each.draft.first_rejection(f"kl:{nats!r}") is not None for each in questions)
    return turned_down / max(1, len(questions))
