"""Which local models draft for one another in an answer: their names, their spans, and their cursors in a context."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Literal

from hybrid.engine import Cursor, CursorContext
from hybrid.errors import UsageError
from hybrid.pairs.timings import CloudCosts, Timings
from hybrid.policy import Policy
from hybrid.record.events import Event, Finished, LevelsCompared, SpanDrafted, SpanRead
from hybrid.run.contexts import LocalModel
from hybrid.settings.config import Settings
from hybrid.spend import tokens_shown
from hybrid.types import Sampling

# Which local models should draft for one another, by what their time, their bill and their agreement were seen to be.
#
# The models of a chain are M_1 < ... < M_n and perhaps the cloud above them. With t_i the milliseconds that M_i takes
# for a token that stands at its level, g_i the tokens that are drafted before the next one reads them, v(g) the time of
# its batch of g tokens, and a_i the share of M_i's tokens that M_{i+1} accepts,
#
#     t_{i+1} = (g_i t_i + v(g_i + 1)) / ((1 - a_i^(g_i + 1)) / (1 - a_i))
#
# (speculative decoding, arXiv:2211.17192, once for every level; SpecRouter, arXiv:2505.07680, chooses chains so).
# t_{i+1} grows with t_i, so the best span of each level is found level by level, and all chains are tried.
#
# Laws (``tests/run/test_schedule.py``): the recursion is what a simulation takes; the chosen chain is the best of all
# by brute force; another chain is taken only for a gain of more than 5 % and after 64 tokens. The schedule knows
# no model and no clock.

Objective = Literal["auto", "cheap"]
CLOUD = "cloud"
SPANS = range(1, 17)
# An average forgets this share with each token that is compared, or each batch that is timed.
FORGETTING = 0.01
# Of tokens that are compared it forgets a tenth of that: questions differ more than tokens do, and an average over two
# of them was off by more than two models differ.
PAIR_FORGETTING = 0.001
# Before so many tokens of every two models were compared, all models that were named write.
LEAST_COMPARED = 400
# Nobody has been compared yet: Beta(2, 1).
PRIOR_ACCEPTED, PRIOR_COMPARED = 2.0, 3.0
# A batch of eight tokens took 3.3 to 5.4 times as long as one token (bundled and real models, two cores).
PRIOR_BATCH, PRIOR_BATCH_COST = 8, 4.3
PRIOR_SLOPE = (PRIOR_BATCH_COST - 1.0) / (PRIOR_BATCH - 1)
# A time this many times what was expected is another program's.
OUTLIER = 5.0
LEAST_GAIN, LEAST_TOKENS = 0.05, 64


class LevelCost:
    """The milliseconds of a batch, as a constant and a part that grows with its tokens; older batches count less.

    Two batches of the prior's shape, at the height that was seen, always count beside those that were timed: a chain
    may read batches of one size for hours, and one size alone tells no slope.
    """

    def __init__(self, single_ms: float | None = None) -> None:
        """Take what one token takes; None: unknown, and the first batch tells."""
        self._sums = [0.0] * 5  # weight, tokens, ms, tokens squared, tokens times ms
        if single_ms:
            self._add(1, single_ms)
            self._add(PRIOR_BATCH, PRIOR_BATCH_COST * single_ms)

    @property
    def known(self) -> bool:
        """Whether anything is."""
        return self._sums[0] > 0.0

    def observe(self, num_tokens: int, ms: float) -> None:
        """Take a batch that was timed; one that took no time was read before."""
        if ms > 0.0:
            self._add(num_tokens, min(ms, OUTLIER * self.batch_ms(num_tokens)) if self.known else ms)

    def batch_ms(self, num_tokens: int) -> float:
        """Return what a batch takes; 0 where nothing is known."""
        if not self.known:
            return 0.0
        weight, tokens, total, squares, products = self._sums
        single = total / (weight + PRIOR_SLOPE * (tokens - weight))
        weight, tokens, squares = weight + 2.0, tokens + 1.0 + PRIOR_BATCH, squares + 1.0 + PRIOR_BATCH**2
        total += single * (1.0 + PRIOR_BATCH_COST)
        products += single * (1.0 + PRIOR_BATCH * PRIOR_BATCH_COST)
        slope = max(0.0, (weight * products - tokens * total) / (weight * squares - tokens * tokens))
        constant = (total - slope * tokens) / weight
        return constant + slope * num_tokens if constant >= 0.0 else products / squares * num_tokens

    def _add(self, num: int, ms: float) -> None:
        new = (1.0, num, ms, num * num, num * ms)
        self._sums = [(1.0 - FORGETTING) * old + more for old, more in zip(self._sums, new, strict=True)]


@dataclass
class PairAcceptance:
    """The share of tokens at which a smaller model's most likely one is a larger model's, too."""

    accepted: float = PRIOR_ACCEPTED
    compared: float = PRIOR_COMPARED
    num: int = 0
    """Tokens that were compared so far."""

    @property
    def share(self) -> float:
        """The share by now."""
        return self.accepted / self.compared

    def observe(self, accepted: float) -> None:
        """Take a token that was compared: 1 where it was accepted, else 0."""
        self.num += 1
        self.accepted = (1.0 - PAIR_FORGETTING) * self.accepted + accepted
        self.compared = (1.0 - PAIR_FORGETTING) * self.compared + 1.0


@dataclass(frozen=True)
class ChosenChain:
    """Local models, the smallest first, and the spans between them; none at all: the cloud alone.

    ``acceptance``: of each model's tokens by the one above it.
    """

    models: tuple[str, ...]
    spans: tuple[int, ...]
    ms_per_token: float
    nanousd_per_token: float = 0.0
    acceptance: tuple[float, ...] = ()


@dataclass
class ChainStatistics:
    """What is known of models by now, and which chain follows from it. ``names``: the smallest model first."""

    names: tuple[str, ...]
    costs: dict[str, LevelCost] = field(default_factory=dict)
    pairs: defaultdict[tuple[str, str], PairAcceptance] = field(default_factory=lambda: defaultdict(PairAcceptance))
    chosen: ChosenChain | None = None
    num_shown: int = 0
    """Tokens shown since another chain was chosen."""

    def observe_batch(self, name: str, num_tokens: int, ms: float) -> None:
        """Take the time of a batch of a model."""
        self.costs.setdefault(name, LevelCost()).observe(num_tokens, ms)

    def choose(
        self,
        objective: Objective,
        span: int | None,
        cloud: CloudCosts | None,
        *,
        free: bool = False,
    ) -> ChosenChain:
        """Return the best chain, or the one that was chosen last where the best is hardly better.

        ``span``: tokens before the cloud's check; None: it checks none, or none is there. ``free``: any model may stand
        on top, for the text is the cloud's own; else the last one does.
        """
        levels = (*self.names, CLOUD) if cloud is not None and span is not None else self.names
        untried = any(self.pairs[pair].num < LEAST_COMPARED for pair in combinations(levels, 2))
        every = list(self.candidates(span, cloud, free=free))
        # A model that is left out is compared with nobody: before anything is known all that were named write.
        best = (
            max(every, key=lambda chain: len(chain.models))
            if untried
            else min(every, key=lambda chain: _order(objective, chain))
        )
        if self.chosen is not None and not untried:
            same = [chain for chain in every if chain.models == self.chosen.models]
            enough = self.num_shown >= LEAST_TOKENS
            if same and not (enough and _gains(objective, best, same[0])):
                best = same[0]
        if self.chosen is None or best.models != self.chosen.models:
            self.num_shown = 0
        self.chosen = best
        return best

    def candidates(self, span: int | None, cloud: CloudCosts | None, *, free: bool = False) -> Iterator[ChosenChain]:
        """Yield every chain that may be, with the best spans of each."""
        for num in range(1, len(self.names) + 1):
            for models in combinations(self.names, num):
                if free or models[-1] == self.names[-1]:
                    yield self.predict(models, span, cloud)
        if free and cloud is not None:
            yield ChosenChain((), (), _or_unknown(cloud.token_ms), _or_unknown(cloud.token_nanousd))

    def predict(self, models: Sequence[str], span: int | None, cloud: CloudCosts | None) -> ChosenChain:
        """Return what a chain is expected to take, with the best span of each of its levels."""
        ms, spans, shares = self._batch_ms(models[0], 1), list[int](), list[float]()
        for lower, upper in pairwise(models):
            shares.append(self.pairs[lower, upper].share)
            counts = tokens_shown(shares[-1], SPANS.stop)
            takes = {g: float((g * ms + self._batch_ms(upper, g + 1)) / counts[g]) for g in SPANS}
            spans.append(min(takes, key=takes.__getitem__))
            ms = takes[spans[-1]]
        nanousd = 0.0
        if cloud is not None and span is not None:
            shares.append(self.pairs[models[-1], CLOUD].share)
            shown = float(tokens_shown(shares[-1], span + 1)[-1])
            ms, nanousd = (span * ms + (cloud.check_ms or 0.0)) / shown, (cloud.check_nanousd or 0.0) / shown
        return ChosenChain(tuple(models), tuple(spans), ms, nanousd, tuple(shares))

    def _batch_ms(self, name: str, num_tokens: int) -> float:
        return self.costs[name].batch_ms(num_tokens) if name in self.costs else 0.0


def _or_unknown(cost: float | None) -> float:
    """Return a cost; one that nobody knows is never the least."""
    return float("inf") if cost is None else cost


def _order(objective: Objective, chain: ChosenChain) -> tuple[float, ...]:
    times = chain.ms_per_token, chain.nanousd_per_token
    # Of chains that take alike the longer one: it was named.
    return (*(times if objective == "auto" else times[::-1]), -len(chain.models))


def _gains(objective: Objective, best: ChosenChain, present: ChosenChain) -> bool:
    new, old = _order(objective, best), _order(objective, present)
    return new[0] < (1.0 - LEAST_GAIN) * old[0] or (new[0] == old[0] and new[1] < (1.0 - LEAST_GAIN) * old[1])


# Tokens that a level has drafted below before it reads them, where nothing was measured.
STAGE_SPAN = 4


@dataclass(frozen=True)
class Chain:
    """Local models by name, the one that drafts first; ``spans`` are those of the others, in the same order."""

    models: tuple[str, ...]
    spans: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return how ``--chain`` names it, with its spans.

        >>> str(Chain(("small", "mid", "big"), (4, 2)))
        'small*4>mid*2>big'
        """
        spans = [f"*{span}" for span in self.spans]
        return ">".join(f"{name}{span}" for name, span in zip(self.models, [*spans, ""], strict=True))


