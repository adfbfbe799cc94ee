"""The planner: keep a draft, have it checked, or let the cloud write, whichever is expected to cost least.

The rule. h_i is the hazard that the judge's first rejection falls at token i of a draft of n, S_i the survival up to
it, V what losing the answer counts, P the prompt and what is shown:

- keep: ``V (1 - S_n)``;
- check: ``in(P + n) + out + sum_j (S_j - S_(j+1)) x (the rest after a rejection at j)``;
- write from w: ``in(P + w) + (the rest) + V (1 - S_w)``.

After a rejection, and where the cloud writes, it writes the rest in one request. Ties go to keep.

What keeping loses is a verdict, or where ``mean_excess`` is known nats: V times the expected excess loss a token,
beside the mean excess of the pair's drafts. There nothing is checked whole, but by the floor's coin: on open text
nearly every draft is turned down somewhere. Checks in short spans, each corrected by one token, are the third action,
where it is known how many tokens are kept: ``(k L + s + w) / E`` a token of text, as in ``spend.break_even``.

A block of a draft is followed by more: by the tail that the question alone lets expect. Keeping and checking a block
cost the tail beside it, priced as a draft of which only the chance q is known that it is turned down: to keep it loses
``V q``, a check costs itself and q times the rest from where it is turned down, or the cloud writes it all. What the
cloud writes to the end has no tail.

Laws (``tests/policy/test_planning.py``): the costs are those of a naive sum over every place of the first rejection;
more worth never asks for less, a dearer check never checks more; only the ratios of prices matter. No model, no clock;
a coin for the floor is passed in. numpy alone, less than 0.1 ms a token beside the score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np

from hybrid.defer import (
    DEFAULT_JUDGE,
    CorrectedScore,
    DraftSignals,
    Forecast,
    KeptScore,
    PriorScore,
    QuestionForecast,
    Score,
    score_from_json,
    score_to_json,
)
from hybrid.policy.plan import DraftPlan, PlanCosts, PlannedCase, Worth
from hybrid.policy.pricing import PricedDraft
from hybrid.prob import Floats
from hybrid.spend import AskPrices
from hybrid.types import Ability

StreamMode: TypeAlias = Literal["whole", "blocks", "early"]
"""When text is shown: after the whole draft was decided, block by block, or decided by the question alone, at once."""
TossFloor: TypeAlias = Callable[[Floats], int]

PRIOR = PriorScore(DEFAULT_JUDGE)


@dataclass(frozen=True, kw_only=True)
class Planner:
    """A score, prices and a worth, bound to one question. A frozen value: traces keep it whole.

    ``words`` and ``prompt_tokens`` are the question's. ``block``: the tokens of a block (``stream`` "blocks").
    ``floor``: the chance that what would be kept is checked all the same; ``floor_key`` is what its coin is tossed by
    (None: by the answer's own, which falls alike for all questions of one seed). ``mean_excess``: the mean excess
    loss a token of the pair's drafts, in nats; None: what keeping loses is a verdict. ``kept_share``: the share of
    drafted tokens that the judge keeps, for short spans; None: not known. ``keep_below``: keep exactly where the
    chance of being turned down is at most this, whatever it costs. ``whole``: it has but two actions, all is kept, or
    all is written before anything was shown. ``labels``: the rows of what the cloud writes are
    wanted, to learn from. ``unpaced_worth``: the worth that a day's pacing has lowered to ``worth``; None: it has not.
    Each plan is then made by both, and says where the higher one would have asked for more (``DraftPlan.paced``).
    ``used_up_nanousd``: the day's cap of which less is left than any request costs; None: of none.
    """

    score: Score = PRIOR
    prices: AskPrices = AskPrices.of(None)  # noqa: RUF009  (a frozen value)
    worth: Worth = Worth()  # noqa: RUF009  (a frozen value)
    words: tuple[int, ...] = ()
    prompt_tokens: int = 0
    abilities: frozenset[Ability] = frozenset(get_args(Ability))
    stream: StreamMode = "whole"
    block: int | None = None
    floor: float = 0.0
    floor_key: float | None = None
    mean_excess: float | None = None
    kept_share: float | None = None
    keep_below: float | None = None
    whole: bool = False
    labels: bool = True
    unpaced_worth: Worth | None = None
    used_up_nanousd: int | None = None

    @cached_property
    def question(self) -> QuestionForecast:
        """What the question alone lets expect."""
        return self.score.before(self.words, self.prompt_tokens)

    @cached_property
    def unpaced(self) -> Planner | None:
        """The same planner at the worth without a day's pacing; None where pacing has not lowered it."""
        if self.unpaced_worth is None:
            return None
        return replace(self, worth=self.unpaced_worth, unpaced_worth=None)

    def of_whole_answers(self) -> Planner:
        """Return the same planner with two actions: all is kept, or all is written before anything was shown.

        It checks nothing, no coin has it check, and no write begins within a draft.
        """
        return replace(
            self,
            abilities=self.abilities & {"open"},
            stream="early" if self.stream == "early" else "whole",
            block=None,
            floor=0.0,
            whole=True,
            labels=False,
        )

    def plan(
        self, signals: DraftSignals, *, final: bool, known: int = 0, spans: bool = False, toss: TossFloor | None = None
    ) -> DraftPlan:
        """Decide about a draft.

        ``final``: no token can follow it. ``known``: so many first tokens of prompt and answer were sent or written by
        requests of this answer; 0: there were none. ``spans``: an earlier plan checks in short spans. ``toss`` draws
        the floor's coin: 0 to check.
        """
        if spans:
            return DraftPlan("check", len(signals), limit=0)
        forecast, case = self.score.forecast(signals), PlannedCase(self, final, known)

        def priced(planner: Planner) -> PricedDraft:
            return PricedDraft(planner, len(signals), signals.shown, known, forecast, final=final)

        draft = priced(self)
        plan = replace(self._cheapest(draft), signals=signals, forecast=forecast, case=case)
        if plan.action == "keep" and self.floor and draft.can_check and toss is not None and plan.at:
            if toss(np.array([self.floor, 1.0 - self.floor])) == 0:
                plan = replace(plan, action="check", floor=True, propensity=self.floor)
            else:
                plan = replace(plan, propensity=1.0 - self.floor)
        return self._marked(plan, lambda unpaced: unpaced._cheapest(priced(unpaced)))

    def opening(self) -> DraftPlan:
        """Decide by the question alone, before anything is drafted: keep whatever will be drafted, or write it all.

        A check of short spans is the third, where the loss is nats.
        """
        question = self.question
        draft = PricedDraft(self, 0, 0, 0, Forecast(np.zeros(0), np.zeros(0)), final=False)
        keep = float(draft.lost(question.turned_down, np.array([draft.total]), question.excess)[0])
        write = float(self.prices.write(self.prompt_tokens, draft.total, 0)) if "open" in self.abilities else None
        span, spans = draft.short_spans()
        costs = PlanCosts(keep, None, write, spans, question.turned_down, None, draft.worth, draft.alone)
        action = _least(costs, self._forced(question.turned_down))
        plan = DraftPlan("check", span, 0, costs) if action == "spans" else DraftPlan(action, 0, None, costs)
        plan = replace(plan, case=PlannedCase(self, final=False, known=0))
        return self._marked(plan, lambda unpaced: unpaced.opening())

    def _marked(self, plan: DraftPlan, plan_by: Callable[[Planner], DraftPlan]) -> DraftPlan:
        """Say in a plan whether the planner without pacing would have asked for more; ``plan_by``: its plan."""
        return plan if self.unpaced is None else replace(plan, paced=plan.asks_less(plan_by(self.unpaced)))

    def _cheapest(self, draft: PricedDraft) -> DraftPlan:
        """Return the cheapest action, ties to keep."""
        num, turned_down = draft.num, draft.forecast.turned_down
        keep = draft.kept(num) + float(draft.survival[num]) * draft.ahead(draft.known)
        check = draft.check_cost() if draft.can_check and self.mean_excess is None else None
        write, at = draft.best_write()
        span, spans = draft.short_spans()
        place = int(np.argmax(-np.diff(draft.survival))) if num and turned_down > 0.0 else None
        costs = PlanCosts(keep, check, write, spans, turned_down, place, draft.worth, draft.alone)
        match _least(costs, self._forced(turned_down)):
            case "keep":
                return DraftPlan("keep", num, None, costs)
            case "check":
                return DraftPlan("check", num, None, costs)
            case "spans":
                return DraftPlan("check", min(span, num), 0, costs)
            case "write":
                return DraftPlan("write", at, None, costs)

    def _forced(self, turned_down: float) -> bool | None:
        """Whether a level of risk says that the draft is kept; None: no level does."""
        return None if self.keep_below is None else turned_down <= self.keep_below

    # ---- as it is written and kept ----------------------------------------------------------------------------------

    def __str__(self) -> str:
        """Return by what it decides."""
        loss = "verdict" if self.mean_excess is None else "nats"
        dial = f"worth:{self.worth}" if self.keep_below is None else f"risk:p<={self.keep_below:.3g}"
        return f"{dial}:{loss}:{self.stream}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``, exact to the last bit; a note of the prices is left out.

        Of what was learned online it holds what this question reads, and nothing that other questions' words taught.
        """
        kept = {each.name: getattr(self, each.name) for each in fields(self)}
        prices = asdict(self.prices)
        prices.pop("note")
        return kept | {
            "score": score_to_json(cast(KeptScore, self._score_of_question())),
            "prices": prices,
            "worth": self.worth.to_json(),
            "unpaced_worth": self.unpaced_worth and self.unpaced_worth.to_json(),
            "words": list(self.words),
            "abilities": sorted(self.abilities),
        }

    def _score_of_question(self) -> Score:
        if not isinstance(self.score, CorrectedScore):
            return self.score
        return replace(self.score, correction=self.score.correction.only(self.words))

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Planner:
        """Read what ``to_json`` gave. Raises ValueError."""
        try:
            unpaced = kept.get("unpaced_worth")  # a trace of before it was kept has none
            kept = {name: value for name, value in kept.items() if name != "back"}  # an earlier version's
            made = {
                "worth": Worth.from_json(kept["worth"]),
                "unpaced_worth": None if unpaced is None else Worth.from_json(unpaced),
                "score": score_from_json(kept["score"]),
                "prices": AskPrices.from_json(kept["prices"]),
                "words": tuple(map(int, kept["words"])),
                "abilities": frozenset(kept["abilities"]),
            }
            return cls(**{**kept, **made})
        except (KeyError, TypeError, AttributeError) as error:
            msg = f"this is no planner that can be read: {error!r}"
            raise ValueError(msg) from error


def _least(costs: PlanCosts, forced: bool | None) -> Literal["keep", "check", "write", "spans"]:
    """Return the action of the least cost, ties to the earlier one; ``forced``: keep, or anything but keep."""
    others: dict[Literal["check", "write", "spans"], float | None] = {
        "check": costs.check,
        "write": costs.write,
        "spans": costs.spans,
    }
    able = {action: cost for action, cost in others.items() if cost is not None}
    if forced or not able:
        return "keep"
    best = min(able, key=lambda action: able[action])
    return "keep" if forced is None and costs.keep <= able[best] else best
