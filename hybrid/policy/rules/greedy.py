"""The cloud model's own greedy text: a drafted token stands while it is the cloud's most likely one.

The greedy case of speculative decoding (Leviathan et al. 2023, arXiv:2211.17192).
"""

from __future__ import annotations

from hybrid.errors import UsageError
from hybrid.policy.choices import SPAN, Choices, Preset
from hybrid.policy.gates import ALWAYS
from hybrid.policy.judges import DraftedSpan, Verdict, best_of
from hybrid.policy.loop import Policy


def greedy_match(case: DraftedSpan) -> Verdict:
    """Keep while each token is the cloud's own most likely one; then the cloud's token.

    Law: with a bonus the text is the cloud model's own greedy text, token for token, whatever the draft was.
    """
    for i, (held, row) in enumerate(case.judged):
        if held.id != row.best:
            why = "the cloud's most likely token is another"
            return Verdict(case.accepted(i), best_of(row, held.draft_row, "recovered", why), rejected=True, why=why)
    if case.bonus and case.next_row is not None:
        return Verdict(case.accepted(), best_of(case.next_row, case.after, "bonus"))
    return Verdict(case.accepted(), ahead=case.ahead())


def _build(choices: Choices) -> Policy:
    if not choices.greedy:
        msg = "greedy-exact reproduces the cloud model's greedy text: it needs --temperature 0"
        raise UsageError(msg)
    return Policy("greedy-exact", choices.span or SPAN, ALWAYS, greedy_match, bonus=True)


GREEDY_EXACT = Preset(
    "greedy-exact",
    "the cloud model's own greedy text, drafted locally and checked",
    source="speculative decoding at temperature 0 (arXiv:2211.17192)",
    guarantee="the cloud model's greedy text, token for token",
    build=_build,
    exact=True,
)
