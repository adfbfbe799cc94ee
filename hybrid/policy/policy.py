"""A policy: the choices that make a decoding rule, as one frozen value, and what follows from them.

Each part states its own property (``gates.Gate``, ``judges.Judge``). Here they are put together: what the endpoint must
be able to do (``needs``), what is guaranteed of the text (``guarantee``), what is never consulted (``effective``).

The law. A composition that is said to have the cloud model's (or the local model's) own text has it, under every span,
gate, judge, scope, bonus and sampling: ``tests/policy/test_guarantee.py`` enumerates them on three tokens. Every
guarantee holds while the cloud answers; an answer's ``degraded`` says where it did not. This file knows no preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from hybrid.policy.branches import BranchRule
from hybrid.policy.gates import Gate, RandomGate
from hybrid.policy.judges import Judge
from hybrid.policy.planning import Planner
from hybrid.policy.requests import PendingToken
from hybrid.policy.stages import ChainLevel
from hybrid.types import Ability, Ids, Sampling

ABILITY_TEXT: Mapping[Ability, str] = {
    "score": "score a draft",
    "write": "continue a partial answer",
    "open": "write an answer",
    "ids": "name tokens by number",
}


# Spans that shrink are of so many tokens at least: a check reads the whole text before them.
SHORTEST_SPAN = 4
# Above a chain of local models spans do not follow one another: what leaves its last stage comes in pieces.
CHAIN_SPAN = 8


class AgreementTest(Protocol):
    """When the cloud gives the pen back: at which tokens the two models agree."""

    @property
    def wants_concepts(self) -> bool:
        """Whether it asks which tokens say the same."""
        ...

    def agrees(self, at: Ids, token: PendingToken) -> bool | None:
        """Whether the two models are near enough at a token that follows ``at``; None: nobody knows."""
        ...


@dataclass(frozen=True)
class Policy:
    """A decoding rule as data."""

    name: str
    span: int
    """Tokens drafted before a check."""
    gate: Gate
    """Keep, check or write, from local signals alone."""
    judge: Judge | None = None
    """What of a checked span is accepted; None: nothing is ever checked."""
    scope: int | None = None
    """How many trailing tokens of a span the judge sees; None: all. Those before are shown at once, unchecked.
    0: no token, only the row after the span."""
    bonus: bool = False
    """The row after an accepted span may give one more token, if the judge takes one."""
    handoff_tokens: int = 0
    """Tokens of the first block that the cloud writes at a handoff: after a rejection, or where the gate says write.
    0: the cloud writes nothing but the recovered token."""
    handback: AgreementTest | None = None
    """When the pen goes back. None: after one block. Else blocks double until the last ``handback_after`` tokens of one
    agree."""
    handback_after: int = 1
    """How many written tokens in a row must agree."""
    lead: int = 0
    """Tokens that the cloud opens the text with."""
    undetermined_tokens: int = 0
    """Where a row does not determine the cloud's distribution, the cloud writes in blocks that begin with so many
    tokens and double, until a row does. 0: it draws that one token."""
    planner: Planner | None = field(default=None, hash=False)
    """Weighs each draft: keep, check or write. Then the gate is never asked, and no exact law holds."""
    stages: tuple[ChainLevel, ...] = ()
    """The local models above the smallest, which drafts: each reads what the one below drafts (``stages``)."""
    branches: BranchRule | None = None
    """Whole drafts of which one is shown; then nothing else of it acts but its stages."""
    longest_span: int | None = None
    """Spans follow what came of the last: ``span`` is the first, and none is longer than so many tokens. None: every
    span is of ``span``."""

    @property
    def chain_span(self) -> int:
        """Tokens before a check above a chain of local models."""
        return self.span if self.longest_span is None else CHAIN_SPAN

    @property
    def spans(self) -> str:
        """Tokens of a span, as the command line has them: ``8``, or ``4..32`` where spans follow one another."""
        return f"{self.span}" if self.longest_span is None else f"{self.span}..{self.longest_span}"

    def next_span(self, num: int, *, kept: bool) -> int:
        """Return how many tokens are drafted after a draft of up to ``num``; ``kept``: a check has kept all of it."""
        if self.longest_span is None:
            return num
        return min(2 * num, self.longest_span) if kept else max(num // 2, min(num, SHORTEST_SPAN))

    @cached_property
    def needs(self) -> frozenset[Ability]:
        """What the endpoint must be able to do. Who draws needs the drafted token's own probability, by its id."""
        if self._scores:
            return frozenset({"score", "ids"})
        if self.planner is not None:  # it plans with what the endpoint can do
            return frozenset({"open"})
        leaves_tail = self.judge is not None and self.judge.leaves_tail
        needed: dict[Ability, bool] = {
            "score": self.judge is not None,
            "open": self.lead > 0,
            "write": self.handoff_tokens > 0 or leaves_tail,
            "ids": leaves_tail,
        }
        return frozenset(ability for ability, wanted in needed.items() if wanted)

    @cached_property
    def wants_concepts(self) -> bool:
        """Whether any part of it asks which tokens say the same."""
        return any(part is not None and part.wants_concepts for part in (self.judge, self.handback))

    @property
    def reads_text(self) -> bool:
        """Whether it judges by the bytes that come next, so that the cloud's vocabulary may be another."""
        return not self._scores and (self.judge is None or self.judge.reads_text)

    def is_whole(self, max_tokens: int) -> bool:
        """Whether an answer of up to ``max_tokens`` is one model's own text: then no common vocabulary is needed."""
        if self.lead >= max_tokens or self.planner is not None:
            return self.planner is None or (self.planner.whole and not self.lead)
        return self.gate.decisions <= {"keep"} and not (self.lead or self._scores)

    @property
    def _scores(self) -> bool:
        """Whether the larger model scores branches."""
        return self.branches is not None and self.branches.choose == "logprob"

    @property
    def takes_bonus(self) -> bool:
        """Whether the row after an accepted span gives one more token: where it may, and the judge takes one."""
        return self.bonus and self.judge is not None and self.judge.takes_bonus

    def seeded(self, seed: int) -> Policy:
        """Return the policy with another seed for its gate, where that draws."""
        return replace(self, gate=replace(self.gate, seed=seed)) if isinstance(self.gate, RandomGate) else self

    # ---- what is guaranteed ----------------------------------------------------------------------------------------

    @property
    def checks(self) -> bool:
        """Whether any drafted token is judged."""
        return self.judge is not None and "check" in self.gate.decisions and self.scope != 0

    @property
    def checks_all(self) -> bool:
        """Whether every local token is judged: none is let through, and none takes a rejected one's place."""
        everywhere = self.gate.decisions <= {"check"} and not self._redraws
        return self.checks and self.scope is None and self.planner is None and everywhere

    @property
    def _redraws(self) -> bool:
        """Whether a rejected token is drawn again by the local model, because the cloud gives no other."""
        return self.judge is not None and not self.judge.replaces and not self.handoff_tokens

    def is_exact(self, sampling: Sampling) -> bool:
        """Whether every local token is judged by an exact judge: then the text is the cloud model's own.

        A lead and a handoff change nothing: what the cloud writes is its own. Nor does a bonus, which is the cloud's.
        """
        return self.checks_all and self.judge is not None and self.judge.is_exact(sampling)

    def guarantee(self, sampling: Sampling, max_tokens: int) -> str:
        """Say in one line what is guaranteed of an answer of up to ``max_tokens``, while the cloud answers."""
        own = "greedy text, token for token" if sampling.greedy else "distribution under the chosen sampling, exactly"
        clouds = f"the cloud model's own {own}"
        if self.lead >= max_tokens or self.is_exact(sampling):
            return clouds
        if self.branches is not None:
            return self.branches.guarantee
        if self.planner is not None and self.planner.whole:
            own = "greedy text, token for token" if sampling.greedy else "text, as it alone draws it"
            return f"one model's own {own}: the local model's or the cloud model's, never a mixture"
        if self.gate.decisions <= {"keep"} and all(stage.is_exact for stage in self.stages):
            opening = f"after {self.lead} tokens of the cloud's, " if self.lead else ""
            return f"{opening}the local model's own {own}"
        bound = self.gate.exact_within_nats
        if bound is not None and sampling.greedy and self.checks and self.judge and self.judge.is_exact(sampling):
            return f"{clouds}, if KL(cloud || local) is at most {bound:g} nats at every unchecked token"
        checked = [self.judge.guarantee] if self.judge and self.checks else []
        return "; ".join([*checked, *self._unchecked()])

    def _unchecked(self) -> list[str]:
        """Say which tokens are shown without a check, and what is known of them."""
        if self.checks_all:
            return ["every local token is checked"]
        if self.planner is not None:
            return ["a draft is kept unchecked where that is expected to lose less than asking costs"]
        if self.judge is not None and self.scope == 0 and "check" in self.gate.decisions:
            return ["no local token is checked: the row after a span is measured once the span is shown"]
        said = ["a rejected token is drawn again, unchecked"] if self._redraws else []
        if not all(stage.is_exact for stage in self.stages):
            said.append("a local token need not be what its model would draw alone")
        if not self.checks:
            said.append("no local token is checked")
        elif self.scope is not None:
            last = "token" if self.scope == 1 else f"{self.scope} tokens"
            said.append(f"only the last {last} of a draft can be checked")
        if self.gate.unchecked is not None and not self._redraws:
            said.append(f"{'an unchecked' if self.checks else 'a local'} token {self.gate.unchecked}")
        return said

    # ---- what acts -------------------------------------------------------------------------------------------------

    @property
    def effective(self) -> Policy:
        """The policy without the parts that are never consulted: two policies that always do the same are equal."""
        policy = self
        if policy.judge is None or "check" not in policy.gate.decisions:
            policy = replace(policy, judge=None, scope=None, bonus=False, undetermined_tokens=0)
        if not (policy.judge or "write" in policy.gate.decisions):
            policy = replace(policy, handoff_tokens=0)
        if not policy.handoff_tokens:
            policy = replace(policy, handback=None)
        policy = replace(policy, bonus=policy.takes_bonus)
        return policy if policy.handback else replace(policy, handback_after=1)

    def __str__(self) -> str:
        """Return the name and every part that acts, in the grammar of the command line where it has a word for it."""
        return self._text

    @cached_property
    def _text(self) -> str:
        policy = self.effective
        parts: dict[str, object] = {"span": policy.spans}
        parts |= {"stages": ",".join(str(stage.span) for stage in policy.stages)} if policy.stages else {}
        parts |= {"gate": policy.gate} if policy.planner is None else {"plan": policy.planner}
        parts |= {} if policy.judge is None else {"judge": policy.judge}
        parts |= {} if policy.scope is None else {"scope": policy.scope}
        parts |= {"bonus": "true"} if policy.bonus else {}
        parts |= {"hold": policy.handoff_tokens} if policy.handoff_tokens else {}
        parts |= {"handback": policy.handback} if policy.handback else {}
        parts |= {"lead": policy.lead} if policy.lead else {}
        parts |= {"branches": policy.branches} if policy.branches else {}
        return " ".join([policy.name, *(f"{key}={value}" for key, value in parts.items())])
