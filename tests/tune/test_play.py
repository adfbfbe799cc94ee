"""Policies played along labels: their bills where the sum is known by other means."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from bought_texts import questions
from cases import each, each_of

from hybrid.prob import margin_certificate
from hybrid.spend import AskPrices, Price
from hybrid.tune.labels import LabelledAnswers, is_favourite
from hybrid.tune.play import Play, greedy_policy

PRICES = [AskPrices.of(Price.parse(f"1/0.1/4{tariff}")) for tariff in ("", ":cached", ":new")]
NEVER, ALWAYS = 1000000, "kl:0"
QUESTIONS = questions(6)


def played(question, policy, **chosen):
    return Play(greedy_policy(policy, **chosen), question)


def doubt(question, entropy):
    return played(question, "doubt", entropy=entropy)


def kept(play):
    """The runs of places that are left to the local model, in the draft and in the cloud's answer."""
    runs = [np.split(places, np.flatnonzero(np.diff(places) > 1) + 1) for places in (play.drafted, play.followed)]
    return tuple([(int(run[0]), int(run[-1]) + 1) for run in each if len(run)] for each in runs)


@each("prices", PRICES)
def test_the_two_models_alone_and_a_check_that_turns_nothing_down(prices):
    for question in each_of(QUESTIONS):
        prompt, num, written = 3, len(question.draft), len(question.written.signals)
        alone = played(question, "cloud")
        assert (alone.price(prices), len(alone.requests), alone.excess) == (prices.write(prompt, written, 0), 1, 0.0)
        assert not alone.shows(ALWAYS)
        lost = question.draft.excess.mean()
        for policy, price in (("local", 0.0), (f"once:{NEVER}", prices.check(prompt, num, 0))):
            found = played(question, policy)
            assert (found.price(prices), len(found.requests)) == (price, price > 0.0)
            assert math.isclose(found.excess, lost)
            assert found.shows(ALWAYS)
            assert found.shows("kl:0.5") is (question.draft.first_rejection("kl:0.5") is not None)
        whole = played(question, f"kl:{NEVER}", span=999)
        assert whole.requests == found.requests
        assert math.isclose(whole.excess, lost)


@each("prices", PRICES)
def test_what_is_turned_down_is_paid_and_leaves_what_came_before_it(prices):
    for question in each_of(QUESTIONS):
        place = question.draft.first_rejection("kl:0.5")
        found, rest = played(question, "once:0.5"), len(question.written.signals)
        assert not found.shows("kl:0.5")
        if place is None:
            assert len(found.requests) == 1
            continue
        written = max(1, rest - place - 1)
        price = prices.check(3, len(question.draft), 0) + prices.write(3 + place + 1, written, 3 + place)
        assert found.price(prices) == price
        assert math.isclose(found.excess, question.draft.excess[:place].sum() / len(question.draft))


def test_a_recovered_token_that_is_the_clouds_last_is_followed_by_no_request():
    """The draft goes on where the cloud's answer ends; behind another beginning the cloud writes one token at least."""
    far = np.arange(9) == 5
    for first, num in each_of(((0, 1), (50, 2))):
        own = bought(QUESTIONS[0].draft, np.arange(9) + first * (np.arange(9) == 0), [], kl=3.0 * far)
        answer = bought(QUESTIONS[0].written, np.arange(6), [])
        assert len(played(LabelledAnswers(own, answer), "once:0.5").requests) == num


def test_everything_turned_down_is_a_check_a_token_or_blocks_that_double():
    """From its first token on the text is the cloud's own answer."""
    prices, question = PRICES[1], QUESTIONS[0]
    num = len(question.written)
    assert question.written.turned_down(ALWAYS).all(), "no two rows are the same"
    single = played(question, ALWAYS, span=4, hold=0)
    assert (len(single.requests), single.excess) == (num, 0.0)
    checks = [prices.check(3 + at, min(4, num - at), 3 + at - 1 if at else 0) for at in range(num)]
    assert math.isclose(single.price(prices), sum(checks))
    blocks, at, limit = 1, 1, 4
    while at < num:
        blocks, at, limit = blocks + 1, at + limit, 2 * limit
    over = played(question, ALWAYS, span=4)
    assert (len(over.requests), over.excess) == (blocks, 0.0)


def test_a_check_judges_the_token_after_its_span_too():
    """The cloud's row there comes with it, so a token that is turned down there takes no check of its own."""
    own = bought(QUESTIONS[0].draft, np.arange(8), [], kl=3.0 * (np.arange(8) == 4), excess=3.0 * (np.arange(8) == 4))
    answer = bought(QUESTIONS[0].written, np.arange(8) + 50, [])
    question = LabelledAnswers(own, answer)
    assert played(question, "kl:0.5", span=4).requests == [("check", 3, 4, 0), ("write", 8, 3, 7)]
    after = [("check", 3, 4, 0), ("check", 7, 4, 7), ("check", 8, 3, 7)]
    assert played(question, "excess:0.5", span=4).requests == after, "a judge of tokens looks at none that is not there"


def handoff(text, at, known, prices):
    """One handoff of doubt from a token on: where it ends, and what each of its blocks costs."""
    far, paid, limit = text.turned_down("kl:0.02"), [], 4
    while at < len(text):
        end = min(at + limit, len(text))
        paid.append(prices.write(3 + at, end - at, known))
        agree = not far[max(at, end - 2) : end].any()
        at, known, limit = end, 3 + end, 2 * limit
        if agree:
            break
    return at, paid


