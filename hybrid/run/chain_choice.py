"""Which chain writes the next answer: what a client has seen of its local models and of the cloud, and what follows.

The chain is chosen where an answer begins and stands until it ends, so that a trace is replayed with it and a text does
not depend on the times in its midst. Sampled, a text depends on the spans by its coins, so a seed would not repeat it:
there the chain is the one that was named.
"""

from __future__ import annotations

from dataclasses import replace

from hybrid.config import Settings
from hybrid.policy import Policy
from hybrid.run.chain import Chain, chain_of, whole_chain
from hybrid.run.contexts import LocalModel
from hybrid.run.events import Event, Finished, LevelsCompared, RequestSettled, SpanDrafted, SpanRead
from hybrid.run.schedule import CLOUD, ChainScheduler, ChosenChain, CloudCosts, LevelCost
from hybrid.types import Sampling

# An average of what requests take forgets this share with each.
FORGETTING = 0.1


class ChainChooser:
    """Chooses chains for one client; it hears the events of its answers."""

    def __init__(self, local: LocalModel, settings: Settings) -> None:
        """Take the models. Raises UsageError for a chain that cannot be."""
        self._local = local
        self._named = None if settings.chain in {"auto", "cheap"} else chain_of(settings.chain, local)
        self._cheap = settings.chain == "cheap"
        names = (*local.drafters, local.name)
        self.scheduler = ChainScheduler(names)
        """What is known by now."""
        for name in names:
            ms = local.ms_per_token if name == local.name else local.others[name].ms_per_token
            if ms is not None:
                self.scheduler.costs[name] = LevelCost(ms)
        self._cloud = CloudCosts()

    def choose(self, policy: Policy, sampling: Sampling) -> Chain:
        """Return the chain of the next answer; one without models: the cloud alone is the better writer."""
        if self._named is not None:
            return self._named
        if len(self.scheduler.names) == 1 or not sampling.greedy:
            return whole_chain(self._local)
        checks = policy.judge is not None and policy.planner is None
        chosen = self.scheduler.choose(
            "cheap" if self._cheap else "auto",
            policy.span if checks else None,
            self._cloud if checks else None,
            free=policy.is_exact(sampling),
        )
        return Chain(chosen.models, chosen.spans)

    def predicted(self, models: tuple[str, ...], policy: Policy) -> ChosenChain:
        """Return what is expected by now of a chain under a policy that checks."""
        return self.scheduler.predict(models, policy.span, self._cloud)

    def hear(self, event: Event, chain: Chain) -> None:
        """Learn from an event of an answer that a chain writes."""
        match event:
            case SpanDrafted(ids=ids, num_ready=ready, ms=ms) if len(ids) > ready == 0:
                self.scheduler.observe_batch(chain.models[0], 1, ms / len(ids))
            case SpanRead(level=level, num_rows=num, ms=ms) if num:
                self.scheduler.observe_batch(chain.models[level], num, ms)
            case LevelsCompared(upper=upper, lower=lower, num=num, num_agreed=agreed):
                above = chain.models[upper] if upper < len(chain.models) else CLOUD
                pair = self.scheduler.pairs[chain.models[lower], above]
                for number in range(num):
                    pair.observe(float(number < agreed))
            case RequestSettled(kind="check", nanousd=nanousd, ms=ms):
                self._learn(check_ms=ms, check_nanousd=float(nanousd or 0))
            case RequestSettled(kind="write", usage=usage, ms=ms) if usage and usage.completion_tokens:
                self._learn(token_ms=ms / usage.completion_tokens)
            case Finished(answer=answer):
                self.scheduler.num_shown += len(answer.tokens)
                if (alone := answer.bill.cloud_only_nanousd) and answer.tokens:
                    self._learn(token_nanousd=alone / len(answer.tokens))
            case _:
                pass

    def _learn(self, **seen: float) -> None:
        """Move the averages of what the cloud takes towards what was seen."""
        known = {name: value for name in seen if (value := getattr(self._cloud, name))}
        moved = {name: (1.0 - FORGETTING) * known.get(name, now) + FORGETTING * now for name, now in seen.items()}
        self._cloud = replace(self._cloud, **moved)
