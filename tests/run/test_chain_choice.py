"""Which chain writes the next answer: what a client hears of its answers, and what follows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cases import each

from hybrid.pairs.timings import Timings
from hybrid.record.events import Finished, LevelsCompared, RequestSettled, SpanDrafted, SpanRead
from hybrid.run.chain import (
    CLOUD,
    LEAST_COMPARED,
    LEAST_TOKENS,
    Chain,
    ChainChooser,
    chain_of,
    whole_chain,
)
from hybrid.run.composition import policy_of, sampling_of
from hybrid.run.contexts import FurtherModel, LocalModel
from hybrid.settings.config import Settings
from hybrid.types import CloudUsage

LOCAL = LocalModel(
    (), ms_per_token=9.0, name="mid", others={"small": FurtherModel((), ms_per_token=1.0)}, drafters=("small",)
)
BOTH = Chain(("small", "mid"), (4,))


class Chooser(ChainChooser):
    """One that observes what the cloud takes, too, as a client does."""

    def observe(self, event, chain):
        self._timings.observe(event)
        super().observe(event, chain)


def chooser(**chosen):
    return Chooser(LOCAL, Settings(**chosen), Timings())


def choose(of, **chosen):
    settings = Settings(policy="exact" if chosen else "greedy-exact", **chosen)
    return of.choose(policy_of(settings), sampling_of(settings))


def compared(agreed, num=LEAST_COMPARED):
    """The events of tokens that all models of both and the cloud have been compared at."""
    pairs = {(1, 0): "below", (2, 0): "across", (2, 1): "above"}
    return [LevelsCompared(upper, lower, num, round(num * agreed[name])) for (upper, lower), name in pairs.items()]


@each("text", ["small", "mid", "small*4>mid", "small*16>mid"])
def test_a_chain_is_named_as_it_is_read(text):
    assert str(chain_of(text, LOCAL)) == text


def test_a_chain_that_was_named_writes_whatever_was_heard():
    named = chooser(chain="small*2>mid")
    for event in compared({"below": 0.0, "across": 0.0, "above": 0.0}):
        named.observe(event, BOTH)
    assert choose(named) == Chain(("small", "mid"), (2,))


def test_a_model_whose_tokens_nobody_accepts_is_left_out_once_that_is_known():
    heard = chooser()
    assert choose(heard).models == ("small", "mid"), "nothing is known yet"
    heard.observe(RequestSettled("r", "check", CloudUsage(1, 1), 100, 50.0), BOTH)
    for event in compared({"below": 0.0, "across": 0.0, "above": 1.0}):
        heard.observe(event, BOTH)
    assert choose(heard).models == ("small", "mid"), "a chain stands for some tokens"
    heard.scheduler.num_shown = LEAST_TOKENS
    assert choose(heard).models == ("mid",)
    assert choose(heard, temperature=1.0) == whole_chain(LOCAL), (
        "a seed repeats a sampled text: the chain is that named"
    )


def test_a_batchs_time_is_that_of_the_model_at_its_level():
    heard = chooser()
    before = {name: cost.batch_ms(1) for name, cost in heard.scheduler.costs.items()}
    assert before == {"small": pytest.approx(1.0), "mid": pytest.approx(9.0)}
    for _ in range(200):
        heard.observe(SpanDrafted(0, (1, 2, 3, 4), ms=8.0), BOTH)
        heard.observe(SpanDrafted(0, (1, 2, 3, 4), num_ready=2, ms=0.1), BOTH)  # some were decoded before
        heard.observe(SpanRead(1, 0, 4, 5, 20.0), BOTH)
        heard.observe(SpanRead(1, 0, 4, 0, 0.1), BOTH)  # no row was wanted
    assert heard.scheduler.costs["small"].batch_ms(1) == pytest.approx(2.0, rel=0.05)
    assert heard.scheduler.costs["mid"].batch_ms(5) == pytest.approx(20.0, rel=0.05)


def test_tokens_are_compared_with_the_model_of_the_upper_level_and_the_cloud_is_above_all():
    heard = chooser()
    heard.observe(LevelsCompared(1, 0, 10, 7), BOTH)
    heard.observe(LevelsCompared(2, 1, 6, 6), BOTH)
    heard.observe(LevelsCompared(1, 0, 4, 1), Chain(("mid",)))
    pairs = heard.scheduler.pairs
    assert {pair: known.num for pair, known in pairs.items()} == {("small", "mid"): 10, ("mid", CLOUD): 10}
    assert pairs["small", "mid"].share == pytest.approx(9 / 13, rel=0.01), "beside a prior of two in three"
    assert pairs["mid", CLOUD].share == pytest.approx(9 / 13, rel=0.01)


def test_what_the_cloud_takes_is_an_average_that_begins_with_the_first_request():
    heard, policy = chooser(), policy_of(Settings(policy="greedy-exact"))
    heard.observe(RequestSettled("r", "check", CloudUsage(1, 1), 100, 50.0), BOTH)
    first = heard.predicted(("mid",), policy)
    heard.observe(RequestSettled("r", "check", CloudUsage(1, 1), 100, 150.0), BOTH)
    heard.observe(RequestSettled("r", "write", None, None, 9e9), BOTH)  # what it wrote nobody knows
    heard.observe(RequestSettled("r", "check", None, None, 9e9), BOTH)  # a broken check tells nothing of a whole one
    then = heard.predicted(("mid",), policy)
    standing = first.nanousd_per_token and 100 / first.nanousd_per_token
    assert (then.ms_per_token - first.ms_per_token) * standing == pytest.approx(0.2 * 100.0)


def test_an_answers_tokens_count_for_patience_and_its_price_for_the_cloud_alone():
    heard = chooser(chain="cheap")
    answer = SimpleNamespace(
        tokens=(1,) * 40, bill=SimpleNamespace(cloud_only_nanousd=400), usage=SimpleNamespace(checks=0)
    )
    for event in compared({"below": 0.0, "across": 0.0, "above": 0.0}):
        heard.observe(event, BOTH)
    heard.observe(RequestSettled("r", "check", CloudUsage(1, 1), 900, 50.0), BOTH)
    assert choose(heard).models != (), "nobody knows what the cloud alone would cost"
    heard.observe(Finished(answer), BOTH)
    heard.observe(Finished(answer), BOTH)
    assert heard.scheduler.num_shown == 80
    assert choose(heard).models == (), "ten nano-dollars a token, and nothing that is drafted stands"


@each("policy", ["local", "auto"])
def test_where_the_cloud_checks_no_span_it_is_no_level(policy):
    heard, settings = chooser(), Settings(policy=policy)
    for event in compared({"below": 0.0, "across": 0.0, "above": 0.0})[:1]:
        heard.observe(event, BOTH)
    assert heard.choose(policy_of(settings), sampling_of(settings)).models == ("mid",)
    assert choose(heard).models == ("small", "mid"), "beside a cloud that checks two pairs are unknown yet"


def test_a_cloud_that_writes_faster_than_its_checks_come_back_writes_alone():
    heard = chooser()
    heard.observe(RequestSettled("r", "check", CloudUsage(1, 1), 900, 50.0), BOTH)
    for event in compared({"below": 0.5, "across": 0.0, "above": 0.0}):
        heard.observe(event, BOTH)
    heard.observe(RequestSettled("w", "write", CloudUsage(1, 10), 100, 1000.0), BOTH)
    assert choose(heard).models != (), "100 ms a token"
    heard.scheduler.num_shown = LEAST_TOKENS
    for _ in range(60):
        heard.observe(RequestSettled("w", "write", CloudUsage(1, 10), 100, 20.0), BOTH)
    assert choose(heard).models == (), "2 ms a token"
