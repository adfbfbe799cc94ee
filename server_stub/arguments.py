"""The flags of ``python -m server_stub``."""

from __future__ import annotations

import argparse
from pathlib import Path

from server_stub.dialects import DIALECTS
from server_stub.faults import NAMES, share


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
        "--fault",
        action="append",
        default=[],
        type=_share,
        metavar="NAME[:P]",
        help=f"let a share P of the requests (all, if it is missing) meet a fault: {', '.join(NAMES)}",
    )
    flags.add_argument("--fault-seed", type=int, default=0, help="another seed strikes other requests")
