"""What a server says about asking again is read, however it is written, and never trusted to be readable."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from cases import each
from hypothesis import given
from hypothesis import strategies as st

from hybrid.cloud.statuses import read_retry_after


@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms", "x-should-retry"]), st.text()))
def test_whatever_stands_there_gives_a_delay_that_can_be_waited_for_or_none(headers):
    delay_s = read_retry_after(headers)["retry_after_s"]
    assert delay_s is None or (math.isfinite(delay_s) and delay_s >= 0)


@each(
    ("headers", "delay_s"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after": "tomorrow"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 -0000"}, 0.0),
        ({}, None),
    ],
)
def test_a_delay_is_read_in_every_way_it_is_said(headers, delay_s):
    assert read_retry_after(headers)["retry_after_s"] == delay_s


def test_a_date_is_so_many_seconds_from_now():
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    assert 57 < read_retry_after({"retry-after": date})["retry_after_s"] <= 60


def test_a_server_may_forbid_a_retry():
    """Our own endpoint does so when a budget is spent."""
    assert read_retry_after({"x-should-retry": "False"})["trouble"] is None
    assert read_retry_after({"x-should-retry": "true"})["trouble"] == "busy"
