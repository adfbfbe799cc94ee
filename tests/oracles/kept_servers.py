"""Real servers that run in environments of their own (``server_environments``), over a bundled model as a folder."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from server_environments import python_of

HERE = Path(__file__).resolve().parent
CONTEXT = 1024
# 35 to 54 s on two free cores, 240 s were seen on busy ones; the first request of all takes another ten.
STARTS_WITHIN_S = 600.0


@dataclass(frozen=True)
class Launch:
    """How a kind of server is started. ``command``: what its environment's Python is given, for a folder and a port.

    ``warm_up``: a route and a body for the first request, which takes many times what later ones do.
    """

    environment: str
    command: Callable[[Path, int], list[str]]
    warm_up: tuple[str, Mapping[str, Any]]
    variables: Mapping[str, str] = field(default_factory=dict)


def _vllm(*program: str) -> Callable[[Path, int], list[str]]:
    def command(folder: Path, port: int) -> list[str]:
        flags = {"model": folder, "served-model-name": "large", "host": "127.0.0.1", "port": port, "dtype": "float32"}
        # Attention on a CPU takes blocks of 32, 64, ... tokens; a default server of 0.32 lists 20 log-probabilities.
        flags |= {"max-model-len": CONTEXT, "max-num-seqs": 8, "max-logprobs": 50, "block-size": 32}
        named = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        return [*program, *named, "--enforce-eager", "--enable-prompt-tokens-details", "--enable-scale-out"]

    return command


_VLLM = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}
_ONE_TOKEN = ("/v1/completions", {"model": "large", "prompt": [1], "max_tokens": 1})
LAUNCHES = {
    "vllm": Launch("vllm", _vllm("-m", "vllm.entrypoints.openai.api_server"), _ONE_TOKEN, _VLLM),
    "vllm-v2": Launch("vllm-v2", _vllm(str(HERE / "vllm_interpreted.py")), _ONE_TOKEN, _VLLM),
}


@dataclass
class KeptServer:
    """A running one. ``log`` holds everything it says."""

    kind: str
    url: str
    port: int
    log: Path
    _supervisor: subprocess.Popen[bytes]

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def end(self) -> None:
        """End it with all its processes; waits for that."""
        with contextlib.suppress(BrokenPipeError):
            self._supervisor.stdin.close()
        self._supervisor.wait()


def folder_of(kind: str, model: Path, folder: Path) -> Path:
    """Convert a model in a server's environment, unless it was. Raises Unavailable."""
    if not folder.exists():
        subprocess.run([python_of(LAUNCHES[kind].environment), HERE / "hf_folder.py", model, folder], check=True)
    return folder


@contextmanager
def serving_kept(kind: str, folder: Path, log: Path, *flags: str, port: int = 0) -> Iterator[KeptServer]:
    """Start one over a model's folder, wait until it has answered a request, end it. Raises Unavailable.

    ``flags`` come last and so win over those of the kind.
    """
    launch, port = LAUNCHES[kind], port or free_port()
    command = [str(python_of(launch.environment)), *launch.command(folder, port), *flags]
    with log.open("ab") as said:
        supervisor = subprocess.Popen(
            [sys.executable, HERE / "supervised.py", *command],
            stdin=subprocess.PIPE, stdout=said, stderr=said, env=os.environ | launch.variables,
        )  # fmt: skip
    server = KeptServer(kind, f"http://127.0.0.1:{port}", port, log, supervisor)
    try:
        _await(server, launch.warm_up)
        yield server
    finally:
        server.end()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def _await(server: KeptServer, warm_up: tuple[str, Mapping[str, Any]]) -> None:
    until, (route, body) = time.monotonic() + STARTS_WITHIN_S, warm_up
    with httpx.Client(base_url=server.url, trust_env=False, timeout=STARTS_WITHIN_S) as client:
        while time.monotonic() < until and server._supervisor.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if client.get("/health").is_success:
                    client.post(route, json=body).raise_for_status()
                    return
            time.sleep(0.2)
    msg = f"{server.kind} did not start:\n{server.said[-4000:]}"
    raise AssertionError(msg)
