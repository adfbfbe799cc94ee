"""What ``auto`` decides by, bound at the beginning of each answer: score, prices, dials and waiting as one planner.

A ``PlannerSource`` binds a planner to a question and hears what came of it. ``PairSource`` is the client's own: it
finds what is known of the pair of models (``calibrations.py``) and takes the endpoint's prices (``endpoint_terms.py``)
and the dials. What is done with a draft is decided in ``hybrid.policy.planning``.

Laws (``tests/run/test_deferral.py``): dials and scores move between answers only; only ratios of prices matter to a
dial in multiples; a dial in USD without a price is a sentence; no endpoint is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, get_args

import numpy as np

from hybrid.cloud import Capabilities
from hybrid.config import Settings
from hybrid.defer import Calibration, PriorScore, Score
from hybrid.errors import UsageError
from hybrid.model_names import NAMED
from hybrid.policy.gates import number_text
from hybrid.policy.plan import WORTH, Worth
from hybrid.policy.planning import Planner
from hybrid.policy_choices import USD
from hybrid.run.calibrations import calibration_for
from hybrid.run.endpoint_terms import EndpointTerms, block_tokens
from hybrid.run.events import Event
from hybrid.run.pair_facts import PairFacts
from hybrid.spend import AskPrices, CapStatus, Price, usd_to_nanousd
from hybrid.types import Ability, Ids

# The judge of a pair of which nothing is known: kl's, at the threshold of the bundled pair.
JUDGE = "kl:0.7"
UNCALIBRATED = (
    "nothing is known of this pair of models: about half of the bill goes to the questions whose drafts the local "
    "model was least sure of, beside their price (hybrid calibrate buys labels)"
)


@dataclass(frozen=True)
class AskedQuestion:
    """A question that is about to be answered, and all that a planner is bound to.

    ``words``: its ``words_of``; ``ids``: its prompt. ``can``: None where the endpoint cannot be reached now. ``price``:
    None: not known. ``caps``: those that bind it. ``span``: tokens decided at once, where that was chosen.
    ``ms_per_token``: what a drafted token takes; None: nothing was measured.
    """

    words: tuple[int, ...]
    ids: Ids
    settings: Settings
    can: Capabilities | None = None
    price: Price | None = None
    caps: Sequence[CapStatus] = ()
    span: int | None = None
    ms_per_token: float | None = None

    @property
    def judge(self) -> str | None:
        """The judge that was chosen for the verdicts, as ``--judge`` writes it; None: the calibration's own."""
        settings = self.settings
        number = settings.policy.partition(":")[2]
        threshold = settings.threshold if not number else float(number)
        judge = settings.judge or (None if threshold is None else f"kl:{number_text(threshold)}")
        return f"{judge or JUDGE}:strict" if settings.strict else judge


@dataclass(frozen=True)
class BoundPlanner:
    """A planner for one question, sentences to tell the user, and who hears the answer's events."""

    planner: Planner
    notes: tuple[str, ...] = ()
    hear: Callable[[Event], None] = lambda _: None


class PlannerSource(Protocol):
    """Where a client's planners come from."""

    def observe(self, event: Event) -> None:
        """Hear an event of any answer of the client's."""
        ...

    async def bind(self, asked: AskedQuestion) -> BoundPlanner:
        """Return the planner of a question. Raises UsageError for a dial that cannot be honoured."""
        ...

    def learn(self, bound: BoundPlanner) -> None:
        """Learn from an answer that is over, or was left; neither waits nor fails."""
        ...

    async def aclose(self) -> None:
        """Wait until everything is on disk."""
        ...


@dataclass
class PairKnowledge:
    """What is known of a pair of models under one judge, and sentences that are to be told."""

    score: Score
    calibration: Calibration | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def by_nats(self) -> bool:
        """Whether what keeping loses is counted in nats."""
        return self.calibration is None or self.calibration.loss == "nats"


