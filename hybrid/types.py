"""The nouns that every room shares: plain frozen values, without knowledge of their makers and readers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

Ids: TypeAlias = tuple[int, ...]
TokenSource: TypeAlias = Literal["local", "cloud"]
TokenOutcome: TypeAlias = Literal["accepted", "unchecked", "recovered", "bonus", "written"]
FinishReason: TypeAlias = Literal["stop", "length"]
DegradedKind: TypeAlias = Literal[
    "unreachable", "bad reply", "refused", "capability", "context", "budget", "charge", "paced"
]
"""Why the cloud was not asked: no reply; one that cannot be believed; settings that it refuses; it cannot do what the
policy needs; its context is full; no money is left for it; it charged more than a request may cost (the answer is
whole). ``paced``: a day's pacing lowered the worth, and less was requested than without it."""
Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]
TemplateArg: TypeAlias = str | int | float | bool | None
"""A value that a chat template is given by name, as JSON has it."""
Ability: TypeAlias = Literal["score", "write", "open", "ids"]
"""score: rows for a draft. write: it continues a partial answer. open: it writes one from its start. ids: tokens are
numbers on the wire, so that a drafted token's own log-probability comes with its row."""


def num_shared(first: Ids, second: Ids) -> int:
    """Length of the longest common prefix."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while high - low > 1:  # first[:low] is shared, first[:high] is not
        middle = (low + high) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle)
    return low


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn, by either model. Order: temperature, min-p, top-k, top-p (as vLLM).

    ``min_p`` in [0, 1): tokens less likely than that times the best one are dropped; 0 drops none.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0

    @property
    def cut(self) -> bool:
        """Whether unlikely tokens are cut off."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


@dataclass(frozen=True)
class Divergence:
    """KL(cloud || local) at one position, in nats: the coarse estimate and the tight interval, of the rows as told.

    ``estimate`` takes all tokens that were not shown together as one, so it is never above ``lower``, mostly below it.
    ``noise``: the nats by which log-probabilities of the two rows are typically off, added up: as measured, no bound.
    The models' own divergence may lie outside the interval by what that allows (``prob.divergence``).
    """

    estimate: float
    lower: float
    upper: float
    noise: float = 0.0


@dataclass(frozen=True)
class CloudUsage:
    """Tokens that were charged, and in how many ``requests`` over HTTP.

    A prompt token is cached (``cached_tokens``), written to the cache (``cache_write_tokens``), or neither, never two
    of them. ``cache_write_tokens`` None: not told, so that all that is not cached may have been written.
    ``reasoning_tokens``: thoughts, among ``completion_tokens``. Two counts are the client's own knowledge, for prices
    with a tariff: ``repeated_tokens`` of the prompt stood at the beginning of an earlier prompt of the same answer that
    was answered; ``check_requests`` of the requests score.

    What a server told is not all of it: ``known_...`` were counted by the client beyond that, and ``assumed_...`` are
    charged beyond both because nothing tells that they were not. Equality ignores where a count comes from.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    requests: int = 1
    repeated_tokens: int = 0
    check_requests: int = 0
    cache_write_tokens: int | None = None
    reasoning_tokens: int = 0
    known_prompt_tokens: int = field(default=0, compare=False)
    known_completion_tokens: int = field(default=0, compare=False)
    assumed_prompt_tokens: int = field(default=0, compare=False)
    assumed_completion_tokens: int = field(default=0, compare=False)

    @property
    def told_prompt_tokens(self) -> int:
        """Those of the prompt that the server told."""
        return self.prompt_tokens - self.known_prompt_tokens - self.assumed_prompt_tokens

    @property
    def told_completion_tokens(self) -> int:
        """Those of the completion that the server told."""
        return self.completion_tokens - self.known_completion_tokens - self.assumed_completion_tokens

    @property
    def known(self) -> CloudUsage:
        """The same counts, as the client's own knowledge."""
        prompt, completion = self.prompt_tokens, self.completion_tokens
        known = replace(self, known_prompt_tokens=prompt, known_completion_tokens=completion)
        return replace(known, assumed_prompt_tokens=0, assumed_completion_tokens=0)

    @property
    def assumed(self) -> CloudUsage:
        """The same counts, as an assumption."""
        prompt, completion = self.prompt_tokens, self.completion_tokens
        assumed = replace(self, assumed_prompt_tokens=prompt, assumed_completion_tokens=completion)
        return replace(assumed, known_prompt_tokens=0, known_completion_tokens=0)

    def __add__(self, other: CloudUsage) -> CloudUsage:
        """Add up what was charged. Writes are told of the sum where those of every prompt in it are."""
        writes = [each.cache_write_tokens for each in (self, other) if each.prompt_tokens]
        told = [each for each in writes if each is not None]
        return CloudUsage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.requests + other.requests,
            self.repeated_tokens + other.repeated_tokens,
            self.check_requests + other.check_requests,
            sum(told) if writes and len(told) == len(writes) else None,
            self.reasoning_tokens + other.reasoning_tokens,
            self.known_prompt_tokens + other.known_prompt_tokens,
            self.known_completion_tokens + other.known_completion_tokens,
            self.assumed_prompt_tokens + other.assumed_prompt_tokens,
            self.assumed_completion_tokens + other.assumed_completion_tokens,
        )

    def at_least(self, known: CloudUsage) -> CloudUsage:
        """Raise the counts to known ones; those of cached, written, repeated and reasoning tokens and of checks stay.

        What is told, what is told or known, and what is charged are each the greater of the two.

        >>> CloudUsage(2, 9, 1).at_least(CloudUsage(5, 3)) == CloudUsage(5, 9, 1)
        True
        """
        return replace(
            self,
            prompt_tokens=max(self.prompt_tokens, known.prompt_tokens),
            completion_tokens=max(self.completion_tokens, known.completion_tokens),
            cached_tokens=min(self.cached_tokens, max(self.prompt_tokens, known.prompt_tokens)),
            requests=max(self.requests, known.requests),
            **_raised_sources(self, known),
        )


def _raised_sources(one: CloudUsage, other: CloudUsage) -> dict[str, int]:
    """Return which tokens of the greater of two usages are known and which assumed."""
    found: dict[str, int] = {}
    for count in ("prompt_tokens", "completion_tokens"):
        totals, told, assumed = (
            [getattr(usage, f"{source}{count}") for usage in (one, other)] for source in ("", "told_", "assumed_")
        )
        certain = max(total - part for total, part in zip(totals, assumed, strict=True))
        found[f"known_{count}"] = certain - max(told)
        found[f"assumed_{count}"] = max(totals) - certain
    return found


# Of a request that was never sent, or was rejected unread.
NO_USAGE = CloudUsage(0, 0, requests=0)


class Vocabulary(Protocol):
    """A vocabulary: text to ids and back."""

    @property
    def num_tokens(self) -> int:
        """V: ids from here on are no tokens, whatever a file pads its rows with."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    def tokenize(self, text: str, *, special: bool = False) -> Ids:
        """Split text. With ``special`` the model's own control tokens are recognised and its BOS rule applied."""
        ...

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token; control tokens by their name."""
        ...
