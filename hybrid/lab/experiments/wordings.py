"""What concepts are worth where most of what divides two models is wording: the wordings pair, problem by problem.

Two rules have one threshold each and are tried with the same ones: ``kl`` hands over where KL over tokens exceeds it,
``concepts`` only where KL over concepts does, too. Each threshold is chosen on the calibration split, the cheapest that
does best within a bill, and told on the test split. A hand-over was *wording* where the two models' most likely tokens
say one concept of the world (not of the partition that decided): the reader would have lost nothing.

The laws (``tests/bench/test_wordings.py``): a choice sees the calibration split alone; the pairs of a partition that is
the world's are all right and all there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hybrid.engine import Engine
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.frame import PRICES, SETTINGS, Answers, column, cost, counted
from hybrid.lab.experiments.grid import CLOUD, LOCAL, Record
from hybrid.lab.experiments.position_table import Positions
from hybrid.lab.experiments.world import World, WorldAnswer
from hybrid.prob import Floats, FullRow, Partition, concept_kl, kl
from hybrid.tasks import Problem, Split, distinct, wordings
from hybrid.tasks.statistics import Estimate, advantage, bill_ratio, wilson
from hybrid.types import Ids, Sampling

THRESHOLDS = (0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)
RULES = ("kl", "concepts")
# Multiples of the large model's own bill.
DEFAULTS = ("kl:0.5", "concepts:0.5")
BUDGETS = (0.6, 0.8, 1.0, 2.5)
# A check pays its whole prefix, or the prefix cache gives what the answer has sent before.
TARIFFS = {setting.name: setting for setting in SETTINGS if setting.name in {"U", "C"}}
ReportProblem: TypeAlias = Callable[[int], None]
Tried: TypeAlias = Mapping[str, Answers]
"""The records of the same problems, by the arm."""


def problems_with_wordings(split: Split, num: int, seed: int = 0) -> list[Problem]:
    """Draw ``num`` problems of each family, the families taking turns."""
    families = [distinct(family, split, num, seed) for family in wordings.FAMILIES]
    return [problem for turn in zip_longest(*families) for problem in turn if problem is not None]


def arms_of(rule: str, thresholds: Sequence[float] = THRESHOLDS) -> list[Arm]:
    """Return a rule at each threshold; between the two models' agreeing and their being asked."""
    return [Arm(f"{rule}:{threshold:g}", f"{rule}:{threshold:g}") for threshold in thresholds]


# ---- concepts ------------------------------------------------------------------------------------------------------


def words_of(engine: Engine) -> dict[int, str]:
    """Return the tokens that are words of the world, after a space or at the beginning, each with its word."""
    texts = [f" {word}" for word in wordings.WORDS] + [*wordings.FIRST_WORDS]
    found = {text: engine.tokenize(text) for text in texts}
    return {ids[0]: text.strip() for text, ids in found.items() if len(ids) == 1}


def world_groups(engine: Engine) -> list[tuple[int, ...]]:
    """Return which tokens say the same in this world: words of one concept, and a word's two forms."""
    groups: dict[str, list[int]] = {}
    for token, word in words_of(engine).items():
        groups.setdefault(wordings.CONCEPT_OF.get(word, word), []).append(token)
    return sorted(tuple(sorted(group)) for group in groups.values() if len(group) > 1)


def world_partition(engine: Engine) -> Partition:
    """Return the partition that is true of the world."""
    return Partition.of_groups(engine.num_tokens, world_groups(engine))


class MergedPairCounts(NamedTuple):
    """Pairs of words that a partition holds for one, those that are, and those of which both are true."""

    found: int
    true: int
    both: int

    def to_json(self) -> dict[str, Any]:
        """Return plain data with precision and recall; no precision where nothing was found."""
        shares = (asdict(wilson(self.both, num)) if num else None for num in (self.found, self.true))
        return {"found": self.found, "true": self.true, **dict(zip(("precision", "recall"), shares, strict=True))}


