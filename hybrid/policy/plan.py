"""What may be done with a draft, what each action is expected to cost, and what an answer is worth. Values alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from hybrid.defer import DraftSignals, Forecast
from hybrid.spend import TokenTimes

if TYPE_CHECKING:
    from hybrid.policy.planning import Planner

PlanAction: TypeAlias = Literal["keep", "check", "write"]

# More than any bill, and finite: an infinite worth times a chance of 0 is 0.
MOST_WORTH = 1e200
# On the bundled pair's 1,120 calibration problems, each forecast by a score that had not seen it, this multiple
# recovers 0.95 of the gap at 0.51 of the cloud's bill (defer/NOTES.md), and no kind of problem is given up for the
# others: a short answer and a long one are worth their own price.
WORTH = 2.2
# Of a pair that nobody calibrated, learned online from the first question on: on the calibration halves of the bundled
# pair and of two foreign ladders, 1,200 questions each, this multiple recovers 0.91 to 0.99 at 0.54 to 0.65 of the
# cloud's bill, under two tariffs; 2.2 recovers 0.94 to 1.00 at 0.59 to 0.71. What it does on others: lab/NOTES.md.
UNKNOWN_WORTH = 1.5


@dataclass(frozen=True)
class Worth:
    """What not losing an answer is worth: a multiple of its own price by the cloud alone, or one amount for all.

    ``amount`` is in the unit of the prices (``AskPrices.unit``) and is taken before ``multiple``.
    """

    multiple: float = WORTH
    amount: float | None = None

    def of(self, alone: float) -> float:
        """Return the worth of an answer that the cloud alone writes for ``alone``.

        >>> Worth(2.0).of(30.0), Worth(amount=7.0).of(30.0)
        (60.0, 7.0)
        """
        return min(MOST_WORTH, self.multiple * alone if self.amount is None else self.amount)

    def __str__(self) -> str:
        """Return the number, and that an amount is one."""
        return f"{self.multiple:g}" if self.amount is None else f"{self.amount:g} each"

    def times(self, factor: float) -> Worth:
        """Return so many times the worth."""
        return Worth(self.multiple * factor, None if self.amount is None else self.amount * factor)

    def to_json(self) -> dict[str, str | None]:
        """Return plain data, exact to the last bit; JSON has no infinity."""
        return {name: None if value is None else repr(value) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, kept: Mapping[str, str | None]) -> Worth:
        """Read what ``to_json`` gave. Raises ValueError, TypeError or AttributeError."""
        worth = {name: None if value is None else float(value) for name, value in kept.items()}
        return cls(**worth)  # type: ignore[arg-type]  # no multiple is None


@dataclass(frozen=True)
class WaitPrice:
    """What a millisecond of waiting costs, in the unit of the prices, and how long a draft and the cloud take.

    ``drafted_ms``: of a drafted token. ``cloud`` None: the prices count its time themselves. ``drafts``: what a draft
    may show, its chance to be turned down and its excess loss in nats a token; each is as frequent.
    """

    per_ms: float
    drafted_ms: float
    cloud: TokenTimes | None
    drafts: tuple[tuple[float, float], ...]

    def asked_ms(self, read: float, written: float) -> float:
        """Return how long a request takes that reads and writes so many tokens; 0 where the prices count it."""
        written_ms, scored_ms, _, once_ms = self.cloud or (0.0, 0.0, 0.0, 0.0)
        return once_ms + scored_ms * read + written_ms * written

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> WaitPrice:
        """Read what ``dataclasses.asdict`` and JSON made of it. Raises TypeError or KeyError for other shapes."""
        cloud, drafts = kept["cloud"], tuple((chance, excess) for chance, excess in kept["drafts"])
        return cls(**{**kept, "cloud": None if cloud is None else TokenTimes(*cloud), "drafts": drafts})


@dataclass(frozen=True)
class PlanCosts:
    """What each action is expected to cost, in the unit of the prices; None: the endpoint cannot do it.

    ``keep`` is a loss, the others are bills and losses. ``spans``: to check to the end in short spans. ``turned_down``:
    the chance that the judge would reject anything in the draft; ``place``: the offset where that is likeliest.
    ``worth``: V, what losing the answer counts. ``alone``: the price of the answer by the cloud alone.
    """

    keep: float
    check: float | None
    write: float | None
    spans: float | None
    turned_down: float
    place: int | None
    worth: float
    alone: float


@dataclass(frozen=True)
class PlannerInput:
    """What a planner was asked of a draft, beside its signals: with it a plan can be made again, or otherwise."""

    planner: Planner
    final: bool
    known: int


@dataclass(frozen=True)
class DraftPlan:
    """What to do with a draft of n tokens.

    ``keep`` and ``check`` the first ``at`` tokens (mostly all n); or let the cloud ``write`` from offset ``at``: those
    before it are shown, the others dropped. ``limit``: how many tokens the cloud writes, in a check after a rejection
    (None: to the end; 0: none but the one that replaces the rejected, and the next drafts are as short as this check).
    ``floor``: a coin had this checked, which would have been kept. ``propensity``: the chance with which that coin
    falls as it did; 1 where none was tossed. ``paced``: without a day's pacing more would have been asked. ``signals``,
    ``forecast`` and ``case`` are what it was decided from, for whoever learns of the outcome or explains it.
    """

    action: PlanAction
    at: int
    limit: int | None = None
    costs: PlanCosts | None = None
    floor: bool = False
    propensity: float = 1.0
    paced: bool = False
    signals: DraftSignals | None = field(default=None, compare=False, repr=False)
    forecast: Forecast | None = field(default=None, compare=False, repr=False)
    case: PlannerInput | None = field(default=None, compare=False, repr=False)

    @property
    def why(self) -> str | None:
        """Say why the cloud is asked to write."""
        if self.action != "write" or self.costs is None:
            return None
        chance, planner = self.costs.turned_down, self.case and self.case.planner
        if self.signals is None and planner and planner.wait and planner.stream != "early":
            seconds = planner.wait.drafted_ms * planner.question.tokens / 1000
            takes = f"it takes about {seconds:.2g} s, and is turned down with chance {chance:.2g}"
            return f"waiting for a draft may cost more than it saves: {takes}"
        return f"expected to be turned down with chance {chance:.2g}"

    def asks_less(self, other: DraftPlan) -> bool:
        """Whether a plan of the same draft at a higher worth asks the cloud for more: it does wherever the two differ.

        The cost of an action is its bill and the worth times its loss. The least of such sums has, at a higher worth, a
        higher bill and a lower loss, or is the same action. Only a coin can have this one ask where the other keeps.
        """
        return other.action != "keep" and (self.action, self.at, self.limit) != (other.action, other.at, other.limit)


@dataclass(frozen=True)
class JudgedSpan:
    """What a judge said of ``num_judged`` tokens: the first ``num_accepted`` stand; ``rejected``: the next does not.

    ``num_wording`` of the accepted ones stand because the models part in their wording alone.
    """

    num_judged: int
    num_accepted: int
    rejected: bool
    num_wording: int = 0
