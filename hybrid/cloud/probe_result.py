"""The result of a probe, the file that keeps it between runs, and the server flags that it suggests.

``ProbeCache`` is one file of JSON in the user's cache directory, an entry per endpoint, model, dialect and local
vocabulary: a fact about one of these may be wrong about another. An entry is used until an answer contradicts it; then
it is dropped. A file that cannot be read or written is an empty cache, never a failure (``store/json_store.py``); an
entry with a number that nothing can measure is none.

The names in the file, which ``hybrid probe --json`` prints too, are older than the fields' (``OUTSIDE_NAMES``), and so
are the scoring methods in files of 0.1.0 (``OLD_METHODS``). ``tests/cloud/test_probe_result.py`` reads such a file.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from hybrid.cloud.port import Capabilities, RowAlteration, ScoringMethod, usage_after_failure
from hybrid.cloud.probe_habits import ChatDifference, KlInterval
from hybrid.errors import CloudError, UsageError
from hybrid.spend import AnswerBudget, CheckRates, Denial, Price, endpoint_id
from hybrid.store.json_store import JsonStore
from hybrid.types import CloudUsage

# What a probe's questions are paid from: each is reserved at its worst, marked as sent, and settled.
#
# The law (``tests/cloud/test_probe.py``): no question leaves without its reservation; what a failed one cost nobody
# knows, unless it was turned away.

SettleCharge: TypeAlias = Callable[[CloudUsage | None], object]
ReserveCharge: TypeAlias = Callable[[CloudUsage], AbstractAsyncContextManager[SettleCharge]]
"""Reserves the most that one question may be charged, and gives a function that settles its charge."""


@asynccontextmanager
async def paid_from(purse: AnswerBudget, worst: CloudUsage) -> AsyncIterator[SettleCharge]:
    """Reserve the worst case of one question; what a failed one cost nobody knows, unless it was turned away."""
    limit = worst.completion_tokens
    grant = await purse.reserve(worst.prompt_tokens, limit, min_limit=limit, requests=worst.requests)
    if isinstance(grant, Denial):
        raise UsageError(grant.why)
    if denial := await purse.mark_sent(grant):
        raise UsageError(denial.why)
    try:
        yield lambda usage: purse.settle(grant, usage)
    except CloudError as error:
        purse.settle(grant, usage_after_failure(error, worst))
        raise


VERSION = 1
# Beyond any number of tokens, nats or milliseconds.
MOST_MEASURED = 2**40
OUTSIDE_NAMES = {"scoring_method": "way", "scoring_methods": "ways"}
OLD_METHODS = {"replay": "forced", "compare": "generate"}
# Opens vLLM's token-in route, which from 0.30 on answers 403 without it, and names it.
SCALE_OUT = "--enable-scale-out"
# vLLM caches whole blocks of a prefix: of 16 tokens on a GPU, of 128 on a CPU, unless --block-size says otherwise.
LONGEST_BLOCK = 128


@dataclass(frozen=True)
class ProbeResult:
    """What a probe has measured; None: not established.

    ``scoring_methods``: the verdict on each method tried; ``scoring_method``: the one to use. ``noise_nats``: the
    largest difference between two ways to ask for a likely token's log-probability. ``grid``: log-probabilities are
    multiples of it; 0: of nothing coarser than a float32. ``check_tokens``: the charge for a check after
    ``prefix_tokens``, cached tokens left out. ``hidden_mass``: the most probability that a list left out.
    ``token_route``: whether vLLM's token-in route is open. ``written_ms``, ``scored_ms``: the time that a token takes,
    written and scored; ``reread_ms``: that of a token before a check's span; ``check_ms``: that of a check beside all
    of these, the round trip included. ``chat_alike``: its chat template writes the local model's tokens, and
    ``chat_difference`` where not; ``opening_kl``: how far the two are apart at the first token of answers, in nats.
    ``spent_tokens``: the charge for the probe itself.
    """

    url: str
    model: str
    dialect: str
    same_words: bool | None = None
    max_context: int | None = None
    round_trip_ms: float | None = None
    takes_ids: bool = False
    rows: bool = False
    most_k: int | None = None
    continues: bool | None = None
    cached_usage: bool | None = None
    chunk_usage: bool | None = None
    raw_rows: bool | None = None
    scoring_method: ScoringMethod | None = None
    scoring_methods: dict[str, str] = field(default_factory=dict)
    noise_nats: float | None = None
    grid: float | None = None
    keeps_cache: bool | None = None
    candidates: bool | None = None
    streams: bool | None = None
    prefix_tokens: int | None = None
    check_tokens: int | None = None
    hidden_mass: float | None = None
    token_route: bool | None = None
    written_ms: float | None = None
    scored_ms: float | None = None
    reread_ms: float | None = None
    check_ms: float | None = None
    chat_alike: bool | None = None
    chat_difference: ChatDifference | None = None
    opening_kl: tuple[KlInterval, ...] = ()
    spent_tokens: int = 0

    def check_rates(self, price: Price | None) -> CheckRates | None:
        """Return what checking takes here beside writing, in money; where nothing is charged, in milliseconds.

        None: the endpoint cannot score, or neither a price nor the time is known.
        """
        if self.scoring_method is None:
            return None
        if price is not None and not price.free:
            in_one_request = self.scoring_method == "one request"
            return CheckRates.of_price(price, keeps_cache=self.keeps_cache, in_one_request=in_one_request)
        if self.written_ms is None or self.scored_ms is None or self.check_ms is None:
            return None
        unmeasured = 0.0 if self.keeps_cache else self.scored_ms  # no longer text fitted into its context
        reread_ms = unmeasured if self.reread_ms is None else self.reread_ms
        return CheckRates(reread_ms, self.scored_ms, self.check_ms, self.written_ms)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``, under the outside names."""
        found = asdict(self) | {"opening_kl": [list(ends) for ends in self.opening_kl]}
        return {OUTSIDE_NAMES.get(name, name): value for name, value in found.items()}

    @classmethod
    def from_json(cls, entry: object) -> ProbeResult | None:
        """Read what ``to_json`` returned, in this version or 0.1.0; None where it is of another shape."""
        names = {OUTSIDE_NAMES.get(part.name, part.name): part.name for part in fields(cls)}
        if not isinstance(entry, dict) or not entry.keys() <= names.keys():
            return None
        found = {names[name]: value for name, value in entry.items()}
        with contextlib.suppress(msgspec.ValidationError, AttributeError, TypeError):
            # The file is the user's: a number may have become a word.
            method, tried = found.get("scoring_method"), found.get("scoring_methods", {})
            found["scoring_method"] = OLD_METHODS.get(str(method), method)
            found["scoring_methods"] = {OLD_METHODS.get(name, name): verdict for name, verdict in tried.items()}
            result = msgspec.convert(found, cls)
            numbers = [*vars(result).values(), *chain.from_iterable(result.opening_kl)]
            if all(0 <= each < MOST_MEASURED for each in numbers if isinstance(each, int | float)):
                return result
        return None