def whole_chain(local: LocalModel) -> Chain:
    """Return the chain of all that are loaded, each with the span of a pair of which nothing is known."""
    return Chain((*local.drafters, local.name), (STAGE_SPAN,) * len(local.drafters))


def chain_of(text: str, local: LocalModel) -> Chain:
    """Read what ``--chain`` names: ``small>mid``, with the span of each draft where one is chosen: ``small*4>mid``.

    Raises UsageError for a model that is not loaded, for one out of order, for a span that is none, and
    for one of the last model.
    """
    known, models, spans = (*local.drafters, local.name), list[str](), list[int]()
    for part in text.split(">"):
        name, star, span = part.strip().partition("*")
        if name not in known:
            msg = f"--chain {text}: of the local models that are loaded ({', '.join(known)}) none is called {name!r}"
            raise UsageError(msg)
        if models and known.index(name) <= known.index(models[-1]):
            msg = f"--chain {text}: {name} does not stand above {models[-1]}: the order is {'>'.join(known)}"
            raise UsageError(msg)
        if star and not (span.isdecimal() and int(span) in SPANS):
            msg = f"--chain {text}: {span!r} is no number of tokens between {SPANS[0]} and {SPANS[-1]}"
            raise UsageError(msg)
        models.append(name)
        spans.append(int(span) if star else STAGE_SPAN)
    if star:
        msg = f"--chain {text}: {name} is the last and drafts for no other model, so it has no *{span}"
        raise UsageError(msg)
    return Chain(tuple(models), tuple(spans[:-1]))


