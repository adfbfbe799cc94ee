"""Drafted trees: the target's law over all draws, what a chain of the product does, and bills by a second hand."""

from __future__ import annotations

import asyncio
import inspect
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from cases import each_of

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.frame import PRICES, SETTINGS, CountedRequest, cost, counted
from hybrid.lab.experiments.grid import GridRun, ModelPair
from hybrid.lab.experiments.questions import as_questions, draw_problems
from hybrid.lab.experiments.world import RecordedRequest, open_world
from hybrid.lab.study import chains
from hybrid.lab.study.chains import (
    ENDPOINTS,
    SHAPES,
    TREE_SECTION,
    accept_path,
    answer_by_trees,
    draft_tree,
    try_trees,
)
from hybrid.lab.study.design import Design, NamedTariff
from hybrid.lab.study.sections import sections_of
from hybrid.prob import Dense, kl, warp
from hybrid.report import html, terminal
from hybrid.types import CloudUsage, Sampling

QUESTIONS = as_questions(draw_problems("calibration", 2, 3))
PAIRS = {"bundled": ModelPair(BUNDLED_LOCAL, BUNDLED_CLOUD)}
GREEDY = Sampling(0.0)
END, SIZE, MOST = 2, 4, 3


async def no_check(*_):
    """Check nothing."""


@dataclass
class DrawCourse:
    """Draws that fall as wanted, and then on the first index that can be; ``others``: where one falls otherwise."""

    wanted: tuple[int, ...]
    taken: list[int] = field(default_factory=list)
    others: list[tuple[int, ...]] = field(default_factory=list)
    chance: float = 1.0

    def __call__(self, weights):
        possible = np.flatnonzero(weights > 0.0).tolist()
        number = len(self.taken)
        if number >= len(self.wanted):
            self.others += [(*self.taken, other) for other in possible[1:]]
        self.taken.append(self.wanted[number] if number < len(self.wanted) else possible[0])
        self.chance *= float(weights[self.taken[-1]] / weights.sum())
        return self.taken[-1]


def made_rows(seed, size=SIZE, spread=0.7):
    """Return a model: a row for each text, always the same one."""

    @cache
    def row(text):
        probs = np.random.default_rng([seed, *text]).dirichlet(np.full(size, spread)) + 1e-3
        return Dense.from_probs(probs / probs.sum())

    return row


def is_last(text):
    return text[-1:] == (END,) or len(text) == MOST


def completed(text, chance, target, found):
    """Add the chances of all whole texts that go on from one, the target writing them."""
    if is_last(text):
        found[text] += chance
        return
    for token, prob in enumerate(target(text).probs):
        completed((*text, token), chance * prob, target, found)


def texts_of(target, draft, span, nats, accept=accept_path, reorder=lambda tree, _: tree, widths=None):
    """Return the chances of whole texts: one round over every course of its draws, the rest by the target."""
    found, left = defaultdict(float), [()]
    while left:
        draw = DrawCourse(left.pop())
        tree = reorder(draft_tree(draft, (), span, nats, is_last, draw), draft)
        text = accept(tree, target, draft, draw)
        if widths is not None:
            widths |= {(len(above), len(some)) for above, some in tree.items()}
        left += draw.others
        completed(text, draw.chance, target, found)
    return found


def furthest(target, draft, *round_of, **wrong):
    """Return by how much a text's chance differs from the target's own at most."""
    expected = defaultdict(float)
    completed((), 1.0, target, expected)
    found = texts_of(target, draft, *round_of, **wrong)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-9)
    return max(abs(found[text] - expected[text]) for text in expected.keys() | found.keys())


MODELS = [(made_rows(2 * i), made_rows(2 * i + 1, spread=3.0)) for i in range(4)]
ROUNDS = [*product((2, 3), SHAPES.values()), (4, np.inf)]


def test_over_all_draws_a_text_has_exactly_the_targets_law():
    """Two models made up, four tokens, one of them the end; two or more candidates a position, two or more deep."""
    widths = set()
    for (target, draft), own in each_of(product(MODELS, ROUNDS)):
        assert furthest(target, draft, *own, widths=widths) < 1e-9
    assert {(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 1)} <= widths


