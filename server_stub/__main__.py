"""Serve a GGUF model as the reference cloud: ``python -m server_stub --model FILE --port N``."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
from contextlib import suppress
from ipaddress import ip_address
from typing import NoReturn

import uvicorn

from hybrid.engine import Worker
from hybrid.errors import EngineError, HybridError
from server_stub.app import App
from server_stub.arguments import parser
from server_stub.faults import Faults, hush
from server_stub.served import Served
from server_stub.slots import Slot, Slots
from server_stub.wire import Killed

try:
    from hybrid.engine.llama import Weights
    from hybrid.engine.real_models import model_file
except EngineError as error:  # a library that does not load
    sys.exit(f"server_stub: {error}")


class Server(uvicorn.Server):
    """Says where it listens once it does."""

    url = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so on standard output."""
        await super().startup(sockets)
        print(f"listening on {self.url}", flush=True)  # noqa: T201  (the promised line)


def main() -> None:
    """Parse the command line, load the model and serve until told to stop."""
    args = parser().parse_args()
    address = address_of(args.host, beyond_loopback=args.beyond_loopback)
    try:
        path = model_file(args.model)
        weights = Weights(path, gpu_layers=args.gpu_layers)
        engines = [weights.context(args.ctx, args.threads, in_turn=False) for _ in range(args.parallel)]
    except HybridError as error:
        sys.exit(f"server_stub: {error}")
    try:
        listener = listen(address, args.port)
    except (OSError, OverflowError) as error:  # a port above 65535 overflows
        sys.exit(f"server_stub: cannot listen on {args.host}:{args.port}: {getattr(error, 'strerror', None) or error}")
    served = Served(
        name=path.stem if path.suffix == ".gguf" else args.model.name,  # a blob is called by its digest
        vocabulary=weights,
        num_context=engines[0].num_context,
        max_logprobs=args.max_logprobs,
        latency_s=args.latency_ms / 1000,
        token_s=args.token_ms / 1000,
        scoring_keeps_cache=args.scoring_keeps_cache,
        logprobs=args.logprobs,
        api_key=args.api_key,
        block_size=args.block_size,
        scale_out=args.scale_out,
        v2_runner=args.v2_runner,
        prompt_tokens_details=args.prompt_tokens_details,
    )
    slots = Slots([Slot(engine, Worker(f"slot-{i}"), args.max_logprobs) for i, engine in enumerate(engines)])
    app = App(served, slots, args.dialect, Faults(args.fault, args.fault_seed), _end)
    config = uvicorn.Config(app.routes(), log_level="warning", access_log=False, lifespan="off")
    hush()
    server = Server(config)
    server.url = f"http://{args.host}:{listener.getsockname()[1]}"
    if args.until_stdin_closes:
        threading.Thread(target=_stop_with_stdin, args=(server,), daemon=True).start()
    with suppress(KeyboardInterrupt):
        asyncio.run(server.serve(sockets=[listener]))


def _end(killed: Killed) -> NoReturn:
    """End as abruptly as a server whose engine died."""
    sys.stderr.write(f"server_stub: the family's own server would have died here: {killed}\n")
    sys.stderr.flush()
    os._exit(1)


def address_of(host: str, *, beyond_loopback: bool) -> str:
    """Return the IPv4 address of a host. Exits with a sentence for one that lets other machines in without leave."""
    try:
        address = socket.gethostbyname(host)
    except (OSError, UnicodeError) as error:
        sys.exit(f"server_stub: cannot listen on {host}: {getattr(error, 'strerror', None) or error}")
    if not (ip_address(address).is_loopback or beyond_loopback):
        sys.exit(
            f"server_stub: {host or address} lets other machines in, and nothing limits what they may ask: "
            "add --beyond-loopback if that is meant, and --api-key"
        )
    return address


def listen(host: str, port: int) -> socket.socket:
    """Open the socket to listen on. What it accepts sends at once: else a reply waits 40 ms for the last one's ACK."""
    listener = socket.create_server((host, port))
    # asyncio would do this, but only for sockets that name their protocol.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _stop_with_stdin(server: uvicorn.Server) -> None:
    """End when whoever started us is gone, however it went."""
    # Not through sys.stdin: a thread inside its buffer makes the interpreter abort on the way out.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    logging.disable()  # nobody is left to read that their answers were broken off
    server.should_exit = server.force_exit = True


if __name__ == "__main__":
    main()
