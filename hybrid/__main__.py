"""The command's entry: nothing is imported before an interruption has somewhere to go."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is still loading is no traceback either."""
    try:
        from hybrid.cli import app  # noqa: PLC0415  (see above)

        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
