"""A word where checks made an answer dear or slow.

The law (``tests/run/test_spending.py``): a word of dear checks goes by bills alone, one of slow checks by what was
measured, and each comes once in a client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from hybrid.cloud import Capabilities
from hybrid.policy import Policy
from hybrid.record.answer import Answer
from hybrid.record.answer_builder import AnswerBuilder
from hybrid.spend import Bill, TokenTimes, as_times, as_usd

# An answer that is dearer than the cloud alone by less than a tenth: its bill says so, and no note.
DEAR = 1.1
# Tokens that the cloud writes at a handoff where asking often does not pay: measured in lab/NOTES.md.
LONG_HOLD = 96
# An answer that took less than twice what the cloud alone would have, or that was over so soon: nobody minds.
SLOW, LEAST_S = 2.0, 3.0
# Where nothing is known of the cloud's own time: somebody has noticed that they wait.
LONG_S = 10.0
TOOK = (
    "with drafts and checks it took {:.1f} s after its first token, where by {} the cloud alone would have taken {} "
    "{:.1f} s: --policy cloud has neither"
)
UNKNOWN = (
    "with drafts and checks it took {:.1f} s after its first token: --policy cloud has neither, and hybrid probe can "
    "measure what it would take"
)
PROBED, WROTE = ("the last probe", "some"), ("what it wrote here", "at most")
_BEGIN, _ALONE = "its checks made this answer cost ", "what the cloud alone would have"


class CheckCostNote:
    """Says once in a client, of the first answer whose checks made it dearer than the cloud alone, by how much."""

    def __init__(self) -> None:
        """Nothing was said yet."""
        self._said = False

    def of(self, policy: Policy, answer: Answer) -> str | None:
        """Return the sentence; None where there is none to say.

        A policy that weighs a check's price has done so, and of what is charged at worst nobody knows the checks' part.
        """
        usage, bill = answer.usage, answer.bill
        assumed = usage.cloud_assumed_prompt_tokens + usage.cloud_assumed_completion_tokens
        if self._said or "score" not in policy.needs or not usage.checks or assumed or not is_dear(bill):
            return None
        self._said = True
        longer = f"--hold {LONG_HOLD} asks less often" if 0 < policy.handoff_tokens < LONG_HOLD else ""
        ways = ["--policy auto weighs that before it asks", longer, "--policy cloud checks nothing"]
        amounts = f"{as_usd(bill.nanousd)} against {as_usd(bill.cloud_only_nanousd)}"
        return f"{_BEGIN}{as_times(bill.times_cloud_only)} {_ALONE} ({amounts}): {', '.join(filter(None, ways))}"


class CheckTimeNote:
    """Says once in a client, of the first answer that took ``SLOW`` times the cloud's own time by its checks, how long.

    It goes by the time after the first token, which no queue, no connecting and no prompt is a part of, and by what a
    token of the cloud takes: as a probe has measured it, or else at most its share of the client's longest write, from
    when that was asked for. (While it is open the local model reads along, and a proxy may hold its beginning back: it
    never tells less.) Before either is known an answer's own time is said, from ``LONG_S`` on. Nothing is said of an
    answer in which a request failed: it has waited for that, too.
    """

    def __init__(self, times: Callable[[Capabilities], Awaitable[TokenTimes | None]]) -> None:
        """Take what reads what a probe has measured of an endpoint."""
        self._times = times
        self._said = False
        self._longest_write = (0, 0.0)
        self._measured: dict[Capabilities, TokenTimes | None] = {}

    async def bind(
        self, policy: Policy, can: Capabilities | None, builder: AnswerBuilder
    ) -> Callable[[Answer], str | None]:
        """Return what is asked for the sentence on a policy's answer, once that is whole."""
        if can is None or self._said or "score" not in policy.needs:
            return partial(self._of, policy, builder, None)
        if can not in self._measured:
            self._measured[can] = await self._times(can)
        return partial(self._of, policy, builder, self._measured[can])

    def _of(self, policy: Policy, builder: AnswerBuilder, times: TokenTimes | None, answer: Answer) -> str | None:
        num_tokens, rate = self._longest_write = max(self._longest_write, builder.longest_write)
        first_ms, failed = answer.timing.ttft_ms, builder.failed or answer.degraded
        if self._said or "score" not in policy.needs or not answer.usage.checks or first_ms is None or failed:
            return None
        took_s = (answer.timing.total_ms - first_ms) / 1000
        if times is None and not num_tokens:
            self._said = took_s >= LONG_S
            return UNKNOWN.format(took_s) if self._said else None
        token_s = 1 / rate if times is None else times.written_ms / 1000
        alone_s = token_s * len(answer.tokens)
        if took_s < max(SLOW * alone_s, LEAST_S):
            return None
        self._said = True
        by, about = PROBED if times else WROTE
        return TOOK.format(took_s, by, about, max(0.1, alone_s))


def check_cost_note(notes: Iterable[str]) -> str | None:
    """Return the first of an answer's notes that is such a sentence; None: none is."""
    return next((note for note in notes if note.startswith(_BEGIN)), None)


def note_of_all(bill: Bill, note: str | None) -> str | None:
    """Return such a sentence of several answers' bill together, by that of one of them; None: it is not dear.

    >>> own = "its checks made this answer cost 2.1 times what the cloud alone would have (...): --policy auto [...]"
    >>> note_of_all(Bill(30, 10), own)
    'with their checks they cost 3.0 times what the cloud alone would have: --policy auto [...]'
    >>> note_of_all(Bill(10, 10), own), note_of_all(Bill(30, 10), None)
    (None, None)
    """
    if note is None or not is_dear(bill):
        return None
    return f"with their checks they cost {as_times(bill.times_cloud_only)} {_ALONE}: {note.partition(': ')[2]}"


def is_dear(bill: Bill) -> bool:
    """Whether a bill is that of the cloud alone and a tenth of it more, or above; not where one is unknown."""
    return bill.times_cloud_only is not None and bill.times_cloud_only >= DEAR
