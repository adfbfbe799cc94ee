"""The profile of a pair of models: who they are, what of its drafts the cloud kept, what settings of ``kl`` came to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from hybrid.cloud import Capabilities
from hybrid.cloud.probe_result import ProbeCache
from hybrid.defer import floor_coin
from hybrid.engine.identity import identify, identify_by_ends
from hybrid.errors import UsageError
from hybrid.policy import Policy
from hybrid.policy.adaptive import ArmChoice, ArmCounts, choose_arm, lost_share, reward
from hybrid.record.answer import Answer
from hybrid.settings.names import NAMED
from hybrid.settings.sources import cache_file, counts_file
from hybrid.spend import TokenTimes, endpoint_id
from hybrid.store.json_store import JsonStore

# Who the local model is, and what was measured of an endpoint's speed: the facts that prices and a score depend on.
#
# The law (``tests/run/test_pair_facts.py``): facts of another model, endpoint or vocabulary are none; what cannot be
# read is none.


@dataclass(frozen=True)
class PairIdentity:
    """Facts of a client's two models.

    ``local``: what identifies the model's file; None: nothing is known of any pair, and nothing is kept. ``times``:
    what a probe has measured of an endpoint; it may read a file. ``shipped_only``: of the pair is known what comes with
    the package, and neither what a user has bought nor what was learned. ``critic``: what identifies the critic's file;
    None: there is no critic.
    """

    local: str | None = None
    times: Callable[[Capabilities], TokenTimes | None] = lambda _: None
    shipped_only: bool = False
    critic: str | None = None

    @classmethod
    def of(
        cls, model: Path, cloud: str | None, probes: Callable[[], ProbeCache | None], critic: Path | None = None
    ) -> PairIdentity:
        """Return the facts of a model file and an endpoint, and of a critic's file.

        ``probes``: where probes are kept; None: nowhere.
        """
        return cls(
            _identity(model),
            lambda can: token_times(can, cloud, probes),
            critic=None if critic is None else _identity(critic),
        )


def _identity(model: Path) -> str | None:
    with contextlib.suppress(OSError, UsageError):
        return identify(model, cache_file())
    return None


def token_times(can: Capabilities, cloud: str | None, probes: Callable[[], ProbeCache | None]) -> TokenTimes | None:
    """Return the times that the last probe of an endpoint measured; None where there was none, or not all of them."""
    cache = None
    with contextlib.suppress(UsageError):  # no home to keep a file in
        cache = probes()
    found = cache.read_all(cloud, can.model) if cloud and cache else []
    last = found[-1] if found else None
    if last is None or last.written_ms is None or last.scored_ms is None or last.check_ms is None:
        return None
    return TokenTimes(last.written_ms, last.scored_ms, last.reread_ms, last.check_ms)


# What was seen of a pair of models: how many drafted tokens the cloud judged and kept, counted as answers end.
#
# Laws (``tests/run/test_pair_record.py``): counts and names are kept, never a text; what many processes add at once
# adds up; a file that cannot be read holds nothing and is told, and one that cannot be written is no failure. So it is
# with the arms of ``kl:adaptive`` (``tests/run/test_adaptive.py``).

# So many judged tokens must have been seen before their share is held against a break-even.
ENOUGH = 50
# The pairs, and the judges of each, that were seen last are kept.
MOST_PAIRS, MOST_JUDGES = 256, 16
# Beyond any, and within what a float counts.
MOST_COUNT = 2**50


@dataclass(frozen=True)
class JudgedTokens:
    """Drafted tokens that a check judged, and how many of them were kept."""

    kept: int = 0
    judged: int = 0

    @classmethod
    def of(cls, answer: Answer) -> JudgedTokens:
        """Count an answer's. What was drafted after a rejected token was not judged."""
        if not answer.usage.checks:
            return cls()
        kept = sum(token.how == "accepted" for token in answer.tokens)
        turned_down = sum(token.source == "cloud" and token.why is not None for token in answer.tokens)
        return cls(kept, kept + turned_down)

    def __add__(self, other: JudgedTokens) -> JudgedTokens:
        """Add up what was seen."""
        return JudgedTokens(self.kept + other.kept, self.judged + other.judged)

    @property
    def share(self) -> float | None:
        """The share that was kept; None: too few were judged to say."""
        return self.kept / self.judged if self.judged >= ENOUGH else None


@dataclass(frozen=True)
class PairRecord:
    """The file of counts, for one local model (by what identifies its file) and one endpoint (by its name)."""

    path: Path
    local: str
    endpoint: str

    @property
    def store(self) -> JsonStore:
        """The file's entries, a pair each."""
        return JsonStore(self.path, "pairs", _is_entry, MOST_PAIRS)

    def read_arms(self, model: str) -> dict[str, ArmCounts]:
        """Return what came of each arm of ``kl:adaptive`` with a model there, by its name."""
        return _by_arm(self._arms.read_entries().get(self._key(model)))

    def add_arm(self, model: str, arm: str, seen: ArmCounts) -> bool:
        """Add what an answer under an arm has shown; return whether that could be written."""

        def added(entries: dict[str, Any]) -> dict[str, Any]:
            arms = _by_arm(entries.pop(self._key(model), None))
            return {**entries, self._key(model): {**arms, arm: arms.get(arm, ArmCounts()).plus(seen)}}

        return self._arms.change(added)

    @property
    def _arms(self) -> JsonStore:
        return JsonStore(self.path, "adaptive", _are_arms, MOST_PAIRS)

    def read(self, model: str) -> dict[str, JudgedTokens]:
        """Return what was seen with a model there, by judge."""
        return _by_judge(self.store.read_entries().get(self._key(model)))

    def models(self) -> list[str]:
        """Return the models there that something was seen with, the last one last."""
        begin = self._key("")
        return [key.removeprefix(begin) for key in self.store.read_entries() if key.startswith(begin)]

    def add(self, model: str, judge: str, seen: JudgedTokens) -> bool:
        """Add what an answer has shown; return whether that could be written."""

        def added(entries: dict[str, Any]) -> dict[str, Any]:
            judges = _by_judge(entries.pop(self._key(model), None))
            judges[judge] = judges.pop(judge, JudgedTokens()) + seen
            kept = {name: [counts.kept, counts.judged] for name, counts in list(judges.items())[-MOST_JUDGES:]}
            return {**entries, self._key(model): kept}

        return self.store.change(added)

    def adopt(self, model: Path) -> None:
        """Take over what version 0.1.0 counted of a local model's file, which it identified otherwise."""
        entries = self.store.read_entries()
        if not entries or all(key.startswith(f"{self.local} ") for key in entries):
            return
        earlier = f"{identify_by_ends(model)} "
        if any(key.startswith(earlier) for key in entries):
            self.store.change(
                lambda now: {
                    (f"{self.local} {key.removeprefix(earlier)}" if key.startswith(earlier) else key): counts
                    for key, counts in now.items()
                }
            )

    def _key(self, model: str) -> str:
        return f"{self.local} {self.endpoint} {model}"


