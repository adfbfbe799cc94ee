"""What real clients ask, by the clients themselves: run in an environment of theirs, never imported by a test.

    ENVIRONMENT/bin/python tests/serve/client_calls.py URL [CALL ...]    ->  a JSON object: call -> what came of it
    ENVIRONMENT/bin/python tests/serve/client_calls.py --list            ->  the names of all calls

Each call is a function that returns something JSON holds. What it raises is told by its name, its status and its text.
The environments are in ``tests/end_to_end/server_environments.py``: openai2 (with LiteLLM, langchain, instructor) and
openai3 (with llm, pydantic-ai, openai-agents). A call whose package an environment lacks is not among its calls.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
import time

MODEL, KEY = os.environ.get("CALLS_MODEL", "hybrid"), os.environ.get("CALLS_KEY", "none")
SAID = [{"role": "user", "content": "What is 47 + 86?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
CALLS = {}
URL = ""


def call(*packages):
    """Register a call, where its packages are there."""

    def named(function):
        if all(importlib.util.find_spec(each) for each in packages):
            CALLS[function.__name__] = function
        return function

    return named


def openai_client(**more):
    import openai

    return openai.OpenAI(base_url=URL + "/v1", api_key=KEY, **more)


def told(answer):
    usage = answer.usage
    return {"text": answer.choices[0].message.content, "tokens": usage and usage.completion_tokens}


@call("openai")
def models():
    return [each.id for each in openai_client().models.list()]


@call("openai")
def chat():
    return told(openai_client().chat.completions.create(model=MODEL, messages=SAID))


@call("openai")
def stream():
    with openai_client().chat.completions.create(model=MODEL, messages=SAID, stream=True) as chunks:
        return {"text": "".join(each.choices[0].delta.content or "" for each in chunks)}


@call("openai")
def stream_with_usage():
    options = {"include_usage": True}
    text, usage = "", None
    with openai_client().chat.completions.create(
        model=MODEL, messages=SAID, stream=True, stream_options=options
    ) as chunks:
        for each in chunks:
            text += (each.choices[0].delta.content or "") if each.choices else ""
            usage = each.usage or usage
    own = usage.model_extra["hybrid"]  # as the guide's recipe reads it
    written = own["local_tokens"] + own["cloud_tokens"]
    return {"text": text, "tokens": usage.completion_tokens, "cost": usage.model_extra["cost"], "written": written}


@call("openai")
def stream_helper():
    with openai_client().chat.completions.stream(model=MODEL, messages=SAID) as chunks:
        for _ in chunks:
            pass
        return told(chunks.get_final_completion())


@call("openai")
def asynchronous():
    import openai

    async def asked():
        retries = int(os.environ.get("CALLS_RETRIES", openai.DEFAULT_MAX_RETRIES))
        client = openai.AsyncOpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=retries)
        many = [client.chat.completions.create(model=MODEL, messages=SAID) for _ in range(3)]
        return [told(each) for each in await asyncio.gather(*many)]

    return asyncio.run(asked())


@call("openai")
def parse():
    from pydantic import BaseModel

    class User(BaseModel):
        name: str
        age: int

    answer = openai_client().chat.completions.parse(model=MODEL, messages=SAID, response_format=User)
    return answer.choices[0].message.parsed.model_dump()


@call("openai")
def tools():
    answer = openai_client().chat.completions.create(model=MODEL, messages=SAID, tools=[TOOL])
    return json.loads(answer.choices[0].message.tool_calls[0].function.arguments)


@call("openai")
def tools_answered():
    called = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 47, "b": 86}'}}
    turns = [
        *SAID,
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "call_1", "content": "133"},
    ]
    return told(openai_client().chat.completions.create(model=MODEL, messages=turns, tools=[TOOL]))


@call("openai")
def legacy_completion():
    answer = openai_client().completions.create(model=MODEL, prompt="What is 47 + 86?", max_tokens=8)
    return {"text": answer.choices[0].text, "tokens": answer.usage.completion_tokens}


@call("openai")
def embeddings():
    return len(openai_client(max_retries=0).embeddings.create(model=MODEL, input="x").data)


@call("openai")
def responses():
    return openai_client(max_retries=0).responses.create(model=MODEL, input="x").output_text


@call("openai")
def unknown_model():
    return told(openai_client().chat.completions.create(model="gpt-4o", messages=SAID))


@call("openai")
def left_early():
    """Leave a stream after its first words; how long that took."""
    began = time.monotonic()
    with openai_client().chat.completions.create(model=MODEL, messages=SAID, stream=True) as chunks:
        next(iter(chunks))
    return time.monotonic() - began < 30


@call("litellm")
def litellm_chat():
    import litellm

    answer = litellm.completion(model=f"openai/{MODEL}", api_base=URL + "/v1", api_key=KEY, messages=SAID)
    return told(answer)


@call("litellm")
def litellm_stream():
    import litellm

    chunks = litellm.completion(
        model=f"hosted_vllm/{MODEL}", api_base=URL + "/v1", api_key=KEY, messages=SAID, stream=True
    )
    return {"text": "".join(each.choices[0].delta.content or "" for each in chunks)}


def langchain_model():
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=MODEL, base_url=URL + "/v1", api_key=KEY, use_responses_api=False)


@call("langchain_openai")
def langchain_chat():
    return {"text": langchain_model().invoke("What is 47 + 86?").content}


@call("langchain_openai")
def langchain_stream():
    return {"text": "".join(each.content for each in langchain_model().stream("What is 47 + 86?"))}


@call("langchain_openai")
def langchain_structured():
    from pydantic import BaseModel

    class User(BaseModel):
        name: str
        age: int

    return langchain_model().with_structured_output(User).invoke("Who?").model_dump()


@call("instructor")
def instructor_tools():
    import instructor
    from pydantic import BaseModel

    class User(BaseModel):
        name: str
        age: int

    client = instructor.from_openai(openai_client())
    return client.chat.completions.create(model=MODEL, messages=SAID, response_model=User).model_dump()


@call("instructor")
def instructor_schema():
    import instructor
    from pydantic import BaseModel

    class User(BaseModel):
        name: str
        age: int

    client = instructor.from_openai(openai_client(), mode=instructor.Mode.JSON_SCHEMA)
    return client.chat.completions.create(model=MODEL, messages=SAID, response_model=User).model_dump()


def pydantic_agent(**more):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return Agent(OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL + "/v1", api_key=KEY)), **more)


@call("pydantic_ai")
def pydantic_ai_chat():
    return {"text": pydantic_agent().run_sync("What is 47 + 86?").output}


@call("pydantic_ai")
def pydantic_ai_stream():
    async def asked():
        async with pydantic_agent().run_stream("What is 47 + 86?") as result:
            return {"text": await result.get_output()}

    return asyncio.run(asked())


@call("pydantic_ai")
def pydantic_ai_output_type():
    from pydantic import BaseModel

    class User(BaseModel):
        name: str
        age: int

    return pydantic_agent(output_type=User).run_sync("Who?").output.model_dump()


@call("agents")
def agents_chat():
    import openai
    from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled

    set_tracing_disabled(disabled=True)
    client = openai.AsyncOpenAI(base_url=URL + "/v1", api_key=KEY)
    agent = Agent(name="a", instructions="Add.", model=OpenAIChatCompletionsModel(MODEL, client))
    return {"text": Runner.run_sync(agent, "What is 47 + 86?").final_output}


@call("agents")
def agents_responses():
    import openai
    from agents import Agent, OpenAIResponsesModel, Runner, set_tracing_disabled

    set_tracing_disabled(disabled=True)
    client = openai.AsyncOpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0)
    return Runner.run_sync(Agent(name="a", model=OpenAIResponsesModel(MODEL, client)), "x").final_output


@call("llm")
def llm_chat():
    from llm.default_plugins.openai_models import Chat

    model = Chat("hybrid", model_name=MODEL, api_base=URL + "/v1")
    model.key = KEY
    return {"text": model.prompt("What is 47 + 86?", stream=False).text()}


@call("llm")
def llm_stream():
    from llm.default_plugins.openai_models import Chat

    model = Chat("hybrid", model_name=MODEL, api_base=URL + "/v1")
    model.key = KEY
    return {"text": "".join(model.prompt("What is 47 + 86?", stream=True))}


def main():
    global URL
    if sys.argv[1:] == ["--list"]:
        print(json.dumps(list(CALLS)))
        return
    URL, *names = sys.argv[1:]
    came = {}
    for name in names or CALLS:
        try:
            came[name] = CALLS[name]()
        except Exception as error:  # noqa: BLE001  (what a client raises is what is looked at)
            cause = error
            while getattr(cause, "status_code", None) is None and cause.__cause__ is not None:
                cause = cause.__cause__
            status = getattr(cause, "status_code", None)
            came[name] = {"raised": type(error).__name__, "status": status, "message": str(error)[:300]}
    print(json.dumps(came))


if __name__ == "__main__":
    main()