def cursors_of(chain: Chain, local: str, context: CursorContext) -> Sequence[Cursor]:
    """Return the cursors of a chain's models in a context, in its order; ``local`` names the context's own model."""
    return [context.cursor if name == local else context.others[name] for name in chain.models]


# Which chain writes the next answer: what a client has seen of its local models and of the cloud, and what follows.
#
# The chain is chosen where an answer begins and stands until it ends, so that a trace is replayed with it and a text
# does not depend on the times in its midst. Sampled, a text depends on the spans by its coins, so a seed would not
# repeat it: there the chain is the one that was named.


class ChainChooser:
    """Chooses chains for one client; it hears the events of its answers."""

    def __init__(self, local: LocalModel, settings: Settings, timings: Timings) -> None:
        """Take the models, and what is observed of the cloud. Raises UsageError for a chain that cannot be."""
        self._named = None if settings.chain in {"auto", "cheap"} else chain_of(settings.chain, local)
        self._cheap = settings.chain == "cheap"
        self._whole = whole_chain(local)
        names = self._whole.models
        self.scheduler = ChainStatistics(names)
        """What is known by now."""
        for name in names:
            ms = local.ms_per_token if name == local.name else local.others[name].ms_per_token
            if ms is not None:
                self.scheduler.costs[name] = LevelCost(ms)
        self._timings = timings

    def choose(self, policy: Policy, sampling: Sampling) -> Chain:
        """Return the chain of the next answer; one without models: the cloud alone is the better writer."""
        if self._named is not None:
            return self._named
        if len(self.scheduler.names) == 1 or not sampling.greedy:
            return self._whole
        checks = policy.judge is not None and policy.planner is None
        chosen = self.scheduler.choose(
            "cheap" if self._cheap else "auto",
            policy.chain_span if checks else None,
            self._timings.cloud if checks else None,
            free=policy.is_exact(sampling),
        )
        return Chain(chosen.models, chosen.spans)

    def predicted(self, models: tuple[str, ...], policy: Policy) -> ChosenChain:
        """Return what is expected by now of a chain under a policy that checks."""
        return self.scheduler.predict(models, policy.chain_span, self._timings.cloud)

    def observe(self, event: Event, chain: Chain) -> None:
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
            case Finished(answer=answer):
                self.scheduler.num_shown += len(answer.tokens)
            case _:
                pass
