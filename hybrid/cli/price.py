"""``hybrid price``: what a question would cost, and whether checking pays here, before the first cent."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from hybrid.cli.command import Flags, exit_codes, takes_flags
from hybrid.errors import UsageError, escape_controls
from hybrid.settings.setting_info import SettingScope
from hybrid.spend import SHIPPED_TARIFFS, CheckRates, Price, PriceFile, as_percent, as_usd

if TYPE_CHECKING:
    from hybrid.cloud.port import Capabilities
    from hybrid.cloud.probe_result import ProbeCache, ProbeResult
    from hybrid.engine.llama import Weights
    from hybrid.pairs.quote import AutoQuote, PriceQuote
    from hybrid.settings.config import Settings


# What ``hybrid price --tariffs`` lists: the price file that ships, with what a typical question costs at each price.
#
# The law (``tests/cli/test_tariff_list.py``): its bills are those of ``spend.Price``, its break-even is that of
# ``spend.CheckRates`` where checks read the cache, and every entry has an address and a day as its source.

# A question behind a page of context, long enough for one of today's two minimum prefixes, and a short answer.
PROMPT, ANSWER = 2000, 300


def tariffs_json() -> dict[str, Any]:
    """Return the shipped tariffs as plain data; amounts in nano-dollars."""
    entries = PriceFile.read(SHIPPED_TARIFFS).prices
    return {
        "file": str(SHIPPED_TARIFFS),
        "prompt_tokens": PROMPT,
        "answer_tokens": ANSWER,
        "tariffs": [_entry(endpoint, model, price) for (endpoint, model), price in entries.items()],
    }


def tariff_lines() -> list[str]:
    """Return the same for a person."""
    found = tariffs_json()
    lines = [
        "USD per million tokens: prompt/cached/cache writes/completion (three parts: writes cost what a prompt does).",
        f"Bills: {PROMPT} tokens and an answer of {ANSWER}. Checking: where drafts are scored, reading the cache.",
    ]
    for entry in found["tariffs"]:
        lines += ["", *_told(entry)]
    return [*lines, "", f"Copy what you need into your own price file, and check it there: {found['file']}"]


def _entry(endpoint: str, model: str, price: Price) -> dict[str, Any]:
    alone = price.cost(price.expected_usage(PROMPT, ANSWER))
    return {
        "endpoint": endpoint,
        "model": model,
        "price": str(price),
        "terms": price.terms,
        "source": price.source.removesuffix(" (price file)"),
        "cloud_only_nanousd": alone,
        "cloud_only_cached_nanousd": price.cost(price.expected_usage(PROMPT, ANSWER, PROMPT)),
        "cloud_only_batch_nanousd": None if price.batch is None else math.ceil(alone * price.batch),
        "break_even": CheckRates.of_price(price, keeps_cache=True).break_even(PROMPT + ANSWER / 2),
    }


def _told(entry: Mapping[str, Any]) -> list[str]:
    alone, cached = as_usd(entry["cloud_only_nanousd"]), as_usd(entry["cloud_only_cached_nanousd"])
    batch, least = entry["cloud_only_batch_nanousd"], entry["break_even"]
    bill = alone if alone == cached else f"{alone}, with its prompt cached {cached}"
    bill += "" if batch is None else f", by the batch API {as_usd(batch)}"
    pays = "never pays" if least is None else f"pays where {as_percent(least)} of the drafted tokens are kept"
    return [
        f"{entry['model']} at {entry['endpoint']}: {entry['price']}",
        *(f"  {term}" for term in entry["terms"]),
        f"  the cloud alone: {bill}; checking {pays}",
        f"  {entry['source']}",
    ]


# Without a question: tokens of a prompt that asks something short.
SHORT_PROMPT = 100

EPILOG = """
It sends nothing: the question is only counted, in the tokens of the local model (--local). Every check sends the text
so far anew, so checking pays only where enough of the drafted tokens are kept; from which share on, the price says
(P/C/O, P/C/W/O with a price W of cache writes, or P/C/W/O/R with R USD per request; a price file has more, such as
minimum prefixes and long contexts, and --tariffs lists one that ships), and how it charges a prefix that is sent again:
`:cached`, `:uncached`, or `:new`, where only new tokens are charged. What was seen of the pair is counted while answers
are given; what an endpoint can do is what hybrid probe has found there. The text before a draft is taken as the prompt
and half of --max-tokens (0: of an answer that fills the local context, asked for at once). Without a question the
prompt is taken as 100 tokens.

Under auto and route, what is expected of a question is worked out from the question alone (nothing is drafted) and
from what is known of the pair: the chance that it is asked about, and its bill. Without a calibration of the pair
(hybrid calibrate) that is not known.

Examples:

  hybrid price --policy auto --price 1/0.1/4 "What is 47 + 86?"

  hybrid price --price 1/0.1/4

  hybrid price --price 1/0.1/4:cached --max-tokens 64 "Why is the sky blue?"

  hybrid price --cloud https://api.example.com/v1 --cloud-model large-1 --local qwen.gguf "Why is the sky blue?"

  hybrid price --price 1/0.1/4:new --policy excess:0.5 --json

  hybrid price --price 2/0.1/2.5/10 "Why is the sky blue?"

  hybrid price --tariffs

