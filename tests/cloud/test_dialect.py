"""What holds of every dialect's requests."""

from __future__ import annotations

from cases import each
from vocabularies import WORDS

from hybrid.cloud.dialects.dialect import DialectConfig, Post
from hybrid.cloud.dialects.text_tokens import TextVocabulary
from hybrid.cloud.discover import DIALECTS
from hybrid.cloud.port import ScoreQuestion, WriteQuestion
from hybrid.types import Message, Sampling

LENGTHS = {"logprobs", "prompt_logprobs", "top_logprobs", "top_logprobs_num", "n_probs"}
TURNS = (Message("user", "ab"),)


def numbers(body):
    """How many log-probabilities a body asks for, wherever it says so."""
    for key, value in body.items():
        if isinstance(value, dict):
            yield from numbers(value)
        elif key in LENGTHS and type(value) is int:
            yield value


def asked(dialect, top_k):
    """The numbers in the first request of a write and of a check."""
    write = WriteQuestion((0, 1), 3, top_k, Sampling(), turns=TURNS)
    score = ScoreQuestion((0, 1), (2, 3), True, top_k)
    can = dialect.can.abilities
    continuation = dialect.write(write)
    posts = [] if continuation is None else [continuation.post]
    posts += [next(dialect.score(score))] if "score" in can else []
    return [number for post in posts if isinstance(post, Post) for number in numbers(post.body)]


@each("name", [name for name in DIALECTS if not name.startswith("text-")])
def test_no_more_log_probabilities_are_asked_for_than_there_are_tokens(name):
    """SGLang's server ends at such a number."""
    dialect = DIALECTS[name].build(DialectConfig("m", TextVocabulary(WORDS)))
    assert max(asked(dialect, 4)) <= 5  # the token itself may be one more
    assert max(asked(dialect, 100)) <= WORDS.num_tokens
