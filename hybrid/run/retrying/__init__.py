"""The way to an endpoint that fails now and then: what is asked again, and when nothing is asked for a while.

Knows no HTTP, no policy and no money: an attempt brings its own.
"""

from hybrid.run.retrying.breaker import Breaker, BreakerConfig
from hybrid.run.retrying.caller import EndpointHealth, RetryingCaller, RetryPolicy, RetryQuota

__all__ = ["Breaker", "BreakerConfig", "EndpointHealth", "RetryPolicy", "RetryQuota", "RetryingCaller"]
