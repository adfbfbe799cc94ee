"""The chat templates of llama.cpp's tree, times six conversations: every turn's text rendered, or a role refused."""

from __future__ import annotations

import pytest
from published_templates import Unavailable, table, templates

from hybrid.engine.chat import ChatRenderer
from hybrid.engine.template import ChatTemplate
from hybrid.types import Message

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]


@pytest.fixture(scope="module")
def published():
    try:
        return templates()
    except Unavailable as why:
        pytest.skip(str(why))


def test_no_published_template_drops_a_turn(published):
    """Before, a developer's turn was dropped or refused by 46 of them, a tool's by 16."""
    rows = table(published)
    assert len(rows) >= 70
    outcomes = {each for row in rows.values() for each in row.values()}
    assert outcomes == {"rendered", "refused: tool"}, rows
    refused = [(name, told) for name, row in rows.items() for told, each in row.items() if each != "rendered"]
    assert {told for _, told in refused} == {"with a tool"}
    assert len(refused) <= 14


def test_their_thoughts_are_told_apart_by_their_own_marks(published):
    def thoughts(name):
        return ChatRenderer(ChatTemplate(published[name]), name).thoughts([Message("user", "Why?")], {})

    for name, begin, opened in [
        ("Qwen-Qwen3-0.6B", "<think>", False),
        ("Qwen3.5-4B", "<think>", True),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "<think>", False),
        ("llama-cpp-deepseek-r1", "<think>", True),
        ("openai-gpt-oss-120b", "<|channel|>", False),
        ("google-gemma-4-31B-it", "<|channel>", False),
        ("mistralai-Ministral-3-14B-Reasoning-2512", "[THINK]", False),
        ("ByteDance-Seed-OSS", "<seed:think>", False),
        ("Cohere2MoE", "<|START_THINKING|>", True),
        ("Kimi-K3", "<|open|>think<|sep|>", True),
        ("tencent-Hy3", "<think:opensource>", False),
    ]:
        found = thoughts(name)
        assert (found.open, found.opened) == (begin, opened), name
    for name in ("meta-llama-Llama-3.1-8B-Instruct", "google-gemma-2-2b-it", "Qwen-Qwen2.5-7B-Instruct"):
        assert thoughts(name) is None, name
