"""What ``--span auto`` learns, and that it is used from the second answer on."""

from __future__ import annotations

from hybrid.policy.draft_length import best_length
from hybrid.run.events import Drafted, Finished, Settled
from hybrid.run.pace import Pace
from hybrid.types import CloudUsage

PROMPT = "a b c"


def test_nothing_is_known_before_both_have_been_measured():
    pace = Pace()
    assert pace.span() is None
    pace.hear(Drafted(0, (1, 2, 3, 4), ms=40.0))
    assert pace.span() is None
    pace.hear(Settled("r", "write", CloudUsage(1, 1), 0, 500.0))
    assert pace.span() is None, "a write takes as long as it writes"
    pace.hear(Settled("r", "check", None, 0, 500.0))
    assert pace.span() is None, "a broken check tells nothing of a whole one"
    pace.hear(Settled("r", "check", CloudUsage(1, 1), 0, 100.0))
    assert pace.span() == best_length(1.0 / 2.0, 100.0, 10.0)


def test_tokens_that_were_decoded_ahead_took_no_time_now():
    pace = Pace()
    pace.hear(Drafted(0, (1, 2, 3, 4), num_ready=4, ms=0.1))
    pace.hear(Settled("r", "check", CloudUsage(1, 1), 0, 100.0))
    assert pace.span() is None
    pace.hear(Drafted(0, (1, 2, 3, 4), num_ready=3, ms=10.0))
    assert pace.span() == best_length(0.5, 100.0, 10.0)


def test_acceptance_is_what_stood_of_what_was_judged_whoever_wrote_instead(house, run):
    """A rejection counts once: by the token recovered, or by the first one that the cloud then wrote."""
    for choices in ({}, {"temperature": 1.0}):
        pace = Pace()
        pace.hear(Drafted(0, (1, 2, 3, 4), ms=40.0))
        pace.hear(Settled("r", "check", CloudUsage(1, 1), 0, 100.0))
        answer = run(house().client.generate(PROMPT, raw=True, max_tokens=80, policy="kl", threshold=0.6, **choices))
        pace.hear(Finished(answer))
        kept = sum(token.how == "accepted" for token in answer.tokens)
        rejections = len(answer.handoffs)
        assert min(kept, rejections) > 2
        assert pace.span() == best_length((1.0 + kept) / (2.0 + kept + rejections), 100.0, 10.0)


def test_a_far_cloud_and_a_good_draft_make_long_spans(house, run):
    h = house()
    score = h.cloud.score

    async def far(question):
        import asyncio

        await asyncio.sleep(0.02)
        return await score(question)

    h.cloud.score = far

    def checked(**choices):
        run(h.client.generate(PROMPT, raw=True, max_tokens=30, policy="kl", threshold=float("inf"), **choices))
        spans = [len(question.span) for question in h.cloud.questions if hasattr(question, "span")]
        h.cloud.questions.clear()
        return max(spans)

    assert checked(span="auto") == 30, "kl's own span, 32, before anything is measured"
    assert checked(span=4) == 4
    assert checked(span="auto") > 4
