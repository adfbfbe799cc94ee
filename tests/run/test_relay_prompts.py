"""What a relay reserves for its prompt, by what its endpoint has counted, and what it books where nothing was told."""

from __future__ import annotations

from cases import each
from chat_upstream import DONE, WHOLE, Script, delta, event
from relays import BODY, PRICE, relaying

from hybrid.run import RequestSent
from hybrid.types import CloudUsage


async def read(reply, *, stream):
    if not stream:
        return await reply.whole()
    return [each async for each in reply.events()]


@each("stream", [False, True])
@each("told", [0, "12", None, float("nan"), -3, [12], 10**400])
def test_a_prompt_that_was_not_told_is_booked_at_its_bound_and_teaches_nothing(run, told, stream):
    """What was booked for it doubled the next reservation; after eight questions a cap of 1 USD was gone."""

    async def go():
        usage = {"prompt_tokens": told, "completion_tokens": 3}
        script = Script.stream([delta("ab"), event({"choices": [], "usage": usage}), DONE])
        async with relaying(script if stream else Script.whole({**WHOLE, "usage": usage})) as relay:
            for number in range(1, 5):
                async with relay.open(max_tokens=50, stream=stream) as reply:
                    await read(reply, stream=stream)
                most = relay.most(50)
                assert relay.spent == (number * (most - 47 * 4000), 0)
            reserved = {sent.reserved_nanousd for sent in relay.events if isinstance(sent, RequestSent)}
            assert reserved == {most}

    run(go())


@each(("usage", "prompt", "written"), [
    ({"total_tokens": 40}, 40, 40),
    ({"total_tokens": 80}, 80, 50),
    ({"total_tokens": 40, "completion_tokens": 3}, 37, 3),
    ({"total_tokens": 40, "prompt_tokens": 0, "completion_tokens": 0}, 40, 40),
])  # fmt: skip
def test_a_total_alone_is_booked_as_the_most_that_its_parts_can_be_and_disputes_nothing(run, usage, prompt, written):
    async def go():
        async with relaying(Script.whole({**WHOLE, "usage": usage})) as relay:
            for _ in range(2):
                async with relay.open(max_tokens=50) as reply:
                    await reply.whole()
            assert relay.spent == (2 * PRICE.cost(CloudUsage(prompt, written)), 0)

    run(go())


@each(("n", "counted"), [(1, True), (2, False)])
def test_of_several_answers_no_count_is_learned(run, n, counted):
    """A proxy that asks once for each answer tells their prompts together; the next body has one."""

    async def go():
        usage = {"prompt_tokens": 60 * n, "completion_tokens": 3}
        async with relaying(Script.whole({**WHOLE, "usage": usage})) as relay:
            for choices in (n, 1):
                async with relay.open(max_tokens=50, n=choices) as reply:
                    await reply.whole()
            *_, last = [sent.reserved_nanousd for sent in relay.events if isinstance(sent, RequestSent)]
            assert (last < relay.most(50)) == counted

    run(go())


def test_what_came_is_booked_up_to_the_limit_and_closes_nothing(run):
    """Deltas are no count of tokens: a service may send more of them than it was allowed to write."""

    async def go():
        usage = {"prompt_tokens": 60, "completion_tokens": 5}
        script = Script.stream([*[delta("words ")] * 80, event({"choices": [], "usage": usage}), DONE])
        async with relaying(script) as relay:
            for number in (1, 2):
                async with relay.open(max_tokens=50, stream=True) as reply:
                    await read(reply, stream=True)
                assert relay.spent == (number * PRICE.cost(CloudUsage(60, 50)), 0)

    run(go())


@each("stream", [False, True])
def test_what_was_counted_of_a_conversation_is_reserved_as_counted(run, stream):
    """Its earlier turns, the tools beside them, and what the server puts before both."""

    async def go():
        usage = {"prompt_tokens": 60, "completion_tokens": 12}
        said = {"role": "assistant", "content": "ab" * 20}
        whole = Script.whole({**WHOLE, "choices": [{"index": 0, "message": said}], "usage": usage})
        parts = Script.stream([*[delta("abab")] * 10, event({"choices": [], "usage": usage}), DONE])
        async with relaying(parts if stream else whole) as relay:
            turns = [*BODY["messages"]]
            for _ in range(3):
                async with relay.open(max_tokens=50, messages=turns, stream=stream) as reply:
                    await read(reply, stream=stream)
                turns += [said, {"role": "user", "content": "more"}]
            first, *later = [sent.reserved_nanousd for sent in relay.events if isinstance(sent, RequestSent)]
            assert first > (1024 + 60) * 1000
            assert [(most - 50 * 4000) // 1000 for most in later] == [60 + 2 * 12 + 16 + 16 + 4 + 16] * 2
            async with relay.open(max_tokens=50, messages=turns, stream=stream, tools=[]) as reply:
                await read(reply, stream=stream)
            assert relay.events[-2].reserved_nanousd > 1024 * 1000, "of other tools nothing is known"

    run(go())
