"""The wordings pair over real HTTP: where the models say the same in other words, the small one keeps the pen."""

from __future__ import annotations

import asyncio
import json

import pytest

import hybrid
from hybrid.assemble.local_models import partition_of
from hybrid.record.events import TRACE_VERSION, to_json
from hybrid.run.replay import replay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def the_concepts_that_are_kept(monkeypatch):
    monkeypatch.setattr("hybrid.assemble.local_models.partition_of", partition_of)


PAIR = {"local": "wordings-small", "cloud": "wordings-large", "max_tokens": 48}
QUESTIONS = (
    "otto owns the hat. otto gives the hat to anna. who holds the hat?",
    "nina holds the rope. nina hands the rope to ida. ida passes the rope to john. who holds the rope?",
)


def test_wording_is_kept_counted_recorded_and_replayed(tmp_path):
    with hybrid.open(policy="kl", **PAIR) as client:
        for number, question in enumerate(QUESTIONS):
            by_tokens = client.generate(question)
            events = list(client.stream(question, policy="concepts", trace_rows=True))
            answer, path = events[-1].answer, tmp_path / f"{number}.jsonl"
            assert answer.usage.wording > 0
            assert len(answer.handoffs) < len(by_tokens.handoffs)
            assert all(token.kl.lower > 0.5 >= token.concept_kl.lower for token in answer.tokens if token.is_wording)
            lines = [{"trace": TRACE_VERSION}, *map(to_json, events)]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            again = asyncio.run(replay(path))
            assert (again.text, again.usage.wording) == (answer.text, answer.usage.wording)
            assert again.handoffs == answer.handoffs
