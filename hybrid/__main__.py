"""The command's entry: nothing is imported before an interruption has somewhere to go."""

from __future__ import annotations

import signal
from types import FrameType

from hybrid.ending_signals import ending_signals, exit_of


def main() -> None:
    """Run the command line; an interruption while it is still loading is no traceback either."""
    try:
        _catch_endings()
        from hybrid.cli import app  # noqa: PLC0415  (see above)

        app()
    except KeyboardInterrupt as error:
        raise exit_of(error) from None


def _catch_endings() -> None:
    """Have requests settled and models put away, whatever ends the command."""
    for number in ending_signals():
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores one, and so do we then
            signal.signal(number, _interrupt)


def _interrupt(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # whoever insists is obeyed at once
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    main()
