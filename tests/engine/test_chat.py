"""A conversation is rendered with every turn's text in it, or refused by the name of a role: nothing is dropped."""

from __future__ import annotations

import pytest
from cases import each, each_of
from chat_templates import ALTERNATES, CONVERSATIONS, DROPS, LATE_SYSTEM, OWN, PLAIN, THINKS, TOOLS, conversation
from hypothesis import given
from hypothesis import strategies as st

from hybrid.engine.chat import ChatRenderer
from hybrid.engine.port import Interrupted, ThoughtMarks
from hybrid.engine.template import ChatTemplate
from hybrid.errors import UsageError
from hybrid.types import Message


def renderer(template):
    return ChatRenderer(ChatTemplate(template, "<bos>", "<eos>"), "tiny.gguf")


def render(template, messages, apart=False, **args):
    return "".join(piece.text for piece in renderer(template).pieces(messages, args, apart=apart))


def refusal(template, messages, **args):
    with pytest.raises(UsageError) as refused:
        render(template, messages, **args)
    return str(refused.value)


REFUSED = {("drops", "with a tool"), ("alternates", "with a tool"), ("late system", "with a tool")}


@each("name", [*OWN])
@each("told", [*CONVERSATIONS])
@each("apart", [False, True])
def test_every_turns_text_is_there_in_order_or_a_role_is_named(name, told, apart):
    turns = conversation(CONVERSATIONS[told])
    if (name, told) in REFUSED:
        assert refusal(OWN[name], turns).startswith(
            "the chat template of tiny.gguf has no place for a turn of role tool"
        )
        return
    text = render(OWN[name], turns, apart)
    spoken = [text.index(turn.content) for turn in turns if turn.role not in {"system", "developer"}]
    assert spoken == sorted(spoken)
    assert all(turn.content in text for turn in turns)
    if turns[-1].role == "assistant":
        assert text.endswith(turns[-1].content)


@given(st.sampled_from([*OWN]), st.text("sduat", min_size=1, max_size=6), st.booleans(), st.data())
def test_whatever_the_turns_and_whatever_they_say_nothing_is_lost(name, roles, apart, data):
    """Texts of blanks, of nothing, of marks and of what a template looks for; the law is the same."""
    texts = st.text("ab \n<>", max_size=4) | st.sampled_from(
        ["/hidden", "<think>a</think>b", "\ue0000\ue001", "\ue002", "{{ 1 }}"]
    )
    turns = [Message(each.role, data.draw(texts)) for each in conversation(roles)]
    try:
        text = render(OWN[name], turns, apart)
    except UsageError:
        assert {"a", "t"} & set(roles), "a system text and users have a place everywhere"
        return
    at = 0
    for turn in each_of(turns):
        kept = turn.content.rpartition("</think>")[2] if turn.role == "assistant" else turn.content
        start = 0 if turn.role in {"system", "developer"} else at
        found = text.find(kept.strip(), start)
        assert found >= 0, (turn, text)
        at = at if turn.role in {"system", "developer"} else found + len(kept.strip())
    if roles[-1] == "a":
        assert text.endswith(turns[-1].content.rpartition("</think>")[2].lstrip("\n"))


def test_a_developer_is_a_system_and_system_texts_are_one():
    assert render(PLAIN, conversation("du", "{}")) == "<|system|>0<|end|><|user|>1<|end|><|assistant|>"
    assert render(DROPS, conversation("sdu", "{}")) == "<sys>0\n\n1</sys><u>2</u><a>"
    assert render(DROPS, conversation("usu", "{}")) == "<sys>1</sys><u>0</u><u>2</u><a>"


def test_a_system_text_that_has_no_place_stands_before_the_first_users():
    assert render(ALTERNATES, conversation("su", "{}")) == "<bos>[user]0\n\n1<eos>[model]"
    assert render(ALTERNATES, conversation("suusaau", "{}")) == (
        "<bos>[user]0\n\n3\n\n1\n\n2<eos>[assistant]4\n\n5<eos>[user]6<eos>[model]"
    )
    assert render(ALTERNATES, conversation("sau", "{}")) == "<bos>[user]0<eos>[assistant]1<eos>[user]2<eos>[model]"
    assert render(ALTERNATES, conversation("s", "{}")) == "<bos>[user]0<eos>[model]"


