"""The result of a probe, the file that keeps it between runs, and what it says of two models and of the server's flags.

``ProbeCache`` is a section of the user's one cache file, an entry per endpoint, model, dialect and local
vocabulary: a fact about one of these may be wrong about another. An entry is used until an answer contradicts it; then
it is dropped. A file that cannot be read or written is an empty cache, never a failure (``store/json_store.py``); an
entry with a number that nothing can measure is none.

The names in the file, which ``hybrid probe --json`` prints too, are older than the fields' (``OUTSIDE_NAMES``), and so
are the scoring methods in files of 0.1.0 (``OLD_METHODS``). ``tests/cloud/test_probe_result.py`` reads such a file.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from hybrid.cloud.port import Capabilities, RowAlteration, ScoringMethod
from hybrid.prob import Dense, TopK, kl_divergence
from hybrid.spend import CheckRates, Price, endpoint_id
from hybrid.store.json_store import JsonStore
from hybrid.types import Ids, Message

KlInterval: TypeAlias = tuple[float, float | None]
"""The ends between which a divergence lies, in nats; None: it is not bounded."""

MOST_MEASURED = 2**40  # beyond any number of tokens, nats or milliseconds
OUTSIDE_NAMES = {"scoring_method": "way", "scoring_methods": "ways"}
OLD_METHODS = {"replay": "forced", "compare": "generate"}
# Opens vLLM's token-in route, which from 0.30 on answers 403 without it, and names it.
SCALE_OUT = "--enable-scale-out"
# vLLM caches whole blocks of a prefix: of 16 tokens on a GPU, of 128 on a CPU, unless --block-size says otherwise.
LONGEST_BLOCK = 128


@dataclass(frozen=True)
class ChatDifference:
    """Where two renderings of one chat differ first: after ``position`` tokens, and how each goes on.

    ``here`` is the local model's, ``there`` the endpoint's. ``dates``: the rest is the same but for dates.
    """

    position: int
    here: str
    there: str
    dates: bool = False


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
            numbers = [*vars(result).values(), *(end for ends in result.opening_kl for end in ends)]
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


def as_probe_result(url: str, model: str, can: Capabilities) -> ProbeResult:
    """Return the result by which ``apply_result`` turns a dialect's documents into these capabilities."""
    same = {part.name for part in fields(can)} & {part.name for part in fields(ProbeResult)}
    found = {name: getattr(can, name) for name in same - {"model", "scoring_methods"}}
    raw = "temperature" not in can.rows_altered_by
    return ProbeResult(url, model, takes_ids=can.ids, raw_rows=raw, cached_usage=can.tells_cache, **found)


class ProbeCache:
    """The probe results kept on disk for one local vocabulary."""

    def __init__(self, path: Path, vocabulary: str) -> None:
        """Take the file, which need not exist, and what names the local vocabulary."""
        self.store = JsonStore(path, "endpoints")
        self._vocabulary = vocabulary

    def read(self, url: str, model: str, dialect: str) -> ProbeResult | None:
        """Return the result kept for an endpoint's model in a dialect; None: there is none."""
        entries = self.store.read_entries()
        found = ProbeResult.from_json(entries.get(self._key(url, model, dialect)))
        return found or _old_entry(entries, url, model, dialect)

    def read_all(self, url: str, model: str | None) -> list[ProbeResult]:
        """Return the results kept for an endpoint, of a model or (None) of all, in any dialect; the last one last."""
        entries = self.store.read_entries().items()
        found = [ProbeResult.from_json(entry) for key, entry in entries if key.endswith(f" {self._vocabulary}")]
        there = [each for each in found if each and endpoint_id(each.url) == endpoint_id(url)]
        return [each for each in there if model in {None, each.model}]

    def write(self, result: ProbeResult) -> bool:
        """Keep a result; return whether that worked."""
        return self.store.keep(self._key(result.url, result.model, result.dialect), result.to_json())

    def forget(self, url: str, model: str, dialect: str) -> None:
        """Drop an entry that an answer contradicted."""
        entries = self.store.read_entries()
        dropped = {self._key(url, model, dialect)} & entries.keys()
        if _old_entry(entries, url, model, dialect):
            dropped.add(f"{url} {model}")
        if dropped:
            self.store.change(lambda now: {key: entry for key, entry in now.items() if key not in dropped})

    def _key(self, *of: str) -> str:
        return " ".join((*of, self._vocabulary))


def _old_entry(entries: dict[str, Any], url: str, model: str, dialect: str) -> ProbeResult | None:
    """Return what an earlier version kept, which knew one entry for a model, whatever the dialect and vocabulary.

    It is believed for the dialect that it names, unless it says that the vocabulary was another: that may be because
    of the local model it was found with.
    """
    found = ProbeResult.from_json(entries.get(f"{url} {model}"))
    return found if found and found.dialect == dialect and found.same_words is not False else None


# ---- the habits of two models of one vocabulary ----------------------------------------------------------------------
#
# Two models may share every token and still turn each other's drafts down: one may be a base model, or trained with
# another chat template. The ids of a rendered chat show a template; the divergence of the first row of an answer to
# general questions shows the rest. Both are shown to whoever probes, and decide nothing. Laws, in
# ``tests/cloud/test_probe_habits.py``: chats are alike exactly where their ids are; what differs in dates alone
# (digits, months, weekdays) is told as that; the median and the worst of true divergences lie in their intervals.