def apply_result(can: Capabilities, found: ProbeResult) -> Capabilities:
    """Return what an endpoint can do: what a probe has measured, and elsewhere what its documents say.

    Rows of a family that documents them as raw, and which were not, come from a server that was set to tell them after
    all that is done.
    """
    altered = can.rows_altered_by
    if found.raw_rows:
        altered -= {"temperature"}
    elif found.raw_rows is False:
        altered = altered or frozenset(get_args(RowAlteration))
    return replace(
        can,
        rows=found.rows,
        rows_altered_by=altered,
        scoring_method=found.scoring_method,
        continues=can.continues and found.continues is not False,
        most_k=found.most_k or can.most_k,
        keeps_cache=can.keeps_cache if found.keeps_cache is None else found.keeps_cache,
        tells_cache=can.tells_cache if found.cached_usage is None else found.cached_usage,
        candidates=can.candidates if found.candidates is None else found.candidates,
        streams=can.streams if found.streams is None else found.streams,
    )


def as_probe_result(url: str, can: Capabilities) -> ProbeResult:
    """Return the result by which ``apply_result`` turns a dialect's documents into these capabilities."""
    return ProbeResult(
        url,
        can.model,
        can.dialect,
        same_words=can.same_words,
        max_context=can.max_context,
        takes_ids=can.ids,
        rows=can.rows,
        most_k=can.most_k,
        continues=can.continues,
        raw_rows="temperature" not in can.rows_altered_by,
        scoring_method=can.scoring_method,
        keeps_cache=can.keeps_cache,
        cached_usage=can.tells_cache,
        candidates=can.candidates,
        streams=can.streams,
    )


