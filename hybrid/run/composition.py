"""An answer's settings as what lower rooms take: the sampling, the policy, and what a trace keeps of both.

The law: a recording's settings, read back, build the policy that was recorded (``tests/run/test_replay_trace.py``).
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from hybrid.cloud import Capabilities
from hybrid.errors import UsageError
from hybrid.policy import PRESETS, Policy, PolicyOptions, choices_without_effect, parse_policy, preset
from hybrid.policy.adaptive import ADAPTIVE, KlArm
from hybrid.policy.concepts import Concepts
from hybrid.policy.loop import TO_THE_END
from hybrid.policy.planning import Planner
from hybrid.policy.rules.divergence_threshold import DivergenceThreshold
from hybrid.run.driver import RecordingHeader
from hybrid.settings.config import Settings
from hybrid.settings.names import BUNDLED, NAMED
from hybrid.settings.policy_choices import MOST_SPAN, DeferralChoices, PolicyChoices, span_limits
from hybrid.types import Sampling

# Endpoints take seeds of so many bits.
SEED_BITS = 31
# Settings that are read for an endpoint alone.
OF_ENDPOINT = ("dialect", "api_key_env", "prices")


def sampling_of(settings: Settings) -> Sampling:
    """Return how tokens are drawn, whoever draws them. Before an answer has its seed, nothing is drawn."""
    return Sampling(settings.temperature, settings.top_k, settings.top_p, settings.seed or 0, settings.min_p)


def weighs(policy: str) -> bool:
    """Whether the policy of a name weighs its drafts by their prices. Raises UsageError for no policy's name.

    >>> [name for name in PRESETS if weighs(name)]
    ['auto', 'route']
    """
    return parse_policy(policy)[0].build(PolicyOptions()).planner is not None


def most_tokens(settings: Settings, room: int) -> int:
    """Return the most tokens of an answer that has ``room`` for so many; ``max_tokens`` 0 takes all of it.

    >>> most_tokens(Settings(max_tokens=0), 8000), most_tokens(Settings(max_tokens=512), 100)
    (8000, 512)
    """
    return settings.max_tokens or room


def policy_of(
    settings: Settings,
    measured: int | None = None,
    planner: Planner | None = None,
    room: int = TO_THE_END,
    concepts: Concepts | None = None,
) -> Policy:
    """Build the policy that the settings name.

    ``measured`` is the span that ``auto`` or ``cheap`` stands for, None the policy's own. ``planner``: what weighs a
    draft, where the policy has one; None: that of a pair of which nothing is known. ``room``: tokens that the context
    has for the answer, as far as that is known. ``concepts``: which tokens say the same; None: nobody knows.

    Raises UsageError where they contradict each other.
    """
    if settings.worth is not None and settings.risk is not None:
        raise UsageError("worth and risk are two dials for one choice: give one of them")
    _check_adaptive(settings)
    first, most = span_limits(settings.span)
    choices = PolicyOptions(
        **{name: getattr(settings, name) for name in PolicyChoices.model_fields}
        | {"span": measured if first is None else first, "most_span": most},
        sampling=sampling_of(settings),
        max_tokens=most_tokens(settings, room),
        cloud_top_k=settings.cloud_top_k,
        planner=planner,
        known_concepts=concepts,
    )
    chosen = preset(settings.policy, choices)
    _check_mixture(settings, chosen)
    if (rule := chosen.branches) is None:
        return PRESETS["local"].build(choices) if settings.offline else chosen
    if len(settings.experts) > 1:
        raise UsageError("branches are drawn from one model's law, and several experts have none: give no --expert")
    unasked = settings.offline and rule.choose == "logprob"
    return replace(chosen, branches=replace(rule, choose="majority")) if unasked else chosen


@dataclass(frozen=True)
class Decoding:
    """How one answer is decoded, resolved once when its question is read; ``policy`` is bound to no pair yet.

    ``whole``: the answer is one model's own text, so no common vocabulary is needed.
    """

    settings: Settings
    policy: Policy
    sampling: Sampling
    whole: bool

    @classmethod
    def of(cls, settings: Settings) -> Decoding:
        """Resolve an answer's settings. Raises UsageError where they contradict each other."""
        policy = policy_of(settings)
        return cls(settings, policy, sampling_of(settings), policy.is_whole(most_tokens(settings, TO_THE_END)))

    def seeded(self) -> Decoding:
        """Return it with a seed: a fresh one where none was chosen."""
        if self.settings.seed is not None:
            return self
        seed = secrets.randbits(SEED_BITS)
        settings, sampling = self.settings.model_copy(update={"seed": seed}), replace(self.sampling, seed=seed)
        return replace(self, settings=settings, sampling=sampling, policy=self.policy.seeded(seed))

    def within_reach(self, can: Capabilities) -> Decoding:
        """Ask for no more log-probabilities than an endpoint gives: what a policy may draw from depends on it.

        Raises UsageError where the policy cannot do with so few.
        """
        if can.most_k is None or can.most_k >= self.settings.cloud_top_k:
            return self
        return Decoding.of(self.settings.model_copy(update={"cloud_top_k": can.most_k}))

    def under(self, arm: KlArm) -> Decoding:
        """Return how ``kl`` decodes with an arm's settings."""
        return Decoding.of(self.settings.model_copy(update={"policy": "kl", **arm._asdict()}))

    def policy_for(self, room: int, span: int | None, planner: Planner | None, concepts: Concepts | None) -> Policy:
        """Return the policy for one question; the arguments are as ``policy_of`` has them."""
        settings, policy = self.settings, self.policy
        as_it_is = span is None and planner is None and settings.max_tokens and not policy.wants_concepts
        return policy if as_it_is else policy_of(settings, span, planner, room, concepts)


