"""How far a batch is: what earlier runs did counts as done and spent, and not as fast."""

from __future__ import annotations

from hybrid.cli.batch_work import RECENT_LINES, BatchProgress
from hybrid.record.state import Spent


def test_lines_money_rate_and_time_left_in_one_line():
    progress = BatchProgress(began_s=10.0, total=200, cap="0.50")
    for i in range(20):
        progress.finish(10.0 + i)
    assert progress.text(Spent(12_300_000), 30.0) == "20 of 200 lines, 0.0123 of 0.50 USD, 1 lines/s, 3:00 left"


def test_before_the_first_line_there_is_no_rate_and_at_the_end_no_time_is_left():
    progress = BatchProgress(began_s=0.0, total=1)
    assert progress.text(Spent(), 5.0) == "0 of 1 lines, 0 USD"
    progress.finish(10.0)
    assert progress.text(Spent(), 10.0) == "1 of 1 lines, 0 USD, 0.1 lines/s"


def test_after_a_resumption_earlier_lines_and_money_count_and_the_rate_is_this_runs():
    progress = BatchProgress(began_s=0.0, total=1000, cap="1", spent_before_nanousd=400_000_000, done=900)
    progress.begin(100.0)
    progress.finish(102.0)
    assert progress.text(Spent(100_000_000), 102.0) == "901 of 1000 lines, 0.5 of 1 USD, 0.5 lines/s, 3:18 left"


def test_what_is_reserved_is_told_apart_from_what_is_spent_whoever_reserved_it():
    progress = BatchProgress(began_s=0.0, cap="1", spent_before_nanousd=400_000_000, reserved_before_nanousd=20_000_000)
    assert progress.text(Spent(7_000_000, reserved_nanousd=5_000_000), 1.0) == (
        "0 lines, 0.402 spent and 0.025 reserved of 1 USD"
    )
    progress.cap, progress.reserved_before_nanousd = None, 0
    assert progress.text(Spent(7_000_000, reserved_nanousd=5_000_000), 1.0).endswith(
        "0.402 spent and 0.005 reserved USD"
    )


def test_the_rate_is_that_of_late():
    """A batch that was slow for an hour and is fast now tells the time by now."""
    progress = BatchProgress(began_s=0.0)
    for i in range(10):
        progress.finish(360.0 * i)
    for i in range(RECENT_LINES):
        progress.finish(3600.0 + i / 2)
    assert progress.rate(3632.0) == RECENT_LINES / (3632.0 - 3240.0)
    progress.finish(3632.0)
    assert progress.rate(3632.0) == 2.0


def test_a_rate_falls_while_nothing_is_finished():
    progress = BatchProgress(began_s=0.0)
    progress.finish(1.0)
    assert progress.rate(1.0) == 1.0
    assert progress.rate(10.0) == 0.1


def test_of_a_pipe_nobody_knows_how_much_is_left_and_an_unknown_price_is_not_zero():
    progress = BatchProgress(began_s=0.0, total=None)
    progress.finish(0.05)
    assert progress.text(Spent(None), 0.05) == "1 lines, cost unknown, 20 lines/s"
    progress.spent_before_nanousd = None
    assert "cost unknown" in progress.text(Spent(5), 0.05)