def pair_record(cloud: str | None, local: Path) -> PairRecord | None:
    """Return where it is counted what is seen of a local model and an endpoint (a URL, or a model by its name).

    None: of the bundled pair nothing is counted, nor where there is no home to keep a file in.
    """
    if cloud is None:
        return None
    with contextlib.suppress(OSError, UsageError):
        identity = identify(local, cache_file())
        record = PairRecord(counts_file(), identity, cloud if cloud in NAMED else endpoint_id(cloud))
        record.adopt(local)
        return record
    return None


def seen_of_pair(cloud: str | None, local: Path, model: str) -> dict[str, JudgedTokens]:
    """Return what was seen of a local model with a model of an endpoint, by judge."""
    record = pair_record(cloud, local)
    return record.read(model) if record else {}


def _by_judge(entry: dict[str, list[int]] | None) -> dict[str, JudgedTokens]:
    return {name: JudgedTokens(*counts) for name, counts in (entry or {}).items()}


def _is_entry(entry: object) -> bool:
    with contextlib.suppress(msgspec.ValidationError):  # strict: true is no number
        counts = msgspec.convert(entry, dict[str, tuple[int, int]]).values()
        return all(0 <= kept <= judged <= MOST_COUNT for kept, judged in counts)
    return False


def _by_arm(entry: Mapping[str, ArmCounts] | None) -> dict[str, ArmCounts]:
    return {arm: ArmCounts(*counts) for arm, counts in (entry or {}).items()}


def _are_arms(entry: object) -> bool:
    """Whether all can be counts, of rewards between -1 and 0."""
    with contextlib.suppress(msgspec.ValidationError):
        arms = msgspec.convert(entry, dict[str, tuple[int, int, float, float]]).values()
        return all(0 <= n <= tried <= MOST_COUNT and 0 <= squares <= -total <= n for tried, n, total, squares in arms)
    return False


def _taught_by(answer: Answer) -> ArmCounts:
    """Return what an answer teaches of its arm: nothing where the cloud failed, or no bill is known."""
    bill, failed = answer.bill.times_cloud_only, answer.degraded_kind
    if bill is None or failed not in {None, "budget"}:
        return ArmCounts(tried=1)
    nats = [(each.source, None if each.kl is None else each.kl.lower) for each in answer.tokens]
    sides = ([kl for source, kl in nats if source == side] for side in ("local", "cloud"))
    earned = reward(bill, None if failed else lost_share(*sides))
    return ArmCounts(1, 1, earned, earned**2)


class PairObserver:
    """Counts what a client's answers show of its pair; without a record the arms are known in memory alone."""

    def __init__(self, record: PairRecord | None) -> None:
        """Take the file of counts, for a client that has one."""
        self._record = record
        self._arms: dict[str, dict[str, ArmCounts]] = {}
        self._writes: set[asyncio.Future[bool]] = set()

    async def choose_arm(self, model: str, key: object, *, learns: bool) -> ArmChoice:
        """Choose an arm of ``kl:adaptive`` by what is known by now; ``key``: what the coin falls by beside it."""
        if model not in self._arms:
            read = {} if self._record is None else await asyncio.to_thread(self._record.read_arms, model)
            self._arms.setdefault(model, read)  # another answer may have read it meanwhile
        known = self._arms[model]
        choice = choose_arm(known, floor_coin(key, sum(each.tried for each in known.values())), learns=learns)
        known[str(choice.arm)] = known.get(str(choice.arm), ArmCounts()).plus(ArmCounts(tried=int(learns)))
        return choice

    def add(self, answer: Answer, policy: Policy, model: str, choice: ArmChoice | None = None) -> None:
        """Count an answer, on disk and in a thread; ``choice``: the arm that it was written under."""
        seen, judge = JudgedTokens.of(answer), str(policy.judge)
        writes = [partial(self._record.add, model, judge, seen)] if self._record and seen.judged else []
        if choice is not None and choice.learns:
            arm, arms, taught = str(choice.arm), self._arms[model], _taught_by(answer)
            arms[arm] = arms[arm].plus(taught._replace(tried=0))
            writes += [partial(self._record.add_arm, model, arm, taught)] if self._record else []
        for add in writes:
            write = asyncio.get_running_loop().run_in_executor(None, add)
            self._writes.add(write)
            write.add_done_callback(self._writes.discard)

    async def aclose(self) -> None:
        """Wait until everything is on disk."""
        if self._writes:
            await asyncio.wait(self._writes)
