"""The endpoint over a scripted client, asked through ASGI: no socket, no model, and a caller that may leave."""

from __future__ import annotations

import pytest
from asgi_caller import Endpoint
from scripted_house import house, run

from hybrid.serve.app_state import ServeOptions

__all__ = ["house", "run"]


@pytest.fixture
def endpoint(house):
    """Build an endpoint; keyword arguments are the house's, ``options`` what the endpoint is started with."""

    def build(*, options=None, **choices):
        return Endpoint(house(**choices), options or ServeOptions())

    return build
