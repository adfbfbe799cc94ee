"""What was bought of a text is numbers: the judge's own verdicts follow from them, and JSON keeps them to the bit."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest
from bought_texts import text
from cases import each, each_of

from hybrid.errors import UsageError
from hybrid.policy import PolicyOptions
from hybrid.policy.compose import JUDGES
from hybrid.policy.concepts import Concepts
from hybrid.policy.judges import DraftedSpan
from hybrid.policy.requests import PendingToken
from hybrid.policy.rules.divergence_threshold import concept_judge, threshold_judge
from hybrid.policy.rules.excess import excess_judge
from hybrid.prob import Partition, certificate, kl_divergence
from hybrid.tune.labels import CERTIFICATES, LabelledAnswers, LabelledText


@each("judge", ["kl:0.1", "kl:0.7", "kl:0", "excess:0.5", "excess:0", "excess:2"])
@each("noise", [0.0, 0.15])
def test_a_token_is_turned_down_where_the_judge_itself_turns_it_down(judge, noise):
    """So a threshold may be chosen after the labels were paid for."""
    assert judge.partition(":")[0] in JUDGES
    found = text(60, noise=noise, apart=1.5)
    bought = LabelledText.of_rows((), found)
    threshold = float(judge.partition(":")[2])
    make = threshold_judge if judge.startswith("kl") else excess_judge
    own = make(PolicyOptions(), threshold)
    for place, (token, local, row) in each_of(enumerate(zip(found.tokens, found.local, found.cloud, strict=True))):
        pending = PendingToken(token, "local", "unchecked", draft_row=local)
        verdict = own(DraftedSpan((pending,), (row,), None, bonus=False, coin=lambda *_: 0))
        assert bought.turned_down(judge)[place] == verdict.rejected, place
    spans = tuple(
        PendingToken(t, "local", "unchecked", draft_row=r) for t, r in zip(found.tokens, found.local, strict=True)
    )
    whole = own(DraftedSpan(spans, found.cloud, None, bonus=False, coin=lambda *_: 0))
    assert bought.first_rejection(judge) == (len(whole.accepted) if whole.rejected else None)
    assert 0 < bought.turned_down(judge).sum() < 60 or judge in {"kl:0", "excess:0"}


def test_other_judges_are_refused():
    bought = LabelledText.of_rows((), text(3))
    for judge in ("js:0.1", "kl", "kl:-1", "kl:x", "kl:nan", ""):
        with pytest.raises(UsageError, match="a calibration is of the judge"):
            bought.turned_down(judge)


def test_where_a_certificate_holds_the_rule_takes_the_local_models_favourite():
    """Not only the comparison is right: what is certified is accepted by the rule on the cloud's row."""
    accepts = {
        "greedy": lambda row, token: token == row.best,
        "margin": lambda row, token: token == row.best,
        "multiplicative:0.3": lambda row, token: row.probs[row.ids == token] >= 0.3 * row.probs[0],
        "top-m:3": lambda row, token: token in row.ids[:3],
    }
    found = text(400, apart=0.3)
    bought = LabelledText.of_rows((), found)
    for name in each_of(CERTIFICATES):
        certified = bought.certified(name)
        assert 20 < certified.sum() < 400, name
        for place in each_of(np.flatnonzero(certified)):
            row, local = found.cloud[place], found.local[place]
            assert kl_divergence(row, local).upper < CERTIFICATES[name](row)
            if name in accepts:
                assert accepts[name](row, local.best), (name, place)
            else:
                assert row.best in [token for token, _ in local.top(3)]
    assert (bought.certificates["margin"] <= bought.certificates["greedy"] + 1e-12).all(), "it knows less"
    assert bought.certificates["greedy"][0] == certificate(found.cloud[0], _greedy())
    noisy = LabelledText.of_rows((), text(400, apart=0.3, noise=0.3))
    assert noisy.certified("greedy").sum() < bought.certified("greedy").sum()


def _greedy():
    from hybrid.prob import GreedyAcceptance

    return GreedyAcceptance()


@each("known", [0, 4, 9])
def test_what_is_written_as_json_is_read_again_to_the_last_bit(known):
    bought = LabelledText.of_rows((3, 9), text(9, known=known, noise=0.02, ended=True))
    assert len(bought) == known
    read = LabelledText.from_json(json.loads(json.dumps(bought.to_json())))
    for kind in (LabelledText, type(bought.signals)):
        one, other = (bought, read) if kind is LabelledText else (bought.signals, read.signals)
        for field in each_of(fields(kind)):
            if field.name == "certificates":
                assert all(np.array_equal(one.certificates[n], other.certificates[n]) for n in CERTIFICATES)
            elif field.name != "signals":
                assert np.array_equal(getattr(one, field.name), getattr(other, field.name)), field.name
    with pytest.raises(ValueError, match="length"):
        LabelledText.from_json(
            bought.to_json() | {"excess": ""} if known else bought.to_json() | {"excess": "AAAAAAAAAAA="}
        )


def test_what_is_known_over_concepts_is_the_judges_own_and_is_kept_to_the_last_bit():
    partition = Partition.of_groups(12, [{0, 1, 2, 3}, {4, 5, 6}])
    found = text(60, noise=0.1, apart=1.5)
    bought = LabelledText.of_rows((3,), found, partition)
    own = concept_judge(PolicyOptions(known_concepts=Concepts(partition, lambda _: b"")), 0.3, 0.3)
    for place, (token, local, row) in each_of(enumerate(zip(found.tokens, found.local, found.cloud, strict=True))):
        pending = PendingToken(token, "local", "unchecked", draft_row=local)
        verdict = own(DraftedSpan((pending,), (row,), None, bonus=False, coin=lambda *_: 0))
        assert bought.turned_down("concept:0.3")[place] == verdict.rejected, place
    assert 0 < bought.turned_down("concept:0.3").sum() < bought.turned_down("kl:0.3").sum()
    kept = bought.to_json()
    kept["concepts"]["entropy"] = ""  # labels of before scores stopped to read it have it
    read = LabelledText.from_json(json.loads(json.dumps(kept)))
    assert read.concepts.digest == partition.digest
    assert np.array_equal(read.concepts.kl, bought.concepts.kl)
    with pytest.raises(UsageError, match="before it was known which tokens say the same"):
        LabelledText.of_rows((3,), found).turned_down("concept:0.3")


def test_a_label_is_cut_where_the_rows_end_and_is_the_clouds_own_text_where_a_draft_has_none():
    written = LabelledText.of_rows((5,), text(7, ended=True, draft=False))
    whole = LabelledAnswers(LabelledText.of_rows((5,), text(6, ended=True)), written).labelled("kl:0.1")
    assert (len(whole.draft.signals), whole.draft.signals.ended, whole.cloud_tokens) == (6, True, 7)
    cut = LabelledAnswers(LabelledText.of_rows((5,), text(6, known=2, ended=True)), written).labelled("kl:0.1")
    assert (len(cut.draft.signals), cut.draft.signals.ended, len(cut.draft.excess)) == (2, False, 2)
    unscored = LabelledAnswers(LabelledText.of_rows((5,), text(6, known=0)), written).labelled("excess:0.5")
    assert len(unscored.draft.signals) == 7
    assert unscored.draft.first_rejection is None, "the cloud's own text costs nothing"
    assert unscored.draft.signals.words == (5,)
