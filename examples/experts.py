"""Several small models that write as one, beside one small model alone: what each has right, and what that costs.

    python examples/experts.py                                     the bundled small and mid, a problem of each family
    python examples/experts.py numbers.gguf words.gguf --n 12 --policy once:0.7 --policy once:1.5

All answer the same problems, which the bundled large model checks. Before that the experts answer other problems, by
which it is learned whose questions are whose; while they are measured nothing is learned.
"""

import argparse
from pathlib import Path
from typing import Any

import hybrid
from hybrid.tasks import BY_NAME, FAMILIES, Problem, distinct

PRICE = "1/0.1/4"  # a USD for a million prompt tokens, a tenth for cached ones, four for written ones


def problems(split: str, num: int) -> list[Problem]:
    """Draw so many problems of each family, the families taking turns."""
    drawn = [distinct(family, split, num, seed=1) for family in FAMILIES]
    return [each[turn] for turn in range(num) for each in drawn if turn < len(each)]


def measured(client: hybrid.Client, asked: list[Problem], policy: str) -> tuple[int, float]:
    """Return how many answers are right, and what all of them cost in USD."""
    answers = [client.generate(problem.question, policy=policy, learn=False) for problem in asked]
    right = sum(BY_NAME[problem.family].grade(problem, each.text) for problem, each in zip(asked, answers, strict=True))
    return right, float(sum(each.bill.usd for each in answers))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("experts", nargs="*", default=["small", "mid"])
    parser.add_argument("--alone", default="small")
    parser.add_argument("--mix", default="select")
    parser.add_argument("--n", type=int, default=1)
    parser.add_argument("--policy", action="append")
    chosen = parser.parse_args()
    policies, asked = chosen.policy or ["local", "once:0.7"], problems("test", chosen.n)
    sides: dict[str, dict[str, Any]] = {
        chosen.alone: {"local": chosen.alone},
        " + ".join(Path(model).stem for model in chosen.experts): {"experts": chosen.experts, "mix": chosen.mix},
    }
    for name, models in sides.items():
        with hybrid.open(**models, price=PRICE, ledger="none") as client:
            for problem in problems("calibration", chosen.n) if "experts" in models else ():
                client.generate(problem.question, policy="once:0.7")
            for policy in [*policies, "cloud"]:
                right, usd = measured(client, asked, policy)
                print(f"{name}, {policy}: {right} of {len(asked)} right, {usd:.6f} USD")


if __name__ == "__main__":
    main()
