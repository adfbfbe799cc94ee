"""A policy played along one question's labels: which requests the loop sends, and what it leaves to the local model.

How. The loop itself runs (``policy.loop``), and labels answer in the place of both models. The judge and the handback
are told what they say of each token, the gate its entropy. Once the cloud has the pen its own answer stands for the
text, if the draft is that answer up to there: greedy, it is what the cloud would write. Else the rest of the draft
does, and whoever has the rest written pays for the length of the cloud's own answer. A policy that checks nothing
leaves that answer at the local model's first favourite that is another token; from there on the draft stands for what
it writes. So three things are estimates: what follows in a text that has gone another way before; of a rule that
checks, what the local model writes after a handback, for which the cloud's answer is taken; and what a local favourite
loses that is another token than the answer's (``LabelledAnswers.answer``).

The laws (``tests/tune/test_play.py``): the cloud alone is the price of its own requests; a check of everything that
turns nothing down is ``once`` without its rest; with nothing to correct every rule that checks shows the draft;
``doubt`` at entropy 0 asks at the first token that is unsure at all, at infinity never.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hybrid.policy import Policy, PolicyOptions, SeededCoin, decode, preset, requests
from hybrid.policy.gates import EntropyGate
from hybrid.policy.judges import DraftedSpan, Judge, Verdict
from hybrid.policy.loop import TO_THE_END
from hybrid.policy.requests import PendingToken
from hybrid.spend import AskPrices
from hybrid.tune.labels import LabelledAnswers, LabelledText, is_favourite
from hybrid.types import Ids

# A row that nobody looks at: what it would say, labels say.
_ROW: Any = object()


def greedy_policy(text: str, **chosen: Any) -> Policy:
    """Return the policy that ``text`` names, for answers of any length."""
    return preset(text, PolicyOptions(max_tokens=TO_THE_END, **chosen))


class Play:
    """What a policy without a planner asks for along a question; its judges are ``kl``, ``concept`` or ``excess``.

    ``requests``: check or write; the tokens of prompt and answer before it, its own, and the first ones that earlier
    requests sent or wrote. ``drafted``, ``followed``: the places of what is left to the local model, in the labelled
    text and in the cloud's answer where that stands for it.
    """

    def __init__(self, policy: Policy, question: LabelledAnswers) -> None:
        """Run the loop."""
        self.question, self.requests = question, list[tuple[str, int, int, int]]()
        self.drafted, self.followed = list[int](), list[int]()
        self._text, self._prompt = question.judged, question.judged.signals.prompt_tokens
        self._at = self._known = 0
        self._end, self._has_rest_written = len(self._text), policy.handoff_tokens >= TO_THE_END
        self._over = not (self._end or policy.lead)
        self._turned_down = cache(LabelledText.turned_down)
        judge = policy.judge and _LabelJudge(self, str(policy.judge), policy.judge.judges_next_row)
        back = policy.handback and _LabelJudge(self, str(policy.handback))
        # Without a check a span is no request: it may be as long as the text.
        policy = replace(policy, judge=judge, handback=back, span=policy.span if judge else TO_THE_END)
        flow = decode(policy, SeededCoin(0))
        with suppress(StopIteration):
            request = next(flow)
            while not self._over:
                request = flow.send(self._reply(request))

    def price(self, prices: AskPrices) -> float:
        """Return what the requests cost."""
        return sum((float(getattr(prices, kind)(*tokens)) for kind, *tokens in self.requests), 0.0)

    def shows(self, judge: str) -> bool:
        """Whether a token is shown unmended that a judge turns down."""
        return any(bool(text.turned_down(judge)[places].any()) for text, places in self._kept())

    @property
    def excess(self) -> float:
        """The excess loss that is shown, in nats a token of the labelled text."""
        return sum(float(text.excess[places].sum()) for text, places in self._kept()) / max(
            1, len(self.question.judged)
        )

    def _kept(self) -> list[tuple[LabelledText, list[int]]]:
        answer = self.question.answer
        followed = replace(answer, kl=np.minimum(answer.kl, answer.excess))
        return [(self.question.judged, self.drafted), (followed, self.followed)]

    # ---- both models -------------------------------------------------------------------------------------------------

    def _reply(self, request: requests.Request) -> requests.Reply:
        match request:
            case requests.Draft():
                return self._draft(request)
            case requests.Check(span=span, wants_next_row=wants_next_row):
                self._send("check", len(span))
                return requests.Scored((_ROW,) * (len(span) + wants_next_row))
            case requests.Write(limit=limit):
                return self._write(limit)
            case requests.Emit(tokens):
                for place, token in enumerate(tokens, self._at):
                    if token.source == "local":
                        (self.followed if token.writer else self.drafted).append(place)
                self._at += len(tokens)
                self._over = self._at >= self._end
                return requests.AnswerEnded("stop") if self._over else requests.AnswerContinues()
        raise TypeError(request)

    def _draft(self, request: requests.Draft) -> requests.Drafted:
        text, gate, at = self._text, request.gate, self._at
        end, decision = min(at + request.limit, len(text)), gate.when_full
        if isinstance(gate, EntropyGate) and (unsure := np.flatnonzero(text.signals.entropy[at:end] > gate.limit)).size:
            end, decision = at + int(unsure[0]), gate.decision
        others = np.flatnonzero(~is_favourite(text.signals)[at:end])
        if others.size and "check" not in gate.decisions:
            end, decision, self._text = at + int(others[0]) + 1, "keep", self.question.judged
            self._end = len(self._text)
        token = PendingToken(0, "local", "unchecked", writer=int(text is self.question.answer))
        after = _ROW if request.wants_next_row and end < len(text) else None
        return requests.Drafted((token,) * (end - at), decision, after)

    def _write(self, limit: int) -> requests.Wrote:
        self._hand_over(self._at)
        num = min(limit, self._end - self._at)
        if limit >= TO_THE_END:
            num = max(1, len(self.question.written.signals) - self._at)
            self._end = self._at + num
        self._over = num <= 0
        if not self._over:
            self._send("write", num)
        return requests.Wrote((PendingToken(0, "cloud", "written", target_row=_ROW),) * num, ended=True)

    def _send(self, kind: str, num: int) -> None:
        self.requests.append((kind, self._prompt + self._at, num, self._known))
        self._known = self._prompt + self._at + num

    def _hand_over(self, place: int) -> None:
        """Let what the cloud writes from a place on stand for the text."""
        if place <= self.question.num_same:
            self._text = self.question.answer
        self._end = len(self._text)
        if self._has_rest_written:
            self._end = len(self._text.signals) if self._text is self.question.answer else TO_THE_END

    def turned_down(self, judge: str, start: int, end: int) -> NDArray[np.intp]:
        """Return the places of tokens of the text that a judge turns down."""
        return start + np.flatnonzero(self._turned_down(self._text, judge)[start:end])

    def recover(self, place: int) -> PendingToken:
        """Return the cloud's token in the place of one that is turned down; those before it were read."""
        self._hand_over(place)
        self._known = self._prompt + place
        return PendingToken(0, "cloud", "recovered")


@dataclass(frozen=True, eq=False)
class _LabelJudge(Judge):
    """Turns down what labels say that a judge turns down; at other tokens the cloud may give the pen back."""

    play: Play
    judge: str
    looks_ahead: bool = False
    guarantee: ClassVar[str] = ""

    def __call__(self, span: DraftedSpan) -> Verdict:
        start, ahead = len(span.at), self.looks_ahead and span.next_target_row is not None
        places = self.play.turned_down(self.judge, start, start + len(span.tokens) + ahead)
        if not places.size:
            return Verdict(span.tokens)
        return Verdict(span.tokens[: places[0] - start], self.play.recover(int(places[0])), rejected=True)

    def agrees(self, at: Ids, token: PendingToken) -> bool:  # noqa: ARG002  (the port's shape)
        return not self.play.turned_down(self.judge, len(at), len(at) + 1).size
