"""The monitor: a page that shows the hybrid at work, live, and the metrics of the same state.

The page is one template, one script and one style, from here alone: its content policy allows nothing inline and
nothing from elsewhere. It is told by server-sent events what changed, some times a second. A page that does not read
is dropped after ``SLOW_S`` and never waited for; its browser comes back by itself. With a key, the page needs the
cookie of ``guard.py`` or the key itself. Laws: ``tests/serve/test_monitor.py``.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import time
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hybrid.errors import escape_controls
from hybrid.record.conversation import Prompt
from hybrid.record.events import Finished, Started
from hybrid.record.recorded_events import RecordedAnswer
from hybrid.run import Event
from hybrid.serve.app_state import AppState, ServeOptions
from hybrid.serve.errors import tell
from hybrid.serve.guard import PageKey, shows_key
from hybrid.serve.metrics import CONTENT_TYPE, FRESH_S, HealthReader, metrics
from hybrid.serve.reducer import LEFT, AnswerLog, AnswerMetadata, MonitorState, Subscriber

# A page is told what is new at most so often: faster than anybody reads.
TICK_S = 0.05
# The pages that are told so often; of more, each is told less often: all together take no more than these. Beside a
# hundred a small question took 6 times its time.
FEW_PAGES = 4
# A page that takes nothing for so long is dropped; what it was sent waits in the connection's own buffer meanwhile.
SLOW_S = 5.0
ONCE = "once"
NO_CONTENT_FROM_ELSEWHERE = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": NO_CONTENT_FROM_ELSEWHERE,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
NOT_LET_IN = (
    "This endpoint has a key. Its monitor opens by the one-time address that was printed at the start; "
    "restart the endpoint for another, or send the key as a bearer token.\n"
)


class Monitor:
    """Keeps the state of all answers and wakes a server's pages. Belongs to one event loop."""

    def __init__(self, options: ServeOptions, clock: Callable[[], float] = time.time) -> None:
        """Begin with nothing. ``clock``: seconds since 1970, for when an answer was asked."""
        self.options = options
        self.state = MonitorState(shows_texts=options.shows_texts)
        self.page_key = PageKey()
        self.health = HealthReader()
        self.pages: set[asyncio.Event] = set()
        """One a page that is open: set where there is something to tell it."""
        self.closed = False
        """Whether all pages are to end."""
        self.clock = clock

    def begin(self, answer_id: str, model: str, prompt: Prompt | None = None) -> MonitoredAnswer:
        """Begin to watch an answer."""
        metadata = AnswerMetadata(answer_id, model, self.clock(), prompt)
        monitored = MonitoredAnswer(self, self.state.begin(metadata))
        self.wake()
        return monitored

    def one_time_path(self) -> str | None:
        """Return the path that opens the page once, where there is a key; an earlier one is void. None: no key."""
        return None if self.options.key is None else f"/?{ONCE}={self.page_key.new_token()}"

    def wake(self) -> None:
        """Have every page look for news."""
        for page in self.pages:
            page.set()

    def close(self) -> None:
        """End all pages, so that a server that is stopped waits for none."""
        self.closed = True
        self.wake()

    def lets_in(self, request: Request) -> bool:
        """Tell whether a request may see the page: it shows the cookie or the key, or there is no key."""
        by_cookie = self.page_key.knows(request.cookies.get(_cookie_name(request), ""))
        return shows_key(self.options, request.headers) | by_cookie


class MonitoredAnswer:
    """The ``AnswerObserver`` of one answer."""

    def __init__(self, monitor: Monitor, log: AnswerLog) -> None:
        """Take the answer's place in the state."""
        self._monitor = monitor
        self._log = log

    def observe(self, event: Event) -> None:
        """Take what happened; standard error is told once that the cloud gives no answer, and that it answers again."""
        totals = self._monitor.state.totals
        answered = totals.cloud is None or totals.cloud["answers"]
        self._monitor.state.observe(self._log, event)
        if totals.cloud is not None and totals.cloud["answers"] != answered:
            lost = f"the cloud gave no answer: {totals.cloud['why']}; what is written here for it is marked degraded"
            tell(escape_controls(lost if answered else "the cloud answers again"))
        self._monitor.wake()

    def end(self, why: str | None = None, reason: str | None = None) -> None:
        """Take that nothing more comes; standard error is told of a failure."""
        if not self._log.state.ended:
            self._monitor.state.end(self._log, why, reason)
            if self._log.state.stage == "failed":
                tell(escape_controls(f"{self._log.id} failed: {self._log.state.why}"))
        self._monitor.wake()


# ---- routes ----------------------------------------------------------------------------------------------------------


async def page(request: Request) -> Response:
    """Return the page; or, for a token that is good once, the cookie that opens it."""
    monitor = _monitor(request)
    once = request.query_params.get(ONCE)
    cookie = monitor.page_key.exchange(once) if once is not None else None
    if cookie is not None:
        response = RedirectResponse("/", 303, HEADERS)
        response.set_cookie(_cookie_name(request), cookie, path="/", httponly=True, samesite="strict")
        return response
    if not monitor.lets_in(request):
        return PlainTextResponse(NOT_LET_IN, 401, HEADERS)
    return HTMLResponse(live_page(), headers=HEADERS)


async def script(_: Request) -> Response:
    """Return the page's script, which holds nothing of anybody."""
    return Response(asset("monitor.js"), headers=HEADERS, media_type="text/javascript")


