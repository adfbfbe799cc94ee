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
where it is known how many tokens are kept: ``(k L + s + w) / E`` a token of text, as in ``spend.ask_prices``.

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
from numpy.typing import NDArray

from hybrid.defer import (
    DEFAULT_JUDGE,
    CorrectedScore,
    DraftSignals,
    Forecast,
    KeptScore,
    QuestionForecast,
    Score,
    UninformedScore,
    score_from_json,
    score_to_json,
)
from hybrid.policy.plan import DraftPlan, PlanCosts, PlannerInput, WaitPrice, Worth
from hybrid.prob import Floats
from hybrid.spend import AskPrices, tokens_shown
from hybrid.types import Ability

# Spans beyond this cost more a token wherever a check in spans pays at all.
LONGEST_CHECKED_SPAN = 64
# The cloud after a local beginning loses something all the same: on two real pairs a tenth and a sixth of what the
# local model loses.
AFTER_LOCAL = 1 / 6
# What checks in short spans leave of that loss: on the calibration questions of both pairs the tokens that excess:0.5
# keeps hold 0.045 and 0.013 of it.
LET_THROUGH = 1 / 20
# What a chance may be at most where its logarithm is taken.
_SURE = 1.0 - 1e-9


def place_of_rejection(chance: float) -> float:
    """Return where in a draft that is turned down with a chance that is expected, as a share of it.

    The hazard is the same everywhere: that of a truncated exponential. 1/2 where the chance is small.

    >>> [round(place_of_rejection(chance), 2) for chance in (0.0, 0.5, 0.77, 0.98)]
    [0.5, 0.44, 0.38, 0.24]
    """
    sure = min(chance, _SURE)
    return 0.5 if sure < 1e-6 else float(-1.0 / np.log1p(-sure) - (1.0 - sure) / sure)


class ActionCosts:
    """A draft that is being priced. ``total``: the tokens that the answer is expected to have."""

    def __init__(self, planner: Planner, num: int, shown: int, known: int, forecast: Forecast, *, final: bool) -> None:
        """Take a forecast of ``num`` tokens after ``shown``; ``known`` and ``final`` are as in ``Planner.plan``."""
        self.planner, self.prices, self.num, self.forecast = planner, planner.prices, num, forecast
        self.survival = forecast.survival
        self.start = planner.prompt_tokens + shown
        self.known = float(known)
        # What is expected beyond a block: what the question lets expect; half as much again where it has outgrown that.
        self.tail = 0.0 if final else max(planner.question.tokens - shown - num, num / 2, 1.0)
        self.total = shown + num + self.tail
        self.alone = float(self.prices.write(planner.prompt_tokens, self.total, 0))
        self.worth = planner.worth.of(self.alone)
        self.can_check = {"score", "write"} <= planner.abilities
        excess = planner.mean_excess
        # V for a nat of one token.
        self.nat = 0.0 if excess is None else min(self.worth, self.worth / max(excess * self.total, 1e-12))

    def lost(self, chance: float, tokens: Floats, excess: float) -> Floats:
        """Return what it costs to keep each number of tokens: turned down with a chance, or of so many nats each."""
        if self.planner.mean_excess is None:
            return np.full(tokens.shape, self.worth * chance)
        return self.nat * excess * tokens

    def kept(self, num: int) -> float:
        """Return what it costs to keep the first tokens of the draft."""
        return float(self._kept_all[num])

    @cached_property
    def _kept_all(self) -> Floats:
        """What it costs to keep the first 0 to n tokens, shape (n + 1,)."""
        if self.planner.mean_excess is None:
            return self.worth * (1.0 - self.survival)
        return self.nat * np.concatenate([[0.0], np.cumsum(self.forecast.excess)])

    # ---- what follows -----------------------------------------------------------------------------------------------

    def ahead(self, known: float) -> float:
        """Return what the tail of a block is expected to cost, where so many tokens are known by then.

        The cheapest of three: to keep it, to check it, to have it written.
        """
        if not self.tail:
            return 0.0
        planner, question, left = self.planner, self.planner.question, self.tail
        rate = -np.log1p(-min(question.turned_down, _SURE)) / max(question.tokens, 1.0)
        chance, at = float(-np.expm1(-rate * left)), float(self.start + self.num)
        kept = place_of_rejection(chance) * left
        costs = [float(self.lost(chance, np.array([left]), question.excess)[0])]
        if self.can_check and planner.mean_excess is None:
            rest = self.prices.write(at + kept, max(left - kept, 1.0), at + kept)
            costs.append(float(self.prices.check(at, left, known) + chance * rest))
        if "write" in planner.abilities:
            costs.append(float(self.prices.write(at, left, known)))
        return min(costs)

    def rest(self, at: Floats, left: Floats, known: Floats) -> Floats:
        """Return the price of the rest, where the cloud writes after ``at``. Shapes as ``at``.

        Under nats it costs what it loses behind a local beginning, too.
        """
        rest = cast(Floats, self.prices.write(at, np.maximum(left, 1.0), known))
        if self.planner.mean_excess is None:
            return rest
        begun = at > self.planner.prompt_tokens
        return rest + self.nat * AFTER_LOCAL * self.planner.mean_excess * left * begun

    # ---- the actions ------------------------------------------------------------------------------------------------

    def check_cost(self) -> float:
        """Return the expected cost of a check of the whole draft. The token that replaces a rejected one is paid."""
        falls = self.survival[:-1] - self.survival[1:]
        at: Floats = np.arange(self.num, dtype=np.float64) + float(self.start)
        left = self.start + self.num - 1.0 - at + self.tail
        after = self.rest(at + 1.0, left, at)
        check = float(self.prices.check(self.start, self.num, min(self.known, self.start)))
        tail = self.ahead(float(self.start + self.num))
        return check + float(falls @ after) + float(self.survival[-1]) * tail

    def best_write(self) -> tuple[float | None, int]:
        """Return the cost of the best place to let the cloud write the rest from, and the place."""
        offsets = np.arange(self.num + (1 if self.tail else 0), dtype=np.float64)
        at, left = offsets + float(self.start), self.num - offsets + self.tail
        known = cast(Floats, np.minimum(self.known, at))
        costs = self.rest(at, left, known) + self._kept_all[: len(offsets)]
        costs[~self._can_write_from(offsets)] = np.inf
        best = int(np.argmin(costs)) if len(costs) else 0
        if not len(costs) or costs[best] == np.inf:
            return None, 0
        return float(costs[best]), best

    def _can_write_from(self, offsets: Floats) -> NDArray[np.bool_]:
        """Where the endpoint can write from, and where a level of risk allows that nothing before it is checked."""
        needs = np.where(self.start + offsets > self.planner.prompt_tokens, "write", "open")
        able = np.isin(needs, sorted(self.planner.abilities))
        return able if self.planner.keep_below is None else able & (offsets == 0)

    def short_spans(self) -> tuple[int, float | None]:
        """Return the best short span and what the rest of the answer costs if it is checked in such; None: not known.

        Each check brings ``E = (1 - p^s) / (1 - p)`` tokens: those kept, and the one that corrects the first that is
        not. Its own last token is new to the next check; what the first one reads of the prompt, later ones find.
        """
        share, able = self.planner.kept_share, self.planner.abilities
        if share is None or self.planner.mean_excess is None or not {"score", "ids"} <= able:
            return 0, None
        left = self.num + self.tail
        spans = np.arange(1, max(1, min(LONGEST_CHECKED_SPAN, int(left))) + 1)
        before = self.start + left / 2
        costs = np.asarray(self.prices.check(before, spans.astype(np.float64), before - 1.0)) / tokens_shown(
            share, len(spans)
        )
        best = int(np.argmin(costs))
        start = float(self.start)
        first = float(self.prices.check(start, 0.0, self.known)) - float(self.prices.check(start, 0.0, start - 1.0))
        lost = LET_THROUGH * self.nat * self.planner.mean_excess * left
        return int(spans[best]), lost + first + float(costs[best]) * left


