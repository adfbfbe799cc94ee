"""Several local models that write as one, through the real drafter: exact rules stay exact while the weights move.

Three tokens and every coin, as in ``test_exact.py``. The models are tables behind engines; the weights are those of
``run.experts``, which follow each check and each token that the toy cloud writes.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from cases import each, each_of
from scripted_engine import ScriptedEngine

from hybrid.engine import Cursor
from hybrid.policy import PolicyOptions, decode, preset
from hybrid.policy.requests import (
    AnswerContinues,
    AnswerEnded,
    Check,
    Draft,
    Emit,
    PendingToken,
    Scored,
    Write,
    Wrote,
    ids,
)
from hybrid.prob import Dense, kl_divergence
from hybrid.run.drafting import Drafter
from hybrid.run.experts import ExpertCursor
from hybrid.types import Sampling

LENGTH = 3
AT_ONE, GREEDY = Sampling(1.0), Sampling()
PROMPT = (0,)


class Played:
    """An answer of several models and a toy cloud. ``wrong``: what is drawn is judged against the first model alone."""

    def __init__(self, models, large, coin, mixing, *, most=LENGTH, end=2, sampling=AT_ONE, wrong=False, told=True):
        size = large(()).num_tokens
        engines = [
            ScriptedEngine("abcde"[:size], lambda at, m=model: m(at[1:]).logits, end_ids=frozenset({end}))
            for model in models
        ]
        self.cursor = ExpertCursor({f"m{i}": Cursor(engine) for i, engine in enumerate(engines)}, mixing)
        self.coin, self.large, self.most, self.end = coin, large, most, end
        self.sampling, self.wrong, self.told = sampling, wrong, told
        self.drafter = Drafter(self.cursor, PROMPT, sampling, self.toss)
        self.engines, self.shown, self.log, self.weights, self.said = engines, [], [], [], []

    def toss(self, probs, key):
        return self.coin(probs, key) if self.coin else int(np.argmax(probs))

    def play(self, policy):
        loop, reply = decode(policy, self.toss), None
        while True:
            try:
                request = loop.send(reply)
            except StopIteration:
                return self
            self.log.append(request)
            self.weights.append(tuple(self.cursor.weights.values()))
            reply = self.answer(request)

    def answer(self, request):
        match request:
            case Draft(at):
                room = self.most - len(at)
                drafted = self.drafter.draft(request, min(request.limit, room), lambda: False)
                return replace(drafted, full=len(drafted.span) >= room)
            case Check():
                return self.check(request)
            case Write(at):
                row = self.large(at)
                if request.ban:
                    probs = row.probs
                    probs[list(request.ban)] = 0.0
                    row = Dense.from_probs(probs / probs.sum())
                token = self.toss(row.probs, None)
                known = self.large.shown(at, 2) if self.told and not request.ban else None
                span = (PendingToken(token, "cloud", "written", target_row=known),)
                if request.wants_draft_rows:
                    local = self.drafter.rows(at, (token,), lambda: False)
                    span = (replace(span[0], draft_row=local[0]),)
                if not request.ban:
                    self.drafter.observe(at, span)
                    self.said.append((at, known or token))
                return Wrote(span, ended=True)
            case Emit(tokens):
                for pending in tokens:
                    self.shown.append(pending)
                    if pending.id == self.end:
                        return AnswerEnded("stop")
                    if len(self.shown) >= self.most:
                        return AnswerEnded("length")
                return AnswerContinues()

    def check(self, request):
        text = ids(request.span)
        num = len(text) + (request.wants_next_row and not (text and text[-1] == self.end))
        rows = tuple(self.large.shown(request.at + text[:i], 2) for i in range(num))
        beside = self.drafter.read_beside(request, num, lambda: False)
        known = [*beside, *(pending.draft_row for pending in request.span[len(beside) :])]
        self.said += [(request.at + text[:i], rows[i]) for i in range(min(len(text), num))]
        heard = zip(request.span, rows, known, strict=False)
        self.drafter.observe(
            request.at, tuple(replace(token, target_row=row, draft_row=local) for token, row, local in heard)
        )
        if self.wrong:
            beside = tuple(pending.draft_row.parts[0] for pending in request.span)
            for pending in request.span:
                object.__setattr__(pending, "drawn_from", pending.draft_row.parts[0])
        return Scored(rows, beside)


def models(toys, number=0):
    """Two models, and a cloud that is partly each of them."""
    one, other = toys.Toy(f"one{number}"), toys.Toy(f"other{number}")
    return (one, other), toys.Mix(one, f"large{number}", 0.5)


def turns(toys, number=0):
    """Two models on five tokens, and a cloud that is mostly the one or the other, three tokens each in turn."""
    pair = tuple(toys.Toy(f"{name}{number}", 5) for name in ("one", "other"))
    mixes = [toys.Mix(model, f"large{number}", 0.3) for model in pair]
    return pair, toys.Made(lambda at: mixes[len(at) // 3 % 2](at))


def law_of(toys, policy, made, mixing, **how):
    """The law of the text; every answer's weights are kept, to see that they moved."""
    moved = []

    def answer(coin):
        played = Played(*made, coin, mixing, **how).play(policy)
        moved.append(len(set(played.weights)) > 1)
        return played.shown, played.log

    return toys.law_of(answer, LENGTH), moved


EVERY = [
    (mixing, *rule)
    for rule in (("exact", 2, {}), ("block", 3, {}), ("exact", 1, {"hold": 1}), ("kl:0", 2, {}))
    for mixing in ("mix", "select")
]