def test_turns_are_joined_only_where_a_template_wants_it():
    assert render(PLAIN, conversation("uu", "{}")) == "<|user|>0<|end|><|user|>1<|end|><|assistant|>"
    assert render(ALTERNATES, conversation("uu", "{}")) == "<bos>[user]0\n\n1<eos>[model]"


def test_a_system_text_stands_where_the_template_puts_it():
    assert render(LATE_SYSTEM, conversation("suau", "{}")) == "[INST]1[/INST] 2<eos>[INST]0\n\n3[/INST]"


def test_an_open_answer_is_continued_and_keeps_the_space_at_its_end():
    turns = [Message("user", "Count."), Message("assistant", "One, two,\n ")]
    assert render(PLAIN, turns) == "<|user|>Count.<|end|><|assistant|>One, two,\n "
    assert render(ALTERNATES, turns) == "<bos>[user]Count.<eos>[assistant]One, two,\n "
    assert render(LATE_SYSTEM, turns) == "[INST]Count.[/INST]One, two,\n "  # it refuses one: the prompt is gone on with
    assert render(PLAIN, turns, apart=True) == render(PLAIN, turns)


def test_a_template_that_drops_a_text_for_what_it_says_is_rendered_around_it():
    assert "<user>/hidden 1</user>" in render(TOOLS, [Message("user", "/hidden 1")])
    assert '<tool>{"out": "say "no""}</tool>' in render(TOOLS, [Message("user", "a"), Message("tool", 'say "no"')])


def test_what_refuses_every_form_is_one_sentence_with_its_own_words():
    assert refusal("{{ raise_exception('closed on Mondays') }}", conversation("u")) == (
        "the chat template of tiny.gguf refused the conversation (closed on Mondays); --raw sends the text as it stands"
    )
    assert refusal("nothing", conversation("su")) == (
        "the chat template of tiny.gguf drops a turn of system, user; --raw sends the text as it stands"
    )
    assert refusal(LATE_SYSTEM, conversation("ut")) == (
        "the chat template of tiny.gguf has no place for a turn of role tool (only user and assistant)"
    )


def test_an_argument_reaches_the_template_and_one_that_it_never_reads_is_refused():
    turns = conversation("u", "{}")
    assert render(THINKS, turns) == "<|user|>0<|end|><|assistant|><think>\n"
    assert render(THINKS, turns, enable_thinking=False) == "<|user|>0<|end|><|assistant|><think>\n\n</think>\n\n"
    assert refusal(THINKS, turns, enable_thoughts=1) == (
        "template argument enable_thoughts: the model's chat template never reads it; it reads enable_thinking"
    )


def test_what_an_argument_or_a_template_spells_is_no_turns_mark():
    turns = [Message("user", "hello")]
    for character in "\ue000\ue001\ue002":
        assert refusal("{{ messages[0].content }}{{ x }}", turns, x=f"a{character}") == (
            f"template argument x: it holds the private character U+{ord(character):04X}, which marks turns here"
        )
    own = "\ue0000\ue001 \ue0009\ue001 \ue002 <think></think>"
    template = f"{own}{{{{ messages[0].content }}}}{own}"
    for apart in (False, True):
        assert render(template, turns, apart) == f"{own}hello{own}"
        assert render(template, [*turns, Message("assistant", "\ue002 so")][::-1][:1], apart) == own + "\ue002 so"
    assert not renderer(template).thoughts(turns, {}).opened
    takes_apart = "{{ messages[0].content }}{{ messages[0].content[:-2] ~ '99' ~ messages[0].content[-1:] }}"
    assert render(takes_apart, turns, apart=True).startswith("hello")


