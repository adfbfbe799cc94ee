"""Columns of the records of problems that several arms answered."""

from __future__ import annotations

from collections.abc import Sequence

from hybrid.lab.experiments.frame import Answers
from hybrid.lab.experiments.grid import Record


def answers_of(records: Sequence[Record], arm: str) -> Answers:
    """Return the answers of an arm that decides alike under every tariff."""
    return [record["arms"][arm] for record in records]


def cloud_share(answers: Answers) -> float:
    """Return the share of the shown tokens that the cloud wrote."""
    shown = sum(each["tokens"] for each in answers)
    return round(float(sum(each["cloud_tokens"] for each in answers) / max(1, shown)), 4)
