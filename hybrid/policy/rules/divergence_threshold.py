"""Accept while the two models are near: a divergence within a threshold. The presets kl, once, doubt, paper and fsd.

``kl`` and ``paper`` are the 2023 draft's rule, checked everywhere or after the fact; ``once`` checks a whole answer and
lets the cloud write on from the first rejection; ``doubt`` asks where the local model is unsure and lets the divergence
give the pen back; ``fsd`` is fuzzy speculative decoding (arXiv:2502.20704), which takes any divergence and replaces the
one token it turns down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

from hybrid.policy.choices import HANDOFF_TOKENS, LONGEST_DRAFT, SPAN, NumberRange, PolicyOptions, Preset
from hybrid.policy.concepts import WordingTest
from hybrid.policy.gates import ALWAYS, EntropyGate, number_text
from hybrid.policy.judges import DraftedSpan, Judge, Verdict
from hybrid.policy.policy import Policy
from hybrid.policy.requests import PendingToken, Span
from hybrid.policy.target_sampler import TargetSampler, check_drawable
from hybrid.prob import (
    Dense,
    Interval,
    MixtureRow,
    TopK,
    jensen_shannon,
    jensen_shannon_with_noise,
    kl_divergence,
    kl_reverse,
    kl_with_noise,
    total_variation,
    total_variation_with_noise,
)
from hybrid.types import Divergence, Ids

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
JUDGE_NAMES: dict[MeasureName, str] = {"KL": "kl", "reverse KL": "reverse-kl", "JS": "js", "TV": "tv"}
_ARGUMENTS: dict[MeasureName, str] = {
    "KL": "KL(cloud || local)",
    "reverse KL": "KL(local || cloud)",
    "JS": "JS(cloud, local)",
    "TV": "TV(cloud, local)",
}
# Half a nat: on the prototype pair 8-token spans at this threshold recovered 0.97 of the gap between the models.
THRESHOLD = NumberRange(0.5, "a threshold in nats")
# A check is paid by its prefix, whatever its span: on the bundled pair's calibration split, without a prefix cache,
# longer spans and blocks cost less (lab/NOTES.md); shorter ones show text sooner.
KL_SPAN = 32
LEAD = 8
# On the calibration split doubt has 64 of 84 problems right (the local model alone 49), at the lowest bill of the
# entropies that were tried (lab/NOTES.md). On the first pair, unsure wherever it was wrong, it had nearly all right.
ENTROPY = NumberRange(0.5, "an entropy in nats")
HANDBACK = NumberRange(0.02, "a threshold in nats")
HANDBACK_AFTER = 2
# Without a check each token is shown as soon as it is drafted.
DOUBT_SPAN = 1
# The paper's own thresholds are between 0.1 and 1 for JS in nats (at most ln 2); none was fitted here.
FSD_THRESHOLD = NumberRange(0.1, "a threshold in nats")


@dataclass(frozen=True)
class DivergenceThreshold(Judge):
    """Accept while a divergence between the rows is within a threshold: nats, or a probability for TV.

    The ``lower`` end of the interval decides: what is rejected exceeds the threshold for certain. With ``upper`` what
    is accepted is within it for certain. Each end is moved outwards by the rows' noise, so that this is true of the two
    models, as far as their noise is the measured one, and not of the numbers alone. The span is cut at the first
    position that exceeds it. The cloud's own token
    follows as ``sampler`` draws it; without a sampler nothing follows, and the policy asks the cloud to write. The row
    after the span judges the next local token at no extra cost: where the two models part there, the pen changes hands
    before a token is wasted. A bonus is never taken: it would break the law at infinity.

    Of several local models, one of which writes, only what all of them exceed is the cloud's: where another one is
    within the threshold, that one writes on. A mixture is one model.

    With a test of ``wording`` only what exceeds its threshold, too, is the cloud's: what is within it differs in its
    words alone.

    Law: at threshold 0, where noise moves nothing, the text is the cloud model's own; at infinity the local model's.
    """

    judges_next_row: ClassVar[bool] = True
    threshold: float
    end: Literal["lower", "upper"] = "lower"
    sampler: TargetSampler | None = None
    measure: MeasureName = "KL"
    wording: WordingTest | None = None

    @property
    def guarantee(self) -> str:
        """What the end that decides is certain of."""
        limit = f"{self.threshold:g}{self._unit}"
        concepts = "" if self.wording is None else f"over concepts at most {self.wording.threshold:g} nats"
        if self.end == "lower":
            above = f"a checked token is rejected only where {_ARGUMENTS[self.measure]} is above {limit}"
            return above + (f", and not {concepts}" if concepts else "")
        return f"an accepted token has {_ARGUMENTS[self.measure]} of at most {limit}" + (
            f", or {concepts}" if concepts else ""
        )

    @property
    def reads_text(self) -> bool:
        """KL is over cells there, and of these no concepts are known."""
        return self.measure == "KL" and self.wording is None

    @property
    def leaves_tail(self) -> bool:
        """With a sampler that draws."""
        return self.sampler is not None and not self.sampler.sampling.greedy

    @property
    def replaces(self) -> bool:
        """With a sampler."""
        return self.sampler is not None

    def __call__(self, span: DraftedSpan) -> Verdict:
        """Judge the span."""
        measured: dict[int, Divergence] = {}
        wording: dict[int, Divergence] = {}
        for i, (token, row) in enumerate(span.judged):
            if token.draft_row is None:
                continue
            value = MEASURES[self.measure](row, token.draft_row)
            if isinstance(value, Divergence):
                measured[i] = value
            if self.exceeds(value):
                concepts = self._over_concepts(span.before(i), row, token.draft_row)
                if not self._is_wording(concepts):
                    return self._reject(span, span.accept(i, measured, wording), token.draft_row, value, concepts)
                wording |= {} if concepts is None else {i: concepts}
        accepted = span.accept(None, measured, wording)
        if span.next_target_row is None or span.next_draft_row is None:
            return Verdict(accepted)
        value = MEASURES[self.measure](span.next_target_row, span.next_draft_row)
        ahead = value if isinstance(value, Divergence) else span.next_divergence()
        if self.exceeds(value):
            concepts = self._over_concepts(span.before(len(accepted)), span.next_target_row, span.next_draft_row)
            if not self._is_wording(concepts):
                rejection = self._reject(span, accepted, span.next_draft_row, value, concepts)
                return replace(rejection, next_divergence=ahead)
        return Verdict(accepted, next_divergence=ahead)

    def exceeds(self, measured: Divergence | Interval) -> bool:
        """Whether the deciding end of the interval is above the threshold."""
        return self._deciding(measured) > self.threshold

    def agrees(self, at: Ids, token: PendingToken) -> bool | None:
        """Whether the pen may go back: the deciding end is within the threshold. By the lower end a wide one agrees."""
        if token.kl is None:
            return None
        if not self.exceeds(token.kl):
            return True
        if token.target_row is None or token.draft_row is None:
            return False
        return self._is_wording(self._over_concepts(at, token.target_row, token.draft_row))

    @property
    def wants_concepts(self) -> bool:
        """With a test of wording."""
        return self.wording is not None

    def _over_concepts(self, at: Ids, row: TopK, local: Dense) -> Divergence | None:
        return None if self.wording is None else self.wording.measure(at, row, local)

    def _is_wording(self, concepts: Divergence | None) -> bool:
        return self.wording is not None and self.wording.is_wording(concepts)

    @property
    def _unit(self) -> str:
        return "" if self.measure == "TV" else " nats"

    def _deciding(self, measured: Divergence | Interval) -> float:
        """Return the deciding end, moved outwards by the noise."""
        end, noise = (measured.lower, -measured.noise) if self.end == "lower" else (measured.upper, measured.noise)
        return WITH_NOISE[self.measure](end, noise if self.threshold > 0.0 else 0.0)

    def _reject(
        self,
        span: DraftedSpan,
        accepted: Span,
        local: Dense,
        value: Divergence | Interval,
        concepts: Divergence | None,
    ) -> Verdict:
        offset = len(accepted)
        why = f"{self.measure} {self._deciding(value):.3g}{self._unit}, above {self.threshold:g}"
        if self.wording is not None and concepts is not None:
            why += f"; over concepts {self.wording.deciding(concepts):.3g}, above {self.wording.threshold:g}"
        if (expert := self._nearer(span.target_rows[offset], local)) is not None:
            return Verdict(accepted, rejected=True, why=why, expert=expert)
        recovered = self.sampler.draw(span, offset, local, "recovered", why) if self.sampler else None
        if isinstance(recovered, PendingToken):
            recovered = replace(recovered, concept_kl=concepts)
        return Verdict(accepted, recovered, rejected=True, why=why)

    def _nearer(self, row: TopK, local: Dense) -> int | None:
        """Return which of the models that read along is the nearest, where it is within the threshold."""
        if not isinstance(local, MixtureRow) or local.chosen is None:
            return None
        others = ((i, part) for i, part in enumerate(local.parts) if part is not None and i != local.chosen)
        found = min(((self._deciding(MEASURES[self.measure](row, part)), i) for i, part in others), default=None)
        return found[1] if found is not None and found[0] <= self.threshold else None

    def __str__(self) -> str:
        """Return what ``--judge`` calls it, and ``strict`` where the upper end decides."""
        strict = ":strict" if self.end == "upper" else ""
        own = f"{JUDGE_NAMES[self.measure]}:{number_text(self.threshold)}"
        if self.wording is not None:
            own = str(self.wording) if self.wording.threshold == self.threshold else f"{self.wording}:{own}"
        return own + strict


def threshold_judge(choices: PolicyOptions, threshold: float, measure: MeasureName = "KL") -> DivergenceThreshold:
    """Build the judge for a threshold. Greedy, the cloud's token is recovered; else it is left to the cloud to write.

    The most likely token of a truncated row is no sample.
    """
    end: Literal["lower", "upper"] = "upper" if choices.strict else "lower"
    return DivergenceThreshold(threshold, end, TargetSampler(choices.sampling) if choices.greedy else None, measure)


def _kl(choices: PolicyOptions, nats: float) -> Policy:
    judge = threshold_judge(choices, nats)
    span, back = choices.span or KL_SPAN, HANDBACK_AFTER
    return Policy("kl", span, ALWAYS, judge, handoff_tokens=HANDOFF_TOKENS, handback=judge, handback_after=back)


def _once(choices: PolicyOptions, nats: float) -> Policy:
    """Make the span and the handoff as long as the answer: at most one check and one request to write.

    Of an answer beyond ``LONGEST_DRAFT`` each such part is checked once.
    """
    whole = choices.max_tokens
    span = min(whole, LONGEST_DRAFT)
    return Policy("once", span, ALWAYS, threshold_judge(choices, nats), handoff_tokens=whole)


def _doubt(choices: PolicyOptions, nats: float) -> Policy:
    """No judge. Local entropy above ``choices.entropy`` (0.5) gives the cloud the pen.

    KL within ``nats`` (``doubt:NATS``) at the last two tokens of a block gives it back.
    """
    gate = EntropyGate(ENTROPY.value(choices.entropy, "doubt"))
    near, back = threshold_judge(choices, nats), HANDBACK_AFTER
    return Policy("doubt", DOUBT_SPAN, gate, handoff_tokens=HANDOFF_TOKENS, handback=near, handback_after=back)


def _paper(choices: PolicyOptions, nats: float) -> Policy:
    span = choices.span or SPAN
    # Nothing is recovered: the cloud writes the next tokens itself.
    judge = replace(threshold_judge(choices, nats), sampler=None)
    return Policy("paper", span, ALWAYS, judge, scope=0, handoff_tokens=span, lead=LEAD)


def _fsd(choices: PolicyOptions, nats: float) -> Policy:
    check_drawable("fsd", choices.sampling, choices.cloud_top_k)
    judge = replace(threshold_judge(choices, nats, "JS"), sampler=TargetSampler(choices.sampling))
    return Policy("fsd", choices.span or SPAN, ALWAYS, judge)


KL = Preset(
    "kl",
    "check every span; the cloud takes the pen where KL exceeds the threshold (kl:adaptive learns its settings)",
    source="the 2023 draft paper, checked everywhere; the cloud keeps the pen until the models agree",
    make=_kl,
    number=THRESHOLD,
)
ONCE = Preset(
    "once",
    "draft the whole answer and check it once; from the first KL above the threshold on the cloud writes",
    source="this project: an answer that was wrong once is mostly wrong again, and every check is paid by its prefix",
    make=_once,
    number=THRESHOLD,
)
DOUBT = Preset(
    "doubt",
    "the local model writes until its entropy is high; then the cloud, until KL stays small",
    source="this project",
    make=_doubt,
    number=HANDBACK,
)
PAPER = Preset(
    "paper",
    "the 2023 draft: every k tokens one KL, above it the cloud writes the next k",
    source="the 2023 draft paper, KL-Divergence Threshold",
    make=_paper,
    number=THRESHOLD,
)
FSD = Preset(
    "fsd",
    "accept a token while JS(cloud, local) is within the threshold, else draw the cloud's",
    source="fuzzy speculative decoding (arXiv:2502.20704)",
    make=_fsd,
    number=FSD_THRESHOLD,
)


# Other words are no divergence: the presets concepts, and the judge concept.
#
# The pen changes hands where KL over tokens and KL over concepts both exceed their thresholds. What exceeds the first
# alone is wording: the local model keeps the pen, and the token says so. The 2023 draft paper maps tokens "to
# higher-level concepts, like king and queen to ruler"; the bounds of KL over concepts from a top-k list are this
# project's.
#
# Laws (``tests/policy/test_concepts.py``): where each token is alone, or no concepts are known, it is ``kl``; a
# hand-over that it makes, ``kl`` makes after the same text.


def concept_judge(choices: PolicyOptions, nats: float, concept_nats: float) -> DivergenceThreshold:
    """Build the judge for a threshold over tokens and one over concepts."""
    judge = threshold_judge(choices, nats)
    return replace(judge, wording=WordingTest(concept_nats, judge.end, choices.known_concepts))


def _concepts(choices: PolicyOptions, nats: float) -> Policy:
    own = nats if choices.concept_threshold is None else choices.concept_threshold
    judge = concept_judge(choices, nats, own)
    span, back = choices.span or KL_SPAN, HANDBACK_AFTER
    return Policy("concepts", span, ALWAYS, judge, handoff_tokens=HANDOFF_TOKENS, handback=judge, handback_after=back)


CONCEPTS = Preset(
    "concepts",
    "as kl, but other words for the same are no reason: KL over concepts must exceed its threshold, too",
    source="the 2023 draft paper's concepts, bounded from a top-k list; as a trigger this project's",
    make=_concepts,
    number=THRESHOLD,
)