def count_pairs(found: Partition, true: Partition, words: Mapping[int, str]) -> MergedPairCounts:
    """Compare two partitions over the pairs of different words; a pair counts once, however many tokens spell it."""
    tokens = sorted(words)
    first, second = np.triu_indices(len(tokens), 1)
    ids, names = np.array(tokens), np.array([words[token] for token in tokens])
    named = np.sort(np.stack([names[first], names[second]]), axis=0)
    other = named[0] != named[1]
    pairs = [
        {tuple(pair) for pair in named[:, other & (labels[ids[first]] == labels[ids[second]])].T.tolist()}
        for labels in (found.labels, true.labels)
    ]
    return MergedPairCounts(len(pairs[0]), len(pairs[1]), len(pairs[0] & pairs[1]))


# ---- answers -------------------------------------------------------------------------------------------------------


async def try_arms(
    world: World, arms: Sequence[Arm], problems: Sequence[Problem], true: Partition, report: ReportProblem
) -> dict[str, list[Record]]:
    """Let each arm answer each problem greedily, and return a record of each; the models alone are among the arms.

    ``right``: by meaning. ``bills``: in prompt tokens, by tariff. ``handoffs``, and of these ``wording``: both models'
    most likely tokens say one concept. ``kept``: tokens at which ``kl`` would have handed over, ``concepts`` not.
    """
    found: dict[str, list[Record]] = {arm.name: [] for arm in (LOCAL, CLOUD, *arms)}
    for number, problem in enumerate(problems):
        report(number)
        for arm in (LOCAL, CLOUD, *arms):
            answered = await world.answer(problem.question, arm, Sampling(0.0), wordings.MAX_TOKENS)
            found[arm.name].append(_record(world, arm, problem, answered, true))
        world.forget()
    return found


def _record(world: World, arm: Arm, problem: Problem, answered: WorldAnswer, true: Partition) -> Record:
    answer, sent = answered.answer, counted(answered.requests)
    positions = [] if arm in (LOCAL, CLOUD) else [each.position for each in answer.handoffs]
    return {
        "right": wordings.grade(problem, answer.text),
        "bills": {name: cost(sent, tariff, PRICES[0]) for name, tariff in TARIFFS.items()},
        "handoffs": len(positions),
        "wording": sum(_one_concept(world, answered.prompt + answered.ids[:at], true) for at in positions),
        "kept": answer.usage.wording,
    }


def _one_concept(world: World, at: Ids, true: Partition) -> bool:
    best = [world.local_row(at).best, world.cloud_row(at).best]
    return bool(true.labels[best[0]] == true.labels[best[1]])


@dataclass(frozen=True, eq=False)
class ComparedTokens:
    """KL(cloud || local) before each token of the cloud's own answers, over tokens and over concepts, in nats.

    Shapes (T,). ``owners``: the number of the token's problem, of ``num_problems``.
    """

    owners: NDArray[np.int64]
    num_problems: int
    tokens: Floats
    concepts: Floats

    def to_json(self, threshold: float = 0.5) -> dict[str, Any]:
        """Return the means, how many tokens are beyond a threshold, and how many of those are within it by concepts."""
        beyond = self.tokens > threshold
        return {
            "tokens": self.tokens.size,
            "kl": asdict(_of_problems(self.tokens, self.owners, self.num_problems)),
            "concept_kl": asdict(_of_problems(self.concepts, self.owners, self.num_problems)),
            "beyond": asdict(_of_problems(beyond, self.owners, self.num_problems)),
            "of_these_wording": asdict(
                _of_problems(self.concepts[beyond] <= threshold, self.owners[beyond], self.num_problems)
            ),
        }


async def compare_tokens(world: World, problems: Sequence[Problem], true: Partition) -> ComparedTokens:
    """Compare the two models along the cloud's greedy answers."""
    owners, values = [], []
    for number, problem in enumerate(problems):
        answered = await world.answer(problem.question, CLOUD, Sampling(0.0), wordings.MAX_TOKENS)
        for local, cloud in zip(*world.rows(answered.prompt, answered.ids), strict=True):
            owners.append(number)
            values.append((kl(cloud, local), concept_kl(FullRow(cloud), local, true).estimate))
        world.forget()
    tokens, concepts = np.array(values, dtype=np.float64).T
    return ComparedTokens(np.array(owners), len(problems), tokens, concepts)


