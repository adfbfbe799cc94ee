"""A recorded answer under the monitor's own reducer, and as its page: one file, without a server and a request."""

from __future__ import annotations

from pathlib import Path

from hybrid.run.events import Finished, Started
from hybrid.run.recorded_events import RecordedAnswer
from hybrid.serve.answer_log import LEFT, AnswerLog, AskedAnswer
from hybrid.serve.feed import Follower
from hybrid.serve.monitor import recorded_page
from hybrid.serve.reducer import MonitorState


def recorded_state(path: Path) -> tuple[MonitorState, AnswerLog]:
    """Fold a trace file. Raises UsageError with one sentence for anything else."""
    recorded = RecordedAnswer.read(path)
    state, finished = MonitorState(shows_texts=True), False
    turns = None if recorded.prompt is None else [{"role": "prompt", "content": recorded.prompt}]
    log = state.begin(AskedAnswer(path.name, "recorded", None, turns))
    for event in recorded.events():
        state.hear(log, event)
        if isinstance(event, Started):
            log.head["model"] = event.policy
        finished = finished or isinstance(event, Finished)
    state.end(log, None if finished else LEFT)
    return state, log


def recorded_html(path: Path) -> str:
    """Return a trace file as one page. Raises UsageError."""
    state, _ = recorded_state(path)
    told = Follower(state).news() | {"snapshot": True, "texts": True, "standing": None}
    return recorded_page(f"hybrid trace: {path.name}", told)
