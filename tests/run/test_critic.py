"""A critic reads drafts before ``auto`` decides: its numbers are those of its rows, and change decisions alone."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from critic_score import score_of
from picky_house import PickyEngine, answer_late
from scripted_house import LARGE, SMALL, table

from hybrid.defer import Calibration, CriticNumbers, NoveltyScore, word_buckets
from hybrid.errors import UsageError
from hybrid.pairs.knowledge import UNREAD
from hybrid.pairs.profile import PairIdentity
from hybrid.pairs.store import keep_calibration
from hybrid.policy.requests import Critique, PendingToken
from hybrid.prob import Dense
from hybrid.record.events import TRACE_VERSION, Finished, NoteAdded, Planned, SpanCritiqued, SpanDrafted, to_json
from hybrid.record.recorded_events import RecordedAnswer
from hybrid.run.deferral import PlannerFactory
from hybrid.run.drafting import Drafter
from hybrid.run.replay import replay
from hybrid.run.replay_trace import MissingRow, ReplayCritic, ReplayTrace

PROMPT = "a b c"
# A question with other words would be taken for strange, whatever anybody says of its draft.
KNOWN = NoveltyScore.of([word_buckets(PROMPT)] * 20)
# A critic that often differs where the cloud does not.
OTHER = table("critic", SMALL, 0.7)


@pytest.fixture
def critic_house(house, tmp_path, monkeypatch):
    """Build a client whose pair is known with the critic "c1" and without; the critic is the large model's table."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def build(identity="c1", critic=LARGE, odds=(-5.0, 5.0), judge="kl:0.7", **more):
        for each in (None, "c1"):
            score = replace(score_of(each, *odds), judge=judge, familiarity=KNOWN)
            keep_calibration(Calibration("abc", "scripted", judge, "verdict", 2.2, score))
        facts = PairIdentity("abc", critic=identity, shipped_only=False)
        return house(critic=critic, planners=PlannerFactory(facts), can={"model": "scripted"}, **more)

    return build


async def answered(h, **choices):
    choices = {"max_tokens": 24, "learn": False} | choices
    return [event async for event in h.client.stream(PROMPT, raw=True, policy="auto", **choices)]


def said(events):
    return [event for event in events if isinstance(event, SpanCritiqued)]


def text(events):
    return next(event.answer for event in events if isinstance(event, Finished))


def told(answer):
    return [(token.id, token.source, token.how) for token in answer.tokens], answer.usage


def row(table, prefix):
    return Dense.from_logits(np.array(table(prefix)))


def test_a_planner_is_told_what_the_critics_rows_say_of_the_whole_draft(critic_house, run):
    h = critic_house()
    events = run(answered(h, stream="whole"))
    draft, found = next(each for each in events if isinstance(each, SpanDrafted)), said(events)[0]
    places = [(h.prompt + draft.ids[:i], token) for i, token in enumerate(draft.ids)]
    numbers = CriticNumbers.of_rows(
        draft.ids, [row(SMALL, at) for at, _ in places], [row(LARGE, at) for at, _ in places]
    )
    assert found.ids == draft.ids
    assert found.kl == pytest.approx(numbers.kl.tolist())
    assert found.logprob == pytest.approx(numbers.logprob.tolist())
    plan = next(each for each in events if isinstance(each, Planned))
    assert plan.signals.critic.kl.tolist() == list(found.kl)
    assert (plan.forecast.hazard > 0.5).tolist() == [kl > 0.5 for kl in found.kl]


@pytest.mark.parametrize("stream", ["whole", "blocks"])
def test_texts_and_numbers_are_the_same_whatever_was_decoded_ahead(critic_house, run, stream):
    """Over models whose rows depend on what is decoded together; every check is kept, so that the next is ready."""
    found, ready = [], []
    for num_ahead in (None, 0, 2, 99):
        h = critic_house(critic=OTHER, odds=(-3.0, -1.0), judge="kl:5", price="1/0.1/90", made=PickyEngine)
        answer_late(h, num_ahead)
        h.client._settings = h.client._settings.model_copy(update={"overlap": num_ahead is not None})
        events = run(answered(h, stream=stream, span=3, worth=50.0))
        found.append((told(text(events)), [(each.ids, each.kl, each.logprob) for each in said(events)]))
        ready.append(sum(event.num_ready for event in events if isinstance(event, SpanDrafted)))
    assert all(each == found[0] for each in found)
    assert len(found[0][1]) >= 5
    assert ready[0] == 0 < ready[-1]


