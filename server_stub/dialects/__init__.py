"""The families whose words the server can speak, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from server_stub.dialects import sglang, vllm
from server_stub.exchange import Family
from server_stub.served import Served

DIALECTS: Mapping[str, Callable[[Served], Family]] = {"sglang": sglang.family, "vllm": vllm.family}

__all__ = ["DIALECTS"]
