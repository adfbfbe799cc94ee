"""The families whose words the server can speak, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from server_stub.dialects import fireworks, ollama, openai_chat, openai_legacy, sglang, together, vllm_tokens
from server_stub.exchange import Family
from server_stub.served import Served

DIALECTS: Mapping[str, Callable[[Served], Family]] = {
    "vllm": vllm_tokens.family,
    "sglang": sglang.family,
    "openai-legacy": openai_legacy.family,
    "fireworks": fireworks.family,
    "together": together.family,
    "ollama": ollama.family,
    "openai-chat": openai_chat.family,
}

__all__ = ["DIALECTS"]
