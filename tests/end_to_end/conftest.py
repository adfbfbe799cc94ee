"""The bundled pair over real HTTP, and a proxy between client and server that spoils replies on cue."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from arithmetic import tolerance
from kept_servers import folder_of, serving_kept
from real_servers import PACKAGES, missing, serving
from server_environments import Unavailable
from short_patience import MAX_TOKENS, QUESTION

import hybrid
from hybrid.engine import Cursor
from hybrid.engine.llama import Weights
from hybrid.prob import Partition
from hybrid.settings.sources import CONFIG_FILE
from hybrid.store.files import APP
from hybrid.types import Message

MODELS = Path(hybrid.__file__).parent / "models"
# For tests that go through every policy: one of them asks which tokens say the same.
SOME_CONCEPTS = Partition.of_groups(40, [range(10, 20), range(20, 40)])
LOCAL, CLOUD = MODELS / "small.gguf", MODELS / "large.gguf"


@pytest.fixture(autouse=True, scope="module")
def a_policy_that_asks(tmp_path_factory):
    """Requests are what most of these tests are about, and auto sends none where it is sure.

    The user's own file says so, which whatever names a policy overrules: those of auto name it.
    """
    home = tmp_path_factory.mktemp("configuration")
    (home / APP).mkdir()
    (home / APP / CONFIG_FILE).write_text('policy = "kl"\n')
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CONFIG_HOME", str(home))
        patched.setattr("hybrid.assemble.local_models.partition_of", lambda *_: SOME_CONCEPTS)
        yield


@pytest.fixture(scope="session")
def bundled():
    """The paths of the bundled pair."""
    for path in (LOCAL, CLOUD):
        if not path.exists():
            pytest.skip(f"the bundled model {path.name} is not installed")
    return LOCAL, CLOUD


@pytest.fixture(scope="session")
def stub(bundled, start_server):
    """The large model, served for the whole session by a server that tells what was cached."""
    return start_server("--enable-prompt-tokens-details", model=CLOUD)


@pytest.fixture
def own_stub(bundled, start_server):
    """Start servers of one's own, to be killed or configured."""
    started = []

    def start(*flags: str):
        started.append(start_server(*flags, model=CLOUD))
        return started[-1]

    yield start
    for server in started:
        server.process.kill()


@pytest.fixture(scope="session")
def start_real(tmp_path_factory):
    """Start a server that nobody here wrote; all are killed when the session ends."""
    folder = tmp_path_factory.mktemp("real")
    with contextlib.ExitStack() as clean_up:

        def start(family: str, model: Path = CLOUD):
            if why := missing(family):
                pytest.skip(why)
            log = folder / f"{family}-{len(list(folder.iterdir()))}.txt"
            return clean_up.enter_context(serving(family, model, log))

        yield start


@pytest.fixture(scope="session", params=PACKAGES)
def real(request, bundled, start_real):
    """The large model behind each of the real servers, for the whole session."""
    return start_real(request.param)


@pytest.fixture(scope="module")
def start_kept(bundled, tmp_path_factory):
    """Start a real server that has an environment of its own; all are ended with the module's tests."""
    folder = tmp_path_factory.mktemp("kept")
    with contextlib.ExitStack() as clean_up:

        def start(kind: str, *flags: str, port: int = 0):
            log = folder / f"{kind}-{len(list(folder.iterdir()))}.txt"
            try:
                model = folder_of(kind, CLOUD, folder / "large")
                return clean_up.enter_context(serving_kept(kind, model, log, *flags, port=port))
            except Unavailable as why:
                pytest.skip(str(why))

        yield start


@pytest.fixture
def on_a_terminal(bundled):
    """Run a command on a terminal of its own, in colour, and return what it showed there.

    ``interrupted``: it is sent what Ctrl-C sends as soon as it shows anything.
    """

    def run(command: list[str], columns: str, exit_code: int = 0, *, interrupted: bool = False) -> bytes:
        leader, follower = pty.openpty()
        environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": columns}
        environment.pop("NO_COLOR", None)
        process = subprocess.Popen(command, stdout=follower, stderr=follower, env=environment)
        os.close(follower)
        seen = b""
        with contextlib.suppress(OSError):  # what Linux says once the other end is closed
            while part := os.read(leader, 4096):
                if interrupted and not seen:
                    process.send_signal(signal.SIGINT)
                seen += part
        os.close(leader)
        assert process.wait(30) == exit_code
        return seen

    return run


