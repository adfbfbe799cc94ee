"""Who writes locally in an answer: one model, a chain of them, or several that write as one; perhaps with a critic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hybrid.cloud import Capabilities
from hybrid.engine import CursorContext
from hybrid.policy import Policy, SeededCoin, exact_stages, with_stages
from hybrid.policy.concepts import Concepts
from hybrid.record.answer_builder import AnswerBuilder
from hybrid.record.conversation import TextOrTurns
from hybrid.run.chain import Chain, cursors_of
from hybrid.run.composition import sampling_of
from hybrid.run.contexts import LocalContexts
from hybrid.run.drafting import Drafter
from hybrid.run.experts import ExpertCursor
from hybrid.run.verifier import LocalVerifier, RenderedPrompt
from hybrid.settings.config import Settings
from hybrid.types import Ids


@dataclass(frozen=True)
class AskedPrompt:
    """A question, as the model reads it, who drafts its answer, and when it was asked (monotonic, in seconds).

    ``concepts``: which tokens say the same, where that matters.
    """

    prompt: TextOrTurns
    rendered: RenderedPrompt
    chain: Chain
    at: float
    concepts: Concepts | None = None


@dataclass(frozen=True)
class LocalWriters:
    """The model that drafts, those above it in a chain, and the policy with as many stages."""

    drafter: Drafter
    levels: Sequence[LocalVerifier]
    policy: Policy
    experts: ExpertCursor | None


async def local_writers(
    contexts: LocalContexts,
    context: CursorContext,
    chain: Chain,
    policy: Policy,
    settings: Settings,
    prompt: Ids,
    words: Sequence[int],
) -> LocalWriters:
    """Return who writes an answer to a prompt in a context that was lent for it; ``words`` are the question's."""
    sampling = sampling_of(settings)
    experts = await contexts.experts(context, settings, words)
    first, *above = cursors_of(chain, contexts.name, context)
    critic = contexts.critic(context, prompt, policy.planner)
    drafter = Drafter(experts or first, prompt, sampling, SeededCoin(sampling.seed), critic)
    levels = [LocalVerifier(cursor, prompt) for cursor in above]
    return LocalWriters(drafter, levels, with_stages(policy, exact_stages(chain.spans, sampling)), experts)


def tell_names(
    builder: AnswerBuilder, chain: Chain, writers: LocalWriters, cloud: Callable[[], Capabilities | None]
) -> None:
    """Let an answer name who wrote each token, and the weights of several models that write as one."""
    experts = writers.experts
    builder.local_models = experts.writers if experts else chain.models
    builder.experts = lambda: experts.weights if experts else {}
    builder.cloud_model = lambda: can.model if (can := cloud()) else None
