"""Whatever an upstream charges, tells, or leaves untold: the ledger holds no less."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

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
