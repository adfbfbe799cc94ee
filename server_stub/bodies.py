"""Reading bodies: what OpenAI's request models have in common, and the sentence for what cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from server_stub.ask import Ask
from server_stub.wire import WireError

T = TypeVar("T", bound=BaseModel)


class Body(BaseModel):
    """A request. Fields that are not implemented are ignored, as all families ignore what they do not know."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, body: object) -> object:
        """Let a parameter that is null take its default."""
        return {k: v for k, v in body.items() if v is not None} if isinstance(body, dict) else body


class StreamOptions(BaseModel):
    """What a stream tells besides text."""

    include_usage: bool = False


class SamplingFields(Body):
    """The fields of OpenAI's completions that say how to draw. One answer to each prompt is all there is."""

    model: str | None = None
    n: int = Field(1, ge=1, le=1)
    max_tokens: int = Field(16, ge=0)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    logit_bias: Mapping[int, float] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings, as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def tells_usage(self) -> bool:
        """Whether a stream closes with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def ask(self, ids: tuple[int, ...], **more: Any) -> Ask:
        """Return what these fields ask for after a prompt."""
        drawn = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "stops": self.stops,
            "logit_bias": self.logit_bias or {},
        }
        return Ask(ids, **(drawn | more))


class ExtendedSamplingFields(SamplingFields):
    """The same with what open models add: top-k, and a floor beside the likeliest token."""

    top_k: int = Field(0, ge=-1)
    min_p: float = Field(0.0, ge=0, lt=1)

    def ask(self, ids: tuple[int, ...], **more: Any) -> Ask:
        """Return what these fields ask for after a prompt."""
        return super().ask(ids, **({"top_k": self.top_k, "min_p": self.min_p} | more))


Id = Annotated[int, Field(ge=0)]
Prompts = str | Annotated[list[Id] | list[str] | list[Annotated[list[Id], Field(min_length=1)]], Field(min_length=1)]


def each(prompt: Prompts) -> list[str | list[int]]:
    """Return the prompts of a field that may hold one or several, in text or in ids.

    >>> each("a"), each([1, 2]), each(["a", "b"]), each([[1], [2, 3]])
    (['a'], [[1, 2]], ['a', 'b'], [[1], [2, 3]])
    """
    if isinstance(prompt, str):
        return [prompt]
    ids = [token for token in prompt if isinstance(token, int)]
    return [ids] if ids else [one for one in prompt if not isinstance(one, int)]


def parse(model: type[T], raw: bytes) -> T:
    """Read a body. Raises WireError that names the field."""
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = ".".join(str(part) for part in first["loc"][:1])
        raise WireError(400, f"{param or 'body'}: {first['msg']}", param=param or None) from None