Exit codes: 0 told, 2 usage, 3 local model unusable.
"""


@takes_flags(SettingScope.PRICE)
def price(
    question: Annotated[str | None, typer.Argument(help="A question, to count its tokens.", show_default=False)] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    tariffs: Annotated[
        bool, typer.Option("--tariffs", help="List today's tariffs of some providers, each with its source, instead.")
    ] = False,
    **flags: Unpack[Flags],
) -> None:
    """Tell what a question would cost, and whether checking drafts pays here. Sends nothing."""
    with exit_codes():
        if tariffs:
            _list_tariffs(question, as_json=as_json)
            return
        from hybrid.settings.sources import load  # noqa: PLC0415  (help needs nothing)

        quote, auto = _quote(question, load(**flags))
        if as_json:
            typer.echo(json.dumps(quote.to_json() | {"auto": auto and auto.to_json()}))
        else:
            typer.echo("\n".join(map(escape_controls, [*quote.lines(), *(auto.lines() if auto else [])])))


price.__doc__ = f"{price.__doc__}\n{EPILOG}"


def _list_tariffs(question: str | None, *, as_json: bool) -> None:
    """List the shipped price file. Raises UsageError beside a question."""
    if question is not None:
        raise UsageError("--tariffs takes no question: it lists prices; --price quotes a question at one of them")
    typer.echo(json.dumps(tariffs_json()) if as_json else "\n".join(map(escape_controls, tariff_lines())))


def _quote(question: str | None, settings: Settings) -> tuple[PriceQuote, AutoQuote | None]:
    """Work it out, for a question under auto or route also what is expected of it.

    Raises UsageError where no price is known, EngineError for the local model.
    """
    from contextlib import closing  # noqa: PLC0415  (help needs no llama.cpp)

    from hybrid.assemble import first_model, known_price  # noqa: PLC0415
    from hybrid.engine.llama import Weights  # noqa: PLC0415
    from hybrid.engine.real_models import model_file  # noqa: PLC0415
    from hybrid.pairs.profile import (  # noqa: PLC0415
        JudgedTokens,
        PairIdentity,
        pair_record,
    )
    from hybrid.pairs.quote import (  # noqa: PLC0415
        UNPROBED,
        AutoQuote,
        PriceQuote,
    )
    from hybrid.record.conversation import turns_of, words_of  # noqa: PLC0415
    from hybrid.run.composition import Decoding, most_tokens, policy_of  # noqa: PLC0415
    from hybrid.run.deferral import PlannerFactory, PlanningContext  # noqa: PLC0415

    decoding = Decoding.of(settings)  # what contradicts itself is refused before a model is loaded
    if settings.branches is not None:
        raise UsageError("branches are not quoted: how many differ, and how long they are, only drawing them tells")
    stated, prices = known_price(settings)
    if question is not None and not question.strip():
        raise UsageError("the prompt is empty")
    path = model_file(first_model(settings))
    with closing(Weights(path)) as weights:
        ids = () if question is None else weights.render(turns_of(question, settings.system), settings.template_args)
        probes = _probes(settings, weights)
        room = weights.memory(settings.ctx).num_context - (len(ids) or SHORT_PROMPT)
    probed = probes.read_all(settings.cloud, settings.cloud_model) if probes and settings.cloud else []
    record = pair_record(settings.cloud, path)
    models = [settings.cloud_model] if settings.cloud_model else [each.model for each in probed]
    models = models or (record.models()[-1:] if record else [])
    policy, answer_tokens = policy_of(settings, room=room), most_tokens(settings, room)
    if stated is None and prices is not None and settings.cloud and models:
        stated = prices.price(settings.cloud, models[-1])
    if stated is None:
        where = f" for {settings.cloud}" if settings.cloud else ""
        msg = f"no price is known{where}: state --price P/C/O, or enter it in the price file and name --cloud-model"
        raise UsageError(msg)
    seen = record.read(models[-1]).get(str(policy.judge), JudgedTokens()) if record and models else JudgedTokens()
    found = probed[-1] if probed else UNPROBED
    quote = PriceQuote(stated, policy, len(ids) or SHORT_PROMPT, answer_tokens, found, seen)
    if question is None or policy.planner is None:
        return quote, None
    asked = PlanningContext(words_of(question), ids, decoding, _capabilities(settings, models, probed), stated)
    bound = asyncio.run(PlannerFactory(PairIdentity.of(path, settings.cloud, lambda: probes)).bind(asked))
    calibration = bound.pair.calibration if bound.pair else None
    return quote, AutoQuote(bound.planner, calibration.questions if calibration else (), policy.name)


def _probes(settings: Settings, weights: Weights) -> ProbeCache | None:
    """Return where it is kept what probes have found of the endpoint; None: no endpoint is named."""
    from hybrid.cloud.probe_result import ProbeCache  # noqa: PLC0415
    from hybrid.settings.sources import cache_file  # noqa: PLC0415

    return None if settings.cloud is None else ProbeCache(cache_file(), weights.vocabulary_digest)


def _capabilities(settings: Settings, models: list[str], probed: list[ProbeResult]) -> Capabilities:
    """Return what is known of the endpoint without asking it: what a probe found, and what its dialect's documents say.

    Of an endpoint whose dialect nobody has named or found, that it can do everything.
    """
    from hybrid.assemble import served_model  # noqa: PLC0415
    from hybrid.cloud.dialects.dialect import DialectConfig  # noqa: PLC0415
    from hybrid.cloud.discover import DIALECTS  # noqa: PLC0415
    from hybrid.cloud.port import Capabilities  # noqa: PLC0415
    from hybrid.cloud.probe_result import apply_result  # noqa: PLC0415

    served = served_model(settings)
    model = served or (models[-1] if models else "")
    dialect = "vllm" if served else probed[-1].dialect if probed else settings.dialect
    spec = DIALECTS.get(dialect or "")
    can = Capabilities(model) if spec is None else replace(spec.build(DialectConfig(model)).can, model=model)
    return apply_result(can, probed[-1]) if probed else can
