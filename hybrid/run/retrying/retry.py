"""Whether a request that failed is asked again, after which wait, and the quota of a client's retries. Decisions only.

The law: a retry leaves only for trouble that may pass, at most so often for its kind, within its policy's time, and
only while the quota holds; each takes from the quota, and a success gives back (``tests/run/retrying/test_retry.py``).
What may be asked again at all is the caller's to know: nothing, once a token was handed on.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from hybrid.errors import CloudError, Trouble

# How often a question is asked again, whatever the user allows. A body that is no JSON was, most often, cut off by
# something on the way, so it gets a second chance; a server that writes such bodies gets no third, since each was
# charged. Rows that cannot be believed, and silence after the first byte, get none: the work was done, and would be
# done, and charged, again.
MOST_RETRIES: Mapping[Trouble, int] = {"connect": 9, "silent": 9, "cut": 9, "busy": 9, "malformed": 1, "learned": 9}
# The window of the first wait and the longest one, as openai-python has them; within a window it is full jitter.
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 8.0
# A server may ask for more. But a user with a model at hand is served better by it than by waiting.
LONGEST_RETRY_AFTER_S = 8.0

# AWS's standard mode (botocore/retries/quota.py, standard.py): a hundred retries that fail, then only what successes
# give back. So an outage does not double the load on whoever tries to end it.
CAPACITY, COST, COST_OF_WAITING, WITHOUT_RETRY = 500, 5, 10, 1

_random = secrets.SystemRandom()


@dataclass(frozen=True)
class RetryPolicy:
    """How often a question may be asked again, and until how many seconds after it was first asked."""

    retries: int = 2
    within_s: float = 20.0

    def allows(self, error: BaseException, num_failed: int) -> bool:
        """Whether what has failed so many times is worth asking again."""
        if not isinstance(error, CloudError) or error.trouble is None:
            return False
        asked_to_wait = error.retry_after_s or 0.0
        return num_failed <= min(self.retries, MOST_RETRIES[error.trouble]) and asked_to_wait <= LONGEST_RETRY_AFTER_S

    def in_time(self, since_s: float, wait_s: float) -> bool:
        """Whether a retry would still leave in time."""
        return since_s + wait_s < self.within_s


class RetryQuota:
    """What is left for retries. The endpoint's, not the question's."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        """Start full."""
        self._capacity = self._remaining = capacity

    def __repr__(self) -> str:
        """Show how full it is."""
        return f"RetryQuota({self._remaining} of {self._capacity})"

    @property
    def remaining(self) -> int:
        """What retries may still take."""
        return self._remaining

    def take(self, cost: int) -> bool:
        """Pay for a retry; return whether there was enough."""
        if cost > self._remaining:
            return False
        self._remaining -= cost
        return True

    def give_back(self, cost: int) -> None:
        """Return what the retry that succeeded has cost, or a little where none was needed."""
        self._remaining = min(self._capacity, self._remaining + (cost or WITHOUT_RETRY))


def retry_cost(error: BaseException) -> int:
    """Return what a retry after this error takes from the quota: waiting in vain costs the most."""
    return COST_OF_WAITING if isinstance(error, CloudError) and error.trouble == "silent" else COST


def wait_s(error: CloudError, num_failed: int) -> float:
    """Draw how long to wait: full jitter, on top of what the server asked for.

    Callers that were turned away together must not come back together.
    """
    window_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (num_failed - 1))
    return (error.retry_after_s or 0.0) + _random.uniform(0.0, window_s)
