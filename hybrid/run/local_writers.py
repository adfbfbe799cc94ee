"""A question, and who writes its answer locally: one model, a chain, or several that write as one; perhaps a critic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hybrid.engine import CursorContext
from hybrid.policy import Policy, SeededCoin, exact_stages, with_stages
from hybrid.policy.concepts import Concepts
from hybrid.record.conversation import TextOrTurns, words_of
from hybrid.run.chain import Chain, cursors_of
from hybrid.run.composition import Decoding
from hybrid.run.contexts import LocalContexts
from hybrid.run.drafting import Drafter
from hybrid.run.experts import ExpertCursor
from hybrid.run.verifier import ChainReader, RenderedPrompt
from hybrid.types import Ids


@dataclass(frozen=True)
class Question:
    """A question as the model reads it, how it is decoded, who drafts, and when it was asked (monotonic, in seconds).

    ``concepts``: which tokens say the same, where that matters.
    """

    prompt: TextOrTurns
    rendered: RenderedPrompt
    decoding: Decoding
    chain: Chain
    asked_at: float
    concepts: Concepts | None = None

    @property
    def ids(self) -> Ids:
        """The prompt's tokens."""
        return self.rendered.ids

    @cached_property
    def words(self) -> tuple[int, ...]:
        """The question's words, as ``words_of`` has them."""
        return words_of(self.prompt)


@dataclass(frozen=True)
class AnswerModels:
    """The model that drafts, those above it in a chain, their names by who may write, and the policy with its stages.

    ``experts``: several models that write as one; None: one does.
    """

    drafter: Drafter
    levels: Sequence[ChainReader]
    names: Sequence[str]
    policy: Policy
    experts: ExpertCursor | None

    def weights(self) -> Mapping[str, float]:
        """Return the weights by now of several models that write as one, by their names."""
        return self.experts.weights if self.experts else {}


async def local_writers(
    contexts: LocalContexts, context: CursorContext, question: Question, policy: Policy
) -> AnswerModels:
    """Return who writes the answer to a question, in a context that was lent for it."""
    chain, sampling = question.chain, question.decoding.sampling
    experts = await contexts.experts(context, question.decoding.settings, question.words)
    first, *above = cursors_of(chain, contexts.name, context)
    critic = contexts.critic(context, question.ids, policy.planner)
    drafter = Drafter(experts or first, question.ids, sampling, SeededCoin(sampling.seed), critic)
    levels = [ChainReader(cursor, question.ids) for cursor in above]
    names = experts.writers if experts else chain.models
    if chain.spans:
        policy = with_stages(policy, exact_stages(chain.spans, sampling))
    return AnswerModels(drafter, levels, names, policy, experts)
