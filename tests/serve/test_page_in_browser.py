"""The page in a real browser: Debian's Chromium, driven by Playwright from an environment of its own.

``apt-get install chromium`` and ``python tests/end_to_end/server_environments.py browser`` make both; without them
these tests skip. The browser's process looks (``browser_looks.py``), this one judges.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import threading
from contextlib import aclosing, contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from cases import each_of
from pydantic import SecretStr
from server_environments import Unavailable, python_of
from starlette.applications import Starlette

import hybrid
from hybrid.record.answer import Token
from hybrid.record.events import (
    CheckAnswered,
    Degraded,
    Finished,
    NoteAdded,
    RequestSent,
    RequestSettled,
    TokenEmitted,
    to_json,
)
from hybrid.serve import monitor
from hybrid.serve.app_state import AppState, ServeOptions
from hybrid.serve.metrics import HealthReader, HealthSnapshot
from hybrid.serve.monitor import recorded_html
from hybrid.types import CloudUsage

pytestmark = [pytest.mark.slow, pytest.mark.clients, pytest.mark.timeout(300)]

CHROMIUM = Path("/usr/bin/chromium")
QUESTION = "What is 47 + 86 * 3 + 12 * 7?"
HOSTILE = '<img src=x onerror="window.attacked=true"></script><script>window.attacked=true</script>'
KINDS = {("cloud", None): "cloud", ("local", "accepted"): "checked"}


@pytest.fixture(scope="module")
def python():
    if not CHROMIUM.exists():
        pytest.skip("Chromium is missing: apt-get install chromium")
    try:
        return python_of("browser")
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def looking(python):
    """Look at a URL from a browser; return what it saw, by the kind of look."""

    def look(url, *looks):
        command = [python, Path(__file__).with_name("browser_looks.py"), url, *(looks or ("wide", "dark", "phone"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return look


@pytest.fixture(scope="module")
def answered():
    """One real answer by the bundled pair in which the cloud had the pen, tokens were checked, and some were not."""

    async def answer():
        async with hybrid.open(price="1/0.1/4", learn=False, seed=1) as client:
            events = []
            for policy in ("exact", "doubt"):
                choices = {"temperature": 1.0} if policy == "exact" else {}
                async with aclosing(client.stream(QUESTION, policy=policy, trace_rows=True, **choices)) as stream:
                    events.append([event async for event in stream])
            return events

    return asyncio.run(answer())


class Loading:
    opened = None


@contextmanager
def served(options):
    """Serve the page on a port of its own, in a thread; yield its address, its watch, and how to call on its loop."""
    app, watch = Starlette(routes=monitor.ROUTES), monitor.Monitor(options)
    app.state.app_state = AppState(Loading(), options, watch)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    loop, thread = asyncio.new_event_loop(), None
    try:
        thread = threading.Thread(target=lambda: loop.run_until_complete(server.serve()))
        thread.start()
        while not server.started:
            threading.Event().wait(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", watch, lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop)
    finally:
        loop.call_soon_threadsafe(watch.close)
        server.should_exit = True
        if thread:
            thread.join()
        loop.close()


async def play(watch, events, prompt=QUESTION, *, once_looked_at=True):
    """Tell an answer as it would come, from when a page looks."""
    while once_looked_at and not watch.pages:  # noqa: ASYNC110  (a page that opens tells nobody)
        await asyncio.sleep(0.02)
    watched = watch.begin("chatcmpl-1", "hybrid:kl", prompt)
    for event in events:
        watched.observe(event)
        if isinstance(event, TokenEmitted):
            await asyncio.sleep(0.02)
    watched.end()


def tokens_of(events):
    return [event.token for event in events if isinstance(event, TokenEmitted)]


def kind_of(token):
    return KINDS.get((token.source, None)) or KINDS.get((token.source, token.how)) or "local"


def told_nats(detail):
    found = re.search(r"KL ([^ ]+) to ([^ ]+) nats", detail)
    return None if found is None else [float(end) if end != "unbounded" else None for end in found.groups()]


def check(seen, events, origin):
    """Hold all that is the same in every look."""
    tokens = tokens_of(events)
    answer = next(event.answer for event in events if isinstance(event, Finished))
    assert "".join(each["text"] for each in seen["tokens"]) == answer.text
    assert [each["kind"] for each in seen["tokens"]] == [kind_of(token) for token in tokens]
    for token, detail in zip(tokens, seen["details"], strict=True):
        expected = None if token.kl is None else [token.kl.lower, token.kl.upper]
        assert told_nats(detail) == (expected and pytest.approx(expected, rel=0.06, abs=1e-12))
        assert ("KL not known" in detail) == (token.kl is None)
    assert seen["errors"] == []
    assert all(url.startswith((origin, "data:")) for url in seen["asked"])
    assert seen["width"] <= seen["inner"]
    looks = {(each["kind"], each["color"], each["line"], each["style"], each["weight"]) for each in seen["tokens"]}
    kinds = {look[0] for look in looks}
    assert len(looks) == len(kinds)
    assert len({look[2:] for look in looks}) == len(kinds)  # told apart without colour


def contrast(one, other):
    """The contrast of two colours by WCAG 2.2."""

    def luminance(color):
        parts = [int(each) / 255 for each in re.findall(r"\d+", color)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_tokens_come_in_order_and_colours_and_divergences_are_those_of_the_trace(looking, answered):
    with served(ServeOptions(shows_texts=True)) as (url, watch, call):
        playing = call(play(watch, answered[0]))
        looks = looking(url)
        playing.result(10)
    for seen in each_of(looks.values()):
        check(seen, answered[0], url)
        assert QUESTION in seen["text"]
        assert "local model" in seen["hovered"]
        for color in {each["color"] for each in seen["tokens"]} | {seen["ink"], seen["faint"]}:
            assert contrast(color, seen["paper"]) >= 4.5
    grew = looks["wide"]["grew"]
    assert grew == sorted(grew)
    assert len(set(grew)) > 3, "tokens are shown as they come"
    assert contrast("rgb(0,0,0)", looks["dark"]["paper"]) < 1.5 < contrast("rgb(0,0,0)", looks["wide"]["paper"])
    assert looks["dark"]["moves"] == "0s"
    assert {each["kind"] for each in looks["wide"]["tokens"]} == {"cloud", "checked"}


def test_what_nobody_checked_is_drawn_as_unknown_and_a_recorded_page_is_the_same_page(looking, answered, tmp_path):
    path, page = tmp_path / "trace.jsonl", tmp_path / "page.html"
    lines = [{"trace": 5}, *map(to_json, answered[1])]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page.write_text(recorded_html(path))
    for seen in each_of(looking(page.as_uri()).values()):
        check(seen, answered[1], page.as_uri())
        assert seen["gaps"] >= 1
        assert "not known" in seen["text"]
        assert seen["asked"] == [page.as_uri()]


def test_without_monitor_the_page_draws_who_wrote_and_no_text(looking, answered):
    with served(ServeOptions()) as (url, watch, call):
        call(play(watch, answered[0], prompt=None, once_looked_at=False)).result(60)
        looks = looking(url)
    tokens = tokens_of(answered[0])
    for seen in each_of(looks.values()):
        assert [each["text"] for each in seen["tokens"]] == [""] * len(tokens)
        assert [each["kind"] for each in seen["tokens"]] == [kind_of(token) for token in tokens]
        assert all(each["box"] > 8 for each in seen["tokens"])
        assert QUESTION not in seen["markup"]
        assert "hidden here: hybrid serve --monitor shows them" in seen["text"]
        assert seen["errors"] == []
        assert seen["width"] <= seen["inner"]


def test_a_hostile_text_is_shown_and_does_nothing(looking):
    events = [TokenEmitted(0, Token(1, HOSTILE, "cloud", "written", why=HOSTILE)), NoteAdded(HOSTILE)]
    events.append(Degraded(HOSTILE, "unreachable"))
    with served(ServeOptions(shows_texts=True)) as (url, watch, call):
        call(play(watch, events, prompt=HOSTILE, once_looked_at=False)).result(60)
        looks = looking(url)
    for seen in each_of(looks.values()):
        assert not seen["attacked"]
        assert seen["images"] == 0
        assert seen["text"].count("onerror") >= 4
        assert seen["errors"] == []


class Open(HealthReader):
    """How an open client stands, without one."""

    async def read(self, backend):
        return HealthSnapshot(loading=False, contexts=1, busy=0, queued=0, breaker="closed", breaker_left_s=0.0)


def test_a_failed_request_has_its_reason_below_its_row_and_a_day_has_24_hours(looking):
    """Half of all hours are after noon, and in the browser's own way of telling them 13:05:09 was 1:05:09 PM."""
    why = '<img src=x onerror="window.attacked=true"> answered 503'
    events = [RequestSent(name, "check", 0, 4, 500) for name in "ab"]
    events.append(RequestSettled("a", "check", None, None, 2.0, why, "unreachable"))
    events += [RequestSettled("b", "check", CloudUsage(3, 1), 7, 3.0), CheckAnswered("b", 4)]
    events.append(TokenEmitted(0, Token(1, "four", "local", "accepted")))
    with served(ServeOptions(shows_texts=True)) as (url, watch, call):
        watch.health = Open()
        call(play(watch, events, once_looked_at=False)).result(60)
        seen = looking(url, "wide")["wide"]
    assert seen["requests"] == ["check", f"failed: {why}", "check"]
    assert "2 requests, 1 failed" in seen["text"]
    assert re.search(r"answered last \(question of \d\d:\d\d:\d\d\)", seen["text"])
    assert not seen["attacked"]
    assert seen["errors"] == []


def test_with_a_key_the_one_time_address_opens_the_page_and_its_events_once(looking, answered):
    """Two browsers come by the same address; the first is let in."""
    with served(ServeOptions(key=SecretStr("sk-1"), shows_texts=True)) as (url, watch, call):
        call(play(watch, answered[0], once_looked_at=False)).result(60)
        address = f"{url}{watch.one_time_path()}"
        seen = looking(address, "wide")["wide"]
        check(seen, answered[0], url)
        assert seen["address"] == f"{url}/"
        for path in (address, f"{url}/", f"{url}/monitor/events"):
            assert httpx.get(path).status_code == 401