class ProbeCache:
    """The probe results kept on disk for one local vocabulary."""

    def __init__(self, path: Path, vocabulary: str) -> None:
        """Take the file, which need not exist, and what names the local vocabulary."""
        self._kept = JsonStore(path, "endpoints", VERSION)
        self._vocabulary = vocabulary

    @property
    def damage(self) -> str | None:
        """Say in a sentence that some of the file is not used; None where all of it is. It reads the file."""
        return self._kept.damage

    def read(self, url: str, model: str, dialect: str) -> ProbeResult | None:
        """Return the result kept for an endpoint's model in a dialect; None: there is none."""
        entries = self._kept.read_entries()
        found = ProbeResult.from_json(entries.get(self._key(url, model, dialect)))
        return found or _old_entry(entries, url, model, dialect)

    def read_all(self, url: str, model: str | None) -> list[ProbeResult]:
        """Return the results kept for an endpoint, of a model or (None) of all, in any dialect; the last one last."""
        found = [
            (key, ProbeResult.from_json(entry))
            for key, entry in self._kept.read_entries().items()
            if key.endswith(f" {self._vocabulary}")
        ]
        there = [each for _, each in found if each and endpoint_id(each.url) == endpoint_id(url)]
        return [each for each in there if model in {None, each.model}]

    def write(self, result: ProbeResult) -> bool:
        """Keep a result; return whether that worked."""
        key = self._key(result.url, result.model, result.dialect)
        return self._kept.change(lambda entries: {**entries, key: result.to_json()})

    def forget(self, url: str, model: str, dialect: str) -> None:
        """Drop an entry that an answer contradicted."""
        entries = self._kept.read_entries()
        dropped = {self._key(url, model, dialect)} & entries.keys()
        if _old_entry(entries, url, model, dialect):
            dropped.add(_old_key(url, model))
        if dropped:
            self._kept.change(lambda now: {key: entry for key, entry in now.items() if key not in dropped})

    def _key(self, url: str, model: str, dialect: str) -> str:
        return f"{url} {model} {dialect} {self._vocabulary}"


def _old_entry(entries: dict[str, Any], url: str, model: str, dialect: str) -> ProbeResult | None:
    """Return what an earlier version kept, which knew one entry for a model, whatever the dialect and vocabulary.

    It is believed for the dialect that it names, unless it says that the vocabulary was another: that may be because
    of the local model it was found with.
    """
    found = ProbeResult.from_json(entries.get(_old_key(url, model)))
    return found if found and found.dialect == dialect and found.same_words is not False else None


def _old_key(url: str, model: str) -> str:
    return f"{url} {model}"


# ---- flags of a server that would help: only vLLM's (0.32) are known here --------------------------------------------


@dataclass(frozen=True)
class FlagAdvice:
    """A flag of the server or of ``hybrid``, and what is gained with it."""

    of: Literal["server", "hybrid"]
    flag: str
    gain: str


def flag_advice(found: ProbeResult, wanted_k: int) -> tuple[FlagAdvice, ...]:
    """Return the flags that would help a client that wants ``wanted_k`` log-probabilities a token."""
    return tuple(_of_vllm(found, wanted_k)) if found.dialect in {"vllm", "vllm-tokens"} else ()


def _of_vllm(found: ProbeResult, wanted_k: int) -> Iterator[FlagAdvice]:
    if found.most_k is not None and found.most_k < wanted_k:
        gain = f"gives the {wanted_k} log-probabilities a token that cloud_top_k asks for, instead of {found.most_k}"
        mass = found.hidden_mass
        lost = "" if mass is None else f", which left out up to {100 * mass:.2g}% of the probability in what it wrote"
        yield FlagAdvice("server", f"--max-logprobs {wanted_k}", gain + lost)
    # So many tokens of that text are cached when it is sent again, whatever the block.
    text, cached = found.prefix_tokens or 0, (found.prefix_tokens or 0) // LONGEST_BLOCK * LONGEST_BLOCK
    if found.cached_usage is False and cached:
        gain = f"tells how many tokens were cached: {cached} or more of {text} that are sent again are billed as such"
        yield FlagAdvice("server", "--enable-prompt-tokens-details", gain)
    if found.keeps_cache or found.check_tokens is None or not cached:
        return
    reads = (
        f"candidates are scored by id, and of a check after {text} tokens about {found.check_tokens - cached} are "
        f"charged in full instead of {found.check_tokens}"
    )
    if found.candidates is False:  # what only that runner can
        yield FlagAdvice("server", "VLLM_USE_V2_MODEL_RUNNER=1", reads)
    elif found.token_route:
        yield FlagAdvice("hybrid", "--dialect vllm-tokens", f"where the server runs vLLM's V2 model runner, {reads}")
    elif found.token_route is False:
        gain = f"opens --dialect vllm-tokens: where the server runs vLLM's V2 model runner, {reads}"
        yield FlagAdvice("server", SCALE_OUT, gain)
