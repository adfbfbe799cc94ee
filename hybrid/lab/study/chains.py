"""Chains: the acceptance of drafted tokens that two models' rows predict, against what the product's rules accepted.

At temperature 1 ``exact`` accepts a drafted token with the chance sum of min(p, q) = 1 - TV of both rows there;
``greedy-exact`` where both favourites are one. So along the judged positions themselves both are one number, but for
coins. A prediction is what other texts say: the cloud's own, and the local model's. A pair is a link of a chain: of a
ladder of three a design names each two (SpecRouter, arXiv:2505.07680). Last, trees of drafted tokens.

The laws (``tests/bench/test_study_chains.py``): over all coins a token is accepted in 1 - TV of the cases, less at most
the tail of a list; what stands is what the answer counts; the expected length is that of an enumeration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from hybrid.lab.arms import Arm, estimate_to_json
from hybrid.lab.experiments.frame import CountedRequest, bills, paid_ratio, resampled, told
from hybrid.lab.experiments.grid import CLOUD, LOCAL, CheckAnswer, GradedQuestion, Grid, Record
from hybrid.lab.experiments.position_table import Positions, compare_rows, weighted_spearman
from hybrid.lab.experiments.trials import answer_arms, spent_record
from hybrid.lab.experiments.world import World, WorldAnswer
from hybrid.lab.study.design import Design
from hybrid.lab.study.section import Section
from hybrid.prob import Dense, Floats, TopMAcceptance, accept_prob, certificate, residual, warp
from hybrid.report import Document
from hybrid.report.tables import Cell, at, estimate, table_of, with_interval
from hybrid.settings.policy_choices import MOST_SPAN
from hybrid.tasks.statistics import ratio
from hybrid.types import Ids, Sampling, num_shared

SPANS = (1, 4, 8)
# By the rule: the temperature, which column of ``compare_rows`` predicts it, and what that is called.
RULES: Mapping[str, tuple[float, str, str]] = {
    "greedy-exact": (0.0, "agrees", "The share of agreeing favourites"),
    "exact": (1.0, "overlap", "The mean of 1 - TV"),
}
ITSELF = "itself"
SOURCES, KNOWN = (CLOUD.name, LOCAL.name, ITSELF), "observed share"


def chains_grids(design: Design) -> tuple[Grid, ...]:
    """Return a seed's questions to each pair, under both rules; option ``spans``, drafted tokens a check."""
    named = np.atleast_1d(design.options.get("spans", SPANS)).tolist()
    if not all(1 <= span <= MOST_SPAN and span == int(span) for span in named):
        raise ValueError("spans are whole tokens")
    spans = tuple(dict.fromkeys(map(int, named)))
    trial, content, num = partial(try_chains, spans), ("chains", spans), len(RULES) * (2 + len(spans))
    pairs = product(design.drawn.items(), design.pairs)
    return tuple(Grid(f"{p}, seed {s}", p, drawn[p], trial, content, num, seed=s) for (s, drawn), p in pairs)


async def try_chains(
    spans: Sequence[int], world: World, question: GradedQuestion, sampling: Sampling, check: CheckAnswer
) -> Record:
    """Answer by each rule and span and by both models alone; keep what each text predicts, and what was accepted."""
    found: dict[str, Any] = {}
    for rule, (temperature, column, _) in RULES.items():
        checked = {span: Arm(f"{rule}, span {span}", rule, {"span": span}) for span in spans}
        drawing = replace(sampling, temperature=temperature)
        answers = await answer_arms(world, question, (CLOUD, LOCAL, *checked.values()), drawing, check)
        chances = {name: _chances(world, answered, column) for name, answered in answers.items()}
        found[rule] = {name: [sum(chances[name]), len(chances[name])] for name in (CLOUD.name, LOCAL.name)} | {
            f"{span}": _counted(checked_spans(answers[arm.name], world.cloud.end_ids), span, chances[arm.name])
            for span, arm in checked.items()
        }
    return {"text": question.text, "kind": question.kind, "seed": sampling.seed, "rules": found}


