"""What is booked at most, for requests that broke off or were left, is one line on standard error, whoever is left."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from cases import each
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.cli.serve import _said
from hybrid.errors import Unreachable
from hybrid.record.events import NoteAdded
from hybrid.record.state import Spent
from hybrid.settings.config import Settings
from hybrid.spend import CapStatus, Price

LINE = "hybrid: 0.002068 USD is booked for requests that broke off or were left, the most that they can cost"


class Left:
    """A client whose answer ends as it is told to, with so much booked by then."""

    notes = ()

    def __init__(self, ending, nanousd):
        self.settings, self.ending, self.nanousd, self.spent = Settings(), ending, nanousd, Spent()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def stream(self, _):
        try:
            if self.ending is not None:
                raise self.ending
            yield NoteAdded("something")
        finally:  # as an answer that is left is settled
            self.spent = Spent(9_000_000, 1, 1, 0, self.nanousd)


@each(("ending", "code"), [(KeyboardInterrupt(), 130), (Unreachable("it is gone"), 4), (None, 0)])
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_ask_tells_it_however_it_ends(monkeypatch, ending, code, flags):
    for nanousd in (2_068_000, 0):
        monkeypatch.setattr(hybrid, "open", lambda nanousd=nanousd, **_: Left(ending, nanousd), raising=False)
        done = CliRunner().invoke(app, ["ask", "What is 1 + 1?", *flags])
        assert done.exit_code == code
        assert done.stderr.count(LINE) == (nanousd > 0)


@each("cloud", ["http://there", None])
def test_the_ledger_is_named_where_it_has_them(monkeypatch, cloud):
    """The bundled server is in no ledger: ``hybrid budget log`` would say that nothing was spent."""
    left = Left(None, 2_068_000)
    left.settings = Settings(cloud=cloud)
    monkeypatch.setattr(hybrid, "open", lambda **_: left, raising=False)
    done = CliRunner().invoke(app, ["ask", "What is 1 + 1?"])
    assert LINE in done.stderr
    assert ("hybrid budget reconcile ID" in done.stderr) == (cloud is not None)


@each(
    ("caps", "said"),
    [
        ([], "no cap"),
        ([("request", 10**6, 0)], "at most 0.001 USD a question"),
        ([("day", 10**9, 92 * 10**6), ("total", 20 * 10**9, 0), ("request", 10**6, 0)], "0.908 USD left under its cap"),
        ([("day", 10**9, 2 * 10**9)], "0 USD left under its cap"),
    ],
)
def test_what_a_question_may_cost_is_not_what_is_left(caps, said):
    """A cap of each question was called what is left, though three questions of that price went through."""
    statuses = tuple(CapStatus(level, cap, spent, 0) for level, cap, spent in caps)

    async def cap_statuses():
        return statuses

    named = {"relayer": None, "parallel": 1, "num_context": 9, "notes": (), "cap_statuses": cap_statuses}
    first, *_ = asyncio.run(_said(SimpleNamespace(settings=Settings(), **named)))
    assert f", {said}, " in first
    assert ("a question" in first) == any(level == "request" for level, *_ in caps)


SETTINGS = {"price": "1/0.1/4", "relay_url": "http://there", "relay_model": "m"}


@each(
    ("settings", "price", "caps", "told"),
    [
        (SETTINGS, None, True, True),
        (SETTINGS, None, False, False),
        (SETTINGS, Price.parse("1/0.1/4"), True, False),
        ({"cloud": "http://there"}, None, True, False),
    ],
)
def test_a_relay_that_a_cap_refuses_for_want_of_a_price_is_told_at_the_start(settings, price, caps, told):
    """It was refused at its first request, with advice that its caller had followed (``--price``)."""
    found = tuple([CapStatus("client", 10**7, 0, 0)] if caps else [])

    async def cap_statuses():
        return found

    relayer = SimpleNamespace(target=SimpleNamespace(account=SimpleNamespace(price=price)))
    named = {"relayer": relayer, "parallel": 1, "num_context": 9, "notes": (), "cap_statuses": cap_statuses}
    _, relayed, *_ = asyncio.run(_said(SimpleNamespace(settings=Settings(**settings), **named)))
    assert relayed.endswith('price = "P/C/O" under [relay] in hybrid.toml') == told
    assert ("relayed to http://there" in relayed) != told
