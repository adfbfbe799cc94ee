"""What one question is shown of an endpoint, others that are under way are asked again by."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from cases import each
from strict_server import CHECK, SCORE, SETUP, WRITE, Server, endpoint

from hybrid.cloud import ScoreQuestion
from hybrid.cloud.dialects.vllm import Vllm
from hybrid.cloud.dialects.vllm_tokens import VllmTokens


class Together(Server):
    """Answers no question before so many have come."""

    def __init__(self, num=2, **gives):
        super().__init__(**gives)
        self._all = asyncio.Barrier(num)
        self._left = num

    async def _met(self):
        if self._left:
            self._left -= 1
            await self._all.wait()

    async def post(self, *put, **more):
        await self._met()
        return await super().post(*put, **more)

    async def stream(self, *put, **more):
        await self._met()
        async for event in super().stream(*put, **more):
            yield event


def asked_together(made, *questions):
    """Ask all at once; return what came of each."""

    async def one(question):
        if isinstance(question, ScoreQuestion):
            return await made.score(question, "r")
        return [chunk async for chunk in made.write(question, "r")]

    async def run():
        return await asyncio.gather(*map(one, questions), return_exceptions=True)

    return asyncio.run(run())


@each(
    ("gives", "dialect", "question"),
    [
        ({"most": 5}, Vllm(SETUP), CHECK),
        ({"most": 5}, Vllm(SETUP), WRITE),
        ({"most": 20, "names_it": False}, Vllm(SETUP), replace(CHECK, top_k=40)),
        ({"v1": True}, VllmTokens(SETUP), SCORE),
    ],
    ids=["check", "stream", "unnamed", "V1"],
)
def test_questions_that_are_refused_together_are_all_asked_again_in_the_way_that_the_first_has_shown(
    gives, dialect, question
):
    made = endpoint(Together(**gives), dialect)
    told = asked_together(made, question, question)
    assert not [each for each in told if isinstance(each, Exception)]
    assert made.knowledge.dialect.can.most_k == gives.get("most"), "nothing shorter than what is given was settled on"


def test_streams_that_lack_rows_together_all_fail_as_ones_that_may_be_asked_again():
    told = asked_together(endpoint(Together(lacks="streams"), Vllm(SETUP)), WRITE, WRITE)
    assert [each.trouble for each in told] == ["learned", "learned"]


def test_an_answer_does_not_undo_what_another_question_was_shown_meanwhile():
    made = endpoint(Together(v1=True), VllmTokens(SETUP))
    told = asked_together(made, CHECK, SCORE)
    assert [len(scores.rows) for scores in told] == [2, 2]
    assert not made.knowledge.dialect.can.candidates