def _check_mixture(settings: Settings, policy: Policy) -> None:
    """Raise UsageError for a threshold that turns down no token of one expert where all write by their even sum.

    Each of N laws is at most ln N nats from their even sum. A judge whose threshold nobody chose is not refused.
    """
    chosen = settings.threshold is not None or settings.judge is not None or ":" in settings.policy
    judge, num = policy.judge, len(settings.experts)
    if not (chosen and num > 1 and settings.mix == "mix" and isinstance(judge, DivergenceThreshold)):
        return
    if judge.measure == "KL" and judge.threshold >= math.log(num):
        least = f"a threshold below ln {num} = {math.log(num):.3g}, not {judge.threshold:g}"
        msg = f"mix mix of {num} experts wants {least}: no expert is farther than that from their even sum"
        raise UsageError(msg)


def _check_adaptive(settings: Settings) -> None:
    """Raise UsageError for what ``kl:adaptive`` chooses itself, or has not seen: it learns of ``kl`` as it is."""
    own = {name: getattr(settings, name) for name in PolicyChoices.model_fields if name != "policy"}
    own |= {"a second local model": bool(settings.drafters or settings.experts)}
    name = next((name for name, value in own.items() if value is not None and value is not False), None)
    if settings.policy == ADAPTIVE and name and not settings.branches:  # which are drawn in its place
        why = "it chooses threshold, span and handoff itself, and learns from answers of kl as it is"
        msg = f"{name} beside {ADAPTIVE}: {why}; leave it out, or name a number, such as kl:0.5"
        raise UsageError(msg)


def by_cloud_alone(settings: Settings) -> Settings:
    """Return settings under which the cloud writes the answer, however it is drawn; all that a policy takes is gone.

    >>> by_cloud_alone(Settings(policy="greedy-exact", span=4)).policy
    'cloud'
    """
    default = Settings()
    own = {name: getattr(default, name) for name in PolicyChoices.model_fields}
    return settings.model_copy(update=own | {"policy": "cloud"})


