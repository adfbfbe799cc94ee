"""Two servers that learn of one pair and are killed after they have: what each of them learned is there."""

from __future__ import annotations

import json
import time

import pytest
from cases import each_of
from hostile_callers import ask
from serve_process import ServeProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NUM = 4


def outcomes(folder):
    """Return how many outcomes the files of learned state hold; each must be whole."""
    lines = [line for file in folder.rglob("outcomes.jsonl") for line in file.read_text().splitlines()]
    return sum(len(json.loads(line)["outcomes"]) for line in lines)


def question(number):
    return {"model": "hybrid:auto", "messages": [{"role": "user", "content": f"What is {number} * 86?"}]}


def test_what_two_killed_servers_learned_is_kept(tmp_path):
    """An answer is learned from when it is over: within a moment it is on the disk, beside the other's."""
    state, flags = str(tmp_path / "state"), ("--learn", "--price", "1/0.1/4")
    servers = [ServeProcess(tmp_path / name, *flags, XDG_STATE_HOME=state) for name in "ab"]
    with servers[0], servers[1]:
        assert servers[0].port != servers[1].port
        for number in each_of(range(NUM)):
            for own, server in enumerate(servers):
                assert ask(server.port, question(400 + 10 * number + own)).status == 200
        until = time.monotonic() + 60
        while (seen := outcomes(tmp_path)) < 2 * NUM and time.monotonic() < until:
            time.sleep(0.05)
    assert outcomes(tmp_path) >= seen >= 2 * NUM
