"""Spend at most so much: a price, a cap, and what happens when the cap is reached.

The worst case of every request is reserved before it leaves. Once a request no longer fits, the local model finishes
the answer, and ``degraded`` says so. Policy ``doubt`` asks only where the local model is unsure: a question that it is
sure of costs nothing.

    python examples/capped.py
"""

from __future__ import annotations

import hybrid
from hybrid.spend import as_usd

PRICE = "1/0.1/4"  # USD per million prompt, cached prompt and completion tokens
CAP = "0.0002"  # USD for all questions together
QUESTIONS = [
    "Set a timer for 12 minutes and 30 seconds.",
    "Convert 32 m to cm.",
    "Tom has 53 apples. Tom buys 8 more. Tom gives away 7. How many apples does Tom have now?",
    "Ana is taller than Ben. Ben is taller than Leo. Who is the tallest?",
    "Mia buys 3 boxes with 4 pens each. Mia sells 5. Mia has 5 friends. How many pens does Mia have now?",
]


def main() -> None:
    spent = 0
    # The bundled server charges nobody: nothing of this is written among what you have spent.
    with hybrid.open(policy="doubt", price=PRICE, cap=CAP, ledger="none") as client:
        for question in QUESTIONS:
            answer = client.generate(question)
            spent += answer.bill.nanousd or 0
            print(f"{question}\n  {answer.text}")
            print(f"  paid {answer.bill}")
            if answer.degraded:
                print(f"  degraded: {answer.degraded}")
    print(f"spent {as_usd(spent)} of {CAP} USD")


if __name__ == "__main__":
    main()