@each("prices", PRICES)
def test_doubt_asks_at_the_first_token_at_no_entropy_and_never_at_infinite_entropy(prices):
    for question in each_of(QUESTIONS):
        never, num = doubt(question, math.inf), len(question.draft)
        assert (never.price(prices), never.requests, kept(never)) == (0.0, [], ([(0, num)], []))
        asked, at, paid = doubt(question, 0.0), 0, []
        assert not asked.drafted, "no row is certain"
        while at < len(question.written):
            at, more = handoff(question.written, at, 3 + at if at else 0, prices)
            paid += more
        assert len(asked.requests) == len(paid)
        assert math.isclose(asked.price(prices), sum(paid))
        assert asked.excess == 0.0


@each("same", [True, False])
def test_the_clouds_answer_stands_for_what_follows_only_where_the_draft_is_that_answer_so_far(same):
    """Greedy, the cloud would write its own answer on; a draft that had gone another way stands for itself."""
    for question in each_of(QUESTIONS):
        draft, written, place = question.draft.signals, question.written.signals, 2
        unsure = np.where(np.arange(len(draft)) == place, 9.0, 0.0)
        tokens = np.concatenate([draft.tokens[:place] + (not same), written.tokens[place:]])
        known = LabelledAnswers(
            replace(question.draft, signals=replace(draft, entropy=unsure)),
            replace(question.written, signals=replace(written, tokens=tokens)),
        )
        found, stands = doubt(known, 8.0), known.written if same else known.draft
        at, paid = handoff(stands, place, 0, PRICES[0])
        assert (len(found.requests), found.price(PRICES[0])) == (len(paid), sum(paid))
        # The local model leaves the cloud's answer with its first favourite that is another token, for its own draft.
        leaves = [at + int(other) + 1 for other in np.flatnonzero(~is_favourite(stands.signals)[at : len(stands)])[:1]]
        behind = [(at, leaves[0] if leaves else len(stands))] if at < len(stands) else []
        own = [(0, place), *[(each, len(draft)) for each in leaves if each < len(draft)]]
        assert kept(found) == ((own, behind) if same else ([(0, place), *behind], []))
        lost = known.draft.excess[leaves[0] :].sum() if leaves else 0.0
        at_last = stands.kl[leaves[0] - 1] if leaves else 0.0 if same else stands.excess[at:].sum()
        left = known.draft.excess[:place].sum() + at_last + lost
        assert math.isclose(found.excess, left / len(draft))


def bought(of, tokens, unsure, other=(), **more):
    """A text of these tokens; the local model is unsure at some of them, and its favourite another one at others."""
    num = len(tokens)
    places = np.arange(num)
    rows = {"top": np.full(num, 0.9), "logprob": np.where(np.isin(places, other), -3.0, np.log(0.9)), "tokens": tokens}
    signals = replace(of.signals.part(slice(num)), entropy=np.isin(places, unsure) * 9.0, **rows)
    none = {"kl": np.zeros(num), "excess": np.zeros(num), "certificates": {"margin": np.zeros(num)}}
    return replace(of, signals=signals, **(none | more))


def test_what_the_local_model_writes_after_a_handback_is_its_draft_while_nothing_else_was_written_before():
    """The models part at token 6 where neither is unsure: the pen, back at 4, is not asked for again.

    Along the cloud's answer the local model is unsure at 7, which it never reaches; its own draft ends at 8.
    """
    far = np.where(np.arange(9) == 6, 3.0, 0.0)
    tokens = np.where(far[:8] > 0.0, 50, np.arange(8))
    own = bought(QUESTIONS[0].draft, tokens, [0], kl=far[:8], excess=far[:8])
    answer = bought(QUESTIONS[0].written, np.arange(9), [0, 7], [6], kl=far)
    found = doubt(LabelledAnswers(own, answer), 8.0)
    assert found.requests == [("write", 3, 4, 0)]
    assert kept(found) == ([(7, 8)], [(4, 7)])
    assert found.shows("kl:0.7")
    assert math.isclose(found.excess, 3.0 / 8)


def test_along_the_clouds_answer_another_favourite_loses_what_the_margin_tells_however_small_its_kl_is():
    """0.9 and 0.1 in the cloud's row, 0.45 and 0.55 in the local one: KL 0.45, excess loss ln 9 = 2.197."""
    other, num = np.arange(8) == 3, 8
    kl = 0.9 * math.log(2) + 0.1 * math.log(0.1 / 0.55)
    own = bought(
        QUESTIONS[0].draft, np.arange(num) + 50 * (np.arange(num) == 0), [], excess=5.0 * (np.arange(num) == 0)
    )
    margin = {"margin": margin_certificate(0.8) * other}
    answer = bought(QUESTIONS[0].written, np.arange(num), [], [3], kl=kl * other, certificates=margin)
    question = LabelledAnswers(own, answer)
    checked, passed = (played(question, f"excess:{nats}", span=num) for nats in (2.19, 2.2))
    assert (len(checked.requests), len(passed.requests)) == (3, 2)
    assert checked.excess == 0.0
    assert 2.19 / num < passed.excess <= math.log(9) / num
    assert [passed.shows(f"kl:{nats}") for nats in (0.4, 0.5)] == [True, False]
    assert not checked.shows("kl:0.4")
