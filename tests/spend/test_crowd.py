"""Many at once, from several processes, under one cap: nobody passes it, and nobody goes without an answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import crowd
import pytest

from hybrid.spend.durable import FileLedger, LedgerAdmin


@pytest.mark.slow
@pytest.mark.parametrize("surplus", [0, crowd.WORST // 2])
def test_fifty_requests_from_four_processes_against_a_cap_worth_ten_of_them(tmp_path, surplus):
    """Check-then-increment would let dozens through. What is left of a request's price buys a shorter one."""
    path, cap = tmp_path / "ledger.sqlite", 10 * crowd.WORST + surplus
    ledger = FileLedger(path)
    LedgerAdmin(ledger).set_cap("day", cap)
    script = str(Path(crowd.__file__))
    processes = [
        subprocess.Popen([sys.executable, script, str(path), str(num)], stdout=subprocess.PIPE, text=True)
        for num in (13, 13, 12, 12)
    ]
    answers = [answer for process in processes for answer in json.loads(process.communicate(timeout=100)[0])]
    row = next(row for row in LedgerAdmin(ledger).rows() if row.level == "day")
    ledger.close()
    charged = sum(answer["charged"] for answer in answers)
    assert (row.spent_nanousd, row.reserved_nanousd) == (charged, 0)
    assert 10 * crowd.WORST <= charged <= cap
    assert [answer["tokens"] for answer in answers] == [crowd.MAX_TOKENS] * 50
    paid = [answer for answer in answers if answer["charged"]]
    assert len(paid) == (11 if surplus else 10)
    assert all("the day's cap" in answer["degraded"] for answer in answers if not answer["charged"])