class Oracle:
    """A model decoding by itself, on a context of its own."""

    def __init__(self, path):
        self.weights = Weights(path)
        self.engine = self.weights.context()
        self.cursor = Cursor(self.engine)

    def rows(self, question, choose, max_tokens):
        """Yield each row with the token that ``choose`` takes there, until it ends the text."""
        prompt, ids = self.engine.render([Message("user", question)]), ()
        while len(ids) < max_tokens:
            row = self.cursor.row(prompt + ids)
            token = choose(row)
            yield row, token
            if token in self.engine.end_ids:
                return
            ids += (token,)

    def text(self, question, max_tokens):
        """The greedy ids, and from which position on another text would be as good (None: nowhere)."""
        ids, tie = (), None
        for row, token in self.rows(question, lambda row: row.best, max_tokens):
            (_, first), (_, second) = row.top(2)
            if tie is None and first - second < tolerance().gap:
                tie = len(ids)
            if token not in self.engine.end_ids:
                ids += (token,)
        return ids, tie

    def sample(self, question, rng, max_tokens):
        """Ids drawn at temperature 1."""

        def draw(row):
            return int(rng.choice(row.num_tokens, p=row.probs / row.probs.sum()))

        drawn = self.rows(question, draw, max_tokens)
        return tuple(token for _, token in drawn if token not in self.engine.end_ids)

    def close(self):
        self.engine.close()
        self.weights.close()


@pytest.fixture(scope="session")
def oracles(bundled):
    """Both models of the pair, decoding by themselves."""
    pair = Oracle(bundled[0]), Oracle(bundled[1])
    yield pair
    for oracle in pair:
        oracle.close()


@dataclass
class Spoiled:
    """A reply on its way back. ``cut``: send this many bytes of the promised body, then hang up."""

    status: int
    body: bytes
    content_type: str
    cut: int | None = None
    delay_s: float = 0.0

    def json(self):
        return json.loads(self.body)

    def replace(self, value) -> None:
        self.body = json.dumps(value).encode()


@dataclass
class Proxy:
    """Forwards to a stub; ``spoil(reply, path, n)`` may change the n-th completion's reply (n = 0: other routes)."""

    upstream: str
    spoil: Callable[[Spoiled, str, int], None]
    url: str = ""
    requests: list[tuple[str, dict]] = field(default_factory=list)
    completions: int = 0


@pytest.fixture
def proxy(stub):
    """Start proxies before the session's stub."""
    servers = []

    def start(spoil: Callable[[Spoiled, str, int], None], upstream: str | None = None) -> Proxy:
        proxy = Proxy(upstream or stub.url, spoil)

        passed_on = {"authorization", "content-type", "x-request-id"}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_) -> None:
                pass

            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                keep = {k: v for k, v in self.headers.items() if k.lower() in passed_on}
                there = httpx.request(self.command, proxy.upstream + self.path, content=body, headers=keep, timeout=60)
                proxy.requests.append((self.path, json.loads(body or b"{}")))
                number = 0
                if self.path == "/v1/completions":
                    number = proxy.completions = proxy.completions + 1
                reply = Spoiled(there.status_code, there.content, there.headers.get("content-type", ""))
                proxy.spoil(reply, self.path, number)
                time.sleep(reply.delay_s)
                self.send_response(reply.status)
                self.send_header("content-type", reply.content_type)
                self.send_header("content-length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body[: reply.cut])
                self.close_connection = reply.cut is not None

            do_GET = do_POST = forward  # noqa: N815  (http.server looks these names up)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
        return proxy

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def small_text(bundled):
    with hybrid.open(policy="local", max_tokens=MAX_TOKENS) as client:
        return client.generate(QUESTION).text
