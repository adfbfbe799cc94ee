"""Several local models as settings: which source names them, and who drafts for whom."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf_mutants import Gguf
from model_trees import split_model

import hybrid
from hybrid.errors import UsageError
from hybrid.settings.names import MODELS
from hybrid.settings.sources import load


def test_of_several_local_models_each_drafts_for_the_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own.toml"
    own.write_text('local = ["a.gguf", "b.gguf", "c.gguf"]\n')
    settings = load(config=own)
    assert (settings.local, settings.drafters) == (Path("c.gguf"), (Path("a.gguf"), Path("b.gguf")))
    assert load(config=own, local=["d.gguf"]).drafters == (), "who names local models names all of them"
    assert (load(config=own, experts=["e", "f"]).local, load(config=own, experts=["e", "f"]).drafters) == (None, ())
    monkeypatch.setenv("HYBRID_DRAFTERS", "x, y")
    assert load(config=own).drafters == (Path("x"), Path("y")), "a variable stands above a file"


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ({"local": "small", "experts": ["mid"]}, "beside experts: they write in its place"),
        ({"experts": ["small", "mid", "small"]}, "--expert small is given twice"),
        ({"experts": ["small", "nobody"]}, "nobody"),
    ],
)
def test_experts_that_cannot_be_are_refused_in_a_sentence(chosen, why):
    with pytest.raises(UsageError, match=why):
        hybrid.open(ledger="none", **chosen)


def test_experts_of_two_vocabularies_are_refused_when_they_are_opened():
    with (
        pytest.raises(
            UsageError, match=r"small\.gguf and alien\.gguf have .* tokens: models that read one text need one"
        ),
        hybrid.open(experts=["small", "alien"], ledger="none", offline=True),
    ):
        pass


def test_what_several_models_take_counts_every_file_of_a_split_one(tmp_path):
    told = []
    for large in (MODELS / "large.gguf", split_model(Gguf.read(MODELS / "large.gguf"), tmp_path)[0]):
        with hybrid.open(local=["small", large], ledger="none", offline=True) as client:
            told += [note for note in client.notes if "local models take" in note]
    assert told[0] == told[1]


def test_two_experts_answer_from_files_and_are_named_in_the_answer(tmp_path):
    """Nothing of a calibration of one of them counts: a score is of models that write as one, or of one that does."""
    with hybrid.open(experts=["small", "mid"], ledger="none", offline=True, policy="local", max_tokens=4) as client:
        assert any("2 local models take" in note for note in client.notes)
        answer = client.generate("What is 47 + 86?")
    assert answer.experts == {"small": 0.5, "mid": 0.5}
    with hybrid.open(local="small", ledger="none", offline=True, policy="local", max_tokens=4) as client:
        assert client.generate("What is 47 + 86?").text == answer.text, "the first expert writes first"


def test_beside_an_endpoint_experts_are_local_models_that_were_named():
    with pytest.raises(UsageError, match="--local wants a model"):
        hybrid.open(cloud="http://127.0.0.1:1", ledger="none")
    hybrid.open(cloud="http://127.0.0.1:1", ledger="none", experts=["small", "mid"])


def test_experts_may_stand_in_a_variable_and_in_a_file(tmp_path, monkeypatch):
    own = tmp_path / "own.toml"
    own.write_text('experts = ["a.gguf", "b.gguf"]\nmix = "mix"\n')
    settings = load(config=own)
    assert (settings.experts, settings.mix) == ((Path("a.gguf"), Path("b.gguf")), "mix")
    monkeypatch.setenv("HYBRID_EXPERTS", "c, d")
    assert load(config=own).experts == (Path("c"), Path("d"))
    assert load(config=own, local=["e"]).experts == (), "who names a local model on the command line means it"


@pytest.mark.parametrize("num", [2, 3])
def test_a_threshold_that_no_expert_exceeds_from_their_even_sum_is_refused(num):
    """KL from one of N laws to their even sum is at most ln N: drawn laws come close to it where they share nothing."""
    laws = np.eye(num) * 0.999 + 0.001 / num
    laws /= laws.sum(axis=1, keepdims=True)
    farthest = float((laws * np.log(laws / laws.mean(axis=0))).sum(axis=1).max())
    above, below = f"{farthest + 0.02:.4f}", f"{farthest - 0.02:.4f}"
    experts = ["small", "mid", "large"][:num]
    for choices in ({"policy": f"kl:{above}"}, {"policy": "once", "threshold": float(above)}, {"judge": f"kl:{above}"}):
        with pytest.raises(UsageError, match=rf"wants a threshold below ln {num} = .*, not {float(above):g}"):
            hybrid.open(experts=experts, mix="mix", ledger="none", **{"policy": "kl", **choices})
        hybrid.open(experts=experts, mix="select", ledger="none", **{"policy": "kl", **choices})
    for policy in (f"kl:{below}", "once", "auto", "greedy-exact", "fsd:5", "local"):
        hybrid.open(experts=experts, mix="mix", ledger="none", policy=policy)


def test_one_expert_alone_is_no_sum_and_takes_any_threshold():
    """Its law is its own: there is nothing that bounds how far the cloud is from it."""
    hybrid.open(experts=["small"], mix="mix", ledger="none", policy="kl:0.5")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mix", ["mix", "select"])
def test_overlap_changes_nothing_of_what_two_experts_write_through_llama_cpp(mix):
    """Texts, requests, bills and weights, over real HTTP."""
    questions = ["What is 47 + 86?", "Sort 42 17 99 23 68.", "Convert 32 m to cm.", "What is 475 * 86?"]
    rules = [
        {"policy": "kl:0.3", "span": 6},
        {"policy": "exact", "temperature": 1.0, "span": 6},
        {"policy": "once:0.3"},
    ]
    found = []
    for overlap in (True, False):
        models = {"experts": ["small", "mid"], "mix": mix}
        with hybrid.open(**models, ledger="none", price="1/0.1/4", overlap=overlap, seed=5) as client:
            answers = [client.generate(each, learn=False, **rule) for each in questions for rule in rules]
        found.append([(a.text, a.tokens, a.usage, a.bill, a.handoffs, a.experts) for a in answers])
    assert found[0] == found[1]


def test_a_larger_model_that_drafts_for_a_smaller_one_is_told_of():
    """The chain goes on as it was named."""
    settings = {"ledger": "none", "offline": True, "policy": "local", "max_tokens": 4}
    with hybrid.open(local=["mid", "small"], **settings) as client:
        assert any("mid drafts for small, which is smaller" in note for note in client.notes)
    with hybrid.open(local=["small", "mid"], **settings) as client:
        assert not any("drafts for" in note for note in client.notes)
