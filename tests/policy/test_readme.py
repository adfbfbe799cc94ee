"""The 25 lines of the room's notes are the oracle of ``greedy-exact``: the same tokens, of the same origin.

The first page names the policies that need no common vocabulary.
"""

from __future__ import annotations

import re
from pathlib import Path

from cases import each_of

import hybrid.policy
from hybrid.policy import PRESETS, PolicyOptions, preset
from hybrid.policy.requests import Check

BLOCK = re.compile(r"^```python\n(def greedy_speculation.*?)^```", re.MULTILINE | re.DOTALL)
LENGTH, NUM_PAIRS = 12, 60


def oracle():
    """Execute the block as it stands there."""
    (block,) = BLOCK.findall((Path(hybrid.policy.__file__).parent / "NOTES.md").read_text())
    names = {}
    exec(block, names)
    assert len(block.split("\n\n\n")[0].splitlines()) <= 25, "the notes promise 25 lines"
    return names["greedy_speculation"]


def test_greedy_exact_does_what_the_readme_says(toys):
    """Many models, spans and end tokens; from one shown token as from all. Every origin occurs."""
    speculate, seen, checks = oracle(), set(), 0
    for i in each_of(range(NUM_PAIRS)):
        small = toys.Toy(f"s{i}", 3 + i % 3)
        large = toys.Mix(small, f"l{i}", (0.3, 0.5, 0.8)[i % 3])
        for span in (1, 2, 3, 7):
            for end in (-1, 0, 2):
                best = [lambda text, model=model: model(tuple(text)).best for model in (small, large)]
                expected = speculate(*best, span, LENGTH, end)
                policy = preset("greedy-exact", PolicyOptions(span=span))
                for k in (1, small.num_tokens):
                    shown, log = toys.play(policy, small, large, None, LENGTH, k=k, end=end)
                    assert [(token.id, token.how) for token in shown] == expected, (i, span, end, k)
                checks += sum(isinstance(request, Check) for request in log)
                seen |= {how for _, how in expected}
                assert tuple(token for token, _ in expected) == toys.greedy_text(large, LENGTH, end)
    assert seen == {"accepted", "recovered", "bonus"}
    assert checks > NUM_PAIRS


def test_the_first_page_lists_every_policy_that_works_across_vocabularies():
    """One model's own text is no matter of vocabularies: ``local`` and ``cloud`` are not listed."""
    page = " ".join((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").split())
    ((listed, last),) = re.findall(r"((?:`[a-z-]+`, )+`[a-z-]+`) and `([a-z-]+)` work by the bytes of the text", page)
    works = [name for name, found in PRESETS.items() if found.build(PolicyOptions()).reads_text]
    assert [*re.findall(r"`([a-z-]+)`", listed), last] == [name for name in works if name not in {"local", "cloud"}]
