"""A body of either route, read: what is asked, how, and which of its fields only the cloud's own route can honour.

The law (``tests/serve/test_requests.py``): every field that is given is honoured, named among those for a relay, named
among those that were ignored, or refused by its name. Nothing is dropped in silence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, get_args

import numpy as np

from hybrid.record.conversation import Prompt
from hybrid.serve.app_state import HYBRID, policy_named
from hybrid.serve.body import Body, Steps, ThreadPacer
from hybrid.serve.errors import ApiError
from hybrid.settings.config import AnswerChoices
from hybrid.types import Message, Role

# The messages of a chat as turns of a conversation, and what in them is not text.
#
# Read on day one: ``content: null`` beside tool calls, parts of type text, roles that only a cloud model knows
# (https://github.com/openai/openai-openapi, ChatCompletionRequestMessage).

# A role whose turn says what a tool returned: that there was a call, the local template could not tell.
OF_TOOLS = frozenset({"tool", "function"})
# What a turn may hold besides its text that asks for nothing: clients send back what they were sent.
ECHOED = ("name", "refusal", "reasoning_content", "reasoning", "annotations", "audio", "thinking_blocks")
PLAIN, SPOKEN = {"role", "content"}, [role for role in get_args(Role) if role not in OF_TOOLS]
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


@dataclass(frozen=True)
class ReadMessages:
    """A conversation. ``relay``: what of it is no text, so that only a chat route of the cloud can be asked."""

    turns: tuple[Message, ...]
    relay: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def read_messages(body: Body, steps: Steps = iter) -> ReadMessages:
    """Read ``messages``, which are gone through by ``steps``. Raises ApiError."""
    found = body.given("messages")
    if not isinstance(found, list) or not found:
        raise body.wrong("messages", "a list of messages, at least one")
    turns, relay, ignored = list[Message](), list[str](), list[str]()
    for number, each in enumerate(steps(found)):
        if not isinstance(each, dict):
            raise body.wrong("messages", "a list of messages, at least one")
        if each.keys() == PLAIN and each["role"] in SPOKEN and isinstance(each["content"], str):
            turns.append(Message(each["role"], each["content"]))  # a tenth of the time of what follows
            continue
        turn = Body(each, f"messages[{number}].")
        role = turn.text("role")
        if role in OF_TOOLS:
            relay.append(f"messages[].role={role}")
            continue
        if role not in get_args(Role):
            raise turn.wrong("role", f"one of {', '.join(get_args(Role))}")
        calls = [name for name in ("tool_calls", "function_call") if turn.given(name)]
        relay += [f"messages[].{name}" for name in calls]
        text, other = _content(turn, each.get("content"), steps, missing=bool(calls))
        relay += other
        ignored += [f"messages[].{name}" for name in ECHOED if turn.given(name)]
        ignored += [f"messages[].{name.partition('.')[2]}" for name in turn.rest]
        turns.append(Message(role, text))  # type: ignore[arg-type]  # checked above
    return ReadMessages(tuple(turns), tuple(dict.fromkeys(relay)), tuple(dict.fromkeys(ignored)))


def _content(turn: Body, content: Any, steps: Steps, *, missing: bool) -> tuple[str, list[str]]:
    """Return a turn's text, and what of it is none. ``missing``: it may say nothing, for it does something."""
    turn.given("content")
    if isinstance(content, str):
        return content, []
    if content is None:
        if missing or turn.given("role") == "assistant":
            return "", []
        raise turn.wrong("content", "a text or a list of parts")
    if not isinstance(content, list):
        raise turn.wrong("content", "a text or a list of parts")
    texts, other = list[str](), list[str]()
    for part in steps(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise turn.wrong("content", "a list of parts, each with its type")
        if kind not in TEXT_PARTS:
            other.append(f"messages[].content.type={kind[:40]}")
            continue
        text = part.get(TEXT_PARTS[kind])
        if not isinstance(text, str):
            raise turn.wrong("content", f"a list of parts; one of type {kind} holds its text")
        texts.append(text)
    return "".join(texts), other


MOST_CHOICES = 8
MOST_LISTED = 20
# Of a body. Python reads a list or an object in one go, in which everybody waits: so many texts take 10 ms, so many
# keys 0.3 s and 60 MiB, and 8 MiB of texts ten times that. 100,000 turns, a context of a million tokens, are 300,000.
MOST_VALUES = 400_000
COUNTED_AT_ONCE = 1 << 16
# Each is looked for in what each token adds: a hundred thousand take 20 ms a token, in which others wait.
MOST_STOPS = 128
# llama.cpp's word for "another seed each time", and vLLM's for "all tokens".
ANY_SEED, ALL_TOKENS = -1, -1


def _always(_: Any) -> bool:
    return True


def _not_text(value: Any) -> bool:
    return not isinstance(value, dict) or value.get("type") != "text"


def _more_than_text(value: Any) -> bool:
    return bool(value != ["text"])


def _forced(value: Any) -> bool:
    """Whether a choice of tools asks for one."""
    return value not in ("none", "auto")


# What only the model that is asked can honour, and which value of it asks for something.
RELAYED: Mapping[str, Callable[[Any], bool]] = {
    "tools": bool,
    "tool_choice": _forced,
    "functions": bool,
    "function_call": _forced,
    "response_format": _not_text,
    "logit_bias": bool,
    "presence_penalty": bool,
    "frequency_penalty": bool,
    "repetition_penalty": lambda value: value != 1,
    "modalities": _more_than_text,
    "audio": _always,
    "prediction": _always,
    "web_search_options": _always,
    "guided_json": _always,
    "guided_regex": _always,
    "guided_choice": _always,
    "guided_grammar": _always,
    "structured_outputs": _always,
    "grammar": bool,
    "json_schema": _always,
}


@dataclass(frozen=True)
class GenerationRequest:
    """One request. ``top_logprobs`` None: no log-probabilities are wanted; 0: those of the tokens alone.

    ``relay``: fields that only the cloud's own chat route can honour; ``ignored``: those that change nothing here.
    ``question`` is not to be used where there is something to relay.
    """

    model: str
    question: Prompt
    choices: AnswerChoices
    n: int = 1
    streamed: bool = False
    include_usage: bool = False
    top_logprobs: int | None = None
    ignored: tuple[str, ...] = ()
    relay: tuple[str, ...] = ()

    def choices_of(self, index: int) -> AnswerChoices:
        """Return the choices of one of the ``n`` answers: each draws from a seed of its own."""
        seed = self.choices.get("seed")
        return self.choices if seed is None or not index else {**self.choices, "seed": seed + index}


class FieldReader(Protocol):
    """What reads the fields of a body. ``steps``: how its long lists are gone through. Raises ApiError."""

    def __call__(self, fields: Mapping[str, Any], steps: Steps = iter, /) -> GenerationRequest:
        """Return what is asked."""
        ...


def num_values(raw: bytes, rest: Callable[[], object] = lambda: None) -> int:
    """Count the marks ``{``, ``[`` and ``,`` outside texts: a body of JSON has as many values, or one more.

    ``rest``: called after every 64 KiB. Of what is no JSON the count means nothing.
    """
    backslash, in_text, count = b"", False, 0
    for start in range(0, len(raw), COUNTED_AT_ONCE):
        part = (backslash + raw[start : start + COUNTED_AT_ONCE]).replace(rb"\\", b"")
        backslash = part[-1:] if part.endswith(b"\\") else b""
        chars = np.frombuffer(part.replace(rb"\"", b""), np.uint8)
        texts = np.logical_xor.accumulate(chars == ord('"')) ^ in_text
        for mark in b"{[,":
            count += int(np.count_nonzero((chars == mark) & ~texts))
        in_text = bool(texts[-1]) if texts.size else in_text
        rest()
    return count


def object_of(raw: bytes, pace: ThreadPacer | None = None) -> dict[str, Any]:
    """Return the JSON object that a body holds, read at a pace. Raises ApiError.

    It is UTF-8, as JSON between systems is (RFC 8259, 8.1): in UTF-16 the marks could not be counted.
    """
    # Those in texts, too, which is quickly counted.
    most = sum(map(raw.count, (b"{", b"[", b",")))
    if most > MOST_VALUES and (num := num_values(raw, pace.rest if pace else lambda: None)) > MOST_VALUES:
        said = f"the body has {num:,} values, and at most {MOST_VALUES:,} are read"
        raise ApiError(413, said, code="body_too_long")
    try:
        found = None if b"\0" in raw else json.loads(raw, object_hook=pace.step if pace else None)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ApiError(400, "the body is not a JSON object", code="invalid_json")
    return found


def read_chat(fields: Mapping[str, Any], steps: Steps = iter) -> GenerationRequest:
    """Read the body of ``/v1/chat/completions``. Raises ApiError."""
    body = Body(fields)
    conversation = read_messages(body, steps)
    model, choices = _shared(body)
    choices |= _template_args(body)
    top, wanted = body.integer("top_logprobs", 0, MOST_LISTED), body.flag("logprobs")
    if top is not None and not wanted:
        raise body.refused("top_logprobs", "it wants logprobs: true beside it")
    relay, form = (*conversation.relay, *_relayed(body)), _form(body)
    if not relay:
        _mind_nucleus(body, choices)
    return GenerationRequest(  # what nobody has taken by now is ignored
        model,
        conversation.turns,
        choices,
        ignored=(*conversation.ignored, *_ignored(body)),
        relay=relay,
        top_logprobs=(top or 0) if wanted else None,
        **form,
    )


def read_completion(fields: Mapping[str, Any], _steps: Steps = iter) -> GenerationRequest:
    """Read the body of ``/v1/completions``: a text that is continued as it stands. Raises ApiError."""
    body = Body(fields)
    prompt = body.given("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt:
        raise body.refused("prompt", "one text a request is continued; lists of texts and token ids are not")
    if not isinstance(prompt, str) or not prompt:
        raise body.wrong("prompt", "a text that is not empty")
    if body.given("suffix"):
        raise body.refused("suffix", "text is continued here, not filled in")
    if body.flag("echo"):
        raise body.refused("echo", "the prompt is not sent back")
    model, choices = _shared(body)
    form = _form(body)
    best_of = body.integer("best_of", 1)
    if best_of is not None and best_of != form["n"]:
        raise body.refused("best_of", "answers are not ranked: leave it out, or make it equal to n")
    if needed := _relayed(body):
        raise body.refused(needed[0], "a text is continued by both models together, which cannot honour it")
    _mind_nucleus(body, choices)
    choices["raw"] = True
    listed = body.integer("logprobs", 0, MOST_LISTED)
    return GenerationRequest(model, prompt, choices, ignored=_ignored(body), top_logprobs=listed, **form)


def _shared(body: Body) -> tuple[str, AnswerChoices]:
    """Read what both routes know: the model, how long, how it is drawn, and our own object."""
    model = body.text("model")
    if model is None:
        raise body.wrong("model", "a text: hybrid, or hybrid:POLICY (GET /v1/models names them)")
    own = body.within("hybrid") or Body({})
    policy, named = own.text("policy"), policy_named(model)
    if policy is not None and named not in {None, policy}:
        raise body.refused("hybrid.policy", f"the model {model} names another policy: give one of them")
    if policy is not None:
        try:
            policy_named(f"{HYBRID}:{policy}")
        except ApiError as error:
            said = f"hybrid.policy: {error.message}"
            raise ApiError(400, said, code="invalid_value", param="hybrid.policy") from None
    limit, limit_too = body.integer("max_completion_tokens", 1), body.integer("max_tokens", 1)
    seed, top_k = body.integer("seed", ANY_SEED), body.integer("top_k", ALL_TOKENS)
    chosen: dict[str, Any] = {
        "policy": policy or named,
        "conversation": own.text("conversation") or None,
        "offline": own.flag("offline") or None,
        "max_tokens": limit_too if limit is None else limit,
        "temperature": body.number("temperature", 0.0, 100.0),
        "top_p": body.number("top_p", 0.0, 1.0),
        "top_k": None if top_k is None else max(0, top_k),
        "min_p": body.number("min_p", 0.0, 1.0),
        "seed": None if seed == ANY_SEED else seed,
        "stop": body.texts("stop", MOST_STOPS),
    }
    if own.rest:
        raise body.refused(own.rest[0], "hybrid takes policy, conversation and offline")
    return model, AnswerChoices(**{name: value for name, value in chosen.items() if value is not None})  # type: ignore[typeddict-item]


def _mind_nucleus(body: Body, choices: AnswerChoices) -> None:
    """Refuse a nucleus that holds no token; what a relay's server makes of one is its own business."""
    if choices.get("top_p") == 0:
        raise body.wrong("top_p", "a number above 0 and at most 1 (temperature 0 takes the likeliest token)")


def _form(body: Body) -> dict[str, Any]:
    """Read in which form the answers come."""
    options = body.within("stream_options")
    return {
        "n": body.integer("n", 1, MOST_CHOICES) or 1,
        "streamed": body.flag("stream"),
        "include_usage": options is not None and options.flag("include_usage"),
    }


def _template_args(body: Body) -> AnswerChoices:
    """Read what a chat template is given by name. Which of them the model's template reads is seen later."""
    found = body.given("chat_template_kwargs")
    if found is not None and not isinstance(found, dict):
        raise body.wrong("chat_template_kwargs", "an object")
    args = dict(found or {})
    if (effort := body.text("reasoning_effort")) is not None:
        args.setdefault("reasoning_effort", effort)
    return AnswerChoices(template_args=args) if args else AnswerChoices()


def _relayed(body: Body) -> tuple[str, ...]:
    """Return the fields that only the cloud's own route can honour, of those that ask for something."""
    given = {name: body.given(name) for name in RELAYED}
    return tuple(name for name, asks in RELAYED.items() if given[name] is not None and asks(given[name]))


def _ignored(body: Body) -> tuple[str, ...]:
    """Return the fields that change nothing here."""
    options = body.within("stream_options")
    if options is not None:
        options.given("include_usage")
    return (*body.rest, *(options.rest if options else ()))