def _chances(world: World, answered: WorldAnswer, column: str) -> list[float]:
    """Return the chance that a draft is accepted at each position of a text, the token that ended it included."""
    text = answered.ids + tuple(world.cloud.end_ids)[: answered.ended]  # whichever: only the rows before it are read
    rows = world.rows(answered.prompt, text) if text else ([], [])
    return [float(compare_rows(target, draft)[column]) for draft, target in zip(*rows, strict=True)]


def checked_spans(answered: WorldAnswer, end_ids: frozenset[int]) -> list[tuple[int, int, int, int]]:
    """Return of each checked span: the tokens before it, how many are drafted, accepted, judged (to the first bad)."""
    found, tokens = [], answered.answer.tokens
    for request in answered.requests:
        if request.kind == "check" and (num := request.num_scored):
            start, span = len(request.sent) - num - len(answered.prompt), request.sent[-num:]
            stands = [token.how == "accepted" for token in tokens[start : start + num]]
            if answered.ended and len(stands) < num:
                stands.append(span[len(stands)] in end_ids)
            accepted = [*stands, False].index(False)
            found.append((start, num, accepted, min(accepted + 1, len(stands))))
    return found


def _counted(spans: Sequence[tuple[int, int, int, int]], longest: int, chances: Sequence[float]) -> dict[str, Any]:
    """Return counts over an answer's spans. ``reach``: how many have more than 0, 1, ... tokens."""
    judged = [chances[start + i] for start, _, _, num in spans for i in range(num)]
    return {
        "checks": len(spans),
        "accepted": sum(accepted for _, _, accepted, _ in spans),
        "judged": len(judged),
        ITSELF: sum(judged),
        "reach": [sum(num > i for _, num, _, _ in spans) for i in range(longest)],
    }


def expected_length(share: Floats, reach: Floats, checks: Floats) -> Floats:
    """Return the tokens that a check accepts if each one stands with one chance; the cloud's own is not counted.

    Shapes (C,), (G, C), (C,) -> (C,), as ``Resamples.sums`` gives them.

    >>> expected_length(np.array([0.5]), np.array([[6.0], [6.0], [6.0]]), np.array([6.0]))  # 1/2 + 1/4 + 1/8
    array([0.875])
    """
    stand = share ** np.arange(1.0, len(reach) + 1.0)[:, None]
    return ratio((stand * reach).sum(axis=0), checks)