async def style(_: Request) -> Response:
    """Return the page's style."""
    return Response(asset("monitor.css"), headers=HEADERS, media_type="text/css")


async def events(request: Request) -> Response:
    """Return what happens, as server-sent events."""
    if not _monitor(request).lets_in(request):
        return PlainTextResponse(NOT_LET_IN, 401, HEADERS)
    return EventsResponse(request.app.state.app_state, _monitor(request))


async def metrics_page(request: Request) -> Response:
    """Return the metrics."""
    monitor, state = _monitor(request), request.app.state.app_state
    text = metrics(monitor.state, await monitor.health.read(state.backend))
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


ROUTES = [
    Route("/", page),
    Route("/monitor/script.js", script),
    Route("/monitor/style.css", style),
    Route("/monitor/events", events),
]
PATHS = frozenset(route.path for route in ROUTES)
"""Where the cookie is good in the place of the key: these routes look at both themselves."""


class EventsResponse(Response):
    """One page's events: the whole state first, and then what changed."""

    def __init__(self, state: AppState, monitor: Monitor) -> None:
        """Take what is told."""
        super().__init__(headers=HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._state, self._monitor = state, monitor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  (the port's shape)
        """Tell until the page leaves, the server stops, or the page does not read."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        left, news = asyncio.create_task(_left(receive)), asyncio.Event()
        left.add_done_callback(lambda _: news.set())
        self._monitor.pages.add(news)
        try:
            async with asyncio.timeout(SLOW_S):
                await send(start)
            await self._tell(send, news, left)
        except TimeoutError:
            return  # it does not read: whatever it missed it gets when it comes back
        finally:
            self._monitor.pages.discard(news)
            left.cancel()

    async def _tell(self, send: Send, news: asyncio.Event, left: asyncio.Task[None]) -> None:
        follower, first = Subscriber(self._monitor.state), True
        while not (left.done() or self._monitor.closed):
            news.clear()
            standing = await self._monitor.health.read(self._state.backend)
            told = follower.news() | {"standing": standing.to_json(), "now": self._monitor.clock()}
            if first:
                told |= {"snapshot": True, "texts": self._monitor.options.shows_texts}
            first = False
            async with asyncio.timeout(SLOW_S):
                await send(_body(b"data: " + msgspec.json.encode(told) + b"\n\n"))
            await asyncio.sleep(tick_s(len(self._monitor.pages)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FRESH_S):
                    await news.wait()
        async with asyncio.timeout(SLOW_S):
            await send(_body(b"", more=False))


def tick_s(num_pages: int) -> float:
    """Return the seconds between two looks of a page for news, where so many are open.

    >>> tick_s(1), tick_s(40)
    (0.05, 0.5)
    """
    return TICK_S * max(1.0, num_pages / FEW_PAGES)


def _body(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def _left(receive: Receive) -> None:
    """Return when the page is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _monitor(request: Request) -> Monitor:
    watch = request.app.state.app_state.watch
    assert isinstance(watch, Monitor)
    return watch


def _cookie_name(request: Request) -> str:
    """Return a name of this server alone: browsers do not tell the ports of a host apart."""
    server = request.scope.get("server")
    return f"hybrid_monitor_{server[1] if server else 0}"


# ---- the page --------------------------------------------------------------------------------------------------------


@lru_cache
def asset(name: str) -> str:
    """Return a static file of the page."""
    return files("hybrid.serve").joinpath("static", name).read_text(encoding="utf-8")


@lru_cache
def _templates() -> Environment:
    return Environment(loader=PackageLoader("hybrid.serve"), autoescape=True, undefined=StrictUndefined)


@lru_cache
def live_page() -> str:
    """Return the page that follows a server."""
    return _templates().get_template("monitor.html").render(title="hybrid", recorded=None)


def recorded_page(title: str, told: dict[str, Any]) -> str:
    """Return a page that shows what is given, as one file: no server, no request.

    Its content policy names its own script and style by their hashes.
    """
    texts = {"script": asset("monitor.js"), "style": asset("monitor.css")}
    hashes = {name: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for name, text in texts.items()}
    own = f"script-src 'sha256-{hashes['script']}'; style-src 'sha256-{hashes['style']}'"
    policy = f"default-src 'none'; {own}; img-src data:"
    inline = {name: Markup(text) for name, text in texts.items()}  # noqa: S704  (files of this package)
    return _templates().get_template("monitor.html").render(title=title, recorded=told, policy=policy, **inline)


# A recorded answer under the monitor's own reducer, and as its page: one file, without a server and a request.


def recorded_state(path: Path) -> tuple[MonitorState, AnswerLog]:
    """Fold a trace file. Raises UsageError with one sentence for anything else."""
    recorded = RecordedAnswer.read(path)
    state, finished = MonitorState(shows_texts=True), False
    turns = None if recorded.prompt is None else [{"role": "prompt", "content": recorded.prompt}]
    log = state.begin(AnswerMetadata(path.name, "recorded", None, turns))
    for event in recorded.events():
        state.observe(log, event)
        if isinstance(event, Started):
            log.model = event.policy
        finished = finished or isinstance(event, Finished)
    state.end(log, None if finished else LEFT)
    return state, log


def recorded_html(path: Path) -> str:
    """Return a trace file as one page. Raises UsageError."""
    state, _ = recorded_state(path)
    told = Subscriber(state).news() | {"snapshot": True, "texts": True, "standing": None}
    return recorded_page(f"hybrid trace: {path.name}", told)
