"""Hypothesis profiles (the same examples each time, no clock on a shared machine); how a run begins; real servers."""

from __future__ import annotations

import gc
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest
import server_environments
import typer.testing
from arithmetic import agrees, tolerance
from hypothesis import HealthCheck, Phase, settings
from listed_skips import pytest_sessionfinish  # noqa: F401  (a hook)
from model_trees import VARIABLES, Home, stores_with_service

import hybrid
from hybrid.engine import model_folders
from hybrid.engine.real_models import find_package, model_file
from hybrid.errors import UsageError
from hybrid.prob import Dense
from hybrid.record import spending
from hybrid.settings.sources import CONFIG_FILE

settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A plain run draws the first of the same examples. Whoever runs the slow tests, or looks for mutants, draws all.
settings.register_profile("quick", settings.get_profile("ci"), max_examples=25)
settings.load_profile("quick")
settings.register_profile(
    "mutants", settings.get_profile("ci"), phases=[Phase.explicit, Phase.generate]
)  # no shrinking
# No test reads or writes what is the user's own; child processes inherit it. One folder a run, gone with it.
_OWN = TemporaryDirectory(prefix="hybrid-tests-")
# The kept environments of real servers alone lie where they always do.
_KEPT = str(server_environments.kept_in())
for _variable in [name for name in os.environ if name.upper().startswith("HYBRID_")]:
    del os.environ[_variable]
os.environ["XDG_STATE_HOME"] = os.environ["XDG_CONFIG_HOME"] = _OWN.name
os.environ["HYBRID_LEDGER"] = str(Path(_OWN.name) / "ledger.sqlite")
(Path(_OWN.name) / "prices.toml").touch()
os.environ["HYBRID_PRICES"] = str(Path(_OWN.name) / "prices.toml")
# What probes have found lies in the user's cache, which has no variable of ours: this one is read by platformdirs.
os.environ["XDG_CACHE_HOME"] = str(Path(_OWN.name) / "cache")
# Other programs keep models below the home folder; a test that looks for one makes the folder itself.
os.environ["HOME"] = os.environ["USERPROFILE"] = str(Path(_OWN.name) / "home")
for _variable in ("OLLAMA_MODELS", "LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"):
    os.environ.pop(_variable, None)
# Threads of OpenMP, in which trees are fitted, spin while they wait: beside other tests that took thirty times as long.
# llama.cpp is told its number of threads by us.
os.environ["OMP_NUM_THREADS"] = "1"
# No test decides by what another one has taught; those of learning turn it on.
os.environ["HYBRID_LEARN"] = "false"
os.environ["HYBRID_SERVERS"] = _KEPT
# Where Python is told to keep no bytecode, a run keeps its own: hundreds of child processes would compile everything.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(Path(_OWN.name) / "bytecode")
    sys.dont_write_bytecode = False

# What a time decides is said in no test but its own, which moves a clock.
spending.LEAST_S = spending.LONG_S = math.inf

# Each call of the command line builds all commands anew, which a process does once: nine tenths of most calls here.
typer.testing._get_command = lru_cache(typer.testing._get_command)

# What a shell starts in the background ignores Ctrl-C, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A slow test that takes so many seconds hangs. A busy machine has made one three times as long as a quiet one.
HANGS_S = 1800
# The files that take longest, in that order, by ``pytest --durations``: begun first, none of them is waited for at the
# end. (pytest-xdist by itself begins with the files of most cases.) Where the slow tests run too, theirs take longest.
LONGEST = (
    "end_to_end/test_raw_bytes.py",
    "end_to_end/test_texts.py",
    "end_to_end/test_demo.py",
    "end_to_end/test_real_greedy.py",
    "end_to_end/test_greedy_laws.py",
    "end_to_end/test_sampled_laws.py",
    "spend/test_kills.py",
    "spend/test_durable_ledger.py",
    "run/test_overlap.py",
    "end_to_end/test_fault_matrix.py",
    "end_to_end/test_counting_cloud.py",
    "end_to_end/test_ask.py",
    "spend/test_crash.py",
    "end_to_end/test_dialects.py",
    "end_to_end/test_faults.py",
    "examples/test_training.py",
    "tasks/test_mix.py",
    "tasks/test_families.py",
    "bench/test_speed.py",
)

MODELS = Path(hybrid.__file__).parent / "models"


