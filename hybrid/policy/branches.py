"""Branches: whole texts drawn from one prefix, of which one is shown. A part of ``loop``, where a policy has them.

The law (enumerated in ``tests/policy/test_branches.py``). N branches are drawn, each to its end, from the local model's
own law under the sampling, by coins of their own. Each different one is scored by one check; where all of several are
the same, none is. Shown is the first of the likeliest a token under the larger model at temperature 1: by the sum, of
many draws whichever says least would win. One without a score is left out; where none has one, ``majority`` decides: of
those with the commonest final answer the likeliest a token locally. A grader's highest number wins.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from hybrid.policy.gates import NEVER
from hybrid.policy.progress import Flow, Progress, protocol_error
from hybrid.policy.requests import AnswerEnded, Branch, BudgetDenied, Check, Draft, Emit, NoAnswer, Scored, ids
from hybrid.policy.stages import ChainLevel, draft
from hybrid.settings.policy_choices import Choice
from hybrid.types import Ids

ReadAnswer: TypeAlias = Callable[[Ids], tuple[str, int | None]]
"""Returns the answer that tokens show, and how many of them until a stop string is complete; None: none is."""

# So many tokens are drafted at once: then a stop string is looked for, and their rows are dropped.
BLOCK = 64
LEFT_OUT = "{} of {} different branches have no score of the cloud's, and are left out"


@dataclass(frozen=True)
class BranchRule:
    """How many branches are drawn, and how one is chosen."""

    num: int
    choose: Choice = "logprob"

    def __str__(self) -> str:
        """Return N and the way to choose."""
        return f"{self.num}:{'grader' if callable(self.choose) else self.choose}"

    @property
    def guarantee(self) -> str:
        """What is true of the text, in one line."""
        best = {"logprob": "the likeliest a token under the cloud model", "majority": "one of the commonest answer"}
        chosen = "the one that the caller's grader prefers" if callable(self.choose) else best[self.choose]
        return f"of {self.num} draws of the local model's own distribution under the chosen sampling, {chosen}"


def final_answer(text: str) -> str:
    """Return what a text comes to: what its last line ends with after ``Answer:``, ``=`` or ``is``, or else that line.

    >>> final_answer("9 + 9 = 18. Answer: 18."), final_answer("So it is 18"), final_answer("2x + C")
    ('18', '18', '2x + c')
    """
    last = text.strip().lower().rpartition("\n")[2]
    return " ".join(re.split(r"answer:|=|\bis\b", last)[-1].split()).removesuffix(".")


def explore(rule: BranchRule, stages: Sequence[ChainLevel], progress: Progress, read: ReadAnswer) -> Flow[None]:
    """Draw the branches, have them scored where that is the rule, and show one."""
    drawn: dict[Ids, Branch] = {}
    for number in range(rule.num):
        progress.rejections = number  # so each has coins of its own
        branch = yield from _draw(stages, progress, read)
        known = drawn.setdefault(ids(branch.tokens), branch)
        drawn[ids(branch.tokens)] = replace(known, draws=(*known.draws, number))
    asks = rule.choose == "logprob" and (len(drawn) > 1 or rule.num == 1)
    for key, branch in drawn.items() if asks else ():
        drawn[key] = yield from _scored(progress, branch)
    branches = tuple(drawn.values())
    left_out = sum(branch.cloud_logprob is None for branch in branches) if asks else 0
    note = LEFT_OUT.format(left_out, len(branches)) if left_out else None
    reply = yield Emit(choose_branch(rule, branches).tokens, branches=branches, note=note)
    if not isinstance(reply, AnswerEnded):
        raise protocol_error(reply)


def choose_branch(rule: BranchRule, branches: Sequence[Branch]) -> Branch:
    """Return the branch that is shown; of equals the one that was drawn first."""
    if callable(grade := rule.choose):
        return max(branches, key=lambda each: grade(each.text))
    scored = [(each.cloud_logprob / len(each.tokens), each) for each in branches if each.cloud_logprob is not None]
    if scored:
        return max(scored, key=lambda pair: pair[0])[1]
    votes = Counter(final_answer(each.text) for each in branches for _ in each.draws)
    return max(branches, key=lambda each: (votes[final_answer(each.text)], each.local_logprob / len(each.tokens)))


def _draw(stages: Sequence[ChainLevel], progress: Progress, read: ReadAnswer) -> Flow[Branch]:
    branch, over = Branch((), "", 0.0), False
    while not over:
        at, limit = ids(branch.tokens), min(BLOCK, progress.max_tokens - len(branch.tokens))
        wanted = Draft(at, limit, NEVER, rejections=progress.rejections_at(0))
        drafted = yield from draft(stages, progress, wanted)
        text, stopped = read(at + ids(drafted.span)[: len(drafted.span) - drafted.ended])
        new = drafted.span if stopped is None else drafted.span[: stopped - len(at)]
        rows = [(token.draft_row, token.id) for token in new if token.draft_row is not None]
        logprob = sum(float(row.logprobs_of(np.array([token]))[0]) for row, token in rows)
        kept = tuple(replace(token, draft_row=None, drawn_from=None, below=()) for token in new)
        branch = Branch(branch.tokens + kept, text, branch.local_logprob + logprob)
        over = drafted.final or stopped is not None
    return branch


def _scored(progress: Progress, branch: Branch) -> Flow[Branch]:
    """Have one branch scored whole. It gets no score where a token's own log-probability is not told."""
    reply = yield Check((), branch.tokens, wants_next_row=False, level=progress.level)
    if not isinstance(reply, Scored | BudgetDenied | NoAnswer):
        raise protocol_error(reply)
    pairs = zip(reply.rows if isinstance(reply, Scored) else (), branch.tokens, strict=False)
    known = [float(logprob) for row, token in pairs for logprob in row.logprobs[row.ids == token.id]]
    return replace(branch, cloud_logprob=sum(known)) if len(known) == len(branch.tokens) else branch