def test_a_critic_reads_in_one_batch_what_it_does_not_hold_and_keeps_what_was_shown(critic_house, run, monkeypatch):
    h = critic_house()
    reads, extend = [], h.critics[0].extend
    monkeypatch.setattr(h.critics[0], "extend", lambda ids, *more: reads.append(len(ids)) or extend(ids, *more))
    events = run(answered(h, stream="whole"))
    answer, found = text(events), said(events)
    assert reads[: len(reads) - len(found)] == [2, 1], "the prompt, as begin reads it"
    assert len(reads) - 2 == len(found), "one batch a draft"
    shown = h.prompt + tuple(token.id for token in answer.tokens)
    assert h.critics[0].ids == shown[: len(h.critics[0].ids)]


def test_its_time_is_told_and_none_where_nobody_read(critic_house, run):
    timing = text(run(answered(critic_house(), stream="whole"))).timing
    assert 0.0 <= timing.critic_ms <= timing.total_ms
    assert text(run(answered(critic_house(), stream="early"))).timing.critic_ms is None


@pytest.mark.parametrize("identity", ["c2", None])
def test_a_critic_that_no_score_was_fitted_with_reads_nothing_and_that_is_told(critic_house, run, identity):
    events = run(answered(critic_house(identity), stream="whole"))
    plain = run(answered(critic_house(None, critic=None), stream="whole"))
    assert not said(events)
    assert told(text(events)) == told(text(plain))
    notes = [event.why for event in events if isinstance(event, NoteAdded)]
    assert (UNREAD in notes) == (identity is not None)


@pytest.mark.parametrize("choices", [{"stream": "whole"}, {"stream": "blocks", "span": 5}, {"temperature": 1.0}])
def test_a_trace_holds_its_numbers_and_is_decided_again_from_them(critic_house, run, tmp_path, choices):
    path = tmp_path / "trace.jsonl"
    events = run(answered(critic_house(), trace_rows=True, **choices))
    lines = [{"trace": TRACE_VERSION}, *map(to_json, events)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = run(replay(path))
    assert told(again) == told(text(events))
    recorded = [each for each in RecordedAnswer.read(path).events() if isinstance(each, SpanCritiqued)]
    assert recorded == said(events)
    critic = ReplayCritic(ReplayTrace.read(path))
    span = (PendingToken(0, "local", "unchecked"),) * 3
    with pytest.raises(MissingRow, match="what a critic said at position 1"):
        critic.read((5,), span, lambda: False)


def test_a_trace_whose_numbers_are_none_is_damaged(critic_house, run, tmp_path):
    path = tmp_path / "trace.jsonl"
    broken = {"event": "span_critiqued", "position": 0, "ids": [1], "kl": ["much"], "logprob": [0.0]}
    path.write_text(f"{json.dumps({'trace': TRACE_VERSION})}\n{json.dumps(broken)}\n")
    with pytest.raises(UsageError, match="line 2"):
        ReplayTrace.read(path)


def test_what_a_critic_says_of_a_text_is_what_it_says_of_a_draft(critic_house, run):
    h = critic_house()
    found = said(run(answered(h, stream="whole")))[0]
    numbers = run(h.client.critic_numbers(PROMPT, found.ids, raw=True))
    assert numbers.kl == pytest.approx(found.kl)
    assert numbers.logprob == pytest.approx(found.logprob)
    assert h.critics[0].ids == h.engine.ids == h.prompt
    with pytest.raises(UsageError, match="--critic"):
        run(critic_house(critic=None).client.critic_numbers(PROMPT, (1,), raw=True))


def test_a_drafter_without_a_critic_can_ask_none(critic_house):
    drafter = Drafter(None, (0,), None, None)
    with pytest.raises(ValueError, match="no critic"):
        drafter.critique(Critique((), ()), lambda: False)