class PairSource:
    """The client's own source. One for a client."""

    def __init__(self, facts: PairFacts | None = None) -> None:
        """Take who the local model is; what is known of a pair is read at the first question for it."""
        self._facts = facts or PairFacts()
        self._terms = EndpointTerms()
        self._pairs: dict[tuple[str, str | None], PairKnowledge] = {}

    def observe(self, event: Event) -> None:
        """Hear what is sent, and what it was charged."""
        self._terms.observe(event)

    async def bind(self, asked: AskedQuestion) -> BoundPlanner:
        """Return the planner of a question, by what is known now. Raises UsageError for USD where none are charged."""
        times = None if asked.can is None else await asyncio.to_thread(self._facts.times, asked.can)
        prices = self._terms.prices(asked.ids, asked.price, asked.can, times)
        pair = await self._knowledge(asked)
        settings = asked.settings
        planner = Planner(
            score=pair.score,
            prices=prices,
            worth=_worth(settings.worth, pair, prices),
            words=asked.words,
            prompt_tokens=len(asked.ids),
            abilities=frozenset(get_args(Ability)) if asked.can is None else asked.can.abilities,
            stream=settings.stream,
            block=asked.span or block_tokens(settings.patience, asked.ms_per_token),
            mean_excess=_mean_excess(pair),
            labels=settings.learn,
        )
        notes, pair.notes = tuple(pair.notes), []
        if prices.note and settings.cloud not in {None, *NAMED}:
            notes += (prices.note,)
        return BoundPlanner(planner, notes)

    def learn(self, bound: BoundPlanner) -> None:
        """Learn nothing."""

    async def aclose(self) -> None:
        """Wait for nothing."""

    async def _knowledge(self, asked: AskedQuestion) -> PairKnowledge:
        """Return what is known of the pair under the question's judge; it is read once."""
        key = "" if asked.can is None else asked.can.model, asked.judge
        if key not in self._pairs:
            self._pairs[key] = await asyncio.to_thread(self._read, *key)
        return self._pairs[key]

    def _read(self, cloud: str, judge: str | None) -> PairKnowledge:
        local = self._facts.local
        calibration = calibration_for(local, cloud, judge) if local and cloud else None
        if calibration is not None:
            return PairKnowledge(calibration.score, calibration)
        notes = [UNCALIBRATED] if cloud else []
        if local and cloud and (other := calibration_for(local, cloud)):
            notes = [f"this pair was calibrated for {other.judge}, and nothing is known of it under {judge}"]
        return PairKnowledge(PriorScore(judge or JUDGE), notes=notes)


# ---- dials ---------------------------------------------------------------------------------------------------------


def _worth(said: str | None, pair: PairKnowledge, prices: AskPrices) -> Worth:
    """Return what losing an answer counts, in the unit of the prices. Raises UsageError for USD without a price."""
    if said is not None and said.endswith(USD):
        if prices.unit != "nanousd":
            msg = f"worth {said} needs a price: state --price P/C/O, or a worth in multiples of it such as {WORTH:g}"
            raise UsageError(msg)
        return Worth(amount=float(usd_to_nanousd(said.removesuffix(USD))))
    calibration = pair.calibration
    multiple = float(said) if said is not None else WORTH if calibration is None else calibration.worth
    if calibration is None or not pair.by_nats or not calibration.questions:
        return Worth(multiple)
    prompts = np.array([each.prompt_tokens for each in calibration.questions], dtype=np.float64)
    written = np.array([each.cloud_tokens for each in calibration.questions], dtype=np.float64)
    return Worth(amount=multiple * float(np.mean(prices.write(prompts, written, 0))))


def _mean_excess(pair: PairKnowledge) -> float | None:
    """Return the mean excess of the pair's drafts, in nats a token, where that is what keeping loses."""
    if not pair.by_nats:
        return None
    questions = pair.calibration.questions if pair.calibration else ()
    return float(np.mean([each.excess for each in questions])) if questions else 1.0
