"""The monitor's state in Prometheus' text format, version 0.0.4.

https://prometheus.io/docs/instrumenting/exposition_formats. Base units in the names, ``_total`` for what only grows.
The law (``tests/serve/test_metrics.py``): every sample stands below its own help and type; the values are the state's;
what is not known has no sample, which is not 0; a label's values are from a bounded set, so that no caller makes new
series.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from hybrid.errors import HybridError
from hybrid.record.state import family
from hybrid.run import AsyncClient
from hybrid.serve.app_state import Backend
from hybrid.serve.reducer import Histogram, MonitorState
from hybrid.spend.price import NANOUSD_PER_USD

# How the endpoint stands at a moment, beside its events: contexts, line, breaker, caps. Read, never waited for.
#
# The caps come from the ledger's file, so they are read at most once in ``FRESH_S`` seconds, however many pages look.

FRESH_S = 1.0


@dataclass(frozen=True)
class HealthSnapshot:
    """What is known now; None: not known, as all of it is while the model is loading.

    ``caps``: nano-dollars each: ``cap``, ``spent``, ``reserved`` and ``left``, with the ``level``. ``drifts``: the
    alarm of a pair whose kept drafts are turned down far more often than expected; None: nobody watches.
    """

    loading: bool = True
    contexts: int | None = None
    busy: int | None = None
    queued: int | None = None
    breaker: str | None = None
    breaker_left_s: float | None = None
    drifts: bool | None = None
    caps: tuple[dict[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


class HealthReader:
    """Reads how a backend stands. One for a server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing was read yet."""
        self._clock = clock
        self._caps: tuple[dict[str, Any], ...] = ()
        self._read_at: float | None = None
        self._reading = asyncio.Lock()

    async def read(self, backend: Backend) -> HealthSnapshot:
        """Return how it stands now."""
        client = backend.opened
        if client is None:
            return HealthSnapshot()
        async with self._reading:
            if self._read_at is None or self._clock() - self._read_at >= FRESH_S:
                self._caps, self._read_at = await _caps(client), self._clock()
        now = client.status
        left_s = round(now.breaker_left_s, 1)
        return HealthSnapshot(False, now.contexts, now.busy, now.queued, now.breaker, left_s, now.drifts, self._caps)


async def _caps(client: AsyncClient) -> tuple[dict[str, Any], ...]:
    """Return the caps; none where the ledger cannot be read."""
    with contextlib.suppress(HybridError):
        return tuple(
            {
                "level": cap.level,
                "cap": cap.cap_nanousd,
                "spent": cap.spent_nanousd,
                "reserved": cap.reserved_nanousd,
                "left": cap.left_nanousd,
            }
            for cap in await client.cap_statuses()
        )
    return ()


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels: TypeAlias = Mapping[str, str]
Samples: TypeAlias = list[tuple[Labels, float | None]]
# Nobody needs the three states of a breaker as words in a graph.
BREAKER_STATES = ("closed", "half-open", "open")


def metrics(state: MonitorState, standing: HealthSnapshot) -> str:
    """Return the whole page."""
    return "\n".join([*_counters(state), *_histograms(state), *_gauges(state, standing), ""])


def _counters(state: MonitorState) -> Iterator[str]:
    totals, counts = state.totals, state.totals.counts
    ended: Samples = [({"end": end}, counts["answers", end]) for end in ("finished", "failed", "left")]
    yield from _family("answers_begun_total", "counter", "Answers begun.", _one(counts["answers", "begun"]))
    yield from _family("answers_total", "counter", "Answers that are over, by how they ended.", ended)
    relayed = _one(counts["answers", "relayed"])
    yield from _family("relays_total", "counter", "Questions that went whole to a chat route of the cloud.", relayed)
    tokens: Samples = [
        ({"source": source, "how": how}, count) for (source, how), count in sorted(family(counts, "tokens").items())
    ]
    yield from _family("tokens_total", "counter", "Tokens of answers, by who wrote them and how they stand.", tokens)
    positions: Samples = [({"outcome": name}, counts["positions", name]) for name in ("accepted", "rejected")]
    yield from _family(
        "verify_positions_total", "counter", "Drafted tokens that a check kept or turned down.", positions
    )
    drafted = _one(counts["positions", "drafted"])
    yield from _family("drafted_tokens_total", "counter", "Tokens that the local model drafted.", drafted)
    yield from _family(
        "checks_total", "counter", "Checks that came back with rows.", _one(counts["requests", "answered check"])
    )
    requests: Samples = [({"kind": kind}, count) for kind, count in sorted(family(counts, "sent").items())]
    yield from _family("cloud_requests_total", "counter", "Requests sent to the endpoint, by kind.", requests)
    cloud: Samples = [({"kind": kind}, counts["cloud_tokens", kind]) for kind in ("prompt", "cached", "completion")]
    told = "Tokens that the endpoint charged; cached ones are among those of the prompt."
    yield from _family("cloud_tokens_total", "counter", told, cloud)
    reasons: Samples = [({"reason": reason}, count) for reason, count in sorted(totals.reasons.items())]
    yield from _family("handoffs_total", "counter", "Hand-offs to the cloud, by reason less its numbers.", reasons)
    yield from _family(
        "retries_total", "counter", "Requests that were sent again.", _one(counts["requests", "retried"])
    )
    degraded: Samples = [({"kind": kind}, count) for kind, count in sorted(family(counts, "degraded").items())]
    yield from _family(
        "degraded_total", "counter", "Times that less was asked of the cloud than is due, by why.", degraded
    )
    told = "US dollars charged, or at worst; no sample once a price was not known."
    yield from _family("spent_dollars_total", "counter", told, _one(_dollars(totals.cost.settled)))
    told = "US dollars that the cloud alone would have cost for finished answers; no sample once not known."
    yield from _family("cloud_only_dollars_total", "counter", told, _one(_dollars(totals.cloud_only)))
    told = "Tokens at which the divergence is not known: nobody asked."
    yield from _family("kl_unknown_tokens_total", "counter", told, _one(totals.kl_unknown))


def _histograms(state: MonitorState) -> Iterator[str]:
    totals = state.totals
    told = "KL(cloud || local) at a token, in nats, by the end of its interval; what is unbounded is in no sum."
    yield from _histogram("kl_nats", told, {"lower": totals.kl_lower, "upper": totals.kl_upper}, "bound")
    yield from _histogram("time_to_first_token_seconds", "Time to the first token shown.", {"": totals.ttft_s})
    yield from _histogram("answer_duration_seconds", "Time to the end of an answer.", {"": totals.duration_s})


def _gauges(state: MonitorState, standing: HealthSnapshot) -> Iterator[str]:
    reserved = _one(_dollars(state.totals.cost.reserved))
    yield from _family("budget_reserved_dollars", "gauge", "US dollars that requests under way hold back.", reserved)
    for name, told, field in (
        ("budget_cap_dollars", "The caps that bind an answer, in US dollars.", "cap"),
        ("budget_spent_dollars", "US dollars spent in a cap's present window.", "spent"),
        ("budget_remaining_dollars", "US dollars that may still be reserved under a cap.", "left"),
    ):
        samples: Samples = [({"level": cap["level"]}, _dollars(cap[field])) for cap in standing.caps]
        yield from _family(name, "gauge", told, samples)
    now = sum(not log.state.ended for log in state.answers.values())
    yield from _family("answers_in_progress", "gauge", "Answers under way, queued ones among them.", _one(now))
    yield from _family("contexts", "gauge", "Contexts of the local model.", _one(standing.contexts))
    yield from _family("contexts_busy", "gauge", "Contexts that are lent.", _one(standing.busy))
    yield from _family("queued_answers", "gauge", "Questions that wait for a context.", _one(standing.queued))
    states: Samples = [
        ({"state": name}, None if standing.breaker is None else float(standing.breaker == name))
        for name in BREAKER_STATES
    ]
    yield from _family("circuit_state", "gauge", "The breaker of the endpoint: 1 at its state.", states)
    told = "Whether drafts that were kept are turned down far more often than expected; no sample: nobody watches."
    drifts = None if standing.drifts is None else float(standing.drifts)
    yield from _family("pair_drift_alarm", "gauge", told, _one(drifts))


def _family(name: str, kind: str, told: str, samples: Samples) -> Iterator[str]:
    """Yield a family; one without a known sample is left out."""
    lines = [_sample(name, labels, value) for labels, value in samples if value is not None]
    if lines:
        yield from _head(name, kind, told)
        yield from lines


def _histogram(name: str, told: str, histograms: Mapping[str, Histogram], label: str = "") -> Iterator[str]:
    yield from _head(name, "histogram", told)
    for value, histogram in histograms.items():
        labels = {label: value} if label else {}
        total = 0
        for bound, count in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
            total += count
            yield _sample(f"{name}_bucket", {**labels, "le": _number(bound)}, total)
        yield _sample(f"{name}_sum", labels, histogram.total)
        yield _sample(f"{name}_count", labels, total)


def _head(name: str, kind: str, told: str) -> Iterator[str]:
    yield f"# HELP hybrid_{name} {told}"
    yield f"# TYPE hybrid_{name} {kind}"


def _sample(name: str, labels: Labels, value: float) -> str:
    told = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
    return f"hybrid_{name}{{{told}}} {_number(value)}" if told else f"hybrid_{name} {_number(value)}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else f"{value:.12g}"


def _one(value: float | None) -> Samples:
    return [({}, value)]


def _dollars(nanousd: int | None) -> float | None:
    return None if nanousd is None else nanousd / NANOUSD_PER_USD
