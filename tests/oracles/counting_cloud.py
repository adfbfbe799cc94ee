"""A cloud that counts what it charges, by another hand than the client and than ``server_stub``.

It serves the bundled large model in the shape of vLLM (and of an OpenAI chat service), keeps an account that no client
reaches, and says of its usage whatever its mode tells it to. The account is the truth that a ledger is measured by:
what was computed is charged, told or not, waited for or not. This file must never import ``hybrid`` or ``server_stub``.

In a test::

    with CountingCloud(mode="tenth", price="1/0.1/4") as cloud:
        ...  # ask cloud.url
        cloud.account()["total_nanousd"]

As a program: ``python counting_cloud.py --mode honest --price 1/0.1/4 --account FILE`` prints its address first.
``GET /account`` tells the account, ``POST /mode {"mode": "zero", "times": 1}`` changes any field of ``Manner``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import uvicorn
from counted_account import CHARGEABLE, Account, Entry, Job, Manner, PrefixCache
from counted_model import LARGE, LlamaModel, Model, TableModel, Token
from counted_replies import ChatReply, CompletionReply, error_body
from counted_shapes import CREATED, Refusal, chat_text, understand, understand_chat


async def answer(send: Callable, status: int, body: Any, retry_after: str | None = None) -> None:
    """Send a whole reply; None is an empty body."""
    sent = b"" if body is None else json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(sent)).encode())]
    if retry_after is not None:
        headers.append((b"retry-after", retry_after.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": sent})


class Line:
    """The way back to a client: what is sent to it, and whether it has hung up."""

    def __init__(self, receive: Callable, send: Callable):
        self.send, self._receive = send, receive
        self._hung_up = asyncio.ensure_future(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    @property
    def closed(self) -> bool:
        return self._hung_up.done()

    async def closed_within(self, seconds: float) -> bool:
        """Sleep so long, or until the client hangs up."""
        await asyncio.wait([self._hung_up], timeout=seconds)
        return self.closed

    def leave(self) -> None:
        self._hung_up.cancel()

    async def start(self) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def event(self, *said: Any) -> None:
        """Send events; a text stands for itself."""
        texts = [each if isinstance(each, str) else json.dumps(each) for each in said]
        body = "".join(f"data: {text}\n\n" for text in texts).encode()
        await self.send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self) -> None:
        await self.event("[DONE]")
        await self.send({"type": "http.response.body", "body": b""})

    async def refuse(self, no: Refusal, *, stream: bool) -> None:
        """Turn a request down: inside a stream, if it is the engine that does."""
        if not (no.late and stream):
            return await answer(self.send, no.status, no.body)
        await self.start()
        await self.event(no.body)
        return await self.end()


@dataclass
class App:
    """The service, as a plain ASGI application."""

    model: Model
    account: Account
    manner: Manner
    service: str = "vllm"
    max_logprobs: int = 20
    cache: PrefixCache = field(default_factory=lambda: PrefixCache(0))
    tell_cached: bool = False
    requests: list[tuple[str, Any]] = field(default_factory=list)  # routes and bodies, for tests to look at

    async def __call__(self, scope: Mapping[str, Any], receive: Callable, send: Callable) -> None:
        assert scope["type"] == "http"
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        route = f"{scope['method']} {scope['path']}"
        try:
            said = json.loads(body or b"{}")
        except ValueError:
            said = None
        if not isinstance(said, dict):
            await answer(send, 400, error_body(400, "the body must be a JSON object"))
        elif route in {"POST /v1/completions", "POST /v1/chat/completions"} and not self._missing(route):
            self.requests.append((scope["path"], said))
            request_id = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
            await self._work(said, scope["path"], request_id, Line(receive, send))
        else:
            await answer(send, *self._simple(route, said))

    def _missing(self, route: str) -> bool:
        return self.service == "openai" and route not in {"POST /v1/chat/completions", "GET /v1/models"}

    def _simple(self, route: str, said: dict[str, Any]) -> tuple[int, Any]:
        """What costs nothing: the account, the mode, and what a service tells about itself."""
        if route == "POST /mode":
            try:
                self.manner = replace(self.manner, **{"times": None} | said)
            except (TypeError, ValueError) as wrong:
                return 400, error_body(400, str(wrong))
            return 200, asdict(self.manner)
        if route != "GET /account" and self._missing(route):
            return 404, error_body(404, f"Invalid URL ({route})")
        card = {"id": self.model.name, "object": "model", "created": CREATED, "owned_by": self.service}
        if self.service == "vllm":
            card |= {"root": self.model.name, "parent": None, "max_model_len": self.model.context, "permission": []}
        known = {
            "GET /account": self.account.told,
            "GET /version": lambda: {"version": "0.32.0"},
            "GET /health": lambda: None,
            "GET /v1/models": lambda: {"object": "list", "data": [card]},
            "POST /tokenize": lambda: self._tokenized(said),
            "POST /detokenize": lambda: {
                "prompt": b"".join(map(self.model.piece, said["tokens"])).decode(errors="replace")
            },
        }
        return (200, known[route]()) if route in known else (404, {"detail": "Not Found"})

    def _tokenized(self, said: dict[str, Any]) -> dict[str, Any]:
        ids = self.model.tokenize(chat_text(said["messages"]) if "messages" in said else said["prompt"])
        pieces = [self.model.piece(i).decode(errors="replace") for i in ids] if said.get("return_token_strs") else None
        return {"count": len(ids), "max_model_len": self.model.context, "tokens": ids, "token_strs": pieces}

    def _next_manner(self) -> Manner:
        manner = self.manner
        if manner.times is not None:
            left = manner.times - 1
            self.manner = replace(manner, times=left) if left > 0 else replace(manner, mode="honest", times=None)
        return manner

    async def _work(self, said: dict[str, Any], path: str, request_id: str, line: Line) -> None:
        manner = self._next_manner()
        entry, early = self.account.open(request_id, path, manner.mode), False
        try:
            early = await self._answer(said, entry, manner, line)
        except Refusal as no:
            await line.refuse(no, stream=bool(said.get("stream")))
        except (TypeError, ValueError, KeyError, AttributeError) as wrong:
            await answer(line.send, 400, error_body(400, f"{type(wrong).__name__}: {wrong}"))
        finally:
            line.leave()
            self.account.close(entry, early=early)

    async def _answer(self, said: dict[str, Any], entry: Entry, manner: Manner, line: Line) -> bool:
        """Answer one request; return whether the client hung up before the end."""
        status, chat = manner.status, "chat" in entry.route
        if status is not None and not (manner.charge_errors and status in CHARGEABLE):
            await answer(line.send, status, error_body(status, "refused as asked"), manner.retry_after)
            return False
        if manner.mode == "refusal-in-stream":
            raise Refusal("This model does not do that (refused as asked)", late=True)
        if chat:
            wanted = understand_chat(self.model, said, manner.tokens_per_event)
        else:
            wanted = understand(self.model, said, self.max_logprobs, manner.tokens_per_event)
        job = Job(self.account, entry, wanted, manner, manner.preamble if chat else 0)
        prompt = wanted.order.prompt
        cached = self.cache.look_up(wanted.salt, prompt, read=not wanted.prompt_k)
        self.account.accept(entry, len(prompt) + job.preamble, cached)
        tokens = job.tokens(self.model)
        if status is not None:
            await asyncio.to_thread(lambda: [*tokens])
            await answer(line.send, status, error_body(status, "failed as asked, computed"), manner.retry_after)
            return False
        if manner.mode == "slow" and await line.closed_within(manner.delay_s):
            await asyncio.to_thread(job.run_ahead, tokens)
            return True
        reply = (ChatReply if chat else CompletionReply)(self.model, job, tell_cached=self.tell_cached)
        deliver = self._stream if wanted.stream else self._whole
        return await deliver(job, reply, tokens, line)

    async def _whole(self, job: Job, reply: CompletionReply, tokens: Iterator[Token], line: Line) -> bool:
        made: list[Token] = []
        while (token := await asyncio.to_thread(next, tokens, None)) is not None:
            made.append(token)
            if line.closed:
                await asyncio.to_thread(job.run_ahead, tokens)
                return True
        await answer(line.send, 200, await asyncio.to_thread(reply.whole, made))
        return False

    async def _stream(self, job: Job, reply: CompletionReply, tokens: Iterator[Token], line: Line) -> bool:
        mode, waiting, num_events = job.manner.mode, list[Token](), 0
        await line.start()
        while (token := await asyncio.to_thread(next, tokens, None)) is not None:
            waiting.append(token)
            if job.manner.token_s:
                await line.closed_within(job.manner.token_s)
            if line.closed or (mode in {"cut", "failure-in-stream"} and num_events == 2):
                await asyncio.to_thread(job.run_ahead, tokens)
                if mode == "failure-in-stream" and not line.closed:
                    await line.event(error_body(500, "failed as asked"))
                    await line.end()
                return line.closed  # the reply of "cut" has no end: the connection is dropped
            if token.finish or len(waiting) >= job.wanted.per_event or not num_events:
                await line.event(*await asyncio.to_thread(reply.events, waiting, not num_events))
                waiting, num_events = [], num_events + 1
        await line.event(*reply.last())
        await line.end()
        return False


def load(model: Path | str | None) -> Model:
    """The model at a path; "none": a table in its place; None: the bundled large one."""
    return TableModel() if model == "none" else LlamaModel(LARGE if model is None else Path(model))


class CountingCloud:
    """A running one, in a thread of its own. Named arguments that are fields of ``Manner`` set them."""

    def __init__(
        self, mode: str = "honest", price: str = "1/0.1/4", *, model: Path | str | None = None, service: str = "vllm",
        account_file: Path | None = None, block: int = 0, tell_cached: bool = False, max_logprobs: int = 20,
        port: int = 0, **manner: Any,
    ):  # fmt: skip
        self._account = Account(price, account_file)
        self.app = App(
            load(model), self._account, Manner(mode, **manner), service, max_logprobs, PrefixCache(block), tell_cached
        )
        self._socket = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            self.app, loop="asyncio", http="h11", ws="none", lifespan="off", log_level="critical", access_log=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        until = time.monotonic() + 30
        while not self._server.started:
            assert self._thread.is_alive(), "the cloud did not start"
            assert time.monotonic() < until, "the cloud did not start"
            time.sleep(0.002)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()
        self.app.model.close()
        self._account.leave()

    @property
    def model(self) -> Model:
        return self.app.model

    @property
    def requests(self) -> list[tuple[str, Any]]:
        """Routes and bodies of what was asked to be computed."""
        return self.app.requests

    def set(self, **changes: Any) -> None:
        """Answer otherwise from now on; the fields of ``Manner``."""
        self.app.manner = replace(self.app.manner, **{"times": None} | changes)

    def account(self, wait_s: float = 10.0) -> dict[str, Any]:
        """What was charged, as ``GET /account`` tells it, once nothing is being computed any more."""
        until = time.monotonic() + wait_s
        while not all(entry.finished for entry in self._account.entries) and time.monotonic() < until:
            time.sleep(0.005)
        return self._account.told()


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--price", default="1/0.1/4", help="USD per million prompt/cached/completion tokens[/request]")
    parser.add_argument("--model", help='a GGUF file; "none": a table instead; default: the bundled large model')
    parser.add_argument("--service", choices=["vllm", "openai"], default="vllm")
    parser.add_argument("--account", dest="account_file", type=Path, help="append what is charged to this file")
    parser.add_argument("--block", type=int, default=0, help="keep a prefix cache in blocks of so many tokens")
    parser.add_argument("--tell-cached", action="store_true")
    parser.add_argument("--max-logprobs", type=int, default=20)
    parser.add_argument("--port", type=int, default=0)
    for each in fields(Manner):
        flag = "--" + each.name.replace("_", "-")
        if isinstance(each.default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            kind = {"times": int}.get(each.name, str if each.default is None else type(each.default))
            parser.add_argument(flag, type=kind, default=each.default)
    with CountingCloud(**vars(parser.parse_args())) as cloud, suppress(KeyboardInterrupt):
        print(cloud.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
