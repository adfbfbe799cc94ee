"""``hybrid probe``: what an endpoint can do, found out by asking it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from hybrid.cli.command import Flags, exit_codes, progress, run_until_interrupted, takes_flags
from hybrid.errors import escape_controls
from hybrid.settings.setting_info import SettingScope
from hybrid.spend import as_percent, as_usd

if TYPE_CHECKING:
    from hybrid.assemble.probing import ProbeReport
    from hybrid.cloud import Capabilities
    from hybrid.cloud.probe_result import KlInterval, ProbeResult
    from hybrid.engine.identity import LocalNoise
    from hybrid.engine.local_memory import LocalMemory
    from hybrid.pairs.profile import JudgedTokens
    from hybrid.spend import CheckRates


# What ``hybrid probe`` and ``hybrid price`` say of a break-even: words for numbers that ``hybrid.spend`` works out.

# Tokens before a draft: a short question, and one with a text to read.
LENGTHS = (100, 1000)


def told_break_even(rates: CheckRates, num_before: int, *, cheaper: str = "cheaper") -> str:
    """Say at which share of kept tokens checking pays, with drafts of the best length."""
    after = f"with drafts of the best length after {num_before} tokens of text"
    least = rates.break_even(num_before)
    if least is None:
        return f"{after} checking is never {cheaper} than the cloud alone, however many drafted tokens are kept"
    if least == 0.0:
        return f"{after} checking is {cheaper} than the cloud alone, however few drafted tokens are kept"
    return (
        f"{after} checking is {cheaper} than the cloud alone where {as_percent(least)} of the drafted tokens are kept"
    )


def told_times(found: ProbeResult) -> Iterator[str]:
    """Say what a token takes, where that was measured."""
    if found.written_ms is not None and found.scored_ms is not None and found.check_ms is not None:
        ratio = found.scored_ms / found.written_ms
        took = f"{found.scored_ms:g} ms scored, {found.written_ms:g} ms written ({ratio:.2g} : 1)"
        again = "" if found.reread_ms is None else f"{found.reread_ms:g} ms for each token before its draft, and "
        yield f"what a token takes: {took}; a check takes {again}{found.check_ms:g} ms besides"


def told_of_probe(probed: ProbeReport) -> Iterator[str]:
    """Say what a probe shows of checking: the time of a token, and the break-even of the price or of that time."""
    found, price = probed.findings, probed.price
    yield from told_times(found)
    if (rates := found.check_rates(price)) is not None:
        of = "in time" if price is None or price.free else f"at {price}"
        cheaper = "faster" if price is None or price.free else "cheaper"
        told = [told_break_even(rates, length, cheaper=cheaper) for length in LENGTHS]
        yield from (f"{of}, {each}" for each in told)
        for judge, seen in probed.seen.items():
            yield from _told_seen(rates, judge, seen, in_time=price is None or price.free)


def _told_seen(rates: CheckRates, judge: str, seen: JudgedTokens, *, in_time: bool) -> Iterator[str]:
    """Say what was seen of the pair under a judge, and what follows from it for a short question."""
    if seen.share is None:
        yield f"seen of this pair under {judge}: {seen.judged} drafted tokens, too few to say"
        return
    yield f"seen of this pair under {judge}: {seen.judged} drafted tokens, {as_percent(seen.share)} were kept"
    least = rates.break_even(LENGTHS[0])
    if least is None or seen.share < least:
        yield f"under {judge} checking {'takes longer' if in_time else 'costs more'} than the cloud here"


def break_evens(rates: CheckRates | None) -> dict[str, float | None] | None:
    """Return the same for ``--json``, by the length of the text; None: nothing is known."""
    return None if rates is None else {str(length): rates.break_even(length) for length in LENGTHS}


EPILOG = """
It asks about fifteen questions of seven hundred tokens together, which are paid for like any others, and keeps what it
finds for later runs with the same model there, dialect and local vocabulary (--local), until an answer contradicts it.
Two models of one vocabulary may have different habits: where the endpoint can be asked, a chat as its template writes
it is held against the local model's, and the first words of answers to five general questions show how far the two
are apart (the median and the largest KL divergence, in nats). That is told, and decides nothing by itself.
Nothing is concluded from a name or a document. Where a flag of the server would help, it is named. Where nothing is
charged, or no price is known, fifteen questions more measure what a scored token takes beside a written one. From the
price, or else from that time, follows the break-even: the share of drafted tokens that must be kept for checking to be
cheaper (or faster) than the cloud alone, after a text of 100 tokens and of 1,000.

Examples:

  hybrid probe http://localhost:8080

  hybrid probe https://api.example.com/v1 --cloud-model large --local qwen.gguf --price 1/0.1/4 --json

  hybrid probe http://localhost:11434 --dialect ollama