def test_a_template_sees_the_marks_once_for_the_same_roles(monkeypatch):
    mine, seen = renderer(ALTERNATES), []
    write = ChatTemplate.write
    monkeypatch.setattr(
        ChatTemplate, "write", lambda self, turns, *a, **k: seen.append(turns) or write(self, turns, *a, **k)
    )
    mine.pieces(conversation("suau"), {}, apart=False)
    assert len(seen) > 2
    seen.clear()
    mine.pieces(conversation("suau", "another {}"), {}, apart=False)
    assert len(seen) == 1
    for length in range(2, 100):
        mine.pieces(conversation("ua" * length), {}, apart=False)
    assert len(mine._kept) <= 64


def test_thoughts_are_open_where_the_prompt_leaves_them_open():
    def opened(turns, **args):
        return renderer(THINKS).thoughts(turns, args)

    marks = ThoughtMarks("<think>", "</think>")
    assert opened(conversation("u")) == ThoughtMarks("<think>", "</think>", opened=True)
    assert opened(conversation("u"), enable_thinking=False) == marks
    assert opened(conversation("ua")) == marks
    assert opened([Message("user", "a"), Message("assistant", "<think>so")]).opened
    assert not opened([Message("user", "<think>"), Message("assistant", "so")]).opened, "somebody else's words"
    assert not opened([Message("user", "<think>")], enable_thinking=False).opened
    assert renderer(PLAIN).thoughts(conversation("u"), {}) is None


class CountingText(str):
    """A text that counts the characters that searches in it pass."""

    __slots__ = ()
    passed = 0

    def find(self, wanted, start=0):
        found = super().find(wanted, start)
        CountingText.passed += (found if found >= 0 else len(self)) - start
        return found


@each("roles", ["au", "s", "u", "sau"])
def test_the_search_for_turns_goes_on_where_the_last_one_ended(monkeypatch, roles):
    """25,000 turns took 14 s: each mark and each text was looked for from the beginning, the square of the turns."""
    write, apart = ChatTemplate.write, []
    monkeypatch.setattr(ChatTemplate, "write", lambda *given, **k: CountingText(write(*given, **k)))
    for num in (60, 600):
        mine, turns = renderer(PLAIN), conversation((roles * num)[:num], "text {} ends")
        mine.pieces(turns, {}, apart=True)  # the marks are seen
        CountingText.passed = 0
        (whole,) = mine.pieces(turns, {}, apart=False)
        apart.append(CountingText.passed / len(whole.text))
    assert 0 < apart[0] < 3
    assert apart[1] < 2 * apart[0]


def test_marks_are_looked_for_once(monkeypatch):
    write = ChatTemplate.write
    monkeypatch.setattr(ChatTemplate, "write", lambda *given, **k: CountingText(write(*given, **k)))
    CountingText.passed = 0
    pieces = renderer(PLAIN).pieces(conversation("ua" * 500), {}, apart=True)
    assert CountingText.passed <= sum(len(piece.text) for piece in pieces)


def test_fitted_conversations_hold_a_bounded_number_of_turns():
    mine = renderer(PLAIN)
    for length in (17_000, 17_001):
        mine.pieces([Message("user", "a")] * length, {}, apart=True)
        assert sum(len(fit.turns) for fit in mine._kept.values()) < 40_000


def test_no_further_form_is_tried_for_a_caller_who_has_left(monkeypatch):
    """A template that refuses every form is given some sixty, of a conversation as long as the context."""
    write, tried = ChatTemplate.write, []
    monkeypatch.setattr(ChatTemplate, "write", lambda *given, **k: tried.append(1) or write(*given, **k))
    turns = conversation("stua")
    with pytest.raises(UsageError):
        renderer("{{ raise_exception('no') }}").pieces(turns, {}, apart=False)
    assert len(tried) > 20
    tried.clear()
    with pytest.raises(Interrupted):
        renderer("{{ raise_exception('no') }}").pieces(turns, {}, apart=False, cancelled=lambda: len(tried) == 5)
    assert len(tried) == 5
