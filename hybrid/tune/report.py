"""The sentences and tables of a calibration, shared by terminal and page. No colour, no markup.

The laws (``tests/tune/test_calibrating.py``): every figure is that of the pair's JSON; what is an estimate is called
one; an undefined number is a dash; with several drafters the one to take is named, with the figure that speaks for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hybrid.report import Table
from hybrid.spend import as_percent
from hybrid.spend.price import NANOUSD_PER_USD
from hybrid.tasks.statistics import Estimate
from hybrid.tune.calibrating import CalibratedPair, JudgeBreakEven, choose_drafter, nats_left
from hybrid.tune.diagnosis import DRAFTS, LEVELS, Quantiles, auroc, ece, reason_of_loss
from hybrid.tune.labels import CERTIFICATES

UNDEFINED = "-"
_MEASURES = {
    "kl": "KL, at least",
    "kl_upper": "KL, at most",
    "tv": "total variation, at least",
    "tv_upper": "total variation, at most",
    "excess": "excess loss",
}
_UNITS = {"nanousd": "USD", "ms": "ms", "tokens": "tokens read"}


def headline(pairs: Sequence[CalibratedPair]) -> str:
    """Say what was calibrated."""
    names = " and ".join(pair.drafter for pair in pairs)
    return f"{names} beside {pairs[0].names.model}: {len(pairs[0].questions)} questions"


OF_CRITIC = (
    "The score reads what the critic says of each draft, so it is taken where the same --critic is named; without one, "
    "or with another, the pair's score without a critic is."
)


def plain(pair: CalibratedPair) -> list[str]:
    """Say in two sentences how good the drafts are, and what ``auto`` makes of that."""
    questions, point = pair.calibration.questions, pair.proposed
    down = sum(each.turned_down for each in questions)
    left = (
        f"leaves {as_share(point.left)} of what the drafts lose"
        if pair.calibration.loss == "nats"
        else (f"shows {as_share(point.left)} of those drafts all the same")
    )
    return [
        f"Of {len(questions)} drafts of the local model the cloud would turn {down} down.",
        f"With this score auto spends about {as_share(point.of_cloud)} of the cloud's own bill, and {left}.",
    ]


def proposals(pair: CalibratedPair) -> list[str]:
    """Say what is proposed, what speaks for it, and what it would cost, save and leave."""
    calibration, point = pair.calibration, pair.proposed
    tried = pair.threshold.same + pair.threshold.other
    questions = calibration.questions
    saved = _amount((1.0 - point.of_cloud) * pair.forecasts.alone, pair)
    why = _why_threshold(pair) if calibration.judge == pair.kl_judge else _why_excess(pair)
    return [
        f"judge {calibration.judge}: {why}",
        f"loss {calibration.loss}: {reason_of_loss(calibration)}",
        (
            f"worth {calibration.worth:.3g}: the bill would be {as_share(point.of_cloud)} of the cloud's own, "
            f"{saved} less a question; {_left(pair, point.left)}"
        ),
        (
            f"told of questions left out of the fit: AUROC {_number(auroc(questions))}, ECE {ece(questions):.3f} "
            f"({len(questions)} questions)"
        ),
        *choices(pair),
        *([] if calibration.critic is None else [OF_CRITIC]),
        (
            "This threshold and this worth are initial ones, from exploratory tests on these questions. What the task "
            "requires is not known here: where an error is dear take a lower threshold or a higher worth, where one is "
            f"cheap the other way; the tables tell what that costs (thresholds were tried on {tried} "
            "drafts)."
        ),
    ]


def _why_threshold(pair: CalibratedPair) -> str:
    choice = pair.threshold
    if not choice.known:
        return (
            f"{choice.same} drafts are word for word the cloud's own and {choice.other} are not: too few of either to "
            "choose a threshold by, so it is the preset's"
        )
    trial = next((each for each in choice.trials if f"kl:{each.nats:g}" == pair.calibration.judge), None)
    if trial is None:
        return "as it was asked for"
    return (
        f"of {choice.same} drafts that are word for word the cloud's own it turns {as_share(trial.false_alarms)} down, "
        f"of the {choice.other} others {as_share(trial.caught)}"
    )


def _why_excess(pair: CalibratedPair) -> str:
    return (
        f"KL turns {as_share(pair.diagnosis.first_rejections(pair.kl_judge).share)} of the drafts down, over wording: "
        "so a token is judged by what it costs"
    )


def _left(pair: CalibratedPair, left: float) -> str:
    if pair.calibration.loss == "nats":
        return f"{as_share(1.0 - left)} of the drafts' excess loss is recovered"
    return f"of the drafts that the cloud would turn down {as_share(left)} are shown all the same"


def tables(pair: CalibratedPair) -> list[Table]:
    """Return everything that is told of one pair."""
    return [
        _curve(pair),
        _policies(pair),
        _thresholds(pair),
        _distributions(pair),
        _certificates(pair),
        _lengths(pair),
        _rejections(pair),
    ]


def drafters(pairs: Sequence[CalibratedPair]) -> Table:
    """Compare several drafters, and name the one to take."""
    choice = choose_drafter(pairs)
    best, wins = choice.best, as_share(choice.share)
    rows = tuple(
        (
            f"{pair.drafter}{' *' if pair is best else ''}",
            as_share(pair.diagnosis.first_rejections(pair.kl_judge).share),
            _number(pair.diagnosis.measured("kl").mean),
            _number(pair.diagnosis.measured("excess").mean),
            f"{pair.diagnosis.accepted_length(DRAFTS[1])[0]:.2f}",
            f"{as_share(pair.acceptance.share)} ({as_share(pair.acceptance.low)} to {as_share(pair.acceptance.high)})",
            f"{nats_left(pair):.3f}",
        )
        for pair in pairs
    )
    columns = (
        "drafter",
        "drafts turned\ndown by KL",
        "mean KL",
        "mean excess",
        f"accepted\nof {DRAFTS[1]}",
        "accepted greedily,\nof other questions",
        "left over\nall bills",
    )
    chosen = (
        f"* Take {best.drafter}: it leaves {nats_left(best):.3f} nats of excess loss a token over all shares of the "
        f"cloud's bill, the least of all, and the least in {wins} of resamples of the questions"
        + ("." if choice.sure else ": these questions do not tell the drafters apart for certain; more of them would.")
    )
    notes = (chosen, "Nats a token; what a drafter takes in time and memory is not in it.")
    return Table("Which drafter to take", columns, rows, notes)


def _curve(pair: CalibratedPair) -> Table:
    what = "loss left" if pair.calibration.loss == "nats" else "wrong drafts\nshown"
    rows = [
        (
            f"{point.worth:.3g}{' *' if point is pair.proposed else ''}",
            as_share(point.of_cloud),
            as_share(point.left),
            *map(as_share, (point.kept, point.checked, point.written)),
        )
        for point in pair.curve
    ]
    note = (
        "* proposed. A question's chance comes from a fit that it was no part of; an action is the planner's own "
        f"at {_prices(pair)}."
    )
    columns = ("worth", "of the\ncloud's bill", what, "kept", "checked", "written")
    return Table("auto: the bill by its worth", columns, rows, (note,))


def _policies(pair: CalibratedPair) -> Table:
    told = pair.forecasts
    rows = tuple(
        (
            f"{row.title}{' *' if row is told.cheapest else ''}",
            _interval(row.share),
            _interval(row.bill),
            _number_of(row.bill.value * told.alone, pair),
        )
        for row in told.chosen.values()
    )
    what = "excess loss" if pair.calibration.loss == "nats" else "drafts that would be turned down"
    notes = (
        (
            f"Of each policy the cheapest tried dial that recovers {as_share(told.wanted)} of the {what}, else that "
            "which recovers most; 95 % intervals over the questions. * the cheapest policy that does. The last five "
            "are no policies, but orders in which whole questions could be sent."
        ),
        (
            f"At {_prices(pair)}. Where a rule corrects this is an estimate: the cloud's own answer stands for what "
            "would follow, or the rest of a draft that had gone its own way before."
        ),
        *map(_break_even, pair.break_evens),
    )
    columns = ("policy", "recovered, %", "of the cloud's\nbill, %", f"{_UNITS[pair.prices.unit]} a\nquestion")
    return Table("What each policy would recover and cost", columns, rows, notes)


def choices(pair: CalibratedPair) -> list[str]:
    """Say which policy is the cheapest for the wanted share, how it is set, what would do as well; what labels save."""
    told, best = pair.forecasts, pair.forecasts.cheapest
    held = "this calibration holds its worth, and " if best.name == "auto" else ""
    found = (
        f"{best.title} is the cheapest policy that recovers {as_share(told.wanted)}: {_interval(best.share)} % for "
        f"{_interval(best.bill)} % of the cloud's own bill; {held}hybrid.toml sets it by "
        f"{' and, on a line of its own, '.join(best.dial.lines)}"
    )
    said = [found]
    for row, more in told.rivals():
        does = "does as well" if more.high >= 0.0 else "would cost less"
        what = "" if row.dial.lines else ", which is no policy"
        ends = " to ".join(f"{100 * each:+.0f}" for each in (more.low, more.high))
        said.append(f"{row.title}{what}, {does}: {100 * more.value:+.0f} % of the cloud's bill ({ends})")
    after = told.repaid
    labels = f"the labels took {_amount(told.labels, pair)}; beside the best way that needs none"
    known = (after.value, after.low, after.high)
    value, low, high = ("never" if math.isinf(each) else f"{each:,.0f}" for each in known)
    if math.isinf(after.value):
        return [*said, f"{labels} they save nothing and are never repaid (95 %: {low} to {high})"]
    return [*said, f"{labels} they are repaid after {value} questions ({low} to {high})"]


def _interval(told: Estimate) -> str:
    """Write an estimate in per cent.

    >>> _interval(Estimate(0.5, 0.0, 1.0))
    '50 (0 to 100)'
    """
    value, low, high = (f"{100 * each:.0f}" for each in (told.value, told.low, told.high))
    return f"{value} ({low} to {high})"


def _break_even(told: JudgeBreakEven) -> str:
    kept = f"{told.judge} keeps {as_percent(told.kept)} of the tokens that it comes to"
    if told.least is None:
        return f"{kept}; at these prices checks of {told.span} tokens never cost less than the cloud alone."
    least, pays = as_percent(told.least), "cheaper" if told.kept >= told.least else "dearer"
    return (
        f"{kept}; checks of {told.span} tokens that correct one at a time pay from {least} on: here they are {pays} "
        "than the cloud alone."
    )


def _thresholds(pair: CalibratedPair) -> Table:
    rows = tuple(
        (
            f"{trial.nats:g}{' *' if trial.nats == pair.threshold.nats else ''}",
            as_share(trial.false_alarms) if pair.threshold.same else UNDEFINED,
            as_share(trial.caught) if pair.threshold.other else UNDEFINED,
        )
        for trial in pair.threshold.trials
    )
    note = (
        f"Drafts turned down: of {pair.threshold.same} that are word for word what the cloud wrote (false alarms), "
        f"and of the {pair.threshold.other} others. * proposed."
    )
    return Table("Thresholds of KL", ("nats", "the cloud's own", "others"), rows, (note,))


def _distributions(pair: CalibratedPair) -> Table:
    rows = [(name, *_quantiles(pair.diagnosis.measured(key))) for key, name in _MEASURES.items()]
    rows += [(f"certificate {rule}", *_quantiles(pair.diagnosis.certificate(rule))) for rule in CERTIFICATES]
    notes = (
        (
            f"Over {pair.diagnosis.positions} tokens of {len(pair.diagnosis.texts)} texts; nats, but total variation. "
            "From a top-k list both ends are told."
        ),
        (
            "A certificate is the least KL(cloud || local) at which the local model's favourite can be turned down by "
            "the rule (tree: at which the cloud's best token can be outside its three likeliest); arXiv:2606.30265."
        ),
    )
    return Table("Distributions", ("", *(f"{100 * level:g} %" for level in LEVELS), "mean"), rows, notes)


def _certificates(pair: CalibratedPair) -> Table:
    found = {rule: pair.diagnosis.certified(rule) for rule in CERTIFICATES}
    rows = tuple((rule, as_share(each.share), *_quantiles(each.lengths)) for rule, each in found.items())
    matched = pair.diagnosis.matched()
    rows += (("the cloud's favourite", UNDEFINED, *_quantiles(matched)),)
    columns = ("rule", "certified\ntokens", *(f"{100 * level:g} %" for level in LEVELS), "mean")
    notes = ("Lengths of runs of certified tokens; below, of runs of tokens that are the cloud's favourites indeed.",)
    return Table("Certified runs", columns, rows, notes)


def _lengths(pair: CalibratedPair) -> Table:
    rows = []
    for num in DRAFTS:
        least, most = pair.diagnosis.accepted_length(num)
        rows.append((str(num), f"{least:.2f}", f"{most:.2f}", as_share(least / num)))
    note = "By exact speculative sampling at temperature 1, without the bonus token; least and most by the top-k list."
    columns = ("drafted", "at least", "at most", "at least,\nof the draft")
    return Table("Expected accepted length", columns, rows, (note,))


def _rejections(pair: CalibratedPair) -> Table:
    rows = []
    for judge in dict.fromkeys((pair.kl_judge, pair.excess_judge)):
        found = pair.diagnosis.first_rejections(judge)
        num = sum(found.tenths)
        tenths = tuple(f"{100 * count / num:.0f}" if num else UNDEFINED for count in found.tenths)
        middle = UNDEFINED if found.offset.values is None else f"{found.offset.values[2]:g}"
        rows.append((judge, as_share(found.share), middle, *tenths))
    columns = ("judge", "turned\ndown", "median\noffset", *(f"{10 * part}" for part in range(10)))
    note = (
        "In which tenth of the draft (0: the first, ...) the first rejection falls, in per cent of the drafts that "
        "are turned down."
    )
    return Table("Where the drafter starts to be overruled", columns, rows, (note,))


def as_share(share: float) -> str:
    """Write a share as a percentage; what is not nothing is never written as 0.

    >>> as_share(0.4567), as_share(1.0), as_share(0.0), as_share(0.0004)
    ('46 %', '100 %', '0 %', '<1 %')
    """
    if 0.0 < share < 0.005:
        return "<1 %"
    return f"{100 * share:.0f} %"


def _quantiles(found: Quantiles) -> tuple[str, ...]:
    if found.values is None:
        return (UNDEFINED,) * (len(LEVELS) + 1)
    return tuple(map(_number, (*found.values, found.mean)))


def _number(value: float | None) -> str:
    if value is None:
        return UNDEFINED
    if not math.isfinite(value):
        return "inf"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def _amount(amount: float, pair: CalibratedPair) -> str:
    return f"{_number_of(amount, pair)} {_UNITS[pair.prices.unit]}"


def _number_of(amount: float, pair: CalibratedPair) -> str:
    """Write an amount to three digits or more, without its unit."""
    if pair.prices.unit != "nanousd":
        return f"{amount:.1f}"
    return (
        f"{amount / NANOUSD_PER_USD:.7f}" if abs(amount) < NANOUSD_PER_USD / 1000 else f"{amount / NANOUSD_PER_USD:.5f}"
    )


def _prices(pair: CalibratedPair) -> str:
    prices, millions = pair.prices, 1_000_000 / NANOUSD_PER_USD
    if prices.unit != "nanousd":
        return "1 : 0.1 : 4 for tokens read, cached and written" if prices.note is None else prices.note
    told = "/".join(f"{each * millions:g}" for each in (prices.fresh, prices.cached, prices.written))
    return f"{told} USD per million tokens, scoring {prices.scoring}"
