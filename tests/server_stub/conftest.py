"""A model that is a table, for the rooms without a process; the bundled model's own rows, for those with one."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest
import uvicorn
from asking import TEXT
from scripted_engine import ScriptedEngine

import hybrid
from hybrid.engine import Cursor, Worker
from hybrid.engine.llama import Weights
from hybrid.prob import Dense
from server_stub.__main__ import listen
from server_stub.app import App
from server_stub.faults import Faults, hush
from server_stub.served import Served
from server_stub.slots import Slot, Slots

NUM_WORDS = 7
KEY = "a-key-of-the-tests"


def _scores(ids: tuple[int, ...]) -> list[float]:
    return np.random.default_rng([len(ids), *ids]).normal(scale=2, size=NUM_WORDS).tolist()


@pytest.fixture(scope="session")
def scripted():
    """A model of seven words without an end token, whose rows depend on the whole prefix."""
    return lambda: ScriptedEngine([f"w{i}" for i in range(NUM_WORDS)], _scores, num_context=4000)


@pytest.fixture(scope="session")
def row_of(scripted):
    """What the model of seven words says after a prefix."""
    return lambda ids: Dense.from_logits(scripted().extend(tuple(ids)).ravel())


class Local:
    """A client of an application in this process: no socket, one loop."""

    def __init__(self, app) -> None:
        self._runner = asyncio.Runner()
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here")

    def get(self, path: str, **more) -> httpx.Response:
        return self._runner.run(self._client.get(path, **more))

    def post(self, path: str, **more) -> httpx.Response:
        return self._runner.run(self._client.post(path, **more))

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()


@pytest.fixture
def local():
    """Make clients of applications in this process."""
    with ExitStack() as clean_up:

        def serve(app) -> Local:
            client = Local(app)
            clean_up.callback(client.close)
            return client

        yield serve


@pytest.fixture
def spoken(scripted, local):
    """Serve the seven words in a family's dialect within this process, and return a client."""
    with ExitStack() as clean_up:

        def serve(dialect: str, **switches) -> Local:
            worker = Worker("slot")
            clean_up.callback(worker.close)
            served = Served("m", scripted(), 4000, **switches)
            app = App(served, Slots([Slot(scripted(), worker, served.max_logprobs)]), dialect)
            return local(app.routes())

        yield serve


@pytest.fixture(scope="module")
def listening(scripted):
    """Serve the seven words on a socket of this process, with faults where they are wanted; return a client."""
    with ExitStack() as clean_up:

        def serve(*shares: tuple[str, float], dialect: str = "vllm", seed: int = 0) -> httpx.Client:
            hush()
            workers = [Worker(f"slot-{n}") for n in range(2)]
            slots = Slots([Slot(scripted(), worker, 20) for worker in workers])
            app = App(Served("m", scripted(), 4000), slots, dialect, Faults(shares, seed))
            server = uvicorn.Server(uvicorn.Config(app.routes(), log_level="warning", lifespan="off"))
            listener = clean_up.enter_context(listen("127.0.0.1", 0))
            thread = threading.Thread(target=server.run, args=([listener],))
            thread.start()

            def stop() -> None:
                server.should_exit = server.force_exit = True
                thread.join()
                for worker in workers:
                    worker.close()

            clean_up.callback(stop)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            return clean_up.enter_context(httpx.Client(base_url=url, timeout=10, trust_env=False))

        yield serve


class Oracle:
    """The served model, evaluated directly."""

    def __init__(self, path: Path) -> None:
        self.weights = Weights(path)
        self._engine = self.weights.context(4096, threads=1)
        self._cursor = Cursor(self._engine)
        self.end_ids = self.weights.end_ids
        self.control = min(self.end_ids)

    def ids(self, text: str) -> list[int]:
        return list(self.weights.tokenize(text))

    def text(self, ids) -> str:
        return b"".join(map(self.weights.piece, ids)).decode("utf-8", "replace")

    def row(self, ids) -> Dense:
        """What follows a prefix."""
        return self._cursor.row(tuple(ids))

    def rows(self, ids) -> list[Dense]:
        """What follows each prefix of at least one token."""
        return self._cursor.rows(tuple(ids), len(ids))

    def close(self) -> None:
        self._engine.close()
        self.weights.close()


@pytest.fixture(scope="session")
def oracle():
    """The bundled small model without a server."""
    direct = Oracle(Path(hybrid.__file__).parent / "models" / "small.gguf")
    yield direct
    direct.close()


@pytest.fixture(scope="session")
def server(start_server):
    """As it comes, and telling what was cached."""
    return start_server("--enable-prompt-tokens-details")


@pytest.fixture(scope="session")
def keeping(start_server):
    """Scores from its cache; one slot, and room for an answer that takes seconds."""
    flags = ("--scoring-keeps-cache", "--enable-prompt-tokens-details")
    return start_server(*flags, "--parallel", "1", "--ctx", "16384")


@pytest.fixture(scope="session")
def strict(start_server):
    """Wants a key, shows little, is far away and has a small context."""
    server = start_server("--api-key", KEY, "--max-logprobs", "3", "--latency-ms", "150", "--ctx", "64")
    server.key = KEY
    return server


@pytest.fixture(scope="session")
def no_end(oracle) -> dict[str, float]:
    """A bias that keeps an answer going."""
    return {str(token): -100 for token in oracle.end_ids}


@pytest.fixture(scope="session")
def prompt(oracle) -> list[int]:
    return oracle.ids(TEXT)
