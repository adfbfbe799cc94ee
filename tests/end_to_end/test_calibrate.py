"""``hybrid calibrate`` over the bundled server, as a user meets it: killed again and again, interrupted, and used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

NUM = 14
COMMAND = [sys.executable, "-P", "-m", "hybrid"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_again_and_again_it_buys_nothing_twice_and_what_it_fits_is_used(bundled, tmp_path):
    env = os.environ | {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("STATE", "CACHE", "CONFIG")}
    command = [*COMMAND, "calibrate", "--n", str(NUM), "--price", "1/0.1/4", "--use"]

    def start(*words):
        return subprocess.Popen([*command, *words], cwd=tmp_path, env=env, text=True, stdout=-1, stderr=-1)

    def bought():
        return next(iter(tmp_path.glob("STATE/**/labels/*.jsonl")), None)

    kept, first = b"", ""
    for how, more in ((signal.SIGKILL, 3), (signal.SIGKILL, 2), (signal.SIGINT, 4)):
        process, until = start(), kept.count(b"\n") + more
        deadline = time.monotonic() + 240
        while process.poll() is None and not ((path := bought()) and path.read_bytes().count(b"\n") >= until):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(how)
        _, told = process.communicate()
        first = first or told
        if how == signal.SIGINT:
            assert (process.returncode, "goes on from there" in told) == (130, True)
        now = bought().read_bytes()
        assert now.startswith(kept), "what was bought is neither lost nor bought again"
        kept = now[: now.rfind(b"\n") + 1]
    assert f": {NUM} questions, {2 * NUM} requests, at most 0.0" in first.splitlines()[0], (
        "told before anything is bought"
    )
    process = start("--json", "--report", "pair.html")
    out, told = process.communicate()
    assert process.returncode == 0, told
    whole = bought().read_bytes()
    assert whole.startswith(kept)
    texts = [json.loads(line) for line in whole.splitlines()[1:]]
    assert len({(each["question"], each["writer"]) for each in texts}) == len(texts) == 2 * NUM
    found = json.loads(out)["pairs"][0]
    assert len(found["curve"]) > 5
    assert "<svg" in (tmp_path / "pair.html").read_text()
    again = subprocess.run([*command, "--json"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert json.loads(again.stdout)["pairs"][0] == found
    assert bought().read_bytes() == whole

    # What was fitted is what auto decides by, until it is forgotten.
    words = [*COMMAND, "ask", "--policy", "auto", "--no-learn", "--json", "What is 47 + 86?"]
    asked = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert found["judge"] in json.loads(asked.stdout)["policy"]
    words = [*COMMAND, "calibrate", "--back"]
    for force in ("the package's own calibration", "your calibration"):
        taken = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
        assert f"in force now: {force} of " in taken.stdout
    words = [*COMMAND, "calibrate", "--forget"]
    forgotten = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert f"{2 * NUM} bought texts" in forgotten.stdout
    assert bought() is None
    assert not list(tmp_path.glob("STATE/**/calibrations.jsonl"))
