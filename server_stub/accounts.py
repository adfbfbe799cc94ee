"""What every request was charged: the truth that tests hold the client's bill against, whatever its answer said.

The law: an account is opened only for a request that is computed, and says what has been computed so far, times what
the server takes for it (1, unless a fault overcharges). A client that repeats its id owes the sum. Tested in
``tests/server_stub/test_faults.py`` and ``test_process.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict

from server_stub.completion import Charge
from server_stub.wire import Json

# Requests remembered; the oldest are forgotten first.
MAX_REQUESTS = 100_000


class Accounts:
    """Accounts by request id."""

    def __init__(self) -> None:
        """Nobody owes anything yet."""
        self._opened: OrderedDict[str, list[tuple[Charge, int]]] = OrderedDict()

    def open(self, request_id: str, times: int = 1) -> Charge:
        """Return a new account, to be filled as work is done."""
        charge = Charge()
        self._opened.setdefault(request_id, []).append((charge, times))
        while len(self._opened) > MAX_REQUESTS:
            self._opened.popitem(last=False)
        return charge

    def told(self) -> list[Json]:
        """Return what each id owes, and what was computed for it where that is not the same."""
        return [{"id": request_id} | self._entry(entries) for request_id, entries in self._opened.items()]

    @staticmethod
    def _entry(entries: list[tuple[Charge, int]]) -> Json:
        computed = sum((charge for charge, _ in entries), Charge())
        charged = sum((charge * times for charge, times in entries), Charge())
        return asdict(charged) | ({} if charged == computed else {"computed": asdict(computed)})
