"""One endpoint's price against one ledger: what a client pays from."""

from __future__ import annotations

import secrets

from hybrid.spend.answer_budget import AnswerBudget, ChargeTerms
from hybrid.spend.ledger import Ledger, MemoryLedger
from hybrid.spend.max_cost import SpendScope
from hybrid.spend.price import Price


class Account:
    """Gives every answer its purse."""

    def __init__(
        self,
        price: Price | None,
        ledger: Ledger,
        endpoint: str = "the endpoint",
        cap_nanousd: int | None = None,
        client: str | None = None,
    ) -> None:
        """Take a price (None: not known), the ledger, the endpoint's name there, and the most this client may spend.

        ``client`` is its name: with one, what earlier clients of that name spent counts against the cap too.
        """
        self.price = price
        self._ledger = ledger
        self._endpoint = endpoint
        self._cap = cap_nanousd
        self._client = client or secrets.token_hex(8)
        # What is free moves no total, so it is written to no file; a cap of zero still means: do not ask.
        self._unwritten = MemoryLedger()

    def learn(self, price: Price) -> None:
        """Take the price that is only known once the endpoint has said which model it serves."""
        self.price = price

    def purse(self, conversation: str | None = None) -> AnswerBudget:
        """Return the money of one answer; without a name the conversation is this client's own."""
        spender = SpendScope(
            self._endpoint, secrets.token_hex(8), conversation or self._client, self._client, self._cap
        )
        return AnswerBudget(self._terms, spender)

    def _terms(self) -> ChargeTerms:
        unwritten = self._ledger.durable and self.price is not None and self.price.free
        return ChargeTerms(self.price, self._unwritten if unwritten else self._ledger)