def check_effect(settings: Settings, given: Mapping[str, object]) -> None:
    """Raise UsageError for a choice in ``given`` that changes nothing under the policy of these settings.

    ``given`` is one level: flags, a line, the keywords of one call. Beside it stands the policy of the same level or
    of a lower one, so whoever chose here could have known better. What is inherited from a lower level is ignored.
    """
    _check_branches(settings, given)
    _check_dials(settings, given)
    named = given.get("concepts") is not None
    online = settings.model_copy(update={"offline": False})  # what would act with a cloud may be said without one
    if named and not policy_of(online).wants_concepts:
        acting = "concepts, and with --judge concept"
        msg = f"concepts changes nothing in the policy {settings.policy}: it acts in {acting}"
        raise UsageError(msg)
    chosen = {name: getattr(settings, name) for name in PolicyChoices.model_fields}
    asked = {name for name in chosen.keys() & given.keys() if given[name] is not None} - {"policy"}
    idle = _without_effect(settings.policy, tuple(chosen.items())) if asked else ()
    if name := next((name for name in idle if name in asked), None):
        acting = ", ".join(each for each in PRESETS if _acts_in(each, name, chosen[name]))
        msg = f"{name} changes nothing in the policy {_composed(settings.policy, name, chosen)}: it acts in {acting}"
        raise UsageError(msg)


def _check_branches(settings: Settings, given: Mapping[str, object]) -> None:
    """Raise UsageError for a choice of decoding in ``given`` that branches leave without effect, or that needs them."""
    others = {*PolicyChoices.model_fields, *DeferralChoices.model_fields, "critic", "concepts"} - {
        "branches",
        "choose",
        "learn",
    }
    wrong, why = ({"choose"}, "without") if settings.branches is None else (others, "beside")
    if name := next((name for name in given if name in wrong and given[name] is not None), None):
        msg = f"{name} changes nothing {why} branches: each is drawn whole by the local model"
        raise UsageError(msg)


def _check_dials(settings: Settings, given: Mapping[str, object]) -> None:
    """Raise UsageError for a dial in ``given`` that turns nothing: only what weighs its drafts is told by them.

    Whether to learn may be said of every policy: no other learns.
    """
    dials = (*(name for name in DeferralChoices.model_fields if name != "learn"), "critic")
    asked = [name for name in dials if given.get(name) is not None]
    if asked and not weighs(settings.policy):
        acting = " and ".join(name for name in PRESETS if weighs(name))
        msg = f"{asked[0]} changes nothing in the policy {settings.policy}: it acts in {acting}"
        raise UsageError(msg)
    if (late := {"stream", "patience"} & set(asked)) and settings.stream == "blocks" and Decoding.of(settings).whole:
        name = "stream" if "stream" in late else "patience"
        msg = f"{name} contradicts {settings.policy}: an answer is decided as a whole, or early by the question alone"
        raise UsageError(msg)
    if settings.risk is not None and settings.stream != "whole" and {"stream", "patience"} & set(asked):
        name = "stream" if "stream" in asked else "patience"
        msg = f"{name} contradicts risk: a risk is a share of questions, so each draft is decided whole"
        raise UsageError(msg)
    if settings.second_usd and "second_usd" in asked and (settings.stream == "early" or settings.risk is not None):
        raise UsageError("second_usd changes nothing with risk or stream early: neither weighs whether to draft")
    if {"critic", "stream"} & set(asked) and settings.critic is not None and settings.stream == "early":
        raise UsageError("critic changes nothing with stream early: the question alone decides, before any draft")
    if "patience" in asked and settings.stream != "blocks":
        msg = f"patience changes nothing with stream {settings.stream}: it is the length of a block in seconds"
        raise UsageError(msg)


def check_endpoint(settings: Settings, given: Mapping[str, object]) -> None:
    """Raise UsageError for a flag that is about an endpoint where none is named: a server of our own needs none."""
    if settings.cloud in {None, *NAMED} and (
        name := next((name for name in OF_ENDPOINT if given.get(name) is not None), None)
    ):
        msg = f"{name} changes nothing without an endpoint: name one with --cloud"
        raise UsageError(msg)


def check_chain(settings: Settings, given: Mapping[str, object]) -> None:
    """Raise UsageError for a flag that is about several local models where one writes, or several side by side."""
    name = next((name for name in ("chain", "max_active") if given.get(name) is not None), None)
    if name and not settings.drafters:
        msg = f"{name} changes nothing without a second local model: give --local again, the smallest model first"
        raise UsageError(msg)


