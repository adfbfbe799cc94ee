"""The monitor's routes, through ASGI without a socket: who is let in, what the page may load, slow pages."""

from __future__ import annotations

import asyncio
import io
import json
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import httpx
import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.routing import Route

from hybrid.record.answer import Token
from hybrid.record.events import CloudRecovered, Degraded, TokenEmitted
from hybrid.serve import monitor
from hybrid.serve.app_state import AppState, ServeOptions
from hybrid.serve.errors import internal_error

KEY = "sk-canary-1234"
HOSTILE = '</script><img src=x onerror="alert(1)">{{ 7 * 7 }}'


class Loading:
    """A backend whose model is still loading."""

    opened = None


def app_of(key=None, *, shows_texts=False):
    options = ServeOptions(key=None if key is None else SecretStr(key), shows_texts=shows_texts)
    app = Starlette(routes=[*monitor.ROUTES, Route("/metrics", monitor.metrics_page)])
    watch = monitor.Monitor(options)
    app.state.app_state = AppState(Loading(), options, watch)
    return app, watch


@asynccontextmanager
async def asking(app):
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8088") as client:
        yield client


@dataclass
class EventPage:
    """A page's connection. ``reads`` False: it takes nothing any more."""

    app: Starlette
    headers: list = field(default_factory=list)
    reads: bool = True
    status: int | None = None
    body: bytes = b""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, message):
        if not self.reads:
            await asyncio.Event().wait()
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")
        self.heard.set()

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}

    def open(self):
        scope = {"type": "http", "method": "GET", "path": "/monitor/events", "query_string": b"", "scheme": "http"}
        scope |= {"headers": self.headers, "server": ("127.0.0.1", 8088)}
        return asyncio.create_task(self.app(scope, self.receive, self.send))

    @property
    def told(self):
        return [json.loads(each.removeprefix("data: ")) for each in self.body.decode().split("\n\n") if each]

    async def until(self, said):
        async with asyncio.timeout(5):
            while said not in self.body:
                self.heard.clear()
                await self.heard.wait()


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(monitor, "TICK_S", 0.001)
    monkeypatch.setattr(monitor, "SLOW_S", 0.1)
    monkeypatch.setattr(monitor, "FRESH_S", 0.05)
    return asyncio.run


def test_the_page_loads_nothing_from_elsewhere_and_nothing_inline(run):
    async def test():
        app, _ = app_of()
        async with asking(app) as client:
            page, script = await client.get("/"), await client.get("/monitor/script.js")
            style = await client.get("/monitor/style.css")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        for response in (page, script, style):
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["referrer-policy"] == "no-referrer"
        assert "<style" not in page.text
        assert not re.search(r"<script(?![^>]*src=)", page.text)
        assert not re.search(r'style="|\son\w+=', page.text)
        loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert {each for each in loaded if not each.startswith("data:")} == monitor.PATHS - {"/", "/monitor/events"}
        assert "http" not in style.text.replace("http://www.w3.org/2000/svg", "")
        assert script.headers["content-type"].startswith("text/javascript")
        assert len(script.text.splitlines()) < 300

    run(test())


def test_with_a_key_the_page_needs_the_cookie_that_the_one_time_address_gives_once(run):
    """The address may be in a terminal's scrollback for years."""

    async def test():
        app, watch = app_of(KEY)
        async with asking(app) as client:
            for path in ("/", "/monitor/events", "/?once=", "/?once=wrong"):
                refused = await client.get(path)
                assert refused.status_code == 401
                assert KEY not in refused.text
            address = watch.one_time_path()
            exchanged = await client.get(address, follow_redirects=False)
            assert (exchanged.status_code, exchanged.headers["location"]) == (303, "/")
            cookie = exchanged.headers["set-cookie"].lower()
            assert "httponly" in cookie
            assert "samesite=strict" in cookie
            assert address.partition("=")[2].lower() not in cookie
            assert (await client.get("/")).status_code == 200
        async with asking(app) as another:
            assert (await another.get(address)).status_code == 401
            forged = {"cookie": "hybrid_monitor_8088=" + "A" * 43}
            assert (await another.get("/", headers=forged)).status_code == 401
            assert (await another.get("/", headers={"authorization": f"Bearer {KEY}"})).status_code == 200
            assert (await another.get("/", headers={"x-api-key": KEY})).status_code == 200
            assert (await another.get("/", headers={"authorization": f"Bearer {KEY}x"})).status_code == 401

    run(test())


def test_a_newer_address_makes_an_unused_one_void_and_without_a_key_there_is_none(run):
    async def test():
        app, watch = app_of(KEY)
        old, new = watch.one_time_path(), watch.one_time_path()
        async with asking(app) as client:
            assert (await client.get(old)).status_code == 401
            assert (await client.get(new, follow_redirects=False)).status_code == 303
        assert app_of()[1].one_time_path() is None

    run(test())


