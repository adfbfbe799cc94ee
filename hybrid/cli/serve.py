"""``hybrid serve``: OpenAI's wire for any client on this machine, and a page that shows the hybrid at work."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer
from pydantic import SecretStr

from hybrid.cli.command import Flags, exit_codes, takes_flags
from hybrid.errors import UsageError, escape_controls
from hybrid.settings.names import NAMED
from hybrid.settings.setting_info import SettingScope
from hybrid.settings.sources import load
from hybrid.spend import as_usd, endpoint_id

if TYPE_CHECKING:
    from hybrid.run import AsyncClient
    from hybrid.serve.app_state import ServeOptions
    from hybrid.serve.monitor import Monitor

KEY_ENV = "HYBRID_SERVE_KEY"
CONTEXTS = 4
# The length of an answer for which nobody names one: the rest of the context.
OPEN_END = 0
EPILOG = f"""
Callers choose a policy by the model's name: hybrid is the one of --policy, hybrid:local asks no cloud, hybrid:kl:0.5
is a policy with its number. What both models together cannot honour (tools, response_format, images) is relayed to the
cloud's own chat route, and the answer says so (x-hybrid-mode). Room hybrid/serve has the fields, headers and recipes.

Another address than loopback wants a key: put one into {KEY_ENV}, or into the variable that --key-env names.

Examples:

  hybrid serve

  hybrid serve --local qwen2.5:1.5b --cloud http://gpu:8000 --price 1/0.1/4 --cap 0.50 --monitor

  {KEY_ENV}=$(openssl rand -hex 16) hybrid serve --host 0.0.0.0 --allow-host laptop.lan

Exit codes: 0 stopped by a signal, 2 usage (a port that is taken, an address without a key), 3 local model unusable.
"""


@takes_flags(SettingScope.FLAG, usual={"parallel": f"{CONTEXTS}", "max_tokens": f"{OPEN_END}", "learn": "off"})
def serve(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.", metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one.", min=0, max=65535)] = 8088,
    monitor: Annotated[
        bool, typer.Option("--monitor", help="Show prompts and answers on the page, not only counts, bill and KL.")
    ] = False,
    key_env: Annotated[str, typer.Option(help="Variable that holds the key callers must show.", metavar="VAR")] = (
        KEY_ENV
    ),
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Answer to this name in a Host header, too; may be given again.", metavar="NAME"),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="Let pages of this origin ask, like http://localhost:3000; may be given again.", metavar="ORIGIN"
        ),
    ] = None,
    **flags: Unpack[Flags],
) -> None:
    """Serve OpenAI's API to clients on this machine, and a monitor page."""
    with exit_codes():
        options = _options(host, port, key_env, allow_host or [], allow_origin or [], shows_texts=monitor)
        asyncio.run(_serve(options, key_env, _with_defaults(flags)))


serve.__doc__ = f"{serve.__doc__}\n{EPILOG}"


def _options(
    host: str, port: int, key_env: str, hosts: list[str], origins: list[str], *, shows_texts: bool
) -> ServeOptions:
    from hybrid.serve.app_state import ServeOptions  # noqa: PLC0415
    from hybrid.serve.guard import LOOPBACK, allowed_host, allowed_origin  # noqa: PLC0415  (help needs no server)

    key = os.environ.get(key_env, "").strip() or None  # headers lose what stands around it
    if key and not (key.isascii() and key.isprintable()):
        msg = f"{key_env}: a header can hold visible ASCII characters alone, so nobody could show this key"
        raise UsageError(msg)
    if key is None and key_env != KEY_ENV:
        msg = f"--key-env {key_env}: the variable is not set, so there would be no key"
        raise UsageError(msg)
    if key is None and host.lower() not in LOOPBACK:
        msg = f"--host {host} can be reached by others than you: put a key into {key_env}, which callers then must show"
        raise UsageError(msg)
    named, pages = frozenset(map(allowed_host, hosts)), frozenset(map(allowed_origin, origins))
    return ServeOptions(host, port, SecretStr(key) if key else None, named, pages, shows_texts)


def _with_defaults(flags: Flags) -> dict[str, Any]:
    """Return the flags with what is usual where many ask: contexts side by side, open ends, nothing learned."""
    chosen = load(**flags).model_fields_set
    given: dict[str, Any] = {"learn": bool(flags.get("learn"))}
    given |= {} if "parallel" in chosen else {"parallel": CONTEXTS}
    given |= {} if "max_tokens" in chosen else {"max_tokens": OPEN_END}
    return {**flags, **given}


async def _serve(options: ServeOptions, key_env: str, flags: dict[str, Any]) -> None:
    import hybrid  # noqa: PLC0415  (help and usage errors need no llama.cpp)
    from hybrid.run.composition import check_effect  # noqa: PLC0415
    from hybrid.serve.monitor import Monitor  # noqa: PLC0415
    from hybrid.serve.server import bound_socket, serve  # noqa: PLC0415

    opener = hybrid.open(**flags)
    check_effect(opener.settings, {name: value for name, value in flags.items() if name != "learn"})
    listening = bound_socket(options.host, options.port)
    monitor = Monitor(options)
    with listening:
        named = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.host, options.host)  # noqa: S104  (nobody calls it so)
        host = f"[{named}]" if ":" in named else named
        url = f"http://{host}:{listening.getsockname()[1]}"
        _say_where(url, options, monitor, key_env)
        settings = opener.settings

        async def told(client: AsyncClient) -> None:
            for line in await _said(client):
                typer.echo(escape_controls(line), err=True)

        await serve(opener, settings, options, listening, monitor, told)


def _say_where(url: str, options: ServeOptions, monitor: Monitor, key_env: str) -> None:
    """Print the address, and the two lines to paste."""
    typer.echo(f"hybrid serves {url}/v1, and its monitor {url}{monitor.one_time_path() or '/'}", err=True)
    typer.echo(f"export OPENAI_BASE_URL={url}/v1")
    typer.echo(f"export OPENAI_API_KEY={f'${key_env}' if options.key else 'none'}")


async def _said(client: AsyncClient) -> list[str]:
    """Return what a user should know once the model is open."""
    settings, caps = client.settings, await client.cap_statuses()
    local = settings.local or " and ".join(map(str, settings.experts)) or "the bundled small model"
    lasting = [status.left_nanousd for status in caps if status.level != "request"]
    limits = [f"{as_usd(max(0, min(lasting)))} left under its cap"] if lasting else []
    limits += [f"at most {as_usd(each.cap_nanousd)} a question" for each in caps if each.level == "request"]
    cap = ", ".join(limits) or "no cap"
    asked = "no cloud (offline)" if settings.offline else f"cloud {_named(settings.cloud)}"
    contexts = f"{client.parallel} contexts of {client.num_context} tokens"
    there = _named(settings.relay_url or settings.cloud)
    to = "refused" if client.relayer is None else f"relayed to {there}, if it has a chat route"
    own = settings.relay_url is not None or settings.relay_model is not None  # else the cloud's price may come yet
    if client.relayer is not None and own and caps and client.relayer.target.account.price is None:
        to = f'refused, for there is a cap and no price of {there}: price = "P/C/O" under [relay] in hybrid.toml'
    relayed = f"tools, response_format and images are {to}"
    policy = f"{settings.branches} branches" if settings.branches else f"policy {settings.policy}"
    return [f"local {local}, {asked}, {policy}, {cap}, {contexts}", relayed, *client.notes]


def _named(cloud: str | None) -> str:
    """Name an endpoint; never by the password that a URL may hold."""
    return "the bundled large model" if cloud is None else cloud if cloud in NAMED else endpoint_id(cloud)
