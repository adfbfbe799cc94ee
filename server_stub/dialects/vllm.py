"""vLLM: ``/v1/completions``, ``/inference/v1/generate``, and what it tells of itself."""

from __future__ import annotations

from pydantic import Field

from server_stub.bodies import Body, parse
from server_stub.dialects.openai_chat import Turn
from server_stub.dialects.vllm_completions import Completions
from server_stub.dialects.vllm_tokens import Generate
from server_stub.exchange import Family, detail
from server_stub.served import Served
from server_stub.wire import Json, WireError

# The release whose shapes are served.
VERSION = "0.33.0"
# What a GPU's cache has by default; vLLM's CPU build takes 128.
BLOCK_SIZE = 16
LAST_WORDS = WireError(
    500,
    "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    "InternalServerError",
)


class _Tokenize(Body):
    """A text, or a conversation, which the model's template writes (``TokenizeChatRequest``)."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Turn] | None = Field(None, min_length=1)
    add_special_tokens: bool = True


def family(served: Served) -> Family:
    """Return vLLM's routes."""

    def models(_: bytes) -> Json:
        model = {"id": served.name, "object": "model", "created": 0, "owned_by": "vllm", "root": served.name}
        return {"object": "list", "data": [model | {"parent": None, "max_model_len": served.num_context}]}

    def tokenize(raw: bytes) -> Json:
        asked = parse(_Tokenize, raw)
        served.check_model(asked.model)
        if asked.messages is not None:
            ids = served.render([turn.message for turn in asked.messages])
        elif asked.prompt is not None:
            ids = served.encode(asked.prompt, special=asked.add_special_tokens)
        else:
            raise WireError(400, "prompt: Field required", param="prompt")
        return {"count": len(ids), "max_model_len": served.num_context, "tokens": list(ids), "token_strs": None}

    def version(_: bytes) -> Json:
        return {"version": VERSION}

    facts = {("GET", "/v1/models"): models, ("GET", "/version"): version, ("POST", "/tokenize"): tokenize}
    endpoints = (Completions(served), Generate(served))
    block_size = served.block_size or BLOCK_SIZE
    return Family(endpoints, facts, unrouted=detail, block_size=block_size, last_words=LAST_WORDS)