def changed(old, new):
    """Return ``accept_path`` with one expression of its source in another one's place."""
    source, scope = inspect.getsource(accept_path), dict(vars(chains))
    assert source.count(old) == 1
    exec(source.replace(old, new), scope)
    return scope["accept_path"]


def likeliest_first(tree, draft):
    """Choose places after their draws: the likeliest candidate of a position comes first."""
    return {text: sorted(some, key=lambda token: -draft(text).probs[token]) for text, some in tree.items()}


WRONG = {
    "the residual stays as it was": ("residual(left, others), np", "left, np"),
    "candidates as if drawn with replacement": ("np.where(np.arange(others.size) == token, 0.0, others)", "others"),
    "a rejected token's place is the target's": ("draw(left)", "draw(target(text).probs)"),
    "places chosen after their draws": None,
}


@pytest.mark.parametrize("name", WRONG)
def test_another_law_is_rejected_by_the_same_enumeration(name):
    other = {"accept": changed(*WRONG[name])} if WRONG[name] else {"reorder": likeliest_first}
    off = [furthest(target, draft, 3, np.inf, **other) for target, draft in MODELS]
    assert max(off) > 0.02


def test_greedily_the_text_is_the_targets_own_whatever_the_shape_and_a_wider_one_is_never_shorter_a_position():
    lengths = defaultdict(list)
    for number, nats, span in each_of(product(range(30), SHAPES.values(), (1, 4, 9))):
        target, draft = made_rows(number, 5), made_rows(number + 100, 5)
        tree = draft_tree(draft, (), span, nats, is_last, np.argmax)
        text = accept_path(tree, lambda at, row=target: warp(row(at), GREEDY), draft, np.argmax)
        own = ()
        while len(own) < len(text):
            own += (target(own).best,)
        assert text == own
        lengths[nats, span].append(len(text))
    assert np.mean(lengths[np.inf, 9]) > np.mean(lengths[0.0, 9])


def test_a_chain_has_one_candidate_and_the_widest_tree_those_of_the_most_joint_probability():
    for number, span in each_of(product(range(10), (1, 3, 6))):
        draft = made_rows(number, 4)
        chain = draft_tree(draft, (), span, 0.0, is_last, np.argmax)
        assert all(len(each) <= 1 for each in chain.values())
        tree = draft_tree(draft, (), span, np.inf, is_last, np.argmax)
        joint, above = {}, {(): 1.0}
        while above:
            text, mass = above.popitem()
            for token, prob in enumerate(draft(text).probs):
                joint[(*text, token)] = mass * prob
                if not is_last((*text, token)):
                    above[(*text, token)] = mass * prob
        likeliest = sorted(joint, key=lambda text: -joint[text])[:span]
        assert {(*text, token) for text, some in tree.items() for token in some} == set(likeliest)


def test_a_certified_position_holds_the_favourite_of_every_target_so_near():
    """And those farther away have another one: the certificate is not simply wide."""
    rng, outside, held = np.random.default_rng(0), [], 0
    for number in each_of(range(60)):
        draft, nats = made_rows(number, 6, 0.4)(()), float(rng.choice([0.02, 0.1, 0.4]))
        [candidates] = draft_tree(lambda _, row=draft: row, (), 6, nats, bool, np.argmax).values()
        for _ in range(200):
            pull = rng.beta(0.5, 2.0)
            probs = (1.0 - pull) * draft.probs + pull * rng.dirichlet(np.full(6, 0.2)) + 1e-9
            target = Dense.from_probs(probs / probs.sum())
            apart = kl(target, draft)
            if target.best not in candidates:
                outside.append(apart / nats)
                assert apart >= nats
            held += apart < nats and target.best != draft.best
    assert min(outside) < 1.6
    assert held > 100


class TwoMadeModels:
    """Two made models in a world's place."""

    def __init__(self, seed, size):
        self.local_row, self.cloud_row = made_rows(seed, size, 0.2), made_rows(seed + 50, size, 0.2)
        self.cloud = SimpleNamespace(end_ids=frozenset({END}))


