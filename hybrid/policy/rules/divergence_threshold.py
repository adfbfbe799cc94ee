"""Keep while the two models are near: a divergence within a threshold. The presets kl, doubt, paper and fsd.

``kl`` and ``paper`` are the 2023 draft's rule, checked everywhere or after the fact; ``doubt`` asks where the local
model is unsure and lets the divergence give the pen back; ``fsd`` is fuzzy speculative decoding (arXiv:2502.20704),
which takes any divergence and replaces the one token it turns down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from hybrid.policy.choices import HOLD, SPAN, Choices, Preset, number
from hybrid.policy.gates import ALWAYS, EntropyGate
from hybrid.policy.judges import DraftedSpan, Verdict
from hybrid.policy.loop import Policy
from hybrid.policy.target_sampler import TargetSampler, check_drawable
from hybrid.prob import (
    Dense,
    Interval,
    TopK,
    jensen_shannon,
    jensen_shannon_with_noise,
    kl_divergence,
    kl_reverse,
    kl_with_noise,
    total_variation,
    total_variation_with_noise,
)
from hybrid.types import Divergence

MeasureName: TypeAlias = Literal["KL", "reverse KL", "JS", "TV"]
MEASURES: dict[MeasureName, Callable[[TopK, Dense], Divergence | Interval]] = {
    "KL": kl_divergence,
    "reverse KL": kl_reverse,
    "JS": jensen_shannon,
    "TV": total_variation,
}
WITH_NOISE: dict[MeasureName, Callable[[float, float], float]] = {
    "KL": kl_with_noise,
    "reverse KL": kl_with_noise,
    "JS": jensen_shannon_with_noise,
    "TV": total_variation_with_noise,
}
# Half a nat: on the prototype pair 8-token spans at this threshold recovered 0.97 of the gap between the models.
THRESHOLD = 0.5
# A check is paid by its prefix, whatever its span: on the bundled pair's calibration split, without a prefix cache, kl
# costs 1.08 times the cloud alone at spans of 32, 0.92 at 64 and 0.86 at 128, all right (`hybrid demo --calibrate`).
KL_SPAN = 32
LEAD = 8
# On the first pair, unsure wherever it was wrong, that found nearly all; on this one 64 of 84, at 0.29 of the bill.
ENTROPY, HANDBACK_NATS = 0.5, 0.02
# Tokens drafted before they are shown when nothing is asked.
DOUBT_SPAN = 1
# The paper's own thresholds are between 0.1 and 1 for JS in nats (at most ln 2); none was fitted here.
FSD_THRESHOLD_NATS = 0.1


@dataclass(frozen=True)
class DivergenceThreshold:
    """Keep while a divergence between the rows is within a threshold: nats, or a probability for TV.

    The ``lower`` end of the interval decides: what is rejected violates the threshold for certain. With ``upper`` what
    is kept respects it for certain. Each end is taken as far out as the rows' noise allows, so that this is true of
    the two models and not of the numbers alone. The first offending position is where the span is cut; the cloud's own
    token follows as ``drawing`` has it, else nothing, and the policy asks the cloud to write. The row after the span
    judges the next local token for nothing: where the two models part there, the pen changes hands before a token is
    wasted.

    Law: at threshold 0, where only the told numbers decide, the text has the cloud model's own law; at infinity the
    local model's.
    """

    threshold: float
    number: Literal["lower", "upper"] = "lower"
    drawing: TargetSampler | None = None
    measure: MeasureName = "KL"

    def __call__(self, case: DraftedSpan) -> Verdict:
        """Judge the span (the bonus is never taken: it would break the law at infinity)."""
        measured: dict[int, Divergence] = {}
        for i, (held, row) in enumerate(case.judged):
            if held.draft_row is None:
                continue
            found = MEASURES[self.measure](row, held.draft_row)
            if isinstance(found, Divergence):
                measured[i] = found
            if self.exceeds(found):
                return self._rejection(case, i, held.draft_row, found, measured)
        if case.next_row is None or case.after is None:
            return Verdict(case.accepted(measured=measured))
        found = MEASURES[self.measure](case.next_row, case.after)
        ahead = found if isinstance(found, Divergence) else case.ahead()
        if self.exceeds(found):
            return replace(self._rejection(case, len(case.span), case.after, found, measured), ahead=ahead)
        return Verdict(case.accepted(measured=measured), ahead=ahead)

    def exceeds(self, measured: Divergence | Interval) -> bool:
        """Whether the deciding end of the interval is above the threshold."""
        return self._decisive(measured) > self.threshold

    def agrees(self, measured: Divergence) -> bool:
        """Whether the two models are close enough for the pen to go back."""
        return not self.exceeds(measured)

    def _decisive(self, measured: Divergence | Interval) -> float:
        """Return the deciding end, moved outwards by the noise."""
        end, noise = (measured.lower, -measured.noise) if self.number == "lower" else (measured.upper, measured.noise)
        return WITH_NOISE[self.measure](end, noise if self.threshold > 0.0 else 0.0)

    def _rejection(
        self,
        case: DraftedSpan,
        offset: int,
        local: Dense,
        found: Divergence | Interval,
        measured: Mapping[int, Divergence],
    ) -> Verdict:
        value = self._decisive(found)
        unit = "" if self.measure == "TV" else " nats"
        why = f"{self.measure} {value:.3g}{unit}, above {self.threshold:g}"
        then = self.drawing.token(case, offset, local, "recovered", why) if self.drawing else None
        return Verdict(case.accepted(offset, measured), then, rejected=True, why=why)


def within(choices: Choices, threshold: float, measure: MeasureName = "KL") -> DivergenceThreshold:
    """Build the judge for a threshold. Greedy, the cloud's token is recovered; else it is left to the cloud to write.

    The most likely token of a truncated row is no sample.
    """
    end: Literal["lower", "upper"] = "upper" if choices.strict else "lower"
    return DivergenceThreshold(threshold, end, TargetSampler(choices.sampling) if choices.greedy else None, measure)


def _threshold(choices: Choices, default: float) -> float:
    return number("a threshold in nats", choices.threshold, default)


def _kl(choices: Choices) -> Policy:
    judge = within(choices, _threshold(choices, THRESHOLD))
    return Policy("kl", choices.span or KL_SPAN, ALWAYS, judge, hold=HOLD, back=judge.agrees, patience=2)


def _doubt(choices: Choices) -> Policy:
    judge = within(choices, _threshold(choices, HANDBACK_NATS))
    gate = EntropyGate(number("an entropy in nats", choices.entropy, ENTROPY))
    return Policy("doubt", DOUBT_SPAN, gate, hold=HOLD, back=judge.agrees, patience=2)


def _paper(choices: Choices) -> Policy:
    span = choices.span or SPAN
    # Nothing is recovered: the cloud writes the next k tokens itself.
    judge = replace(within(choices, _threshold(choices, THRESHOLD)), drawing=None)
    return Policy("paper", span, ALWAYS, judge, scope=0, hold=span, lead=LEAD)


def _fsd(choices: Choices) -> Policy:
    check_drawable("fsd", choices.sampling, choices.cloud_top_k)
    judge = replace(
        within(choices, _threshold(choices, FSD_THRESHOLD_NATS), "JS"), drawing=TargetSampler(choices.sampling)
    )
    return Policy("fsd", choices.span or SPAN, ALWAYS, judge, tails=not choices.greedy)


KL = Preset(
    "kl",
    "check every span; the cloud takes the pen where KL exceeds the threshold",
    source="the 2023 draft paper, checked everywhere; the cloud keeps the pen until the models agree",
    guarantee="what is rejected has KL(cloud || local) above the threshold; with --strict what is kept is within it",
    build=_kl,
)
DOUBT = Preset(
    "doubt",
    "the local model writes until its entropy is high; then the cloud, until KL stays small",
    source="this project",
    guarantee="none on the text; asks nothing where the local model is sure",
    build=_doubt,
)
PAPER = Preset(
    "paper",
    "the 2023 draft: every k tokens one KL, above it the cloud writes the next k",
    source="the 2023 draft paper, KL-Divergence Threshold",
    guarantee="none on the text: what is measured comes after what was shown",
    build=_paper,
)
FSD = Preset(
    "fsd",
    "keep a token while JS(cloud, local) is within the threshold, else draw the cloud's",
    source="fuzzy speculative decoding (arXiv:2502.20704)",
    guarantee="every kept position has JS at most the threshold, up to what the unseen tail leaves open",
    build=_fsd,
)
