"""What ``auto`` and ``route`` decide by, bound at an answer's beginning: score, prices, dials, waiting as one planner.

A ``PlannerSource`` binds a planner to a question and hears what came of it. ``PlannerFactory`` is the client's own: it
finds what is known of the pair of models (``pairs/knowledge.py``), takes the endpoint's prices (``pairs/timings.py``)
and the dials, and learns from what happened in the answer. What is done with a draft is decided in
``hybrid.policy.planning``.

Laws (``tests/run/test_deferral.py``, ``test_learning.py``): dials and scores move between answers only; only ratios of
prices matter to a dial in multiples; a dial in USD without a price is a sentence; where nothing is charged and nothing
was measured of the pair, every draft is asked about; what is learned touches a disk in a thread, after the answer, and
a disk that fails is a note; with ``learn`` off nothing is heard or written.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, get_args

import numpy as np

from hybrid.cloud import Capabilities
from hybrid.defer import DEFAULT_JUDGE, floor_coin
from hybrid.defer.dials import FLOOR, KEEP_NOTHING, worth_factor
from hybrid.errors import UsageError
from hybrid.pairs.knowledge import OutcomeListener, PairKnowledge, read_knowledge
from hybrid.pairs.profile import PairIdentity
from hybrid.pairs.timings import PromptCacheTracker, block_tokens
from hybrid.policy.compose import judge_name
from hybrid.policy.explanation import typical_drafts
from hybrid.policy.gates import number_text
from hybrid.policy.plan import UNKNOWN_WORTH, WORTH, WaitPrice, Worth
from hybrid.policy.planning import Planner
from hybrid.record.events import Event, Publish, Started
from hybrid.run.composition import Decoding
from hybrid.settings.config import Settings
from hybrid.settings.names import NAMED
from hybrid.settings.policy_choices import USD
from hybrid.spend import AskPrices, CapStatus, Price, TokenTimes, usd_to_nanousd
from hybrid.types import Ability, Ids

DAY_S = 86_400
ASKS_ALWAYS = (
    "nothing is known of this pair of models, and {charged}: the cloud is asked every question (--price P/C/O or "
    "--worth has its drafts weighed; hybrid calibrate buys labels)"
)
RISK_KEEPS_NOTHING = (
    "a risk of {risk:g} keeps nothing yet: it is taken from {least} questions or more that the score was not fitted "
    "to, and {known} are known (hybrid calibrate holds out a fifth of 100 questions or more)"
)
SECONDS_UNWEIGHED = "second_usd changes nothing here: it needs a calibrated pair and times (hybrid probe)"


@dataclass(frozen=True)
class PlanningContext:
    """A question that is about to be answered, and all that a planner is bound to.

    ``words``: its ``words_of``; ``ids``: its prompt. ``can``: None where the endpoint cannot be reached now. ``price``:
    None: not known. ``caps``: those that bind it. ``span``: tokens decided at once, where that was chosen.
    ``ms_per_token``: what a drafted token takes; None: nothing was measured.
    """

    words: tuple[int, ...]
    ids: Ids
    decoding: Decoding
    can: Capabilities | None = None
    price: Price | None = None
    caps: Sequence[CapStatus] = ()
    span: int | None = None
    ms_per_token: float | None = None

    @property
    def judge(self) -> str | None:
        """The judge that was chosen for the verdicts, as ``--judge`` writes it; None: the calibration's own.

        Whole answers are judged by nobody: what was chosen for another policy says nothing of them.
        """
        settings = self.settings
        if self.whole:
            return None
        number = settings.policy.partition(":")[2]
        threshold = settings.threshold if not number else float(number)
        chosen = None if settings.judge is None else judge_name(settings.judge)
        judge = chosen or (None if threshold is None else f"kl:{number_text(threshold)}")
        return f"{judge or DEFAULT_JUDGE}:strict" if settings.strict else judge

    @property
    def settings(self) -> Settings:
        """What the answer may choose, with what was chosen for the client."""
        return self.decoding.settings

    @property
    def whole(self) -> bool:
        """Whether the planner has but two actions: to keep an answer whole, or to have it written."""
        planner = self.decoding.policy.planner
        return planner is not None and planner.whole


@dataclass(frozen=True)
class BoundPlanner:
    """A planner for one question, sentences to tell the user, and what hears the answer's events, to learn of it."""

    planner: Planner
    notes: tuple[str, ...] = ()
    listener: OutcomeListener | None = None
    pair: PairKnowledge | None = None

    def observers(self, note: Callable[[str], None]) -> tuple[Publish, ...]:
        """Return what hears the answer's events; ``note`` takes the sentences, once the answer has begun."""

        def tell(event: Event) -> None:
            for sentence in self.notes if isinstance(event, Started) else ():
                note(sentence)

        return (tell,) if self.listener is None else (self.listener.observe, tell)


