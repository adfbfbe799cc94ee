"""A whole client over scripted models, under every choice."""

from __future__ import annotations

import pytest
from scripted_house import house, run

__all__ = ["house", "run"]


@pytest.fixture(autouse=True)
def one_table_of_choices_for_every_policy(monkeypatch):
    """Choices that change nothing are ignored here, so that one table drives every policy through the driver.

    That a client refuses them is held in ``tests/test_effect.py``, with nothing patched.
    """
    monkeypatch.setattr("hybrid.run.client.check_effect", lambda *_: None)
    monkeypatch.setattr("hybrid.run.replay.check_effect", lambda *_: None)
