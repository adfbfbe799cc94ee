"""Detect at no charge which dialect, model and vocabulary stand behind an address.

Every dialect that can be detected has a route of its own that answers for nothing; no name is believed. ``cloud.probe``
asks what only a paid request can tell: whether scoring works, up to which k, on which grid.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hybrid.cloud.bounds import MAX_FACT_BYTES
from hybrid.cloud.dialects import (
    chat,
    completions,
    fireworks,
    llama_cpp_python,
    llama_server,
    ollama,
    sglang,
    vllm,
    vllm_tokens,
)
from hybrid.cloud.dialects.dialect import Dialect, DialectConfig, DialectSpec, Json
from hybrid.cloud.dialects.reading import count, guarded, read_tokens
from hybrid.cloud.wire import Wire
from hybrid.errors import AccessDenied, BadReply, CloudError, MissingCapability, ModelNotFound, NotAnApi, UsageError
from hybrid.types import Ids, Message

# In the order in which they are looked for: the more a dialect can do, the earlier.
DIALECTS: Mapping[str, DialectSpec] = {
    spec.name: spec
    for spec in (
        llama_server.SPEC,
        sglang.SPEC,
        vllm.SPEC,
        vllm_tokens.SPEC,
        llama_cpp_python.SPEC,
        ollama.SPEC,
        completions.SPEC,
        chat.SPEC,
        fireworks.SPEC,
        completions.TOGETHER_SPEC,
        completions.TEXT_SPEC,
        chat.TEXT_SPEC,
    )
}


# Messages, and of the reply its text alone: what any two models can do with each other.
TEXT_CHAT = chat.TEXT_SPEC.name


async def discover(wire: Wire, setup: DialectConfig, wanted: str | None, probe: tuple[str, Ids]) -> Dialect:
    """Return the dialect of an endpoint, set up for its model, with its context length and vocabulary as told.

    ``wanted``: the dialect if the user named one. ``probe``: a text and its local ids. Raises UsageError for a dialect
    that is none, CloudRefusal for what will never work, CloudFailure for a bad day.
    """
    if wanted is not None and wanted not in DIALECTS:
        msg = f"no dialect is called {wanted!r}; there are {', '.join(DIALECTS)}"
        raise UsageError(msg)
    listed = await ask_route(wire, vllm.MODELS, None)
    name, said = (wanted, {}) if wanted else await _detect_dialect(wire)
    if listed is None and DIALECTS[name].models_route:
        listed = await ask_route(wire, DIALECTS[name].models_route, None)
    if listed is None and not setup.model:
        await _raise_unlisted(wire)
    models = {} if listed is None else read_models(listed)
    setup = replace(setup, model=_choose_model(setup.model, models, wire.url))
    theirs = await _tokenize(wire, DIALECTS[name], setup.model, probe[0])
    dialect = DIALECTS[name].build(setup)
    context = models.get(setup.model) or _read_context(said)
    same = None if theirs is None else _splits_alike(theirs, probe[1])
    return replace(dialect, can=replace(dialect.can, model=setup.model, max_context=context, same_words=same))


async def takes_messages(wire: Wire) -> bool:
    """Ask, at no charge, whether an endpoint has a chat route. Raises CloudError."""
    return isinstance(await _detect(wire, chat.SPEC), Mapping)


async def _raise_unlisted(wire: Wire) -> None:
    """Raise what came in the place of a list of models."""
    try:
        await wire.get(vllm.MODELS)
    except NotAnApi as error:
        msg = f"no model is chosen (--cloud-model), and there is no list to take one from: {error}"
        raise NotAnApi(msg) from error


def _choose_model(model: str, models: Mapping[str, int | None], url: str) -> str:
    served = ", ".join(models)
    if not model and len(models) != 1:
        msg = f"{url} serves {len(models)} models: choose one with --cloud-model ({served or 'it lists none'})"
        raise ModelNotFound(msg)
    if model and models and model not in models:
        msg = f"{url} does not serve {model!r}; it serves {served}"
        raise ModelNotFound(msg)
    return model or next(iter(models))


async def _detect_dialect(wire: Wire) -> tuple[str, Json]:
    """Ask the routes that only one dialect has, then at those that many have; return the first that opens.

    A gateway may deny every route that it does not know: only where none opens is that what is wrong.
    """
    denied: AccessDenied | None = None
    for own in (True, False):
        tried = {name: spec for name, spec in DIALECTS.items() if spec.detect_route and bool(spec.detect_key) is own}
        answers = await asyncio.gather(*(_detect(wire, spec) for spec in tried.values()))
        for name, answer in zip(tried, answers, strict=True):
            if isinstance(answer, AccessDenied):
                denied = denied or answer
            elif answer is not None:
                return name, answer
    await wire.get(vllm.MODELS)  # what is wrong with the address, in the server's own words
    if denied is not None:
        raise denied
    msg = f"{wire.url} lists models, but speaks no dialect known here ({', '.join(DIALECTS)})"
    raise NotAnApi(msg)


async def _detect(wire: Wire, spec: DialectSpec) -> Json | AccessDenied | None:
    path, body = spec.detect_route or ("", None)
    try:
        answer = await ask_route(wire, path, body, refusal_opens=not spec.detect_key)
    except AccessDenied as error:
        return error
    shown = isinstance(answer, dict) and (not spec.detect_key or spec.detect_key in answer)
    return answer if shown else None


async def _tokenize(wire: Wire, spec: DialectSpec, model: str, text: str) -> Ids | None:
    """Ask the tokenizer, where there is one."""
    if spec.tokenize_route is None:
        return None
    path, question = spec.tokenize_route
    told = await ask_route(wire, path, question(model, text))
    return None if told is None else read_tokens(told)


async def render_chat(wire: Wire, dialect: Dialect, turns: Sequence[Message]) -> Ids | None:
    """Return a conversation's ids as the server's own template writes it, at no charge.

    None: it cannot be asked, it refuses, or something went wrong.
    """
    if (route := DIALECTS[dialect.name].chat_route) is None:
        return None
    flow, told = route(dialect.setup.model, turns), None
    with suppress(CloudError):
        async with wire.question_deadlines().bound_total():
            while True:
                try:
                    path, body = flow.send(told)
                except StopIteration as done:
                    ids: Ids = done.value
                    return ids
                if (told := await ask_route(wire, path, body)) is None:
                    return None
    return None


async def ask_route(wire: Wire, path: str, body: Json | None, *, refusal_opens: bool = False) -> Any:
    """Ask a route that may not exist; None if it does not."""
    try:
        return await (wire.get(path) if body is None else wire.post(path, body, most=MAX_FACT_BYTES))
    except (NotAnApi, ModelNotFound):
        return None
    except (BadReply, MissingCapability):
        if refusal_opens:
            return {}
        return None


def _splits_alike(theirs: Ids, ours: Ids) -> bool:
    return theirs[-len(ours) :] == ours and len(theirs) <= len(ours) + 1  # one more: a BOS token before them


@guarded
def _read_context(said: Json) -> int | None:
    """Read how long a text may be, where the family's own route tells."""
    settings = said.get("default_generation_settings") or {}
    told = settings.get("n_ctx") or said.get("context_length")
    return None if told is None else count(told)


@guarded
def read_models(reply: Any) -> dict[str, int | None]:
    """Read the served models and their context lengths (None: not told).

    OpenAI has them under ``data``, Ollama under ``models``, Together as a bare list.
    """
    try:
        listed = reply if isinstance(reply, list) else reply["data"] if "data" in reply else reply["models"]
        return {
            str(model.get("id") or model["model"]): None if (told := _context_length(model)) is None else count(told)
            for model in listed
        }
    except (KeyError, TypeError, AttributeError) as error:
        msg = "the endpoint's model list cannot be read"
        raise BadReply(msg) from error


def _context_length(model: Mapping[str, Any]) -> object:
    """Return how long a text may be: vLLM's and SGLang's word for it, or Together's."""
    told: object = model.get("max_model_len")
    return model.get("context_length") if told is None else told