# ---- what it comes to ----------------------------------------------------------------------------------------------


def bill_of(tried: Tried, arm: str, tariff: str) -> Estimate:
    """Return an arm's bill as a multiple of the large model's own, with its interval."""
    return bill_ratio(_bills(tried[arm], tariff), _bills(tried[CLOUD.name], tariff))


def over_a_coin(tried: Tried, arm: str, tariff: str) -> Estimate | None:
    """Return the recovered share of the gap less the bill: what whole questions sent at random would not have."""
    local, hybrid, cloud = (1.0 - column(tried[name], "right") for name in (LOCAL.name, arm, CLOUD.name))
    return advantage(local, hybrid, cloud, _bills(tried[arm], tariff), _bills(tried[CLOUD.name], tariff))


def _bills(answers: Answers, tariff: str) -> list[float]:
    return [each["bills"][tariff] for each in answers]


@dataclass(frozen=True)
class BestArm:
    """The arm that does best within a bill, a multiple of the large model's own under a tariff."""

    tariff: str
    budget: float
    arm: str


def best_arms(tried: Tried, rule: str, tariff: str, budgets: Sequence[float] = BUDGETS) -> list[BestArm]:
    """Return the arms of a rule that are right most often within each bill, the cheapest of equals.

    A bill within which the rule has no arm is left out.
    """
    bills = {name: bill_of(tried, name, tariff).value for name in tried if name.startswith(f"{rule}:")}
    right = {name: column(tried[name], "right").sum() for name in bills}
    found = []
    for budget in budgets:
        within = [name for name in bills if bills[name] <= budget]
        if within:
            found.append(BestArm(tariff, budget, max(within, key=lambda name: (right[name], -bills[name]))))
    return found


def more_right(tried: Tried, arm: str, other: str) -> Estimate:
    """Return how many more of the answers are right under an arm than under another, as a share, paired."""
    gain = column(tried[arm], "right") - column(tried[other], "right")
    return _of_problems(gain, np.arange(gain.size), gain.size)


def wording_share(answers: Answers) -> Estimate | None:
    """Return the share of an arm's hand-overs that were wording; None where there is none. Problems are drawn again."""
    owners = np.repeat(np.arange(len(answers)), [each["handoffs"] for each in answers])
    said = [i < each["wording"] for each in answers for i in range(each["handoffs"])]
    return _of_problems(np.array(said), owners, len(answers)) if said else None


def _of_problems(values: NDArray[np.generic], owners: NDArray[np.int64], num: int) -> Estimate:
    found = Positions(owners, num).mean(values)
    if found is None:
        msg = "a mean over nothing"
        raise ValueError(msg)
    return found


def wordings_report(calibration: Tried, test: Tried, chosen: Mapping[str, list[BestArm]]) -> dict[str, Any]:
    """Return what was found as plain data: both splits, what was chosen, and what concepts add at equal bills."""
    return {
        "calibration": {name: _arm_to_json(calibration, name) for name in calibration},
        "test": {name: _arm_to_json(test, name) for name in test},
        "choices": [asdict(choice) for choices in chosen.values() for choice in choices],
        "concepts_over_kl": [
            asdict(ours) | {"other": theirs.arm} | asdict(more_right(test, ours.arm, theirs.arm))
            for ours in chosen["concepts"]
            for theirs in chosen["kl"]
            if (ours.tariff, ours.budget) == (theirs.tariff, theirs.budget)
        ],
    }


def _arm_to_json(tried: Tried, name: str) -> dict[str, Any]:
    total = {what: sum(each[what] for each in tried[name]) for what in ("right", "handoffs", "kept")}
    return {
        "problems": len(tried[name]),
        "right": asdict(wilson(total["right"], len(tried[name]))),
        "bill": {tariff: asdict(bill_of(tried, name, tariff)) for tariff in TARIFFS},
        "over_a_coin": {tariff: _or_none(over_a_coin(tried, name, tariff)) for tariff in TARIFFS},
        "handoffs": total["handoffs"],
        "wording": _or_none(wording_share(tried[name])),
        "kept": total["kept"],
    }


def _or_none(found: Estimate | None) -> dict[str, float] | None:
    return None if found is None else asdict(found)
