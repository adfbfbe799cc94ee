"""Whatever an upstream charges, tells, or leaves untold: the ledger holds no less."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

from cases import each
from chat_upstream import CUT, DONE, WHOLE, Script, delta, event
from hypothesis import given, settings
from hypothesis import strategies as st
from normalising import HOW, TEXTS, num_tokens
from relays import PRICE, TOOLS, relaying

from hybrid.errors import CloudError
from hybrid.types import CloudUsage


async def read(reply, *, stream):
    if not stream:
        return await reply.whole()
    return [each async for each in reply.events()]


def charged_by(body, written, how):
    """What a server charges that prints tools as Llama 3.1's template does, in the smallest tokens there are: bytes."""
    prompt = "<|begin|>" + "".join(json.dumps(tool, indent=4) + "\n\n" for tool in body.get("tools", []))
    for turn in body["messages"]:
        prompt += f"<|start|>{turn['role']}<|end|>\n{turn['content']}<|eot|>"
    return CloudUsage(num_tokens(prompt, how), min(written, body["max_tokens"]))


@given(
    text=TEXTS,
    how=HOW,
    tools=st.integers(0, 3),
    limit=st.none() | st.integers(1, 60),
    written=st.integers(0, 80),
    tells=st.booleans(),
    stream=st.booleans(),
    cut=st.booleans(),
)
@settings(max_examples=25)
def test_what_is_recorded_is_never_below_what_was_charged(text, how, tools, limit, written, tells, stream, cut):
    charged = []

    def answer(body):
        usage = charged_by(body, written, how)
        charged.append(PRICE.cost(usage))
        told = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens} if tells else None
        if not stream:
            return Script.whole({**WHOLE, "usage": told})
        end = [event({"choices": [], "usage": told})] if tells else []
        return Script.stream([delta("a"), *([CUT] if cut else [*end, DONE])])

    async def go():
        async with relaying(answer) as relay:
            with suppress(CloudError):
                given = {"max_tokens": limit} if limit else {}
                messages = [{"role": "user", "content": text}]
                async with relay.open(messages=messages, tools=TOOLS * tools, stream=stream, **given) as reply:
                    await read(reply, stream=stream)
            assert sum(relay.spent) >= charged[0]
            assert relay.spent[1] == 0 or (stream and cut)

    asyncio.run(go())


LOW = event({"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13}})
CALL = {"index": 0, "function": {"name": "f", "arguments": '{"a'}}


@each("choices", [1, 3])
@each("named", [{"content": "word "}, {"reasoning_content": "so "}, {"tool_calls": [CALL]}])
def test_a_usage_below_what_came_is_raised_to_it_and_its_caller_is_told(run, named, choices):
    """12,000 nano-USD were booked of 129,000: 31 tokens came, and three were told."""
    deltas = [event({"choices": [{"index": i % choices, "delta": named}]}) for i in range(31)]

    async def go():
        async with relaying(Script.stream([*deltas, LOW, DONE])) as relay:
            async with relay.open(stream=True, max_tokens=50, n=choices) as reply:
                await read(reply, stream=True)
            assert relay.spent == (PRICE.cost(CloudUsage(12, 31)), 0)
            assert reply.usage.completion_tokens == 31

    run(go())


def test_a_whole_answer_is_no_fewer_tokens_than_its_log_probabilities_list(run):
    async def go():
        choice = {"index": 0, "message": {"content": "ab"}, "logprobs": {"content": [{"token": "a"}] * 7}}
        usage = {"prompt_tokens": 12, "completion_tokens": 1}
        async with relaying(Script.whole({"choices": [choice], "usage": usage})) as relay:
            async with relay.open(max_tokens=50) as reply:
                await reply.whole()
            assert relay.spent == (PRICE.cost(CloudUsage(12, 7)), 0)

    run(go())