@pytest.mark.parametrize("rules", [EVERY[:1], pytest.param(EVERY[1:], marks=pytest.mark.slow)], ids=["one", "others"])
def test_exact_rules_give_the_clouds_own_law_whatever_the_weights_do(toys, rules):
    for mixing, name, span, more in each_of(rules):
        policy = preset(name, PolicyOptions(span=span, sampling=AT_ONE, cloud_top_k=2, **more))
        made = models(toys)
        found, moved = law_of(toys, policy, made, mixing)
        assert any(moved)
        assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
        assert toys.distance(found, toys.own_law(made[1], LENGTH)) < 1e-12, (name, mixing)


@pytest.mark.slow
def test_judged_against_one_models_law_a_mixtures_text_is_wrong(toys):
    made = models(toys)
    policy = preset("exact", PolicyOptions(span=2, sampling=AT_ONE, cloud_top_k=2))
    found, _ = law_of(toys, policy, made, "mix", wrong=True)
    assert toys.distance(found, toys.own_law(made[1], LENGTH)) > 0.01


def greedy(policy, made, mixing, most=12):
    return Played(*made, None, mixing, most=most, end=-1, sampling=GREEDY).play(policy)


def kl_policy(threshold, **choices):
    return preset(f"kl:{threshold}", PolicyOptions(span=4, cloud_top_k=2, **choices))


def divergences(played, at):
    """KL of every model's row on what is shown after a text, as the judge has it."""
    row = played.large.shown(at, 2)
    rows = [Dense.from_logits(engine._scores((*PROMPT, *at))) for engine in played.engines]
    return [kl_divergence(row, local).lower for local in rows]


def test_the_cloud_writes_only_where_all_of_several_models_exceed_the_threshold(toys):
    """``select``: a token that the writing model loses goes to another model that is within the threshold."""
    num_given = num_cloud = 0
    for number, threshold in itertools.product(range(6), (0.05, 0.1, 0.2)):
        played = greedy(kl_policy(threshold), turns(toys, number), "select")
        shown = ids(tuple(played.shown))
        for place, pending in each_of(enumerate(played.shown)):
            if pending.how == "recovered":
                num_cloud += 1
                assert min(divergences(played, shown[:place])) > threshold
        asked = [request for request in played.log if not isinstance(request, Emit)]
        for before, request in each_of(itertools.pairwise(asked), least=0):
            if isinstance(before, Check) and isinstance(request, Write):
                assert played.shown[len(request.at) - 1].how == "recovered", "with the token that all have lost"
        named = [request for request in asked if isinstance(request, Draft) and request.expert is not None]
        num_given += len(named)
        for request in each_of(named, least=0):
            assert divergences(played, request.at)[request.expert] <= threshold
    assert num_given
    assert num_cloud


def test_a_mixtures_own_divergence_decides(toys):
    """``mix``: there is one law, and the cloud writes where that one exceeds the threshold."""
    for number in range(4):
        played = greedy(kl_policy(0.05), turns(toys, number), "mix")
        assert all(request.expert is None for request in played.log if isinstance(request, Draft))
        for pending in each_of(played.shown):
            if pending.how == "accepted":
                assert kl_divergence(pending.target_row, pending.draft_row).lower <= 0.05
                assert len(pending.draft_row.weights) == 2


@each("mixing", ["mix", "select"])
def test_weights_stand_still_while_a_span_is_drafted_and_follow_what_was_said(toys, mixing):
    played = greedy(kl_policy(0.3), turns(toys, 1), mixing, most=30)
    for request, weights, after in each_of(zip(played.log, played.weights, played.weights[1:], strict=False)):
        if isinstance(request, Emit):
            assert weights == after, "what is shown moves nothing"
    drafts = [
        weights for request, weights in zip(played.log, played.weights, strict=True) if isinstance(request, Draft)
    ]
    assert drafts[0] == (0.5, 0.5)
    assert len(set(drafts)) > 2


@each("mixing", ["mix", "select"])
def test_what_was_said_of_a_rejected_tokens_successors_moves_nothing(toys, mixing):
    """Weights are those of the shown text's own positions, each once, whatever else was checked."""
    played = greedy(kl_policy(0.05), turns(toys, 2), mixing)
    shown = ids(tuple(played.shown))
    seen = played.drafter._num_learned
    weights = played.cursor._weights.start((0.5, 0.5))
    said = {len(at): reference for at, reference in played.said if at == shown[: len(at)]}
    for place in sorted(said):
        if place < seen:
            rows = [Dense.from_logits(engine._scores((*PROMPT, *shown[:place]))) for engine in played.engines]
            weights = weights.after(said[place], rows)
    assert played.cursor.weights == pytest.approx(dict(zip(("m0", "m1"), weights.weights, strict=True)), rel=1e-5)


@each("mixing", ["mix", "select"])
def test_one_model_alone_is_itself(toys, mixing):
    (one, _), large = turns(toys, 3)
    for name in ("kl:0.1", "greedy-exact", "doubt"):
        policy = preset(name, PolicyOptions(cloud_top_k=2))
        played = greedy(policy, ((one,), large), mixing)
        expected, _ = toys.play(policy, one, large, None, 12, k=2, end=-1)
        assert [(t.id, t.source, t.how) for t in played.shown] == [(t.id, t.source, t.how) for t in expected]