Exit codes: 0 found out, 2 usage, 3 local model unusable, 4 endpoint unusable, 130 interrupted (143 terminated).
"""


_VOCABULARY = {True: "the local model's", False: "another than the local model's", None: "cannot be compared"}
_WIDTH = 23  # of what stands before a fact


@takes_flags(SettingScope.PROBE)
def probe(
    url: Annotated[str, typer.Argument(help="Base URL of the endpoint.", show_default=False)],
    *,
    model: Annotated[
        str | None, typer.Option("--cloud-model", "--model", help="Model name at the endpoint.", metavar="M")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    **flags: Unpack[Flags],
) -> None:
    """Find out what an endpoint can do, and which policies work there."""
    with exit_codes():
        from hybrid.assemble.probing import probe as probed  # noqa: PLC0415  (help needs no llama.cpp)

        with progress("asking the endpoint", only_on_a_terminal=True) as tell:
            found = run_until_interrupted(lambda: probed(tell, **flags, cloud=url, cloud_model=model))
        works = working(found.can, same_words=found.asked_in is None)
        if as_json:
            noise = {"local_noise_nats": found.local_noise.nats, "local_noise_shift": found.local_noise.shift}
            besides: dict[str, object] = {**noise, "policies": works, "hints": [*map(asdict, found.hints)]}
            besides["charged_nanousd"] = None if found.price is None else found.charged_nanousd
            besides["first_words"] = _first_words(found.findings)
            besides["break_even"] = break_evens(found.findings.check_rates(found.price))
            besides |= {} if found.memory is None else _memory(found.memory)
            besides["seen"] = {judge: [counts.kept, counts.judged] for judge, counts in found.seen.items()}
            typer.echo(json.dumps({**found.findings.to_json(), **besides}, indent=1))
        else:
            typer.echo("\n".join(map(escape_controls, told(found, works))))


probe.__doc__ = f"{probe.__doc__}\n{EPILOG}"


def working(can: Capabilities, *, same_words: bool = True) -> dict[str, list[str]]:
    """Return the policies that the endpoint can do, greedily and drawing; with another vocabulary it can do none.

    ``same_words`` False: it has another one, which is known.
    """
    from hybrid.policy import PRESETS  # noqa: PLC0415  (help needs no numpy)
    from hybrid.types import Sampling  # noqa: PLC0415

    abilities = frozenset() if can.same_words is False else can.abilities
    drawn = {"greedy": Sampling(), "sampled": Sampling(1.0)}
    return {
        how: [name for name, found in PRESETS.items() if found.works(abilities, sampling, same_words=same_words)]
        for how, sampling in drawn.items()
    }


def told(probed: ProbeReport, works: dict[str, list[str]]) -> Iterator[str]:
    """Say what was found, a line each, and in words what follows from it."""
    found = probed.findings
    yield f"{found.url} serves {found.model} in the dialect {found.dialect}, {found.round_trip_ms} ms away"
    words = (
        _VOCABULARY[found.same_words]
        if probed.asked_in is None
        else f"another; it is asked in that of {probed.asked_in}"
    )
    facts = {"vocabulary": words} | ({} if found.same_words is False else _facts(found))
    facts |= {"local model's noise": _local_noise(probed), "chat template": chat_words(found)}
    if (memory := probed.memory) is not None:
        facts |= {"its KV cache": memory.cache_told}
        facts |= {"its layers": memory.placement.told} if memory.placement.told else {}
    facts |= {f"scoring by {method}": verdict for method, verdict in found.scoring_methods.items()}
    for name, value in facts.items():
        yield f"  {name:<{_WIDTH}} {value}"
    yield from habit_words(found)
    yield f"what a check costs: {_cost(found)}"
    yield from told_of_probe(probed)
    yield f"policies at temperature 0: {', '.join(works['greedy'])}"
    only = [name for name in works["greedy"] if name not in works["sampled"]]
    yield "at other temperatures: " + (f"all but {', '.join(only)}" if only else "the same")
    for hint in probed.hints:
        yield f"would help: {hint.flag} ({hint.of}): {hint.gain}"
    charged = probed.price is not None and not probed.price.free
    yield f"the probe took {found.spent_tokens} tokens" + (f": {as_usd(probed.charged_nanousd)}" if charged else "")


def chat_words(found: ProbeResult) -> str:
    """Say whether both models' templates write the same chat, and show the first difference."""
    if found.chat_alike is None:
        return "cannot be compared"
    if (apart := found.chat_difference) is None:
        return "the local model's: it writes the same tokens"
    here, there = (repr(each) if each else "nothing more" for each in (apart.here, apart.there))
    where = f"after {apart.position} tokens it writes {there} where the local model's writes {here}"
    if apart.dates:
        return f"the local model's but for a date: {where}"
    return f"another than the local model's: {where}"


