"""How a signal ends the endpoint: gently the first time, at once the second; hanging up twice is once."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from cases import each

from hybrid.serve.app_state import ServeOptions
from hybrid.serve.monitor import Monitor
from hybrid.serve.server import _signals


@pytest.fixture(autouse=True)
def hears_hangups():
    """Tests that nohup started would not."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


class Ending:
    """The part of uvicorn's server that a signal changes."""

    def __init__(self):
        self.should_exit = self.force_exit = False
        self.server_state = self
        self.tasks = set()


def after(numbers, answer=None):
    """Send this process signals while they are listened to; return the server as they left it."""

    async def go():
        server, monitor = Ending(), Monitor(ServeOptions())
        async with _signals(server, monitor):
            if answer is not None:
                server.tasks.add(asyncio.create_task(answer))
                await asyncio.sleep(0)
            for number in numbers:
                os.kill(os.getpid(), number)
                await asyncio.sleep(0.01)
            left = [task for task in server.tasks if not task.done()]
            for task in left:
                task.cancel()
        assert monitor.closed is server.should_exit
        return server.should_exit, server.force_exit, len(left)

    return asyncio.run(go())


@each("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_gives_answers_their_time_and_the_old_handler_comes_back(number):
    before = signal.getsignal(number)
    assert after([number], asyncio.sleep(5)) == (True, False, 1)
    assert signal.getsignal(number) is before


@each("second", [signal.SIGTERM, signal.SIGINT])
@each("first", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_one_ends_them_at_once(first, second):
    assert after([first, second], asyncio.sleep(5)) == (True, True, 0)


def test_a_terminal_that_hangs_up_twice_has_said_it_once():
    """Its kernel does, and its shell."""
    assert after([signal.SIGHUP] * 2, asyncio.sleep(5)) == (True, False, 1)
    assert after([signal.SIGTERM, signal.SIGHUP], asyncio.sleep(5)) == (True, False, 1)


def test_what_nohup_started_hears_no_hangup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert after([signal.SIGHUP], asyncio.sleep(5)) == (False, False, 1)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