StreamMode: TypeAlias = Literal["whole", "blocks", "early"]
"""When text is shown: after the whole draft was decided, block by block, or decided by the question alone, at once."""
TossFloor: TypeAlias = Callable[[Floats], int]

PRIOR = UninformedScore(DEFAULT_JUDGE)


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
    ``used_up_nanousd``: the day's cap of which less is left than any request costs; None: of none. ``wait``: what
    waiting costs, for whoever decides before a draft (``explanation.without_draft``); None: nothing.
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
    wait: WaitPrice | None = None

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
        forecast, case = self.score.forecast(signals), PlannerInput(self, final, known)

        def priced(planner: Planner) -> ActionCosts:
            return ActionCosts(planner, len(signals), signals.shown, known, forecast, final=final)

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
        draft = ActionCosts(self, 0, 0, 0, Forecast(np.zeros(0), np.zeros(0)), final=False)
        keep = float(draft.lost(question.turned_down, np.array([draft.total]), question.excess)[0])
        write = float(self.prices.write(self.prompt_tokens, draft.total, 0)) if "open" in self.abilities else None
        span, spans = draft.short_spans()
        costs = PlanCosts(keep, None, write, spans, question.turned_down, None, draft.worth, draft.alone)
        action = _least(costs, self._forced(question.turned_down))
        plan = DraftPlan("check", span, 0, costs) if action == "spans" else DraftPlan(action, 0, None, costs)
        plan = replace(plan, case=PlannerInput(self, final=False, known=0))
        return self._marked(plan, lambda unpaced: unpaced.opening())

    def _marked(self, plan: DraftPlan, plan_by: Callable[[Planner], DraftPlan]) -> DraftPlan:
        """Say in a plan whether the planner without pacing would have asked for more; ``plan_by``: its plan."""
        return plan if self.unpaced is None else replace(plan, paced=plan.asks_less(plan_by(self.unpaced)))

    def _cheapest(self, draft: ActionCosts) -> DraftPlan:
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
        kept = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "wait"}
        kept |= {} if self.wait is None else {"wait": asdict(self.wait)}
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
            unpaced, wait = kept.get("unpaced_worth"), kept.get("wait")  # a trace of before they were kept has none
            kept = {name: value for name, value in kept.items() if name != "back"}  # an earlier version's
            made = {
                "worth": Worth.from_json(kept["worth"]),
                "unpaced_worth": None if unpaced is None else Worth.from_json(unpaced),
                "wait": None if wait is None else WaitPrice.from_json(wait),
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
