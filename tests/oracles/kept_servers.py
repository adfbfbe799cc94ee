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

    ``warm_up``: a route and a body for the first request, which takes many times what later ones do. ``alive``: a route
    that answers once it listens.
    """

    environment: str
    command: Callable[[Path, int], list[str]]
    warm_up: tuple[str, Mapping[str, Any]]
    variables: Mapping[str, str] = field(default_factory=dict)
    alive: str = "/health"


def _vllm(*program: str) -> Callable[[Path, int], list[str]]:
    def command(folder: Path, port: int) -> list[str]:
        flags = {"model": folder, "served-model-name": "large", "host": "127.0.0.1", "port": port, "dtype": "float32"}
        # Attention on a CPU takes blocks of 32, 64, ... tokens; a default server of 0.32 lists 20 log-probabilities.
        flags |= {"max-model-len": CONTEXT, "max-num-seqs": 8, "max-logprobs": 50, "block-size": 32}
        switches = ("--enforce-eager", "--enable-prompt-tokens-details", "--enable-scale-out")
        return [*program, *_named(flags), *switches]

    return command


def _named(flags: Mapping[str, Any]) -> list[str]:
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def _sglang(folder: Path, port: int) -> list[str]:
    flags = {"model-path": folder, "served-model-name": "large", "host": "127.0.0.1", "port": port, "dtype": "float32"}
    flags |= {"context-length": CONTEXT, "max-total-tokens": 20_000, "max-running-requests": 4}
    # What of it runs without CUDA; see sglang_without_cuda.
    flags |= {"device": "cpu", "attention-backend": "torch_native", "sampling-backend": "pytorch"}
    flags |= {"grammar-backend": "none"}
    switches = ("--disable-overlap-schedule", "--disable-cuda-graph", "--skip-server-warmup", "--sleep-on-idle")
    return ["-m", "sglang.launch_server", *_named(flags), *switches]


def _litellm(configuration: Path, port: int) -> list[str]:
    flags = {"config": configuration, "host": "127.0.0.1", "port": port, "telemetry": False}
    return ["-c", "from litellm import run_server; run_server()", *_named(flags)]


_VLLM = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}
_SGLANG = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "PYTHONPATH": str(HERE / "sglang_without_cuda"),
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
# It prices models from a list that it would fetch.
_LITELLM = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_DOCS": "True", "DISABLE_ADMIN_UI": "True"}
_ONE_TOKEN = ("/v1/completions", {"model": "large", "prompt": [1], "max_tokens": 1})
LAUNCHES = {
    "vllm": Launch("vllm", _vllm("-m", "vllm.entrypoints.openai.api_server"), _ONE_TOKEN, _VLLM),
    "vllm-v2": Launch("vllm-v2", _vllm(str(HERE / "vllm_interpreted.py")), _ONE_TOKEN, _VLLM),
    "sglang": Launch(
        "sglang", _sglang, ("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}), _SGLANG
    ),
    # A gateway; whatever serves "large" is asked.
    "litellm": Launch(
        "litellm", _litellm, ("/v1/completions", _ONE_TOKEN[1] | {"prompt": "a"}), _LITELLM, "/health/liveliness"
    ),
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
def serving_kept(
    kind: str, folder: Path, log: Path, *flags: str, port: int = 0, key: str | None = None
) -> Iterator[KeptServer]:
    """Start one over a model's folder, wait until it has answered a request, end it. Raises Unavailable.

    ``flags`` come last and so win over those of the kind. A gateway has a configuration in the folder's place, and a
    ``key`` that lets one in.
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
        _await(server, launch, key)
        yield server
    finally:
        server.end()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def _await(server: KeptServer, launch: Launch, key: str | None) -> None:
    until, (route, body) = time.monotonic() + STARTS_WITHIN_S, launch.warm_up
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=STARTS_WITHIN_S) as client:
        while time.monotonic() < until and server._supervisor.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if client.get(launch.alive).is_success:
                    client.post(route, json=body).raise_for_status()
                    return
            time.sleep(0.2)
    msg = f"{server.kind} did not start:\n{server.said[-4000:]}"
    raise AssertionError(msg)