def test_what_is_cached_and_scored_is_what_a_comparison_of_all_prompts_finds(monkeypatch):
    trees = []
    monkeypatch.setattr(chains, "draft_tree", lambda *given: trees.append(draft_tree(*given)) or trees[-1])
    forks = 0
    for seed, nats, temperature in each_of(product(range(8), SHAPES.values(), (0.0, 1.0))):
        trees.clear()
        prompt, sent, ideal = (3, 0, 1), [], []
        world = TwoMadeModels(seed, 6)
        answered = answer_by_trees(world, prompt, 12, 5, nats, Sampling(temperature, seed=seed))
        for tree in trees:
            [text, *_], shown = tree, set()
            nodes = [(*above, token) for above, some in tree.items() for token in some]
            whole = [path for path in nodes if not any(other[: len(path)] == path != other for other in nodes)]
            for path in whole:
                rows = {path[:length] for length in range(len(text), len(path) + 1)} - shown
                shown |= rows
                sent.append(RecordedRequest("check", path, len(rows) - 1, (), CloudUsage(len(path), 1)))
            forks += len(whole) > 1
            ideal.append((len(text) + len(nodes), len(nodes), len(text) - 1 if ideal else 0))
        assert answered[ENDPOINTS[0]] == [*counted(sent)]
        assert [each[1:4] for each in answered[ENDPOINTS[1]]] == ideal
        assert len(answered["ids"]) <= 12
        assert (answered["ids"][-1] == END) or len(answered["ids"]) == 12
    assert forks > 50


@pytest.mark.slow
def test_on_the_bundled_pair_a_chain_is_the_products_and_all_shapes_write_the_clouds_text():
    async def compare():
        ended = set()
        async with open_world(BUNDLED_LOCAL, BUNDLED_CLOUD) as world:
            for number, question in each_of(enumerate(QUESTIONS[:10])):
                asked = replace(question, max_tokens=(question.max_tokens, 11)[number % 2])
                record = await try_trees((1, 5), world, asked, Sampling(seed=number), no_check)
                cloud = await world.answer(asked.text, Arm("cloud", "cloud"), GREEDY, asked.max_tokens)
                for span, shape in product((1, 5), SHAPES):
                    found = record["rules"]["greedy-exact"][f"{shape} {span}"]
                    assert found["ids"][: len(cloud.ids)] == cloud.ids
                    assert len(found["ids"]) == len(cloud.ids) + cloud.ended
                for span in (1, 5):
                    own = await world.answer(
                        asked.text, Arm("", "greedy-exact", {"span": span}), GREEDY, asked.max_tokens
                    )
                    for endpoint in ENDPOINTS:
                        found = record["rules"]["greedy-exact"][f"chain {span}"][endpoint]
                        assert found == [*counted(own.requests)]
                ended.add(cloud.ended)
        assert len(ended) == 2

    asyncio.run(compare())


# Records made by hand: every number drawn.

TARIFFS = tuple(NamedTariff(f"1/0.1/4 {each.name}", PRICES[0], each) for each in SETTINGS[:2])


def made_requests(rng, most):
    sizes = [int(rng.integers(10, 40)) for _ in range(rng.integers(1, most))]
    return [["check", size, 4, int(rng.integers(0, size)), 1] for size in sizes]


def made(num):
    rng, records = np.random.default_rng(4), []
    for number in range(num):
        rules = {}
        for rule in chains.RULES:
            rules[rule] = {"cloud": {"requests": [["write", 30, 0, 0, int(rng.integers(10, 50))]]}}
            for span, shape in product((2, 5), SHAPES):
                ids = rng.integers(0, 9, size=rng.integers(1, 40)).tolist()
                asked = {endpoint: made_requests(rng, most) for endpoint, most in zip(ENDPOINTS, (20, 8), strict=True)}
                rules[rule][f"{shape} {span}"] = {"ids": ids} | asked
        records.append({"text": f"{number}", "kind": "", "seed": 0, "rules": rules})
    options = {"spans": (2.0, 5.0)}
    design = Design("made", ("tree",), PAIRS, {0: {"bundled": QUESTIONS[:num]}}, tariffs=TARIFFS, options=options)
    return design, TREE_SECTION.grids(design), [records]


