"""The training script on a toy: what torch learnt is what llama.cpp runs, and a stopped run loses nothing.

Needs the packages of the extra ``train``; a machine without them skips this and says so.
"""

from __future__ import annotations

import multiprocessing
import random
import re
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from arithmetic import tolerance
from cases import each, each_of

from hybrid.engine.llama import Weights
from hybrid.models.card import AnsweringModel
from hybrid.tasks import BY_NAME, FAMILIES, distinct, split_of, wordings
from hybrid.types import Message

WHY = "training needs the packages of the extra train: pip install '.[train]'"
torch = pytest.importorskip("torch", reason=WHY)
pytest.importorskip("tokenizers", reason=WHY)
pytest.importorskip("gguf", reason=WHY)
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "train_reference_models"))

import foreign  # noqa: E402
import train  # noqa: E402
import train_foreign  # noqa: E402
from lessons import IGNORE, Lessons, problems_for  # noqa: E402
from training import LAST_RATE, PLANS, OtherRecipe, Revision, Run, teacher_of  # noqa: E402
from vocabulary import ALIEN, COMMON, SURE, TURN_END, UNSURE, WHOLE_WORDS  # noqa: E402

torch.set_num_threads(1)  # two that spin for one core stand still
pytestmark = pytest.mark.slow
TOLERANCE = 0.02
TEXTS = (
    "Compute 12194 + 3382.",
    "The 3 boxes hold 1234567 pens.\n  Isn't it? I'LL see;  x^2 + C",
    '{"tool": "alarm", "time": "06:15"}\r\n\t\u00e9 \u00df \u4e2d\u6587 \U0001f642',
    "   leading and trailing   ",
)


