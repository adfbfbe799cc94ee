"""What an error status means: whose fault it is, and what its sentence advises."""

from __future__ import annotations

from cases import each

from hybrid.cloud.statuses import status_error
from hybrid.errors import AccessDenied, NotAnApi

KEY_HINT = "HYBRID_API_KEY is not set"
CLOSED = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."


def told(status, detail):
    return status_error(status, f"http://there answered {status}: {detail}", detail, KEY_HINT)


@each("detail", [CLOSED, "--serve-this is off", "start it with `--api`"])
def test_a_route_that_a_flag_of_the_server_opens_is_not_about_a_key(detail):
    """vLLM answers so on its token-in route; the sentence used to end in advice about a key."""
    error = told(403, detail)
    assert type(error) is NotAnApi
    assert str(error) == f"http://there answered 403: {detail}"
    assert not error.sent


@each(
    ("status", "detail"),
    [(403, "not yours"), (403, ""), (403, "your account is disabled -- see /billing"), (401, CLOSED)],
)
def test_whoever_is_turned_away_otherwise_is_told_of_the_key(status, detail):
    error = told(status, detail)
    assert type(error) is AccessDenied
    assert str(error).endswith(f"; {KEY_HINT}")
    assert not error.sent