def habit_words(found: ProbeResult) -> Iterator[str]:
    """Say whether the two models begin their answers alike, where that was measured."""
    from hybrid.cloud.probe_result import habits, median_kl, worst_kl  # noqa: PLC0415  (help needs no numpy)

    middle, worst = median_kl(found.opening_kl), worst_kl(found.opening_kl)
    if middle is None or worst is None:
        return
    answers = f"the first word of {len(found.opening_kl)} answers"
    measured = f"median KL {_nats(middle)} nats at {answers}, {_nats(worst)} at worst"
    match habits(found.opening_kl):
        case "alike":
            yield f"the two begin their answers alike: {measured}"
        case "apart":
            causes = "is one a base model, or the template another one?"
            if found.same_words is None:
                causes = "is one a base model, the template another one, or the vocabulary?"
            yield f"the two begin their answers differently: {measured}: most drafts will be turned down; {causes}"
        case _:
            yield f"whether the two begin their answers alike is not certain: {measured}, by lists of {found.most_k}"


def _nats(ends: KlInterval) -> str:
    low, high = ends
    if high is None:
        return f"{low:.2g} or more"
    return f"{low:.2g}" if f"{low:.2g}" == f"{high:.2g}" else f"{low:.2g} to {high:.2g}"


def _first_words(found: ProbeResult) -> dict[str, object]:
    from hybrid.cloud.probe_result import habits, median_kl, worst_kl  # noqa: PLC0415  (help needs no numpy)

    kl = found.opening_kl
    return {"habits": habits(kl), "median_kl": median_kl(kl), "worst_kl": worst_kl(kl)}


def _memory(memory: LocalMemory) -> dict[str, object]:
    cache, placement = memory.cache, memory.placement
    return {
        "local_kv_type": None if cache is None else cache.kv_type,
        "local_kv_bytes": None if cache is None else memory.cache_bytes,
        "local_context": memory.num_context,
        "local_layers_on_gpu": placement.on_gpu,
        "local_layers": placement.total,
        "local_gpus": [*map(str, placement.devices)],
    }


def _local_noise(probed: ProbeReport) -> str:
    """Say what noise the local model has, and from where ``kl`` rejects: low-bit weights read a text in two ways."""
    from hybrid.policy.rules.divergence_threshold import THRESHOLD  # noqa: PLC0415  (help needs no numpy)
    from hybrid.prob import UNMEASURED  # noqa: PLC0415

    cloud, default = probed.findings.noise_nats, THRESHOLD.value(None, "kl")
    least = least_rejected(default, UNMEASURED if cloud is None else cloud, probed.local_noise)
    blind = f", so kl:{default:g} rejects nothing below {least:.2g} nats" if least > 1.2 * default else ""
    return _typical(probed.local_noise.nats, "read") + blind


def _typical(nats: float, what: str) -> str:
    return f"{nats:.2g} nats, typically, between two ways to {what}"


def least_rejected(threshold: float, cloud: float, local: LocalNoise) -> float:
    """Return the KL from which on ``kl`` rejects by the lower end, in nats, with what both rows may be off by."""
    from hybrid.prob import kl_with_noise  # noqa: PLC0415

    by_nats = kl_with_noise(threshold, cloud + local.nats)
    if local.shift is None:
        return by_nats
    return min(by_nats, (math.sqrt(2.0 * kl_with_noise(threshold, cloud)) + local.shift) ** 2 / 2.0)


def _facts(found: ProbeResult) -> dict[str, str]:
    return {
        "context": "not told" if found.max_context is None else f"{found.max_context} tokens",
        "tokens": "by number" if found.takes_ids else "by text",
        **(_rows(found) if found.rows else {"log-probabilities": "none: only the local model's own doubt can decide"}),
        "partial answers": _yes(found.continues, "continued exactly", "not continued"),
        "cached tokens": _yes(found.cached_usage, "reported", f"not seen, in a text of {found.prefix_tokens} tokens"),
        "usage in a stream": _yes(found.chunk_usage, "with every event", "at its end"),
    }


def _rows(found: ProbeResult) -> dict[str, str]:
    return {
        "log-probabilities": f"up to {found.most_k} a token",
        "they are": _yes(found.raw_rows, "the model's own, whatever the temperature", "changed by the temperature"),
        "rounded to": "unknown" if found.grid is None else f"multiples of {found.grid:g}" if found.grid else "float32",
        "noise": "unknown" if found.noise_nats is None else _typical(found.noise_nats, "ask"),
        "candidates": _candidates(found),
    }


def _yes(value: bool | None, yes: str, no: str) -> str:
    return "not found out" if value is None else yes if value else no


def _candidates(found: ProbeResult) -> str:
    if not found.candidates:
        return "cannot be asked for"
    return "scored by id" if found.same_words else "scored by id, and not asked for: the vocabulary cannot be compared"


def _cost(found: ProbeResult) -> str:
    if found.same_words is False:
        return "nothing was asked: --local names a model of its vocabulary, --cloud-vocabulary a file of its own"
    if found.scoring_method is None:
        return "none can be asked for: this endpoint cannot score a draft"
    if found.check_tokens is None:
        return "not found out"
    kept = {
        True: "the prefix cache is read, so it costs what is new",
        False: "the prefix cache is not read: every check costs the whole text so far, so long spans pay (--span 64)",
        None: "nothing is said of a cache: it is charged as the whole text so far",
    }[found.keeps_cache]
    return f"{found.check_tokens} tokens after a text of {found.prefix_tokens}; {kept}"
