"""The metrics as Prometheus would read them: by a parser of our own, against the state."""

from __future__ import annotations

import math
import re
from collections import defaultdict

import pytest
from cases import each_of
from event_streams import streams
from hypothesis import given, settings

from hybrid.serve.metrics import HealthSnapshot, metrics
from hybrid.serve.reducer import AnswerMetadata, MonitorState

SAMPLE = re.compile(r"(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)(?:\{(?P<labels>.*)\})? (?P<value>[^ ]+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
CAP = {"level": "day", "cap": 2_000_000_000, "spent": 500_000_000, "reserved": 250_000_000, "left": 1_250_000_000}
STANDING = HealthSnapshot(False, 4, 1, 2, "open", 3.0, True, (CAP,))


def parse(text):
    """Read the format strictly: families with help and type first, each sample below its own family, none twice."""
    kinds, samples, family = {}, {}, None
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split(" ")[2]
            assert family not in kinds, family
            assert len(line.split(" ", 3)[3]) > 10
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == family
            kinds[name] = kind
            continue
        found = SAMPLE.fullmatch(line)
        assert found, line
        labels = found["labels"] or ""
        read = LABEL.findall(labels)
        assert ",".join(f'{key}="{value}"' for key, value in read) == labels
        base = re.sub(r"_(bucket|sum|count)$", "", found["name"]) if kinds[family] == "histogram" else found["name"]
        assert base == family
        key = (found["name"], *sorted(read))
        assert key not in samples
        samples[key] = float(found["value"].replace("+Inf", "inf"))
    return kinds, samples


def state_of(stream):
    state = MonitorState()
    log = state.begin(AnswerMetadata("one", "hybrid", 1.0))
    for event in stream.events:
        state.observe(log, event)
    state.end(log)
    return state


def test_every_second_bound_of_a_histogram_is_ten_times_as_high():
    _, samples = parse(metrics(MonitorState(), STANDING))
    bounds = defaultdict(set)
    for name, *labels in samples:
        bounds[name].update(float(value) for label, value in labels if label == "le" and value != "+Inf")
    known = [sorted(found) for found in bounds.values() if found]
    assert len(known) >= 3
    for found in each_of(known):
        assert found[2:] == pytest.approx([10 * bound for bound in found[:-2]])
        assert len(found) >= 9


@settings(max_examples=30)
@given(streams())
def test_every_sample_is_in_its_family_and_its_value_is_the_states(stream):
    state = state_of(stream)
    kinds, samples = parse(metrics(state, STANDING))
    answer = stream.answer
    assert samples["hybrid_answers_total", ("end", "finished")] == 1
    tokens = {key: value for key, value in samples.items() if key[0] == "hybrid_tokens_total"}
    assert sum(tokens.values()) == len(answer.tokens)
    assert all(("source", "local") in key or ("source", "cloud") in key for key in tokens)
    for bound, end in (("lower", "lower"), ("upper", "upper")):
        known = [getattr(token.kl, end) for token in answer.tokens if token.kl is not None]
        for edge in ("0.3", "+Inf"):
            below = sum(value <= float(edge.replace("+Inf", "inf")) for value in known)
            assert samples["hybrid_kl_nats_bucket", ("bound", bound), ("le", edge)] == below
        finite = sum(value for value in known if math.isfinite(value))
        assert math.isclose(samples["hybrid_kl_nats_sum", ("bound", bound)], finite, rel_tol=1e-9, abs_tol=1e-9)
    assert samples["hybrid_kl_unknown_tokens_total",] == sum(token.kl is None for token in answer.tokens)
    spent = state.totals.cost.settled
    assert samples.get(("hybrid_spent_dollars_total",)) == (None if spent is None else spent / 1e9)
    assert all(name.startswith("hybrid_") for name in kinds)
    assert all((kind == "counter") == name.endswith("_total") for name, kind in kinds.items())


def test_the_caps_and_the_breaker_stand_in_base_units():
    _, samples = parse(metrics(MonitorState(), STANDING))
    assert samples["hybrid_budget_remaining_dollars", ("level", "day")] == 1.25
    assert samples["hybrid_budget_spent_dollars", ("level", "day")] == 0.5
    assert samples["hybrid_circuit_state", ("state", "open")] == 1
    assert samples["hybrid_circuit_state", ("state", "closed")] == 0
    assert samples["hybrid_contexts_busy",] == 1
    assert samples["hybrid_pair_drift_alarm",] == 1


def test_what_is_not_known_has_no_sample():
    """A zero would be drawn as one."""
    _, samples = parse(metrics(MonitorState(), HealthSnapshot()))
    names = {key[0] for key in samples}
    assert not names & {"hybrid_contexts", "hybrid_circuit_state", "hybrid_pair_drift_alarm", "hybrid_queued_answers"}
    assert samples["hybrid_answers_begun_total",] == 0


def test_no_caller_makes_new_series():
    """Model names, prompts and ids are what a caller chooses: none of them is a label."""
    state = MonitorState(shows_texts=True)
    for number in range(50):
        state.begin(AnswerMetadata(f"id-{number}", f"model-{number}", 1.0, f"prompt-{number}"))
    text = metrics(state, STANDING)
    assert not re.search(r"(id|model|prompt)-\d", text)


def test_a_reason_with_quotes_and_line_ends_is_escaped():
    state = MonitorState()
    state.totals.count_handoff('say "hi"\\\nand')
    _, samples = parse(metrics(state, HealthSnapshot()))
    assert any(("reason", r"say \"hi\"\\\nand") in key for key in samples)
