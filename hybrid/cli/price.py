"""``hybrid price``: what a question would cost, and whether checking pays here, before the first cent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from hybrid.cli.exits import exit_codes
from hybrid.cli.flags import Flags, takes_flags
from hybrid.errors import UsageError, escape_controls
from hybrid.setting_info import SettingPlace

if TYPE_CHECKING:
    from hybrid.cloud.probe_result import ProbeResult
    from hybrid.config import Settings
    from hybrid.engine.llama import Weights
    from hybrid.run.quote import PriceQuote

# Without a question: tokens of a prompt that asks something short.
SHORT_PROMPT = 100

EPILOG = """
It sends nothing: the question is only counted, in the tokens of the local model (--local). Every check sends the text
so far anew, so checking pays only where enough of the drafted tokens are kept; from which share on, the price says
(P/C/O), and how it charges a prefix that is sent again: `:cached`, `:uncached`, or `:new`, where only new tokens are
charged. What was seen of the pair is counted while answers are given; what an endpoint can do is what hybrid probe
has found there. The text before a draft is taken as the prompt and half of --max-tokens. Without a question the prompt
is taken as 100 tokens.

Examples:

  hybrid price --price 1/0.1/4

  hybrid price --price 1/0.1/4:cached --max-tokens 64 "Why is the sky blue?"

  hybrid price --cloud https://api.example.com/v1 --cloud-model large-1 --local qwen.gguf "Why is the sky blue?"

  hybrid price --price 1/0.1/4:new --policy excess:0.5 --json

Exit codes: 0 told, 2 usage, 3 local model unusable.
"""


@takes_flags(SettingPlace.PRICE)
def price(
    question: Annotated[str | None, typer.Argument(help="A question, to count its tokens.", show_default=False)] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    **flags: Unpack[Flags],
) -> None:
    """Tell what a question would cost, and whether checking drafts pays here. Sends nothing."""
    with exit_codes():
        from hybrid.sources import load  # noqa: PLC0415  (help needs nothing)

        quote = _quote(question, load(**flags))
        told = json.dumps(quote.to_json()) if as_json else "\n".join(map(escape_controls, quote.lines()))
        typer.echo(told)


price.__doc__ = f"{price.__doc__}\n{EPILOG}"


def _quote(question: str | None, settings: Settings) -> PriceQuote:
    """Work it out. Raises UsageError where no price is known, EngineError for the local model."""
    from contextlib import closing  # noqa: PLC0415  (help needs no llama.cpp)

    from hybrid.assemble import BUNDLED_LOCAL, known_price  # noqa: PLC0415
    from hybrid.engine.llama import Weights  # noqa: PLC0415
    from hybrid.engine.real_models import model_file  # noqa: PLC0415
    from hybrid.run.composition import policy_of  # noqa: PLC0415
    from hybrid.run.conversation import turns_of  # noqa: PLC0415
    from hybrid.run.pair_record import JudgedTokens, pair_record  # noqa: PLC0415
    from hybrid.run.quote import UNPROBED, PriceQuote  # noqa: PLC0415

    policy, (stated, prices) = policy_of(settings), known_price(settings)
    if question is not None and not question.strip():
        raise UsageError("the prompt is empty")
    path = model_file(settings.local or BUNDLED_LOCAL)
    with closing(Weights(path)) as weights:
        num_tokens = SHORT_PROMPT if question is None else len(weights.render(turns_of(question, settings.system)))
        probed = _probed(settings, weights)
    record = pair_record(settings.cloud, path)
    models = [settings.cloud_model] if settings.cloud_model else [each.model for each in probed]
    models = models or (record.models()[-1:] if record else [])
    if stated is None and prices is not None and settings.cloud and models:
        stated = prices.price(settings.cloud, models[-1])
    if stated is None:
        where = f" for {settings.cloud}" if settings.cloud else ""
        msg = f"no price is known{where}: state --price P/C/O, or enter it in the price file and name --cloud-model"
        raise UsageError(msg)
    seen = record.read(models[-1]).get(str(policy.judge), JudgedTokens()) if record and models else JudgedTokens()
    found = probed[-1] if probed else UNPROBED
    return PriceQuote(stated, policy, num_tokens, settings.max_tokens, found, seen)


def _probed(settings: Settings, weights: Weights) -> list[ProbeResult]:
    """Return what probes have found of the endpoint's model, or of its models where none is named."""
    from hybrid.cloud.probe_result import ProbeCache  # noqa: PLC0415
    from hybrid.sources import findings_file  # noqa: PLC0415

    if settings.cloud is None:
        return []
    return ProbeCache(findings_file(), weights.vocabulary_digest).read_all(settings.cloud, settings.cloud_model)
