"""Ask one question twice: with the blocking client, and with the asynchronous one.

Both write the same text. Questions gathered together share one client, which answers them one after another.

    python examples/ask.py
"""

from __future__ import annotations

import asyncio

import hybrid
from hybrid.run import Answer

QUESTION = "Set a timer for 12 minutes and 30 seconds and call it tea."
MORE_QUESTIONS = [
    "Sort 42 17 99 23 68.",
    "Integrate 30x^5 + 12x^3 so that F(1) = 10.",
    "Give 1978-04-24 07:12 in words.",
]


def main() -> None:
    show("blocking", QUESTION, ask(QUESTION))
    first, *more = asyncio.run(ask_together([QUESTION, *MORE_QUESTIONS]))
    show("async", QUESTION, first)
    for question, answer in zip(MORE_QUESTIONS, more, strict=True):
        show("gathered", question, answer)


def ask(question: str) -> Answer:
    with hybrid.open() as client:
        return client.generate(question)


async def ask_together(questions: list[str]) -> list[Answer]:
    async with hybrid.open() as client:
        return await asyncio.gather(*(client.generate(question) for question in questions))


def show(label: str, question: str, answer: Answer) -> None:
    print(f"{label:9} {question}")
    print(f"{'':9} {answer.text}")
    print(f"{'':9} [{answer.usage.local_tokens} tokens written here, {answer.usage.cloud_tokens} by the cloud]\n")


if __name__ == "__main__":
    main()