def test_a_page_is_told_the_state_and_then_what_changes(run):
    async def test():
        app, watch = app_of(shows_texts=True)
        watched = watch.begin("one", "hybrid", "What is it?")
        page = EventPage(app)
        task = page.open()
        await page.until(b"What is it?")
        watched.observe(TokenEmitted(0, Token(3, HOSTILE, "cloud", "written")))
        await page.until(b"onerror")
        page.gone.set()
        await task
        first, *rest = page.told
        assert first["snapshot"]
        assert first["texts"]
        assert first["standing"]["loading"]
        assert not any("snapshot" in told for told in rest)
        assert rest[-1]["answers"][0]["tokens"][0][1]["text"] == HOSTILE
        assert not watch.pages

    run(test())


def test_a_failure_is_told_on_standard_error_once_and_whoever_leaves_is_none(capsys):
    for texts, said in ((True, "canary \\x1b[31m failure"), (False, "the cloud did not answer")):
        _, watch = app_of(shows_texts=texts)
        for why in (None, "left", "canary \x1b[31m failure"):
            watched = watch.begin(f"answer {why}"[:9], "hybrid")
            watched.end(why, "the cloud did not answer" if why else None)
            watched.end()
        assert capsys.readouterr().err == f"hybrid: answer ca failed: {said}\n"


def test_an_outage_is_told_on_standard_error_once_and_its_end_too(capsys):
    """No chat app shows the mark of a degraded answer: whoever runs the server reads it there."""
    lost = Degraded("canary \x1b[31m reply", "unreachable")
    for texts, said in ((True, "canary \\x1b[31m reply"), (False, "the cloud did not answer")):
        _, watch = app_of(shows_texts=texts)
        for events in ((lost,), (lost,), (CloudRecovered(9.0),), (Degraded("the cap", "budget"),)):
            watched = watch.begin("answer", "hybrid")
            for event in events:
                watched.observe(event)
            watched.end()
        begun, over = capsys.readouterr().err.splitlines()
        assert begun == f"hybrid: the cloud gave no answer: {said}; what is written here for it is marked degraded"
        assert over == "hybrid: the cloud answers again"


def test_a_standard_error_that_is_closed_or_full_is_no_failure_of_an_answer(monkeypatch, capsys):
    def fail(*_):
        raise OSError(28, "No space left on device")

    closed = io.StringIO()
    closed.close()
    for stream in (None, closed, SimpleNamespace(write=fail, flush=fail)):
        monkeypatch.setattr("sys.stderr", stream)
        _, watch = app_of()
        watch.begin("answer", "hybrid").end("failure", "the cloud did not answer")
        assert internal_error(ValueError("fault")).status == 500
    assert capsys.readouterr().out == ""


def test_without_monitor_no_text_reaches_a_page_or_the_metrics(run):
    async def test():
        app, watch = app_of()
        watched = watch.begin("one", "hybrid", "canary prompt")
        watched.observe(TokenEmitted(0, Token(3, "canary answer", "cloud", "written")))
        watched.observe(Degraded("canary reply", "unreachable"))
        watched.end("canary failure", "the local model cannot be used")
        page = EventPage(app)
        task = page.open()
        await page.until(b"failed")
        page.gone.set()
        await task
        async with asking(app) as client:
            measured = await client.get("/metrics")
        assert measured.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert b"canary" not in page.body
        assert b"the cloud did not answer" in page.body
        assert b"the local model cannot be used" in page.body
        assert "canary" not in measured.text
        assert 'hybrid_tokens_total{source="cloud",how="written"} 1' in measured.text

    run(test())


def test_a_page_that_does_not_read_is_dropped_and_nobody_waits_for_it(run):
    async def test():
        app, watch = app_of()
        slow, quick = EventPage(app), EventPage(app)
        tasks = slow.open(), quick.open()
        await slow.until(b"snapshot")
        await quick.until(b"snapshot")
        slow.reads = False
        watched = watch.begin("one", "hybrid")
        for position in range(500):
            watched.observe(TokenEmitted(position, Token(3, "x", "local", "unchecked")))
        await quick.until(b"[499,")
        async with asyncio.timeout(5):
            await tasks[0]
        assert len(watch.pages) == 1
        quick.gone.set()
        await tasks[1]

    run(test())


def test_closing_the_monitor_ends_its_pages(run):
    """A server that is stopped waits for its connections."""

    async def test():
        app, watch = app_of()
        page = EventPage(app)
        task = page.open()
        await page.until(b"snapshot")
        watch.close()
        async with asyncio.timeout(5):
            await task

    run(test())


def test_a_recorded_page_holds_hostile_texts_as_data_only():
    told = {"answers": [{"id": HOSTILE, "head": {"prompt": [["user", HOSTILE]]}, "tokens": [[0, {"text": HOSTILE}]]}]}
    page = monitor.recorded_page(HOSTILE, told)
    assert page.count("</script>") == 2
    assert "<img" not in page
    data = re.search(r'<script type="application/json" id="recorded">(.*?)</script>', page, re.DOTALL)[1]
    assert json.loads(data) == told
    assert "49" not in re.findall(r"<title>(.*?)</title>", page)[0]


def test_many_pages_together_are_told_no_more_often_than_four():
    """Else a hundred pages that nobody reads take the time of those who ask."""
    for num_pages in range(1, 200):
        assert num_pages / monitor.tick_s(num_pages) <= 80.001
        assert monitor.tick_s(num_pages) == 0.05 or num_pages > 4
    assert monitor.tick_s(0) == 0.05
