"""A small model of another vocabulary beside one of the cloud's own: right answers, the bill, and what was in vain.

    python examples/other_words.py                              a problem of each family, by greedy-exact and kl
    python examples/other_words.py --n 12 --policy kl:0.3 --policy auto
    python examples/other_words.py --models small.gguf,mine.gguf

Both answer the same problems of the test split before the bundled large model. The recovered share (RPI) is of the gap
between the model alone and the large one; the bill is a share of what the large model alone costs; bytes in vain were
drafted and never shown, for each that was shown.
"""

import argparse
import asyncio
from dataclasses import dataclass, field

import hybrid
from hybrid.run.events import Finished, RecordingStarted, SpanDrafted
from hybrid.tasks import BY_NAME, FAMILIES, Problem, distinct
from hybrid.tasks.statistics import rpi

PRICE = "1/0.1/4"  # a USD for a million prompt tokens, a tenth for cached ones, four for written ones


@dataclass
class Arm:
    """What one way to answer came to."""

    right: list[bool] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    usd: float = 0.0
    shown: int = 0
    drafted: int = 0

    @property
    def in_vain(self) -> float:
        """Drafted bytes that were not shown, for each byte that was."""
        return max(0, self.drafted) / max(1, self.shown)


def problems(num: int) -> list[Problem]:
    """Draw so many problems of each family."""
    return [each for family in FAMILIES for each in distinct(family, "test", num, seed=1)]


async def answered(model: str, policy: str, asked: list[Problem]) -> Arm:
    """Answer all problems."""
    arm = Arm()
    async with hybrid.open(local=model, policy=policy, price=PRICE, ledger="none", learn=False) as client:
        for problem in asked:
            pieces: tuple[bytes, ...] = ()
            async for event in client.stream(problem.question, trace_rows=True):
                match event:
                    case RecordingStarted():
                        pieces = event.pieces
                    case SpanDrafted():
                        arm.drafted += sum(len(pieces[token]) for token in event.ids)
                    case Finished(answer=answer):
                        arm.right.append(BY_NAME[problem.family].grade(problem, answer.text))
                        arm.texts.append(answer.text)
                        arm.usd += float(answer.bill.usd or 0)
                        arm.shown += len(answer.text.encode())
                        arm.drafted -= sum(len(pieces[each.id]) for each in answer.tokens if each.source == "local")
    return arm


def told(policy: str, arm: Arm, alone: Arm, cloud: Arm) -> str:
    """Return one line of the table."""
    found = rpi(alone.right, arm.right, cloud.right)
    recovered = "undefined" if found is None else f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"
    same = sum(a == b for a, b in zip(arm.texts, cloud.texts, strict=True))
    return (
        f"  {policy}: {sum(arm.right)} of {len(arm.right)} right, RPI {recovered}, bill {arm.usd / cloud.usd:.2f}, "
        f"{same} texts the large model's, {arm.in_vain:.2f} bytes in vain for each shown"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="small,alien")
    parser.add_argument("--n", type=int, default=1)
    parser.add_argument("--policy", action="append")
    chosen = parser.parse_args()
    asked = problems(chosen.n)
    cloud = asyncio.run(answered("small", "cloud", asked))
    print(f"the large model alone: {sum(cloud.right)} of {len(asked)} right")
    for model in chosen.models.split(","):
        alone = asyncio.run(answered(model, "local", asked))
        print(f"{model} alone: {sum(alone.right)} of {len(asked)} right", flush=True)
        for policy in chosen.policy or ["greedy-exact", "kl"]:
            print(told(policy, asyncio.run(answered(model, policy, asked)), alone, cloud), flush=True)


if __name__ == "__main__":
    main()
