"""``hybrid ask`` ended by a signal: it settles, its exit code is the signal's, and nothing stays reserved."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from hybrid.spend.durable import FileLedger, LedgerAdmin

QUESTION = "What is 47 + 86?"
COMMAND = [sys.executable, "-P", "-m", "hybrid", "ask"]
LOCAL = ("--local", "small")
slow = partial(pytest.param, marks=pytest.mark.slow)


def has_left(ledger, num):
    """Whether the request of this number, from 1, is under way."""
    return any((entry.id, entry.state) == (num, "sent") for entry in LedgerAdmin(ledger).log(num))


@pytest.mark.parametrize(
    ("how", "flags"),
    [
        ("SIGTERM", ["--json"]),
        *(slow(*case) for case in (("SIGINT", []), ("SIGINT", ["--json"]), ("SIGTERM", []), ("SIGHUP", []))),
    ],
)
def test_ended_in_the_middle_of_an_answer_it_settles_and_leaves_no_traceback(own_stub, tmp_path, how, flags):
    """A request of 250 ms for every token: the trace tells when its middle is reached. 128 + signal, no open entry."""
    far = own_stub("--latency-ms", "250")
    trace, ledger = tmp_path / "trace", FileLedger(tmp_path / "ledger.sqlite")
    paid = [*LOCAL, "--cloud", far.url, "--price", "1/0.1/4", "--ledger", ledger.file.path]
    command = [*COMMAND, QUESTION, *paid, "--policy", "greedy-exact", "--span", "1", "--trace", trace, *flags]
    number, deadline = getattr(signal, how), time.monotonic() + 30
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        # Until a token is out and the next request has left: the first signal ends what is under way.
        while not (trace.exists() and '"event": "token_emitted"' in trace.read_text() and has_left(ledger, 2)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        output, errors = process.communicate(timeout=20)
    # A span of 1 cannot pay at this price, which is said once; so is what a request that was under way may cost.
    beside = [
        line for line in errors.splitlines() if not re.match("hybrid: (checking costs|0[.][0-9]+ USD is booked)", line)
    ]
    assert (process.returncode, beside) == (128 + number, [])
    assert LedgerAdmin(ledger).open_entries() == []
    assert LedgerAdmin(ledger).rows()[-1].spent_nanousd > 0
    ledger.close()
    assert bool(output.strip()) == (not flags), "text that was shown stays; half an object is none"
    assert '"event": "finished"' not in trace.read_text()


# The command, signalled once as it hears that money is reserved: before the request it is for has left.
SIGNALLED = """
import os, signal, sys
from hybrid.__main__ import main
from hybrid.spend.answer_budget import AnswerBudget

number, run = signal.Signals[sys.argv.pop()], AnswerBudget._run

def run_signalled(self, ledger, work, then=None):
    def then_signalled(done):
        AnswerBudget._run = run
        os.kill(os.getpid(), number)
        then(done)
    return run(self, ledger, work, then_signalled)

AnswerBudget._run = run_signalled
main()
"""


@pytest.mark.parametrize("how", ["SIGTERM", slow("SIGHUP"), slow("SIGINT")])
def test_a_signal_while_money_is_reserved_leaves_nothing_reserved(stub, tmp_path, how):
    """What has not left is not charged, and nobody else has to take it back."""
    ledger = FileLedger(tmp_path / "ledger.sqlite")
    paid = [*LOCAL, "--cloud", stub.url, "--price", "1/0.1/4", "--ledger", ledger.file.path, "--policy", "cloud"]
    words = map(str, ["ask", QUESTION, *paid, how])
    done = subprocess.run([sys.executable, "-c", SIGNALLED, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + getattr(signal, how), "", "")
    assert [(entry.state, entry.charged_nanousd) for entry in LedgerAdmin(ledger).log(9)] == [("settled", 0)]
    ledger.close()
