"""Texts with both models' rows, drawn at random, and questions made of them: what a calibration has to work with."""

from __future__ import annotations

import numpy as np

from hybrid.prob import Dense, TopK
from hybrid.run.text_rows import TextRows
from hybrid.tune.labels import LabelledAnswers, LabelledText

VOCABULARY = 12


def text(num, *, known=None, noise=0.0, apart=0.7, ended=False, draft=True, rng=None):
    """A text of random rows: the local model's are the cloud's, disturbed; greedy where it is a draft."""
    rng = rng or np.random.default_rng(5)
    scores = rng.standard_normal((num, VOCABULARY)) * 2
    cloud = [Dense.from_logits(row, noise) for row in scores]
    local = [Dense.from_logits(row + apart * rng.standard_normal(VOCABULARY), noise) for row in scores]
    tokens = tuple(row.best for row in (local if draft else cloud))
    shown = tuple(TopK.from_dense(row, 5, token) for row, token in zip(cloud, tokens, strict=True))
    return TextRows((1, 2, 3), tokens, ended, tuple(local), shown[:known], nanousd=7)


def questions(num, *, hard=0.5, length=20, apart=0.15, hard_apart=1.2, partition=None):
    """Questions of which a share is hard: there the local model is far from the cloud, and their words say so."""
    found, rng = [], np.random.default_rng(5)
    for number in range(num):
        far = number % 10 < 10 * hard
        words = (7, 100 + number % 3) if far else (8, 100 + number % 3)
        draft = text(length + number % 5, apart=hard_apart if far else apart, ended=True, rng=rng)
        written = text(length + number % 4, draft=False, ended=True, rng=rng)
        found.append(LabelledAnswers(*(LabelledText.of_rows(words, each, partition) for each in (draft, written))))
    return found
