"""Other words in a whole answer: what is kept for them is counted, told, recorded and replayed."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import pytest
from scripted_house import WORDS

from hybrid.cli.show import summary
from hybrid.errors import UsageError
from hybrid.partitions.partition_file import no_partition
from hybrid.prob import Partition
from hybrid.record.answer import Token
from hybrid.record.events import TRACE_VERSION, Finished, TokenEmitted, to_json
from hybrid.record.recorded_events import RecordedAnswer
from hybrid.run.replay import replay
from hybrid.types import Divergence

EVERYTHING = Partition.of_groups(len(WORDS), [range(len(WORDS))])
MOST = 24


async def answered(house, path=None, prompt="a b c", **choices):
    """Answer a question; with a path, also record it."""
    lines, answer = [{"trace": TRACE_VERSION}], None
    chosen = {"policy": "concepts", "max_tokens": MOST} | choices
    async for event in house.client.stream(prompt, raw=True, trace_rows=path is not None, **chosen):
        lines.append(to_json(event))
        answer = event.answer if isinstance(event, Finished) else answer
    if path is not None:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return answer


def told(answer):
    return [(t.id, t.how, t.kl, t.concept_kl, t.why) for t in answer.tokens], asdict(answer.usage), answer.handoffs


def test_where_all_says_the_same_the_local_model_writes_and_every_divergence_is_counted(house, run):
    home = house(partition=lambda: EVERYTHING)
    answer = run(answered(home))
    assert tuple(token.id for token in answer.tokens) == home.small(MOST)
    far = [token for token in answer.tokens if token.kl is not None and token.kl.lower > 0.5]
    assert len(far) > 2
    assert [token for token in answer.tokens if token.is_wording] == far
    assert answer.usage.wording == len(far)
    assert answer.handoffs == ()
    assert f"{len(far)} tokens kept as another wording" in summary(answer)
    assert "wording" not in summary(run(answered(house(), policy="kl")))


def test_an_answers_json_tells_which_tokens_are_wording(house, run):
    answer = run(answered(house()))
    data = json.loads(json.dumps(answer.to_json()))
    assert (
        0
        < data["usage"]["wording"]
        == sum(token["source"] == "local" and token["concept_kl"] is not None for token in data["tokens"])
    )
    assert answer.handoffs  # of which the reason says both
    assert "; over concepts " in answer.handoffs[0].reason


def test_a_recorded_answer_is_replayed_by_the_concepts_that_it_was_written_by(house, run, tmp_path):
    path = tmp_path / "a.jsonl"
    answer = run(answered(house(), path))
    assert answer.usage.wording > 0
    assert told(run(replay(path))) == told(answer)
    again = [event.token for event in RecordedAnswer.read(path).events() if isinstance(event, TokenEmitted)]
    assert [token.concept_kl for token in again] == [token.concept_kl for token in answer.tokens]


def test_what_another_policy_recorded_is_replayed_under_concepts(house, run, tmp_path):
    path = tmp_path / "a.jsonl"
    recorded = run(answered(house(partition=lambda: EVERYTHING), path, policy="local"))
    run(answered(house(partition=lambda: EVERYTHING), path, policy="kl:1000"))
    again = run(replay(path, policy="concepts"))
    assert again.text == recorded.text
    assert again.usage.wording > 1


def test_a_trace_without_concepts_is_refused_in_a_sentence(house, run, tmp_path):
    path = tmp_path / "a.jsonl"
    run(answered(house(partition=no_partition), path, policy="kl"))
    with pytest.raises(UsageError, match="does not hold which tokens say the same"):
        run(replay(path, policy="concepts"))


def test_who_knows_no_concepts_is_told_how_to_find_some_before_anything_is_asked(house, run):
    home = house(partition=no_partition)
    for choices in ({}, {"policy": "kl", "judge": "concept:0.2"}):
        with pytest.raises(UsageError, match="`hybrid concepts build`"):
            run(answered(home, **choices))
    assert home.cloud.questions == []
    run(answered(home, policy="kl"))  # who asks for none needs none


def test_concepts_are_read_once_and_only_where_they_are_asked_for(house, run):
    read = []
    home = house(partition=lambda: read.append(1) or EVERYTHING)

    async def asked():
        for policy in ("kl", "concepts", "concepts"):
            await answered(home, policy=policy)

    run(asked())
    assert read == [1]


def test_in_a_prompt_that_opened_a_fence_no_word_stands_for_another(house, run, monkeypatch):
    plain = run(answered(house(partition=lambda: EVERYTHING)))
    home = house(partition=lambda: EVERYTHING)
    words = home.client._contexts.words
    monkeypatch.setattr(words, "piece", lambda token: b"\n```\n" if token == 2 else b"x ")  # the prompt's last token
    fenced = run(answered(home))
    inside = [token.id for token in fenced.tokens].index(2)  # it ends the fence
    assert any(token.is_wording for token in plain.tokens[:inside])
    assert not any(token.is_wording for token in fenced.tokens[:inside])
    assert fenced.handoffs[0].position < inside


def test_an_unbounded_divergence_over_concepts_is_null_in_json(house, run):
    answer = run(answered(house()))
    token = Token(1, "b", "local", "accepted", concept_kl=Divergence(0.0, 0.0, math.inf))
    data = replace(answer, tokens=(token,)).to_json()
    assert data["tokens"][0]["concept_kl"]["upper"] is None
