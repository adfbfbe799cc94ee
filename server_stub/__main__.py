"""Serve a GGUF model as the reference cloud: ``python -m server_stub --model FILE --port N``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
import threading
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import NoReturn

import uvicorn

from hybrid.engine import Worker
from hybrid.errors import EngineError, HybridError
from server_stub.app import App
from server_stub.dialects import DIALECTS
from server_stub.faults import NAMES, Faults, hush, share
from server_stub.served import Served
from server_stub.slots import Slot, Slots
from server_stub.wire import Killed

# The flags of ``python -m server_stub``.


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("a whole number of at least 1 is needed")
    return int(text)


def _share(text: str) -> tuple[str, float]:
    try:
        return share(text)
    except ValueError:
        raise argparse.ArgumentTypeError("NAME or NAME:P with a share P from 0 to 1 is needed") from None


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    flags = argparse.ArgumentParser(
        prog="python -m server_stub",
        description="Serve a GGUF model with its log-probabilities, as vLLM's /v1/completions does, or another family.",
        epilog="example: python -m server_stub --model large.gguf --port 8000",
    )
    flags.add_argument(
        "--model", type=Path, required=True, metavar="GGUF", help="file, or a name of `hybrid models list`"
    )
    flags.add_argument("--port", type=int, required=True, help="0 picks a free one")
    flags.add_argument("--host", default="127.0.0.1", help="address to listen on; others than loopback need the next")
    flags.add_argument(
        "--beyond-loopback", action="store_true", help="let other machines in: whoever reaches the port may use it"
    )
    _add_wire(flags)
    _add_faults(flags)
    flags.add_argument("--api-key", help="refuse requests without this bearer token")
    flags.add_argument(
        "--ctx", type=int, default=0, help="context of each slot; default: the model's own, 8192 at most"
    )
    flags.add_argument("--threads", type=int, help="llama.cpp threads")
    flags.add_argument("--gpu-layers", type=int, default=0)
    flags.add_argument(
        "--parallel",
        type=_positive,
        default=2,
        metavar="N",
        help="requests computed side by side, each with its cache",
    )
    flags.add_argument("--until-stdin-closes", action="store_true", help="end when standard input does")
    return flags


def _add_wire(flags: argparse.ArgumentParser) -> None:
    """Add what shapes the replies."""
    flags.add_argument("--dialect", choices=DIALECTS, default="vllm", help="the family whose routes are served")
    flags.add_argument("--max-logprobs", type=int, default=20, help="most log-probabilities a request may ask for")
    flags.add_argument("--scoring-keeps-cache", action="store_true", help="score from the prefix cache, as SGLang does")
    flags.add_argument(
        "--block-size", type=_positive, metavar="N", help="tokens of a block of the prefix cache; default: the family's"
    )
    flags.add_argument(
        "--enable-prompt-tokens-details",
        action="store_true",
        dest="prompt_tokens_details",
        help="tell how much of a prompt was cached, which vLLM does not without it",
    )
    flags.add_argument(
        "--enable-scale-out", action="store_true", dest="scale_out", help="open vLLM's /inference/v1/generate"
    )
    flags.add_argument(
        "--v2-runner",
        action="store_true",
        help="run as vLLM's V2 model runner, which scores candidates; V1 dies of a check that reads the cache",
    )
    flags.add_argument(
        "--no-logprobs", action="store_false", dest="logprobs", help="give no log-probabilities, as some families do"
    )


def _add_faults(flags: argparse.ArgumentParser) -> None:
    """Add delays and faults, for tests of clients."""
    flags.add_argument(
        "--latency-ms", type=float, default=0.0, help="wait this long before answering, as a network would"
    )
    flags.add_argument(
        "--token-ms", type=float, default=0.0, help="take at least this long for every token after the first"
    )
    flags.add_argument(
        "--prefill-ms", type=float, default=0.0, help="take at least this long for every token of a prompt not cached"
    )
    flags.add_argument(
        "--fault",
        action="append",
        default=[],
        type=_share,
        metavar="NAME[:P]",
        help=f"let a share P of the requests (all, if it is missing) meet a fault: {', '.join(NAMES)}",
    )
    flags.add_argument("--fault-seed", type=int, default=0, help="another seed strikes other requests")


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
        prefill_s=args.prefill_ms / 1000,
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