def pytest_configure():
    """Refuse to run where a file in the working directory would choose how everything is decoded."""
    if Path(CONFIG_FILE).exists():
        msg = f"{Path(CONFIG_FILE).resolve()} would change what the tests see: run them from another folder"
        raise pytest.UsageError(msg)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
    """Import this process's share of the test files first, where several collect the same.

    Half a minute of a run with nothing compiled yet is pytest rewriting the assertions of 250 files. Every process
    would do all of them, at the same time; so each finds most of them done by another.
    """
    number, count = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    if count == "1":
        return
    files = sorted(file for arg in session.config.args for file in Path(arg).rglob("test_*.py"))
    for file in files[int(number.removeprefix("gw")) :: int(count)]:
        with suppress(pytest.Collector.CollectError, pytest.skip.Exception):  # told when it is collected
            assert pytest.Module.from_parent(session, path=file.resolve()).obj


def pytest_xdist_auto_num_workers():
    """Use a process more than there are cores: many tests wait, for a server, a child process or a deadline."""
    return 1 + (os.cpu_count() or 1)


def pytest_collection_finish():
    """Keep the garbage collector from looking through all that was collected, again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # a mark that is not there yet could not be chosen by
def pytest_collection_modifyitems(items):
    """Put the longest files first, mark what needs a model that comes as a package, and let slow tests be slow."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(HANGS_S))
        if "real_model" in item.fixturenames:
            item.add_marker("packaged")
    tests = Path(__file__).parent
    rank = {tests / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.fixture(scope="session")
def agree():
    """Whether two rows are the same up to what batches of another shape do to float16 sums on this machine."""

    def agree(found: Dense, expected: Dense) -> bool:
        return agrees(found, expected, tolerance())

    return agree


@dataclass
class Server:
    """A running ``server_stub``, a client bound to its address, and what it has written to standard error."""

    process: subprocess.Popen
    url: str
    client: httpx.Client
    _stderr: Path

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(encoding="utf-8")


def _command(*flags: str, model: Path) -> list[str]:
    return [sys.executable, "-m", "server_stub", "--model", str(model), "--port", "0", "--threads", "1", *flags]


@pytest.fixture(scope="session")
def start_server(tmp_path_factory):
    """Start a server with given flags and wait until it listens; all are killed when the session ends."""
    folder, tls = tmp_path_factory.mktemp("servers"), httpx.create_ssl_context()  # once: that takes 30 ms
    with ExitStack() as clean_up:

        def start(*flags: str, model: Path = MODELS / "small.gguf") -> Server:
            said = folder / f"stderr-{len(list(folder.iterdir()))}.txt"
            with said.open("wb") as stderr:
                process = subprocess.Popen(
                    _command(*flags, model=model), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
                )
            clean_up.enter_context(process)  # closes its pipes
            clean_up.callback(process.kill)
            line = process.stdout.readline().decode()
            assert line.startswith("listening on http://127.0.0.1:"), line + said.read_text()
            url = line.split()[-1]
            client = clean_up.enter_context(httpx.Client(base_url=url, timeout=60, trust_env=False, verify=tls))
            return Server(process, url, client, said)

        yield start


@pytest.fixture(scope="session")
def refused_start():
    """Start a server that must refuse to; return how it ended."""

    def run(*flags: str, model: Path = MODELS / "small.gguf") -> subprocess.CompletedProcess:
        return subprocess.run(_command(*flags, model=model), capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.fixture(scope="session")
def real_model():
    """Find or build a real model by its name, in this run's own cache; skip where the package is not installed."""
    try:
        find_package()
    except UsageError as error:
        pytest.skip(str(error))
    return model_file


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home folder, for models of other programs; no variable names another, and nothing is in reach."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(model_folders, "STORES", stores_with_service(tmp_path / "service"))
    monkeypatch.chdir(tmp_path)
    return Home(tmp_path / "home")


@pytest.fixture
def raw_server():
    """A server that answers every connection with some bytes, each after a pause, the last for ever if asked to."""
    listeners = []

    def start(head: bytes, forever: bytes = b"", pause: float = 0.0, then: tuple[tuple[float, bytes], ...] = ()) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        connection.recv(65536)
                        connection.sendall(head)
                        for before, part in then:
                            time.sleep(before)
                            connection.sendall(part)
                        while forever:
                            connection.sendall(forever)
                            time.sleep(pause)
                    except OSError:
                        pass

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.close()
