"""A tree of thoughts (Yao et al. 2023): the small model proposes, the large one scores, the best few states are kept.

    python examples/tree_of_thoughts.py
    python examples/tree_of_thoughts.py "Sort 42 17 99 23 68." --propose 4 --keep 2 --step 24 --temperature 1.2

A state is worth the mean of its tokens' nats under the large model. The template is the bundled pair's.
"""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import hybrid
from hybrid.run import BranchDrawn

TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


class State(NamedTuple):
    """A text, its log-probability and length, and whether it has ended."""

    text: str = ""
    nats: float = 0.0
    tokens: int = 0
    ended: bool = False


def proposed(client: hybrid.Client, question: str, state: State, num: int, step: int) -> Iterator[State]:
    """Yield the states that follow one, each different one scored by the large model."""
    stream = client.stream(TEMPLATE.format(question) + state.text, raw=True, branches=num, max_tokens=step)
    drawn = [event for event in stream if isinstance(event, BranchDrawn)]
    if num > 1 and len(drawn) == 1:  # there was nothing to choose from, so nothing was scored
        yield from proposed(client, question, state, 1, step)
    for each in drawn:
        if each.cloud_logprob is not None:
            nats, tokens = state.nats + each.cloud_logprob, state.tokens + each.num_tokens
            yield State(state.text + each.text, nats, tokens, ended=each.num_tokens < step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("question", nargs="?", default="Put in order, smallest first: 55 95 21 20 35 31.")
    for name, default in (("propose", 3), ("keep", 2), ("step", 24), ("depth", 6)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--temperature", type=float, default=1.3)
    args, states = parser.parse_args(), [State()]
    with hybrid.open(price="1/0.1/4", ledger="none", temperature=args.temperature, seed=1) as client:
        for depth in range(args.depth):
            growing = [each for each in states if not each.ended]
            found = [new for each in growing for new in proposed(client, args.question, each, args.propose, args.step)]
            found += [each for each in states if each.ended]
            states = sorted(found, key=lambda state: -state.nats / state.tokens)[: args.keep]
            print(f"{depth + 1}: kept of {len(found)}")
            print(*(f"   {each.nats / each.tokens:.3f} {each.text!r}" for each in states), sep="\n")
        print(f"{states[0].text}\n{client.spent.nanousd / 1e9:.6f} USD")


if __name__ == "__main__":
    main()
