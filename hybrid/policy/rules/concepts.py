"""Other words are no divergence: the presets concepts, and the judge concept.

The pen changes hands where KL over tokens and KL over concepts both exceed their thresholds. What exceeds the first
alone is wording: the local model keeps the pen, and the token says so. The 2023 draft paper maps tokens "to
higher-level concepts, like king and queen to ruler"; the bounds of KL over concepts from a top-k list are this
project's.

Laws (``tests/policy/test_concepts.py``): where each token is alone, or no concepts are known, it is ``kl``; a hand-over
that it makes, ``kl`` makes after the same text.
"""

from __future__ import annotations

from dataclasses import replace

from hybrid.policy.choices import HANDOFF_TOKENS, PolicyOptions, Preset
from hybrid.policy.concepts import WordingTest
from hybrid.policy.gates import ALWAYS
from hybrid.policy.policy import Policy
from hybrid.policy.rules.divergence_threshold import (
    HANDBACK_AFTER,
    KL_SPAN,
    THRESHOLD,
    DivergenceThreshold,
    threshold_judge,
)


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