def check_pair(settings: Settings) -> None:
    """Raise UsageError for an endpoint without a local model of the user's choice: the bundled one babbles beside it.

    Whoever names it, means it. A server of our own has the bundled vocabulary, but for one of the real models.
    """
    if settings.local is not None or settings.experts or settings.cloud is None or settings.cloud in BUNDLED:
        return
    named = "beside a real model" if settings.cloud in NAMED else "beside an endpoint"
    wanted = f"{named} --local wants a model of its vocabulary: a GGUF file, or a name (hybrid models list)"
    msg = f"{wanted}; --local small is the bundled one, which answers a few families of generated problems"
    raise UsageError(msg)


def check_several(settings: Settings) -> None:
    """Raise UsageError for experts beside another local model, and for a model that is named twice."""
    chain = (*settings.drafters, settings.local)
    if again := [model for model in settings.drafters if chain.count(model) > 1]:
        msg = f"local: {again[0]} is named twice, and no model drafts for itself"
        raise UsageError(msg)
    if not settings.experts:
        return
    if settings.local is not None:
        msg = f"{settings.local} beside experts: they write in its place, so name each model with --expert"
        raise UsageError(msg)
    if twice := [model for model, num in Counter(settings.experts).items() if num > 1]:
        msg = f"--expert {twice[0]} is given twice: two of one model say what one says"
        raise UsageError(msg)


def with_parts(policy: str, chosen: Mapping[str, object], but: str = "") -> str:
    """Name a policy, with the parts that were chosen for it, ``but`` one.

    >>> with_parts("kl", {"gate": None, "judge": "concept:0.5", "scope": None})
    'kl with judge concept:0.5'
    """
    parts = [f"{key} {chosen[key]}" for key in ("gate", "judge", "scope") if key != but and chosen[key] is not None]
    return f"{policy} with {' and '.join(parts)}" if parts else policy


def _composed(policy: str, name: str, chosen: Mapping[str, object]) -> str:
    """Name a policy, with the parts that keep a choice from acting where it would act without them."""
    return with_parts(policy, chosen, but=name) if _acts_in(policy, name, chosen[name]) else policy


@lru_cache(maxsize=256)  # a client is asked under the same choices again and again
def _without_effect(policy: str, chosen: tuple[tuple[str, object], ...]) -> tuple[str, ...]:
    return choices_without_effect(policy, dict(chosen))


def _acts_in(policy: str, name: str, value: object) -> bool:
    """Whether a choice, taken alone, is taken by a policy and changes what it does."""
    span = value if isinstance(value, int) else None
    try:
        preset(policy, PolicyOptions(**{name: span if name == "span" else value}))
    except UsageError:
        return False
    return not choices_without_effect(policy, {name: value})


def recording_of(
    settings: Settings, policy: Policy, pieces: tuple[bytes, ...], concepts: Concepts | None
) -> RecordingHeader:
    """Return what a recording of every row begins with."""
    return RecordingHeader(
        choices_of(settings, policy), pieces, None if concepts is None else concepts.partition.groups
    )


def choices_of(settings: Settings, policy: Policy) -> dict[str, str | tuple[str, ...]]:
    """Return what a trace keeps beside the sampling, so that it is replayed under what it was recorded under."""
    chosen = {} if settings.offline else {name: getattr(settings, name) for name in PolicyChoices.model_fields}
    # ``auto`` was a number by then; the span of a whole answer follows from its length.
    chosen |= {"span": policy.spans if policy.span <= MOST_SPAN else None, "cloud_top_k": settings.cloud_top_k}
    # A recording has a number of tokens; beside it stands that nobody chose it, and so the cloud writes block by block.
    chosen |= {} if settings.max_tokens else {"max_tokens": settings.max_tokens}
    written = {name: str(value) for name, value in chosen.items() if value is not None}  # JSON has no infinity
    return {**written, "stop": settings.stop}
