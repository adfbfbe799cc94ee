"""Lines answered several at once: how many, in which order they begin, and what is kept when it ends early."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time

import pytest

from hybrid.batch.parallel import ParallelLines
from hybrid.batch.questions import InputLine
from hybrid.cli.command import run_until_interrupted


class Fake:
    """An answerer that takes a moment for each line, and notes what happens."""

    def __init__(self, parallel=3):
        self.running, self.most, self.begun, self.kept, self.settled = set(), 0, [], [], []
        self.handled_by, self.fault = set(), {}
        self.moment = lambda number: 0.0
        self.lines = ParallelLines(parallel, self.answer, self.keep)

    async def answer(self, line):
        self.begun.append(line.number)
        self.running.add(line.number)
        self.most = max(self.most, len(self.running))
        try:
            await asyncio.sleep(self.moment(line.number))
            if error := self.fault.get(line.number):
                raise error
            return f"answer {line.number}"
        finally:
            await asyncio.sleep(0)  # settling takes a moment, too
            self.handled_by.add(signal.getsignal(signal.SIGINT))
            self.running.discard(line.number)
            self.settled.append(line.number)

    def keep(self, line, found):
        self.kept.append((line.number, found))

    def run(self, num_lines):
        run_until_interrupted(lambda: self.lines.run(iter(questions(num_lines))))


def questions(num_lines):
    return [InputLine(i, b"q") for i in range(1, num_lines + 1)]


@pytest.mark.parametrize("parallel", [1, 2, 5])
def test_every_line_is_kept_once_and_never_more_than_there_are_places_are_answered_at_once(parallel):
    rng, fake = random.Random(parallel), Fake(parallel)
    # The first take long enough for all places to be taken, however busy the machine is.
    fake.moment = lambda number: 0.2 if number <= parallel else rng.random() * 0.002
    fake.run(40)
    assert sorted(fake.kept) == [(i, f"answer {i}") for i in range(1, 41)]
    assert fake.begun == list(range(1, 41))
    assert fake.most == parallel


def test_what_ends_the_batch_is_raised_when_all_is_settled_and_what_was_finished_is_kept():
    fake = Fake(4)
    fake.moment = lambda number: 60 if number == 3 else 0.001 * number
    fake.fault = {4: OSError("full")}
    with pytest.raises(OSError, match="full"):
        fake.run(40)
    assert fake.running == set()
    assert 3 in fake.settled
    assert {1, 2} <= {each for each, _ in fake.kept}
    assert not {3, 4} & {each for each, _ in fake.kept}


def test_lines_that_are_finished_in_the_moment_in_which_another_fails_are_kept():
    fake, all_begun = Fake(4), asyncio.Event()

    async def at_once(line):
        if line.number == 4:
            all_begun.set()
        await all_begun.wait()
        if line.number in {2, 3}:
            raise ValueError("no line's fault" if line.number == 2 else "another")

    fake.lines = ParallelLines(4, at_once, fake.keep)
    with pytest.raises(ValueError, match="no line's fault"):
        fake.run(4)
    assert sorted(each for each, _ in fake.kept) == [1, 4]


def test_a_result_that_cannot_be_kept_ends_the_batch():
    fake = Fake(2)
    fake.lines = ParallelLines(2, fake.answer, lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        fake.run(10)
    assert fake.running == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_lines_that_are_being_answered_and_is_told(monkeypatch, number):
    """Those that are finished are kept; whoever handled the signal before handles it again."""
    before = signal.signal(number, lambda *_: None)
    try:
        mine, fake = signal.getsignal(number), Fake(3)
        fake.moment = lambda number: 0 if number < 8 else 60
        threading.Timer(0.2, os.kill, (os.getpid(), number)).start()
        with pytest.raises(KeyboardInterrupt) as caught:
            fake.run(100)
        assert caught.value.args == (number,)
        assert sorted(each for each, _ in fake.kept) == list(range(1, 8))
        assert fake.running == set()
        assert sorted(fake.settled) == list(range(1, 11))
        assert signal.getsignal(number) is mine
        assert (signal.SIG_DFL in fake.handled_by) is (number == signal.SIGINT), "a second one ends it at once"
    finally:
        signal.signal(number, before)


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        fake = Fake()
        fake.moment = lambda number: os.kill(os.getpid(), signal.SIGHUP) or 0
        fake.run(3)
        assert len(fake.kept) == 3
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_input_that_says_nothing_holds_up_neither_what_is_finished_nor_the_end():
    """A pipe whose writer waits: what is answered meanwhile is kept, and Ctrl-C is obeyed."""
    fake, silent = Fake(4), threading.Event()

    def slow():
        yield from questions(2)
        silent.wait(60)

    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_until_interrupted(lambda: fake.lines.run(slow()))
    assert sorted(each for each, _ in fake.kept) == [1, 2]
    assert time.monotonic() - began < 30, "the 60 seconds are not waited for"
    silent.set()


def test_what_goes_wrong_while_the_input_is_read_is_raised():
    def failing():
        yield from questions(1)
        raise OSError("unplugged")

    fake = Fake()
    with pytest.raises(OSError, match="unplugged"):
        run_until_interrupted(lambda: fake.lines.run(failing()))
    assert fake.running == set()
