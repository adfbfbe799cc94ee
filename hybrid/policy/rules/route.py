"""Whole answers: the local model's own or the cloud's, never mixed. Preset route.

It is ``auto`` with two actions left (``Planner.of_whole_answers``): an answer that was drafted whole is kept, or the
cloud writes it from its beginning; with stream early the question alone decides which. Nothing is checked, so there
is no judge, and nothing of the cloud's is read but its text: the two models need no common vocabulary.

The law (``tests/policy/test_route.py``): while the cloud answers, the text is what ``local`` writes under the same
coins, or what ``cloud`` does. A cloud that fails in the middle of its answer is the one mixture: the local model goes
on, and the answer says so.
"""

from __future__ import annotations

from hybrid.policy.choices import LONGEST_DRAFT, PolicyOptions, Preset
from hybrid.policy.gates import NEVER
from hybrid.policy.planning import Planner
from hybrid.policy.policy import Policy


def _route(choices: PolicyOptions, _: float) -> Policy:
    """Draft as much as ``auto`` does before it decides: a longer answer is decided by its beginning."""
    planner = (choices.planner or Planner()).of_whole_answers()
    return Policy("route", min(choices.max_tokens, LONGEST_DRAFT), NEVER, planner=planner)


ROUTE = Preset(
    "route",
    "auto held to whole answers: keep the local model's own, or have the cloud write its own, never a mixture",
    source="this project: auto, for services that take messages and models that share no vocabulary",
    make=_route,
)
