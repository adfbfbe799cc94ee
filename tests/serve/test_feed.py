"""What a page is told: whoever applies all of it has the state, whenever it looked."""

from __future__ import annotations

import json

from event_streams import streams
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.serve.reducer import NUM_FINISHED, AnswerMetadata, MonitorState, Subscriber

LISTS = ("tokens", "requests", "spans")


class Page:
    """What the script does with what it is told, in Python."""

    def __init__(self):
        self.answers, self.totals = {}, None

    def apply(self, told):
        told = json.loads(json.dumps(told))
        for name in told.get("gone", ()):
            del self.answers[name]
        for part in told.get("answers", ()):
            answer = self.answers.setdefault(part["id"], {"head": None, "tokens": [], "requests": [], "spans": []})
            answer["head"] = part.get("head", answer["head"])
            for name in LISTS:
                places = [place for place, _ in part.get(name, ())]
                assert places == sorted(set(places))
                for place, item in part.get(name, ()):
                    answer[name][place:] = [item, *answer[name][place + 1 :]]
        self.totals = told.get("totals", self.totals)


def whole(state):
    answers = {
        name: {"head": log.head, **{name: [item for _, item in log.places(name)] for name in LISTS}}
        for name, log in state.answers.items()
    }
    return json.loads(json.dumps({"answers": answers, "totals": state.totals.to_json()}))


@settings(max_examples=40)
@given(streams(), st.lists(st.integers(0, 60), max_size=6))
def test_whoever_applies_all_changes_has_the_state_however_seldom_it_looks(stream, looks):
    state, page = MonitorState(shows_texts=True), Page()
    follower = Subscriber(state)
    log = state.begin(AnswerMetadata("one", "hybrid", 1.0, "what?"))
    for number, event in enumerate(stream.events):
        state.observe(log, event)
        if number in looks:
            page.apply(follower.news())
    state.end(log)
    page.apply(follower.news())
    assert {"answers": page.answers, "totals": page.totals} == whole(state)
    assert follower.news() == {}


def test_an_answer_that_is_no_longer_shown_is_gone_and_one_of_the_same_id_is_told_anew():
    state, page = MonitorState(), Page()
    follower = Subscriber(state)
    for number in range(NUM_FINISHED + 5):
        state.end(state.begin(AnswerMetadata(f"n{number}", "hybrid", 1.0)))
        if number == 2:
            page.apply(follower.news())
    page.apply(follower.news())
    assert {"answers": page.answers, "totals": page.totals} == whole(state)
    state.begin(AnswerMetadata("n9", "another", 2.0))
    page.apply(follower.news())
    assert page.answers["n9"]["head"]["model"] == "another"