# General ones: no bundled family of problems, no digits (a date shows by them), answers that begin in many ways.
QUESTIONS = (
    "Why is the sky blue?",
    "Write two lines about the sea.",
    "How do I boil an egg?",
    "What is the difference between a list and a set in Python?",
    "Suggest three names for a small cat.",
)
# A chat to each, and one that is rendered only: templates may differ first in how they close a turn.
CHATS: tuple[tuple[Message, ...], ...] = (
    *((Message("user", question),) for question in QUESTIONS),
    (Message("user", QUESTIONS[0]), Message("assistant", "Air scatters blue light."), Message("user", "Why?")),
)
# Of pairs of one family the first words were 0.4 to 0.8 nats apart at the median (the bundled ladder, SmolLM2 beside
# its three-bit self and without two layers), 2.4 without four of its thirty layers (lower end 1.7); 9 and 10 where one
# of the two saw the question without its chat template, or in another one (cloud/NOTES.md).
APART_NATS = 2.0
SHOWN_TOKENS = 4  # where two chats differ

_NAMES = re.compile(
    r"\b(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?|(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class LocalChat:
    """A conversation as it is put to the local model.

    ``ids``: as its template writes it, or the text as it stands where there is none (``rendered`` False). ``row``: the
    local distribution of the first token of the answer; None: it is only rendered.
    """

    turns: tuple[Message, ...]
    ids: Ids
    rendered: bool = True
    row: Dense | None = None


@dataclass(frozen=True)
class LocalSide:
    """The local model's side of the comparison. ``piece``: the bytes of one of its tokens; ValueError for no token."""

    chats: tuple[LocalChat, ...]
    piece: Callable[[int], bytes]


def first_difference(ours: Ids, theirs: Ids, piece: Callable[[int], bytes]) -> ChatDifference | None:
    """Compare a chat's ids; None: they are the same."""
    if ours == theirs:
        return None
    pairs = enumerate(zip(ours, theirs, strict=False))
    position = next((n for n, (here, there) in pairs if here != there), min(len(ours), len(theirs)))
    texts = [_text(ids, piece) for ids in (ours, theirs)]
    here, there = (_text(ids[position : position + SHOWN_TOKENS], piece) for ids in (ours, theirs))
    dates = texts[0] != texts[1] and without_dates(texts[0]) == without_dates(texts[1])
    return ChatDifference(position, here, there, dates)


def without_dates(text: str) -> str:
    """Return a text with its numbers, months and weekdays masked.

    >>> without_dates("Today Date: 26 Jul 2024") == without_dates("Today Date: 5 August 2026")
    True
    """
    return re.sub(r"\d+", "0", _NAMES.sub("Name", text))


def _text(ids: Ids, piece: Callable[[int], bytes]) -> str:
    """Return the text of some tokens; one that is none stands with its number."""
    parts = []
    for token in ids:
        try:
            parts.append(piece(token))
        except ValueError:
            parts.append(b"<token %d>" % token)
    return b"".join(parts).decode("utf-8", "replace")


def opening_kl(cloud: TopK, local: Dense) -> KlInterval | None:
    """Return KL(cloud || local) of an answer's first token; None where the cloud lists a token that is none here."""
    if cloud.ids.size and int(cloud.ids.max()) >= len(local.logits):
        return None
    found = kl_divergence(cloud, local)
    return round(found.lower, 4), None if found.upper == inf else round(found.upper, 4)


def median_kl(found: Sequence[KlInterval]) -> KlInterval | None:
    """Return an interval that holds the median of the divergences; None of none.

    >>> median_kl([(0.1, 0.2), (0.0, None), (2.0, 3.0)])
    (0.1, 3.0)
    """
    return _of_ends(found, lambda ends: float(median(ends)))


def worst_kl(found: Sequence[KlInterval]) -> KlInterval | None:
    """Return an interval that holds the largest of the divergences; None of none.

    >>> worst_kl([(0.1, 0.2), (2.0, 3.0)])
    (2.0, 3.0)
    """
    return _of_ends(found, max)


def _of_ends(found: Sequence[KlInterval], of: Callable[[list[float]], float]) -> KlInterval | None:
    """Apply what is monotone to both ends."""
    if not found:
        return None
    lower, upper = of([low for low, _ in found]), of([inf if high is None else high for _, high in found])
    return lower, None if upper == inf else upper


def habits(found: Sequence[KlInterval]) -> Literal["alike", "apart", "unknown"] | None:
    """Return whether two models begin their answers alike, by the median; None: nothing was measured."""
    if (middle := median_kl(found)) is None:
        return None
    alike = middle[1] is not None and middle[1] < APART_NATS
    return "apart" if middle[0] >= APART_NATS else "alike" if alike else "unknown"


# ---- flags of a server that would help: only vLLM's (0.32) are known here --------------------------------------------


@dataclass(frozen=True)
class FlagAdvice:
    """A flag of the server or of ``hybrid``, and what is gained with it."""

    of: Literal["server", "hybrid"]
    flag: str
    gain: str


def flag_advice(found: ProbeResult, wanted_k: int) -> Iterator[FlagAdvice]:
    """Yield the flags that would help a client that wants ``wanted_k`` log-probabilities a token."""
    if found.dialect not in {"vllm", "vllm-tokens"}:
        return
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