def chains_report(design: Design, grids: Sequence[Grid], found: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """Return predicted beside observed acceptance, by pair, rule and span."""
    rows = []
    for pair, rule in product(design.pairs, RULES):
        told_of = [e["rules"][rule] for g, of in zip(grids, found, strict=True) if g.pair == pair for e in of]
        spans = [int(name) for name in told_of[0] if name.isdecimal()]
        rows += [{"pair": pair, "rule": rule, "span": span} | _row(told_of, span) for span in spans]
    return {"rows": rows, "summary": [*_said(rows)]}


def _row(asked: Sequence[Mapping[str, Any]], span: int) -> dict[str, Any]:
    """Compare one rule's counts at a span with what each text predicts, over N questions drawn again together.

    ``less``: predicted less observed; ``rank``: Spearman's correlation of both by question; ``length``: tokens that a
    check accepts.
    """
    own, draws = [each[f"{span}"] for each in asked], resampled(len(asked))
    count = {name: np.array([each[name] for each in own], dtype=np.float64).T for name in own[0]}
    sums = {name: draws.sums(each) for name, each in count.items()}
    observed, seen = ratio(sums["accepted"], sums["judged"]), ratio(count["accepted"], count["judged"])
    length = partial(expected_length, reach=sums["reach"], checks=sums["checks"])
    lengths = {"observed": ratio(sums["accepted"], sums["checks"]), KNOWN: length(observed)}
    row: dict[str, Any] = {"questions": len(asked), "judged": int(count["judged"].sum()), "observed": told(observed)}
    for source in SOURCES:
        pairs = (count[ITSELF], count["judged"]) if source == ITSELF else np.array([each[source] for each in asked]).T
        predicted, by_question = ratio(*map(draws.sums, pairs)), ratio(*pairs)
        known = np.isfinite(by_question) & np.isfinite(seen)
        alike, num = weighted_spearman(by_question[known], seen[known]), int(known.sum())
        rank = estimate_to_json(Positions(np.arange(num), num).estimate(alike))
        row[source] = {"predicted": told(predicted), "less": told(predicted - observed), "rank": rank}
        lengths[source] = length(predicted)
    return row | {"length": {name: told(each) for name, each in lengths.items()}}


def _said(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say how far both models' own texts predict the longest span, and that the judged positions tell nothing new."""
    for row in (each for each in rows if each["observed"]["value"] is not None):
        cloud, local, length = row[CLOUD.name], row[LOCAL.name], row["length"]
        if row["span"] == max(each["span"] for each in rows):
            low, high = (cloud["less"][end] or 0.0 for end in ("low", "high"))
            apart = "too high" if low > 0.0 else "too low" if high < 0.0 else "no difference is seen"
            yield (
                f"{row['pair']}, {row['rule']}, spans of {row['span']}: {estimate(row['observed'])} of the judged "
                f"tokens are accepted. {RULES[row['rule']][2]} along the cloud's own texts is off by "
                f"{estimate(cloud['less'], 3)}: {apart}; along the local model's by {estimate(local['less'], 3)}. Rank "
                f"correlation by question: {estimate(cloud['rank'])}, {estimate(local['rank'])}. A check "
                f"accepts {estimate(length['observed'])} tokens, {estimate(length[CLOUD.name])} are predicted."
            )
    if off := [abs(row[ITSELF]["less"]["value"] or 0.0) for row in rows]:
        yield (
            f"Along the judged positions themselves the prediction is off by at most {max(off):.3f}: that is each "
            "rule's own law, and tells nothing new."
        )


def chains_document(report: dict[str, Any]) -> Document:
    """Return acceptance and lengths by pair, rule and span."""
    name: dict[str, Cell] = {"pair, rule, span": lambda row: f"{row['pair']}, {row['rule']}, {row['span']}"}
    shares = name | {"questions": at("questions"), "judged": at("judged")}
    shares["accepted"] = with_interval("observed", digits=3)
    for source, what in product(SOURCES, ("predicted", "less", "rank")):
        shares[f"{what}, {source}"] = with_interval(source, what, digits=3)
    lengths = name | {of: with_interval("length", of) for of in ("observed", KNOWN, *SOURCES)}
    return [
        table_of("Drafted tokens accepted, observed and predicted along three texts", report["rows"], shares),
        table_of("Tokens that a check accepts, observed and by a + a^2 + ... + a^g", report["rows"], lengths),
    ]


TITLE = "Chains: predicted against observed acceptance"
CHAINS_SECTION = Section("chains", TITLE, chains_grids, chains_report, chains_document, ("spans",))


# Trees: several drafted candidates a position, beside one chain of as many tokens. Best-first by joint probability. A
# position takes candidates while a target within so many nats of the draft may favour another (its certificate): at 0 a
# chain. Greedily they are the likeliest; at temperature 1 drawn without replacement, each place chosen before its draw,
# and accepted by recursive rejection (SpecInfer, arXiv:2305.09781; Sequoia, 2402.12374; RSD, 2402.14160). A text
# endpoint scores chains: a prompt a leaf. An ideal one scores trees. The laws (``tests/bench/test_study_tree.py``): a
# text has the target's law over all draws; a chain is the product's; what is cached is what all prompts share.
SHAPES = {"chain": 0.0, "certified": 0.1, "best-first": np.inf}  # on 48 calibration questions 0.02 to 0.5 are alike
ENDPOINTS = ("text endpoint", "ideal endpoint")
RowAfter: TypeAlias = Callable[[Ids], Dense]
Tree: TypeAlias = dict[Ids, list[int]]  # the candidates after each drafted text that goes on, in their order
Draw: TypeAlias = Callable[[Floats], Any]  # an index by weights, shape (V,); greedily numpy.argmax


def draft_tree(rows: RowAfter, text: Ids, span: int, nats: float, is_last: Callable[[Ids], bool], draw: Draw) -> Tree:
    """Draft ``span`` tokens, fewer where texts end, each where the likeliest path goes that is not drafted."""
    tree, left = {text: list[int]()}, {text: rows(text).probs}
    while left and sum(map(len, tree.values())) < span:
        above = max(left, key=lambda each: float(left[each].max()))
        mass, candidates = left[above], tree[above]
        candidates.append(token := int(draw(mass)))
        if not is_last(child := (*above, token)):
            tree[child], left[child] = [], mass[token] * rows(child).probs
        mass[token] = 0.0
        if not mass.any() or certificate(rows(above), TopMAcceptance(len(candidates)), "reverse") >= nats:
            del left[above]
    return tree


def accept_path(tree: Tree, target: RowAfter, draft: RowAfter, draw: Draw) -> Ids:
    """Return the text with the accepted candidates and, unless it ends, the target's own token after them."""
    text = next(iter(tree))
    while text in tree:
        left, others = target(text).probs, draft(text).probs
        for token in tree[text]:
            kept = accept_prob(left, others)[token]
            if draw(np.array([kept, 1.0 - kept])) == 0:
                break
            left, others = residual(left, others), np.where(np.arange(others.size) == token, 0.0, others)
            others /= others.sum() or 1.0
        else:
            token = int(draw(left))
        text += (token,)
    return text


def answer_by_trees(world: Any, prompt: Ids, most: int, span: int, nats: float, sampling: Sampling) -> dict[str, Any]:
    """Return an answer's ``ids``, an end among them, and what endpoints are asked: never again for a row once shown."""
    rng = np.random.default_rng([sampling.seed, *prompt])
    draw: Draw = np.argmax if sampling.greedy else lambda weights: rng.choice(weights.size, p=weights / weights.sum())
    text, asked, ideal, ends = prompt, list[CountedRequest](), list[CountedRequest](), world.cloud.end_ids

    def is_last(at: Ids) -> bool:
        return len(at) > len(prompt) and (at[-1] in ends or len(at) == len(prompt) + most)

    while not is_last(text):
        tree, old = draft_tree(world.local_row, text, span, nats, is_last, draw), len(text) - 1
        drafted = [(*above, token) for above, candidates in tree.items() for token in candidates]
        ideal.append(CountedRequest("check", old + 1 + len(drafted), len(drafted), old if ideal else 0, 1))
        leaves = [each for each in drafted if not tree.get(each)]
        for i, path in enumerate(leaves):
            known = max((num_shared(path, each) for each in leaves[:i]), default=old)
            asked.append(CountedRequest("check", len(path), len(path) - known - 1, known if asked else 0, 1))
        text = accept_path(tree, lambda at: warp(world.cloud_row(at), sampling), world.local_row, draw)
    return {"ids": text[len(prompt) :], ENDPOINTS[0]: asked, ENDPOINTS[1]: ideal}


async def try_trees(
    spans: Sequence[int], world: World, question: GradedQuestion, sampling: Sampling, check: CheckAnswer
) -> Record:
    """Answer by each rule, span and shape beside the cloud alone."""
    found = dict[str, dict[str, Any]]()
    rows = SimpleNamespace(cloud=world.cloud, local_row=cache(world.local_row), cloud_row=cache(world.cloud_row))
    for rule, (temperature, *_) in RULES.items():
        drawn = replace(sampling, temperature=temperature)
        [alone] = (await answer_arms(world, question, (CLOUD,), drawn, check)).values()
        found[rule], own = {CLOUD.name: spent_record(alone)}, (rows, alone.prompt, question.max_tokens)
        for span, (shape, nats) in product(spans, SHAPES.items()):
            found[rule][f"{shape} {span}"] = answer_by_trees(*own, span, nats, drawn)
    return {"text": question.text, "kind": question.kind, "seed": sampling.seed, "rules": found}


def tree_report(design: Design, grids: Sequence[Grid], found: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """Return what each shape shows and pays by pair and rule, beside the cheapest chain; where a tree wins."""
    rows, summary, wins = list[dict[str, Any]](), list[str](), list[str]()
    for pair, rule in product(design.pairs, RULES):
        asked = [e["rules"][rule] for g, of in zip(grids, found, strict=True) if g.pair == pair for e in of]
        shown, won = {arm: dict[str, Floats]() for arm in asked[0] if arm != CLOUD.name}, list[str]()
        for arm, own in shown.items():
            sizes = np.array([[len(each[arm][of]) for of in ("ids", *ENDPOINTS)] for each in asked])
            tokens, prompts, rounds = resampled(len(asked)).sums(sizes.T)
            own |= {"tokens": ratio(tokens, rounds), "rounds": rounds / len(asked), "prompts": ratio(prompts, rounds)}
            own["more"] = own["tokens"] - shown[f"chain {arm.split()[1]}"]["tokens"]
        for tariff, endpoint in product(design.tariffs, ENDPOINTS):
            price, title = (tariff.setting, tariff.prices), f"{tariff.name}, {endpoint}"
            alone = bills([each[CLOUD.name] for each in asked], *price)
            paid = {arm: bills([{"requests": each[arm][endpoint]} for each in asked], *price) for arm in shown}
            cheapest = sorted(shown, key=lambda arm: float(paid[arm].sum()))
            chain, tree = (next(arm for arm in cheapest if ("chain" in arm) == wanted) for wanted in (True, False))
            for arm, own in shown.items():
                own[title] = paid_ratio(paid[arm], alone)
                own[f"over the cheapest chain, {title}"] = paid_ratio(paid[arm] - paid[chain], alone)
            less = told(shown[tree][f"over the cheapest chain, {title}"])
            won += [f"{title} ({tree}, {estimate(less, 3)})"] if (less["high"] or 0.0) < 0.0 else []
        name = {"pair": pair, "rule": rule, "questions": len(asked)}
        rows += [name | {"arm": arm} | {what: told(each) for what, each in own.items()} for arm, own in shown.items()]
        more, prompts = (estimate(rows[-1][what]) for what in ("more", "prompts"))
        said = f"{pair}, {rule}: {arm} shows {more} tokens a round more than a chain, by {prompts} prompts."
        summary.append(
            f"{said} The cheapest tree costs less than the cheapest chain under {', '.join(won) or 'no tariff'}."
        )
        wins += won
    num, texts = len(summary) * len(design.tariffs), sum(ENDPOINTS[0] in won for won in wins)
    overall = (
        f"A tree costs less than the cheapest chain in {texts} of {num} comparisons over a text endpoint (a prompt a "
        f"leaf) and in {len(wins) - texts} of {num} over an ideal one (a request a tree), by multiples of the cloud's "
        "own bill."
    )
    return {"rows": rows, "summary": [overall, *summary]}


def tree_document(report: dict[str, Any]) -> Document:
    """Return tokens and prompts a round, rounds an answer, and bills, by pair, rule, shape and span."""
    first = report["rows"][0].items()
    columns = {e: with_interval(e, digits=3) if isinstance(value, dict) else at(e) for e, value in first}
    return [table_of("Tokens and prompts a round, more tokens than a chain's, and bills", report["rows"], columns)]


def tree_grids(design: Design) -> tuple[Grid, ...]:
    """Return the grids of chains, with trees in their place; option ``spans``, drafted tokens a round."""
    grids = ((grid, grid.content[1]) for grid in chains_grids(design))
    return tuple(replace(e, trial=partial(try_trees, of), content=("tree", str(SHAPES), of)) for e, of in grids)


TREE_SECTION = Section("tree", "Trees of drafted tokens", tree_grids, tree_report, tree_document, ("spans",))