def plan(vocabulary=COMMON, steps=4, revision=None):
    toy = replace(PLANS["small"], size=(32, 2, 2, 64), first_steps=steps, flat_until=steps // 2, revision=revision)
    return replace(toy, vocabulary=vocabulary, tokens_per_step=1500, checkpoint_every=2)


def trained(folder, steps=4, vocabulary=COMMON, stop_after=None, revision=None):
    """A toy model after some steps; ``stop_after``: as if killed right after the report of that step."""
    run = Run(plan(vocabulary, steps, revision), folder / "toy.pt", seed=5)

    def report(progress, _):
        if progress.step == stop_after:
            raise KeyboardInterrupt

    run.train(report)
    return run


VOCABULARIES = {"common": COMMON, "alien": ALIEN, "words": WHOLE_WORDS, "unsure": UNSURE, "sure": SURE}


@pytest.fixture(scope="module", params=VOCABULARIES.values(), ids=VOCABULARIES)
def toy(request, tmp_path_factory):
    """A toy in torch, and the same as llama.cpp reads it."""
    folder = tmp_path_factory.mktemp("toy")
    run = trained(folder, vocabulary=request.param)
    weights = Weights(run.export(folder))
    engine = weights.context(threads=1)
    yield run, engine
    engine.close()
    weights.close()


def logits(run, ids):
    with torch.no_grad():
        return run.model(torch.tensor([ids]))[0].float().numpy()


def test_llama_cpp_computes_what_torch_does(toy):
    run, engine = toy
    prompt = engine.render([Message("user", "Compute 12194 + 3382.")])
    ids = (*prompt, *engine.tokenize("e1+0 d2+3 c1+3 b9+8"))
    engine.rewind(0)
    theirs, ours = engine.extend(ids, num_rows=len(ids)), logits(run, ids)
    assert np.abs(ours).max() > 1
    assert np.abs(theirs - ours).max() <= tolerance().nats


def test_both_write_the_same_tokens(toy):
    """Greedily, the first 40; a difference is forgiven only where the two best are nearer than rounding can tell."""
    run, engine = toy
    for family in each_of(FAMILIES):
        (problem,) = distinct(family, "test", 1, seed=0)
        written = AnsweringModel(engine).write(problem.question, max_tokens=40)
        ours = logits(run, (*written.prompt, *written.ids[:-1]))[len(written.prompt) - 1 :]
        for row, token in each_of(zip(ours, written.ids, strict=True)):
            assert row.max() - row[token] <= tolerance().gap


@each("text", TEXTS)
def test_both_split_text_alike(toy, text):
    run, engine = toy
    ids = tuple(run.tokenizer.encode(text).ids)
    assert engine.tokenize(text) == ids
    assert b"".join(map(engine.piece, ids)).decode() == text


def test_a_teacher_read_from_its_file_has_the_logits_it_was_written_with(toy, tmp_path):
    """The file's numbers are halves, so a second reading is equal to the last bit."""
    run, _ = toy
    ids = torch.tensor([[5, 9, 14, 200, 31]])
    teacher = teacher_of(run.export(tmp_path))
    assert not any(weight.requires_grad for weight in teacher.parameters())
    with torch.no_grad():
        assert (teacher(ids) - run.model(ids)).abs().max() < TOLERANCE
        assert torch.equal(teacher(ids), teacher_of(tmp_path / "small.gguf")(ids))


def test_a_student_s_loss_is_the_cross_entropy_of_its_teacher_s_rows(tmp_path):
    """By numpy, answer tokens alone; its own teacher's is their entropy, which nothing undercuts."""
    run = trained(tmp_path)
    block = run.lessons.step(200)[0]
    wanted = (block.labels != IGNORE).numpy()
    other = Run(plan(), tmp_path / "other.pt", seed=6)
    for student in (run, other):
        student.teacher = run.model
        with torch.no_grad():
            loss = student._loss(block).item()
            rows = [each.model(block.ids).double().log_softmax(-1).numpy()[wanted] for each in (run, student)]
        assert loss == pytest.approx(-(np.exp(rows[0]) * rows[1]).sum(), rel=0.01)
    assert loss > -(np.exp(rows[0]) * rows[0]).sum()


def test_digits_stand_alone_in_one_vocabulary_and_not_in_the_other():
    tokens = {name: vocabulary.tokenizer().get_vocab() for name, vocabulary in (("common", COMMON), ("alien", ALIEN))}
    numbers = {name: {t for t in found if t.isdigit() and len(t) > 1} for name, found in tokens.items()}
    assert numbers["common"] == set()
    assert len(numbers["alien"]) > 20


def test_every_word_of_the_wordings_world_is_one_token():
    """After a space, and at the beginning of a turn where one may begin with it; an unknown word is spelled out."""
    tokenizer = WHOLE_WORDS.tokenizer()
    assert len(tokenizer.get_vocab()) == WHOLE_WORDS.num_tokens
    for text in each_of((*(f" {word}" for word in wordings.WORDS), *wordings.FIRST_WORDS)):
        assert tokenizer.encode(text).tokens == [text.replace(" ", "\u0120")]
    assert tokenizer.decode(tokenizer.encode(" zebra").ids) == " zebra"
    rng = random.Random(0)
    for family in each_of(wordings.FAMILIES):
        for text in (family.generate(rng, 3).question, wordings.say(family.generate(rng, 3).worked, rng)):
            assert len(tokenizer.encode(text).ids) == len(re.findall(r"[a-z]+|[.,?]", text))


def test_the_prompt_is_the_chat_template_s(toy):
    """What the training wrote before an answer is, token for token, what llama.cpp will write there."""
    run, engine = toy
    row, num_asked = run.lessons._row("Sort 3 1 2.", "1 2 3")
    assert engine.render([Message("user", "Sort 3 1 2.")]) == tuple(row[:num_asked])
    assert row[-1] in engine.end_ids


def test_the_file_says_how_it_was_made(toy):
    run, engine = toy
    said = engine.weights.metadata("hybrid.training")
    assert f'"step": {run.plan.steps}' in said
    assert '"seed": 5' in said
    assert engine.weights.num_parameters == sum(p.numel() for p in run.model.parameters())


@pytest.mark.parametrize("stop_after", [2, 4])
def test_a_run_that_was_stopped_ends_with_the_same_weights(tmp_path, stop_after):
    """Stopped where it begins to revise, and after that."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    revision = Revision(4, 0.5, {"facts": 9.0})
    expected = trained(whole, steps=2, revision=revision)
    with pytest.raises(KeyboardInterrupt):
        trained(parts, steps=2, stop_after=stop_after, revision=revision)
    found = trained(parts, steps=2, revision=revision)
    assert found.progress.step == expected.progress.step == 6
    assert found.progress.tokens == expected.progress.tokens > 0
    ours, theirs = found.model.state_dict(), expected.model.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path):
    trained(tmp_path, steps=2)
    with pytest.raises(OtherRecipe, match=r"toy\.pt is of another recipe"):
        Run(plan(steps=3), tmp_path / "toy.pt", seed=5)
    with pytest.raises(OtherRecipe, match=r"toy\.pt is of another recipe"):
        Run(plan(steps=2), tmp_path / "toy.pt", seed=6)


def toys(steps=4):
    return [replace(plan(steps=steps), name=name) for name in ("small", "mid")]


def test_one_command_trains_several_models_to_their_files(tmp_path, capsys):
    out, runs = tmp_path / "out", tmp_path / "runs"
    assert train.train_all(toys(), out, runs, seed=5)
    assert sorted(path.name for path in out.iterdir()) == ["mid.gguf", "small.gguf"]
    assert "small: step 4 of 4, loss" in capsys.readouterr().err
    assert train.train_all(toys(), out, runs, seed=5), "what is trained already is only written again"


def test_a_model_that_cannot_go_on_ends_the_command_and_is_named(tmp_path, capfd):
    out, runs = tmp_path / "out", tmp_path / "runs"
    assert train.train_all(toys(), out, runs, seed=5)
    assert not train.train_all(toys(steps=6), out, runs, seed=5)
    assert "is of another recipe" in capfd.readouterr().err


def test_an_interruption_leaves_checkpoints_and_no_process(tmp_path, monkeypatch):
    told = []

    def interrupted(bars, queue):
        told.append(queue.get(timeout=120))
        if told[-1][1] >= 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(train.Bars, "show", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train.train_all(toys(steps=4000), tmp_path / "out", tmp_path / "runs", seed=5)
    assert list((tmp_path / "runs").glob("*.pt"))
    assert not multiprocessing.active_children()


def test_the_rate_warms_up_stays_and_falls_in_a_straight_line():
    found = replace(PLANS["small"], first_steps=300, flat_until=100)
    assert [found.rate(step) for step in (0, 24, 49, 99, 100, 150, 200)] == [0.02, 0.5, 1, 1, 1, 0.75, 0.5]
    assert found.rate(299) == LAST_RATE
    again = replace(found, revision=Revision(100, 0.4, {}))
    assert [again.rate(step) for step in (299, 300, 350)] == [LAST_RATE, 0.4, 0.2]
    assert again.steps == 400


def test_training_makes_the_loss_smaller(tmp_path):
    losses = []
    Run(plan(steps=40), tmp_path / "toy.pt", seed=5).train(lambda _, loss: losses.append(loss))
    assert losses[-1] < losses[0] - 0.5


def test_only_answers_are_learnt_and_every_token_of_them():
    tokenizer = COMMON.tokenizer()
    rng = random.Random(3)
    lessons = Lessons(problems_for("small", rng), tokenizer, rng)
    end = tokenizer.token_to_id(TURN_END)
    for block in each_of(lessons.step(4000)):
        for ids, labels in each_of(zip(block.ids.tolist(), block.labels.tolist(), strict=True)):
            where = [i for i, label in enumerate(labels) if label != IGNORE]
            assert where == list(range(where[0], where[-1] + 1))  # one stretch, up to the end of the turn
            assert labels[where[-1]] == end
            assert [ids[i + 1] for i in where[:-1]] == [labels[i] for i in where[:-1]]
            assert tokenizer.decode(ids[: where[0] + 1], skip_special_tokens=False).endswith("assistant\n")


@each("name", ["small", "mid", "large", "alien", "numbers", "words", "student"])
def test_no_test_problem_is_in_a_row_that_is_trained_on(name):
    """By the text of the question, beside the law of the stream itself in tests/tasks/test_mix.py."""
    asked = {problem.question for family in FAMILIES for problem in distinct(family, "test", 100, seed=0)}
    rng = random.Random(0)
    lessons = Lessons(problems_for(name, rng), COMMON.tokenizer(), rng)
    for _ in range(10):
        for block in each_of(lessons.step(6000)):
            for ids in each_of(block.ids.tolist()):
                text = lessons._tokenizer.decode(ids, skip_special_tokens=False)
                question = text.split("user\n")[1].split(TURN_END)[0]
                assert question not in asked
    assert all(split_of(p) == "test" for p in distinct(BY_NAME["gcd"], "test", 20, seed=0))


def test_what_somebody_else_began_is_read_and_not_learnt():
    """The labels of such a row are the rest of its text, and no less."""
    tokenizer = WHOLE_WORDS.tokenizer()
    stream = iter([("who is anna?", "so anna is the last one.", "so anna")])
    (block,) = Lessons(stream, tokenizer, random.Random(3)).step(1)
    learnt = [label for label in block.labels[0].tolist() if label != IGNORE]
    assert tokenizer.decode(learnt, skip_special_tokens=False) == f" is the last one.{TURN_END}"


@each("name", ["wordings-small", "wordings-large"])
def test_no_test_problem_of_the_wordings_is_in_a_row_that_is_trained_on(name):
    """By the meaning of the question, whatever its words."""
    problems = (problem for family in wordings.FAMILIES for problem in distinct(family, "test", 100, seed=0))
    asked = {wordings.meaning(problem.question) for problem in problems}
    rng = random.Random(0)
    lessons = Lessons(problems_for(name, rng), WHOLE_WORDS.tokenizer(), rng)
    for block in each_of(lessons.step(20_000)):
        for ids in each_of(block.ids.tolist()):
            text = lessons._tokenizer.decode(ids, skip_special_tokens=False)
            assert wordings.meaning(text.split("user\n")[1].split(TURN_END)[0]) not in asked


@each("ladder", foreign.LADDERS)
def test_a_foreign_ladder_s_rows_are_its_own_train_problems(ladder):
    """Of both models, by the text of the question; their one vocabulary is neither of the other ladder's."""
    plans = train_foreign.PLANS[ladder]
    assert {plan.name for plan in plans} == {f"{ladder}-small", f"{ladder}-large"}
    assert {plan.vocabulary for plan in plans} == {{"sure": SURE, "unsure": UNSURE}[ladder]}
    asked = {p.question for found in foreign.problems_of(ladder, "test", 100).values() for p in found}
    for plan in each_of(plans):
        rng = random.Random(0)
        lessons = Lessons(problems_for(plan.name, rng), plan.vocabulary.tokenizer(), rng)
        given = {p.question for p, _ in islice(foreign.training_stream(plan.name, "train", random.Random(0)), 500)}
        for block in each_of(lessons.step(6_000)):
            assert (block.labels != IGNORE).sum(1).max() <= 120, "longer than foreign.MAX_TOKENS"
            for ids in each_of(block.ids.tolist()):
                text = lessons._tokenizer.decode(ids, skip_special_tokens=False)
                question = text.split("user\n")[1].split(TURN_END)[0]
                assert question in given
                assert question not in asked
