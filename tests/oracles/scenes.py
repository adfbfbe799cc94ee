"""What is asked of a real server to have its replies on record, and what must come of them whoever answers.

``tests/end_to_end/record_servers.py`` asks real servers, ``tests/cloud/test_recorded_servers.py`` their recordings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from endpoints import connected

from hybrid.cloud import Chunk, ScoreQuestion, WriteQuestion
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.port import Capabilities, ModelQuestion, Scores
from hybrid.errors import CloudError, Unreachable
from hybrid.types import Message, Sampling

K, CONTEXT = 3, 1024
ASKED = Message("user", "What is 47 + 86?")
KEY = "sk-test"  # of the proxy alone


@dataclass(frozen=True)
class Scene:
    """Some questions to one endpoint, one after the other. ``asks`` names them (``question``)."""

    asks: tuple[str, ...]
    dialect: str | None = None
    model: str | None = None
    key: str | None = None


@dataclass
class Played:
    """What came of a scene: what it found out, for each question its answer or its error, and what it knew then."""

    can: Capabilities | None = None
    learned: Capabilities | None = None
    questions: list[ModelQuestion] = field(default_factory=list)
    answers: list[Scores | list[Chunk] | CloudError] = field(default_factory=list)
    refused: CloudError | None = None  # at the very start


BY_ID = ("score", "score, ended", "row after", "write", "drawn", "banned")
REFUSALS = ("k too large, whole", "k too large, streamed", "too long, whole", "too long, streamed")
BY_TEXT = ("score", "row after", "write")
# By the file that keeps what was said, and by what the scene shows.
SCENES: Mapping[str, Mapping[str, Scene]] = {
    "vllm_v1": {
        "vllm": Scene((*BY_ID, "limit beyond the context")),
        "vllm, refusals": Scene(REFUSALS),
        "vllm-tokens": Scene((*BY_ID, "candidates", "score"), "vllm-tokens"),
        "vllm-tokens, refusals": Scene(REFUSALS, "vllm-tokens"),
        "openai-completions": Scene(BY_TEXT, "openai-completions"),
        "openai-chat": Scene(("open",), "openai-chat"),
        "another model": Scene((), model="other"),
    },
    # As it is started without a flag: no word of a cache, no scale-out route.
    "vllm_v1_plain": {
        "vllm": Scene(BY_ID),
        "vllm-tokens": Scene(("score",), "vllm-tokens"),
    },
    "vllm_v2": {
        "vllm-tokens": Scene((*BY_ID, "candidates"), "vllm-tokens"),
        "cached checks": Scene(
            ("candidates", "cached", "cached, whole blocks", "cached, the draft too"), "vllm-tokens"
        ),
    },
    "sglang": {
        "sglang": Scene((*BY_ID, "candidates")),
        "refusals": Scene(("too long, whole", "too long, streamed", "limit beyond the context")),
    },
    "litellm": {
        "hosted_vllm": Scene(BY_TEXT, model="large", key=KEY),
        "text-completion-openai": Scene((*BY_ID, "k too large, whole"), "vllm", "large-text", KEY),
    },
}  # fmt: skip


def question(name: str, words: Any) -> ModelQuestion:
    """Make a question by its name."""
    few, span = words.tokenize("What is 47"), words.tokenize(" + 86?")
    long = (words.tokenize("What is 47 + 86? ") * 120)[: CONTEXT + 64]
    prompt = words.render([ASKED])
    score = ScoreQuestion(few, span, True, K)
    write = WriteQuestion(few, 6, K, Sampling())
    likely = tuple(words.tokenize(text)[0] for text in ("9", " and", "a"))
    return {
        "score": score,
        "score, ended": replace(score, after=False),
        "row after": replace(score, span=()),
        "candidates": replace(score, candidates=tuple(likely[: 1 + i % 3] for i in range(len(span)))),
        "write": write,
        "drawn": replace(write, sampling=Sampling(0.7, seed=5)),
        "banned": replace(write, ban=frozenset(likely)),
        "open": WriteQuestion(prompt, 6, K, Sampling(), turns=(ASKED,)),
        "k too large, whole": replace(score, prefix=few[:1], span=few[1:2], top_k=60),
        "k too large, streamed": replace(write, limit=1, top_k=60),
        "too long, whole": replace(score, prefix=long),
        "too long, streamed": replace(write, prefix=long),
        "limit beyond the context": replace(write, prefix=long[: CONTEXT - 4], limit=16, top_k=0),
        # Of blocks of 32 tokens: after 40, the first is cached; after 32 no row of the span's first token can be had
        # from a cache; and what was checked lies there as well.
        "cached": replace(score, prefix=long[:40]),
        "cached, whole blocks": replace(score, prefix=long[:32]),
        "cached, the draft too": replace(score, prefix=long[:30], span=long[30:42]),
    }[name]


def play(scene: Scene, url: str, words: Any) -> Played:
    """Ask everything of a scene."""
    return asyncio.run(_play(scene, url, words))


async def _play(scene: Scene, url: str, words: Any) -> Played:
    played = Played()
    try:
        async with connected(url, words, scene.dialect, scene.model, scene.key) as (endpoint, played.can):
            for name in scene.asks:
                played.questions.append(question(name, words))
                played.answers.append(await _answered(endpoint, played.questions[-1]))
            played.learned = endpoint.knowledge.dialect.can
    except CloudError as error:
        played.refused = error
    return played


async def _answered(endpoint: Endpoint, asked: ModelQuestion) -> Scores | list[Chunk] | CloudError:
    try:
        if isinstance(asked, ScoreQuestion):
            return await endpoint.score(asked, "r")
        return [chunk async for chunk in endpoint.write(asked, "r")]
    except Unreachable as error:  # as hybrid.run.retrying has it
        return await _answered(endpoint, asked) if error.trouble == "learned" else error
    except CloudError as error:
        return error