class PlannerSource(Protocol):
    """Where a client's planners come from."""

    @property
    def drifts(self) -> bool | None:
        """Whether a pair's kept drafts are turned down far more often than expected; None: no pair is known yet."""
        ...

    def sent(self, prompt: Ids) -> None:
        """Hear that an answer is over, or was left, that had sent requests with a prompt."""
        ...

    async def times(self, can: Capabilities) -> TokenTimes | None:
        """Return what a probe has measured of an endpoint; None: nothing."""
        ...

    async def bind(self, asked: PlanningContext) -> BoundPlanner:
        """Return the planner of a question. Raises UsageError for a dial that cannot be honoured."""
        ...

    def learn(self, bound: BoundPlanner) -> None:
        """Learn from an answer that is over, or was left; neither waits nor fails."""
        ...

    async def aclose(self) -> None:
        """Wait until everything is on disk."""
        ...


class PlannerFactory:
    """The client's own source. One for a client."""

    def __init__(self, facts: PairIdentity | None = None, clock: Callable[[], float] = time.time) -> None:
        """Take who the local model is; what is known of a pair is read at the first question for it."""
        self._facts = facts or PairIdentity()
        self._clock = clock
        self._terms = PromptCacheTracker()
        self._pairs: dict[tuple[str, str | None], PairKnowledge] = {}
        self._reading = asyncio.Lock()
        self._learning: set[asyncio.Task[None]] = set()

    @property
    def drifts(self) -> bool | None:
        """Whether the alarm of a pair that was asked about stands; None: none was."""
        return any(pair.learner.floor > FLOOR for pair in self._pairs.values()) if self._pairs else None

    def sent(self, prompt: Ids) -> None:
        """Count a prompt as one that the endpoint's cache may hold."""
        self._terms.add(prompt)

    async def times(self, can: Capabilities) -> TokenTimes | None:
        """Return what the last probe of an endpoint has measured; None: there was none, or it is kept nowhere."""
        return await asyncio.to_thread(self._facts.times, can)

    async def bind(self, asked: PlanningContext) -> BoundPlanner:
        """Return the planner of a question, by what is known now. Raises UsageError for USD where none are charged."""
        times = None if asked.can is None else await self.times(asked.can)
        prices = self._terms.prices(asked.ids, asked.price, asked.can, times)
        pair, settings = await self._knowledge(asked), asked.settings
        while self._learning:  # arithmetic of some milliseconds: no disk is waited for
            await asyncio.wait(self._learning)
        learner = pair.learner  # nothing is awaited from here on: what is bound is of one moment
        abilities = frozenset(get_args(Ability)) if asked.can is None else asked.can.abilities
        asks = _asks_always(asked, pair)
        checks = _learns_of_checks(asked, abilities) and not asks
        mean_excess = pair.mean_excess(checks=checks)
        unpaced = _worth(asked, pair, prices, by_nats=mean_excess is not None, checks=checks)
        factor = self._pacing(asked)
        risk, score = settings.risk, learner.score if settings.risk is None else learner.risk_score
        planner = Planner(
            score=score,
            prices=prices,
            worth=unpaced.times(factor),
            unpaced_worth=unpaced if factor < 1.0 else None,
            used_up_nanousd=_used_up(asked, prices),
            words=asked.words,
            prompt_tokens=len(asked.ids),
            abilities=abilities,
            # A risk is a share of questions: each is decided once, as a whole.
            stream=settings.stream if risk is None else "whole",
            block=asked.span or block_tokens(settings.patience, asked.ms_per_token),
            # What cannot be scored is not checked at random, and must not count as if it might have been.
            floor=learner.floor if settings.learn and {"score", "write"} <= abilities else 0.0,
            floor_key=floor_coin(settings.seed, asked.ids, len(learner.outcomes)),
            mean_excess=mean_excess,
            kept_share=pair.kept_share,
            keep_below=KEEP_NOTHING if asks else None if risk is None else learner.risk_cutoff(risk),
            labels=settings.learn,
        )
        if times_weigh := settings.second_usd > 0.0 and asked.can is not None and planner.keep_below is None:
            planner = replace(planner, wait=_wait_price(asked, pair, times))
        if asked.whole:
            planner = planner.of_whole_answers()
        charged = "the price is not known" if asked.price is None else "nothing is charged"
        notes = pair.tell(ASKS_ALWAYS.format(charged=charged) if asks else None, checks=checks)
        if risk is not None and (known := learner.num_unseen) < (least := math.ceil(1.0 / risk) - 1):
            notes = (*notes, RISK_KEEPS_NOTHING.format(risk=risk, least=least, known=known))
        if times_weigh and planner.wait is None and asked.ms_per_token is not None:  # the first draft is measured
            notes = (*notes, SECONDS_UNWEIGHED)
        if prices.note and settings.cloud not in {None, *NAMED} and not asks:
            notes = (*notes, prices.note)
        return BoundPlanner(planner, notes, OutcomeListener(planner) if settings.learn else None, pair)

    def learn(self, bound: BoundPlanner) -> None:
        """Learn from an answer that is over, or was left: at once here, and after that on the disk."""
        pair, listener = bound.pair, bound.listener
        if pair is not None and listener is not None and listener.heard:
            learning = asyncio.create_task(pair.learn(listener))
            self._learning.add(learning)
            learning.add_done_callback(self._learning.discard)

    async def aclose(self) -> None:
        """Wait until everything is on disk."""
        while self._learning:
            await asyncio.wait(self._learning)
        for pair in self._pairs.values():
            await pair.written()

    async def _knowledge(self, asked: PlanningContext) -> PairKnowledge:
        """Return what is known of the pair under the question's judge; it is read once."""
        cloud, judge = "" if asked.can is None else asked.can.model, asked.judge
        async with self._reading:
            if (cloud, judge) not in self._pairs:
                facts = self._facts
                known = partial(read_knowledge, critic=facts.critic, shipped_only=facts.shipped_only)
                read = partial(known, facts.local, cloud, judge)
                self._pairs[cloud, judge] = await asyncio.to_thread(read)
        return self._pairs[cloud, judge]

    def _pacing(self, asked: PlanningContext) -> float:
        """Return what to multiply a worth by under the day's cap; 1 without one.

        A multiple only falls: nobody asked for the cap to be used up. A worth in USD rises, too.
        """
        day = _day_cap(asked)
        if day is None:
            return 1.0
        spent = (day.spent_nanousd + day.reserved_nanousd) / day.cap_nanousd
        factor = worth_factor(spent, self._clock() % DAY_S / DAY_S)
        in_usd = asked.settings.worth is not None and asked.settings.worth.endswith(USD)
        return factor if in_usd else min(1.0, factor)


