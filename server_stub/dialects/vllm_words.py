"""What both of vLLM's generating routes say alike: refusals and usage.

Written from vllm-project/vllm ``vllm/exceptions.py``, ``vllm/sampling_params.py``, ``v1/engine/input_processor.py`` and
``entrypoints/serve/engine/protocol.py`` (``UsageInfo``), and held against the replies of vLLM 0.32's own server
(``tests/server_stub/test_vllm_refusals.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from server_stub import wire
from server_stub.completion import Charge
from server_stub.served import Served
from server_stub.wire import Json, WireError


def invalid(message: str, parameter: str, value: object = None) -> WireError:
    """Return a refusal as ``VLLMValidationError`` words it."""
    more = "" if value is None else f", value={value}"
    return WireError(400, f"{message} (parameter={parameter}{more})", param=parameter)


def check_counts(logprobs: int | None, prompt_logprobs: int | None, most: int) -> None:
    """Raise WireError where more log-probabilities are asked for than the server gives."""
    for what, name, count in (("sample", "logprobs", logprobs), ("prompt", "prompt_logprobs", prompt_logprobs)):
        if count is not None and count > most:
            message = f"Requested {what} logprobs of {count}, which is greater than max allowed: {most}"
            raise invalid(message, name, count)


def check_ids(served: Served, ids: Iterable[int], bias: Mapping[int, float] | None) -> None:
    """Raise WireError for ids of a prompt or a bias that are no token's."""
    size = served.vocabulary.num_tokens
    if unknown := [token for token in bias or () if not 0 <= token < size]:
        message = f"token_id(s) {unknown} in logit_bias contain out-of-vocab token ids. Vocabulary size: {size}"
        raise invalid(message, "logit_bias", unknown)
    if (highest := max(ids, default=0)) >= size:
        raise WireError(400, f"Token id {highest} is out of vocabulary")


def usage(charge: Charge, served: Served, *, streamed: bool) -> Json:
    """Return what was charged: whole with every key of the schema, in a stream without those that are null.

    Nothing is said of the cache unless ``--enable-prompt-tokens-details`` was given.
    """
    told = wire.usage(charge)
    details = told.pop("prompt_tokens_details")
    if streamed:
        return told | {"prompt_tokens_details": details} if served.prompt_tokens_details else told
    details |= {"created_cache_tokens": None, "multimodal_tokens": None}
    told["prompt_tokens_details"] = details if served.prompt_tokens_details else None
    return told | {"completion_tokens_details": None}