def test_lengths_bills_and_what_is_less_are_those_of_a_second_hand():
    design, grids, [records] = made(9)
    report = TREE_SECTION.report(design, grids, [records])
    assert [(row["rule"], row["arm"]) for row in report["rows"]] == [
        (rule, f"{shape} {span}") for rule in chains.RULES for span in (2, 5) for shape in SHAPES
    ]

    def billed(rule, arm, endpoint, tariff):
        every = [each["rules"][rule][arm][endpoint] for each in records]
        return sum(cost([CountedRequest(*one) for one in asked], tariff.setting, tariff.prices) for asked in every)

    for row in each_of(report["rows"]):
        rule, arm, span = row["rule"], row["arm"], row["arm"].split()[1]
        lengths = {}
        for name in (arm, f"chain {span}"):
            own = [each["rules"][rule][name] for each in records]
            prompts, rounds = (sum(len(each[endpoint]) for each in own) for endpoint in ENDPOINTS)
            lengths[name] = sum(len(each["ids"]) for each in own) / rounds, rounds / 9, prompts / rounds
        assert [row[name]["value"] for name in ("tokens", "rounds", "prompts")] == pytest.approx(lengths[arm], abs=1e-4)
        assert row["more"]["value"] == pytest.approx(lengths[arm][0] - lengths[f"chain {span}"][0], abs=1e-4)
        for tariff, endpoint in each_of(product(TARIFFS, ENDPOINTS)):
            alone, title = billed(rule, "cloud", "requests", tariff), f"{tariff.name}, {endpoint}"
            paid = billed(rule, arm, endpoint, tariff)
            cheapest = min(billed(rule, f"chain {size}", endpoint, tariff) for size in (2, 5))
            assert row[title]["value"] == pytest.approx(paid / alone, abs=1e-4)
            less = row[f"over the cheapest chain, {title}"]
            assert less["value"] == pytest.approx((paid - cheapest) / alone, abs=1e-4)
            assert less["low"] <= less["value"] <= less["high"]


def test_a_tree_wins_only_where_its_whole_interval_is_below_the_cheapest_chain():
    """Drawn at temperature 1 by 5 tokens every time; greedily by 5 but once, and then it pays 30 more."""
    design, grids, [records] = made(9)
    for number, record in enumerate(records):
        for rule, name, endpoint in product(chains.RULES, record["rules"]["exact"], ENDPOINTS):
            if name == "certified 5":
                tokens = 50 if rule == "greedy-exact" and number == 4 else 15
            else:
                tokens = 20 if name == "chain 5" else 60
            if name != "cloud":
                record["rules"][rule][name][endpoint] = [["check", tokens, 4, 0, 1]]
    report = TREE_SECTION.report(design, grids, [records])
    titles = [f"{tariff.name}, {endpoint}" for tariff, endpoint in product(TARIFFS, ENDPOINTS)]
    for row, title in each_of(product(report["rows"], titles)):
        if row["arm"] == "certified 5":
            less = row[f"over the cheapest chain, {title}"]
            assert less["value"] < 0.0
            assert (less["high"] < 0.0) == (row["rule"] == "exact")
    overall, *each_rule = report["summary"]
    num = len(TARIFFS)
    assert f"in {num} of {2 * num} comparisons over a text endpoint" in overall
    assert f"in {num} of {2 * num} over an ideal one" in overall
    greedy, drawn = (each.partition(" cheapest chain under ")[2] for each in each_rule)
    assert greedy == "no tariff."
    assert [part.partition(" (")[0] for part in drawn.split("), ")] == titles
    assert drawn.count("(certified 5, -") == len(titles)


@pytest.mark.parametrize("num", [1, 9])
def test_the_section_is_shown_whatever_was_read(num):
    design, grids, found = made(num)
    [table] = TREE_SECTION.document(TREE_SECTION.report(design, grids, found))
    assert sections_of(design) == (TREE_SECTION,)
    assert len(table.rows) == 2 * 2 * len(SHAPES)
    assert "best-first 5" in html.page("title", [table])
    terminal.show([table])


def test_another_span_or_shape_is_another_record(monkeypatch):
    design, grids, _ = made(2)
    others = [TREE_SECTION.grids(replace(design, options={"spans": (2.0, 4.0)})), chains.chains_grids(design)]
    monkeypatch.setitem(SHAPES, "certified", 0.2)
    others.append(TREE_SECTION.grids(design))
    keys = [GridRun(each, PAIRS, BUNDLED_LOCAL.parent).key((0, 0)) for each in (grids, *others)]
    assert len({*keys}) == len(keys)
