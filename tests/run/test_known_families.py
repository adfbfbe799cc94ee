"""What the bundled models are for: who is told so, measured on questions that the threshold was not chosen on."""

from __future__ import annotations

import asyncio

from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.run.contexts import DomainCheck
from hybrid.tasks import FAMILIES, distinct, wordings
from hybrid.types import Message

KNOWN = DomainCheck.of_bundled()
# None of these was looked at while the threshold was chosen.
EVERYDAY = """
How do vaccines work?
Who painted the Mona Lisa?
Write a haiku about the sea.
What is the best way to learn French?
Why do leaves turn red in autumn?
How do I change a flat tire?
Explain how a refrigerator works.
What should I pack for a trip to Norway?
Write a short story about a lonely robot.
How does the stock market work?
What is the difference between weather and climate?
Give me a recipe for pancakes.
Who was Marie Curie?
How do I get rid of mice in my house?
Translate this to German: where is the station?
Is it safe to eat raw eggs?
Write a birthday message for my grandmother.
What are black holes?
Why is the sea salty?
Which programming language should I learn first?
How many calories are in an apple?
Summarize the following article in two sentences.
What happened in Berlin in 1989?
Help me write a cover letter.
Why do we dream?
Tell me about the history of chess.
How can I sleep better?
What does the word ubiquitous mean?
Suggest a name for my cat.
Explain recursion with an example.
Why is the sky blue?
Who are you?
Write a regular expression that matches an email address.
Does coffee stunt your growth?
What is the plot of Moby Dick?
Compare electric cars with diesel cars.
How is glass made?
Can dogs eat chocolate?
What are the rules of cricket?
Convince me to go for a run.
""".strip().split("\n")


def test_of_the_families_own_problems_fewer_than_one_in_a_hundred_are_taken_for_others():
    """The test split, which neither the threshold nor the counted words have seen."""
    asked = [problem.question for family in FAMILIES for problem in distinct(family, "test", 120, seed=11)]
    told = [question for question in asked if KNOWN.told(question)]
    assert len(told) < 0.01 * len(asked), (len(told), len(asked))


def test_of_everyday_questions_more_than_95_in_a_hundred_are_told():
    told = [question for question in EVERYDAY if KNOWN.told(question)]
    assert len(told) > 0.95 * len(EVERYDAY), sorted({*EVERYDAY} - {*told})


def test_of_a_conversation_the_last_question_counts():
    strange, known = "Why is the sky blue?", "What is 47 + 86?"
    turns = [Message("user", strange), Message("assistant", "It scatters."), Message("user", known)]
    assert not KNOWN.told(turns)
    assert KNOWN.told([*turns[:2], Message("user", strange)])


def test_the_command_says_what_the_bundled_pair_is_for_in_one_line_and_the_answer_has_it_as_a_note():
    done = CliRunner().invoke(app, ["ask", "Why is the sky blue?", "--offline", "--max-tokens", "4"])
    assert (done.exit_code, done.stderr.count("\n")) == (0, 1)
    assert done.stderr.startswith("hybrid: the bundled models answer generated problems of 14 families (arithmetic, ")
    done = CliRunner().invoke(app, ["ask", "What is 47 + 86?", "--offline", "--max-tokens", "4"])
    assert (done.exit_code, done.stderr) == (0, "")

    async def notes():
        async with hybrid.open(policy="local", max_tokens=2, local="mid") as client:
            return [(await client.generate(text)).notes for text in ("Why?", "What is 47 + 86?", "Why?")]

    first, second, third = asyncio.run(notes())
    assert len(first) == 1
    assert (second, third) == ((), first), "a question's answer does not depend on what was asked before"


def test_the_wordings_pair_knows_the_words_of_its_world_and_no_others():
    families = DomainCheck.of_pair("wordings-small")
    problems = [problem for family in wordings.FAMILIES for problem in distinct(family, "test", 20, 0)]
    assert all(families.told(problem.question) == "" for problem in problems)
    assert "of 5 families (compare, gift, feeling, way, arrival; hybrid tasks list)" in families.told("who is king?")
    with hybrid.open(policy="local", max_tokens=2, local="wordings-large") as client:
        assert client.generate(problems[0].question).notes == ()
        assert len(client.generate("Why is the sky blue?").notes) == 1


def test_models_of_ones_own_are_told_nothing():
    for local in (hybrid.assemble.BUNDLED_LOCAL, "small"):
        named = {"cloud": "http://127.0.0.1:9"} if local == "small" else {}
        with hybrid.open(policy="local", max_tokens=2, local=local, **named) as client:
            assert client.generate("Why is the sky blue?").notes == ()