def _day_cap(asked: PlanningContext) -> CapStatus | None:
    return next((cap for cap in asked.caps if cap.level == "day" and cap.cap_nanousd > 0), None)


def _used_up(asked: PlanningContext, prices: AskPrices) -> int | None:
    """Return the day's cap, in nano-USD, where it has less left than one token after this prompt costs, or nothing."""
    day = _day_cap(asked)
    least = float(prices.write(len(asked.ids), 1, 0)) if prices.unit == "nanousd" else 0.0
    return day.cap_nanousd if day is not None and (day.left_nanousd <= 0 or day.left_nanousd < least) else None


def _asks_always(asked: PlanningContext, pair: PairKnowledge) -> bool:
    """Whether every question is asked: no charge is known that keeping would save, no loss that it would risk.

    A dial that the user has set is weighed all the same.
    """
    unweighed = asked.settings.worth is None and asked.settings.risk is None
    return unweighed and (asked.price is None or asked.price.free) and not pair.is_measured


def _wait_price(asked: PlanningContext, pair: PairKnowledge, times: TokenTimes | None) -> WaitPrice | None:
    """Return what waiting costs; None: of the pair or of a time too little is known."""
    drafts = () if pair.calibration is None else typical_drafts(pair.calibration.questions)
    if not drafts or times is None or asked.ms_per_token is None:
        return None
    if asked.price is None or asked.price.free:  # then the prices are the cloud's times
        return WaitPrice(1.0, asked.ms_per_token, None, drafts)
    return WaitPrice(asked.settings.second_usd * 1e6, asked.ms_per_token, times, drafts)  # nano-dollars a millisecond


def _learns_of_checks(asked: PlanningContext, abilities: frozenset[Ability]) -> bool:
    """Whether drafts can be checked, and what comes of it is learned."""
    drafted = not asked.whole and asked.settings.stream != "early"
    return drafted and asked.settings.learn and {"score", "write"} <= abilities


def _worth(asked: PlanningContext, pair: PairKnowledge, prices: AskPrices, *, by_nats: bool, checks: bool) -> Worth:
    """Return what losing an answer counts, in the unit of the prices. Raises UsageError for USD without a price."""
    said, calibration = asked.settings.worth, pair.calibration
    if said is not None and said.endswith(USD):
        if prices.unit != "nanousd":
            msg = f"worth {said} needs a price: state --price P/C/O, or a worth in multiples of it such as {WORTH:g}"
            raise UsageError(msg)
        return Worth(amount=float(usd_to_nanousd(said.removesuffix(USD))))
    unknown = UNKNOWN_WORTH if checks and not by_nats and pair.other is None else WORTH
    own = unknown if calibration is None else calibration.worth
    multiple = own if said is None else float(said)
    if not by_nats:
        return Worth(multiple)
    if calibration is None:  # the dial's own default spends half the bill
        tokens = pair.learner.score.before(asked.words, len(asked.ids)).tokens
        alone = float(prices.write(len(asked.ids), tokens, 0))
        return Worth(amount=multiple / WORTH * pair.learner.worth_at_half_bill(alone))
    prompts = np.array([each.prompt_tokens for each in calibration.questions], dtype=np.float64)
    written = np.array([each.cloud_tokens for each in calibration.questions], dtype=np.float64)
    return Worth(amount=multiple * float(np.mean(prices.write(prompts, written, 0))))
