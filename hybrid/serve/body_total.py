"""How many bytes of request bodies the endpoint holds, over all connections.

The law (``tests/serve/test_body_total.py``): whatever comes, ends and leaves in whatever order, never more than
``MOST_BYTES``, and none once every request has ended. A body counts by what came of it, not by what its header says:
who says much and sends nothing holds nothing. The last ``FOR_SHORT`` bytes are for short bodies alone, so that small
questions are answered while somebody sends long ones. No I/O.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from hybrid.serve.api_error import ApiError
from hybrid.serve.errors import AGAIN_S, SERVER

MOST_BYTES, FOR_SHORT = 64 * 2**20, 8 * 2**20
# A short body: what a server reads of a connection before anybody asks for it (uvicorn's high-water mark).
SHORT = 2**16


class BodyTotal:
    """The bodies of all requests under way. ``num_bytes``: what came of them."""

    def __init__(self) -> None:
        """Hold nothing."""
        self.num_bytes = 0

    def open_share(self) -> BodyShare:
        """Return the share of a request that begins; leaving it gives it back."""
        return BodyShare(self)


class BodyShare:
    """What one request's body has of the total. A context manager, which gives it back."""

    def __init__(self, total: BodyTotal) -> None:
        """Hold nothing yet."""
        self._total = total
        self._num_bytes = 0

    def grow(self, num_bytes: int) -> None:
        """Hold what came. Raises ApiError, and holds nothing more, where it is too much for all bodies together.

        What is refused gives its room back at once: else of many that grow side by side none would come whole.
        """
        most = MOST_BYTES if self._num_bytes + num_bytes <= SHORT else MOST_BYTES - FOR_SHORT
        if self._total.num_bytes + num_bytes > most:
            self._give_back()
            said = "the bodies of other requests take all the room there is: ask again later"
            again = {"retry-after": str(AGAIN_S), "connection": "close"}
            raise ApiError(503, said, SERVER, "overloaded", headers=again)
        self._num_bytes += num_bytes
        self._total.num_bytes += num_bytes

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the share back."""
        self._give_back()

    def _give_back(self) -> None:
        self._total.num_bytes -= self._num_bytes
        self._num_bytes = 0
