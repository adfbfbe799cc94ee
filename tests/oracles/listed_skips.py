"""What a run of tests skipped, a line a reason; a reason that is not listed in ``tests/skips.toml`` fails the run.

The law (``tests/test_listed_skips.py``): a skip is told with its reason, and only a listed one leaves the run green,
in one process as in several.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

LIST = Path(__file__).parents[1] / "skips.toml"


def listed() -> tuple[str, ...]:
    """Return how the reasons begin for which a test may be skipped."""
    return tuple(each["reason"] for each in tomllib.loads(LIST.read_text(encoding="utf-8"))["skip"])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Say what was skipped, once for all processes of a run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):
        return
    reasons = [str(each.longrepr[2]).removeprefix("Skipped: ") for each in reporter.stats.get("skipped", [])]
    skipped = [reason.partition("\n")[0] for reason in reasons]  # behind it stand the case's arguments
    reporter.write_line("")  # behind the dots
    for reason, number in sorted(Counter(skipped).items()):
        known = "" if reason.startswith(listed()) else " (a reason that tests/skips.toml does not list)"
        reporter.write_line(f"skipped {number}: {reason}{known}")
    if not all(reason.startswith(listed()) for reason in skipped) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
