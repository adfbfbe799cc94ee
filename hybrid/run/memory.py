"""What a client keeps from one answer to the next: its models' speeds, chains and agreement, its spending, its pair.

It observes the events of every answer, and says at the beginning of the next one what follows: the chain that drafts,
the draft length that ``auto`` and ``cheap`` stand for, the planner that weighs drafts, the sentences of a dear or slow
answer. What it is that is learned stands in the file of each part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hybrid.cloud import Capabilities
from hybrid.pairs.profile import PairObserver, PairRecord
from hybrid.pairs.timings import Timings
from hybrid.policy import Policy
from hybrid.policy.adaptive import ADAPTIVE, ArmChoice
from hybrid.record.answer import Answer
from hybrid.record.answer_builder import AnswerBuilder
from hybrid.record.events import Event, Finished, Publish
from hybrid.record.spending import CheckCostNote, CheckTimeNote
from hybrid.record.state import Spending
from hybrid.run.chain import ChainChooser
from hybrid.run.composition import Decoding
from hybrid.run.contexts import LocalModel
from hybrid.run.deferral import BoundPlanner, PlannerFactory, PlannerSource, PlanningContext
from hybrid.run.local_writers import Question
from hybrid.settings.config import Settings
from hybrid.spend import Account, AnswerBudget

NOTHING_CHARGED = ", and nothing is learned where no price is known, or nothing is charged (--price P/C/O)"


class ClientMemory:
    """What is known by now. One for a client."""

    def __init__(
        self,
        local: LocalModel,
        settings: Settings,
        account: Account,
        pair: PairRecord | None = None,
        planners: PlannerSource | None = None,
    ) -> None:
        """Know nothing but what was measured of the local model; the arguments are as ``AsyncClient`` has them."""
        self.spending = Spending()
        """What all answers have cost."""
        self._timings = Timings(local.ms_per_token)
        self.chains = ChainChooser(local, settings, self._timings)
        """Which local models draft for one another."""
        self.planners: PlannerSource = planners or PlannerFactory()
        """What ``auto`` decides by."""
        self.pair = PairObserver(pair)
        """How many drafted tokens of this pair stand."""
        self._account = account
        self._check_cost = CheckCostNote()
        self._check_time = CheckTimeNote(self.planners.times)
        self._local = local

    def observers(self, question: Question) -> tuple[Publish, ...]:
        """Return what hears an answer's events from its beginning."""
        always = partial(self._timings.observe, prompt_tokens=len(question.ids)), self.spending.observe
        return (*always, partial(self.chains.observe, chain=question.chain)) if self._local.drafters else always

    async def choose_arm(
        self,
        question: Question,
        decoding: Decoding,
        can: Capabilities | None,
        budget: AnswerBudget,
        builder: AnswerBuilder,
    ) -> ArmChoice | None:
        """Choose and tell the settings of an answer under ``kl:adaptive``; None: of another, or no cloud."""
        settings, charged = decoding.settings, budget.price is not None and not budget.price.free
        if settings.policy != ADAPTIVE or settings.branches or can is None:
            return None
        key, learns = (settings.seed, question.ids), settings.learn and charged
        choice = await self.pair.choose_arm(can.model, key, learns=learns)
        builder.note(f"{ADAPTIVE} chose {choice.arm}: {choice.why}{'' if charged else NOTHING_CHARGED}")
        return choice

    def pair_observer(
        self, question: Question, policy: Policy, model: Callable[[], str | None], choice: ArmChoice | None = None
    ) -> Publish:
        """Return what counts the judged tokens of an answer under the policy that is bound to its question.

        ``model`` names the cloud's; None: it was not reached. ``choice``: the arm whose settings it has.
        """

        def count(event: Event) -> None:
            own = question.chain.models[-1] == self._local.name
            if isinstance(event, Finished) and own and (cloud := model()) is not None:
                self.pair.add(event.answer, policy, cloud, choice)

        return count

    def span(self, decoding: Decoding, prefix_tokens: int, can: Capabilities | None) -> int | None:
        """Return the draft length that ``auto`` or ``cheap`` means by now; None: the policy's own."""
        if decoding.settings.span == "cheap":
            keeps_cache = can is not None and can.keeps_cache is True
            return self._timings.cheap(self._account.price, prefix_tokens, keeps_cache=keeps_cache)
        return self._timings.span() if decoding.settings.span == "auto" else None

    async def bind(
        self, question: Question, decoding: Decoding, can: Capabilities | None, budget: AnswerBudget
    ) -> BoundPlanner | None:
        """Bind what decides about drafts to a question, by what is known of models, endpoint and money now.

        None: nothing decides, or the policy's own gate does.
        """
        if decoding.policy.planner is None:
            return None
        chosen, ids = decoding.settings.span, question.ids
        span = chosen if isinstance(chosen, int) else self.span(decoding, len(ids), can)
        price, speed = budget.price, self._timings.ms_per_token
        caps = () if price is None or price.free else await budget.cap_statuses()
        return await self.planners.bind(PlanningContext(question.words, ids, decoding, can, price, caps, span, speed))

    async def notes_of(
        self, policy: Policy, can: Capabilities | None, builder: AnswerBuilder
    ) -> Sequence[Callable[[Answer], str | None]]:
        """Return what says, of the whole answer, that its checks made it dear or slow."""
        return partial(self._check_cost.of, policy), await self._check_time.bind(policy, can, builder)

    def learn(self, question: Question, bound: BoundPlanner | None, *, sent: bool) -> None:
        """Learn from an answer that is over, or was left; ``sent``: it has sent requests with its prompt."""
        if sent:
            self.planners.sent(question.ids)
        if bound is not None:
            self.planners.learn(bound)

    async def aclose(self) -> None:
        """Wait until everything is on disk."""
        await self.pair.aclose()
        await self.planners.aclose()
