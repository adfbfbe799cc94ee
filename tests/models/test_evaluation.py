"""The reference models measured: greedy as the product, read along exactly, counted and compared as by hand."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from arithmetic import tolerance
from card import Agreement, compare, read
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine

import hybrid
from hybrid.errors import EngineError, UsageError
from hybrid.models import card as answering
from hybrid.models import card as evaluation
from hybrid.models.card import LADDER, Accuracy, AgreementSummary, AnsweringModel, GradedAnswer, overall
from hybrid.prob import Dense
from hybrid.tasks import BY_NAME, FAMILIES, MAX_TOKENS, Problem, distinct

BUNDLED = Path(hybrid.__file__).parent / "models" / "small.gguf"
QUESTIONS = (
    *(distinct(family, "test", 1, seed=3)[0].question for family in FAMILIES[::3]),
    'What is "é中"?\n  A {line}.',
)


@pytest.fixture(scope="module")
def small():
    """The bundled small model, one thread."""
    with answering.open_model(BUNDLED) as answerer:
        yield answerer


@pytest.fixture(scope="module")
def written(small):
    """Its answers to the questions."""
    return [small.write(question) for question in QUESTIONS]


# ---- one model answers ---------------------------------------------------------------------------------------------


@each("max_tokens", [MAX_TOKENS, 4])
def test_what_is_written_is_what_the_product_shows(small, max_tokens):
    """A score of anything else would be of a model that nobody can ask."""
    with hybrid.open(local=BUNDLED, policy="local", max_tokens=max_tokens) as client:
        for question in QUESTIONS:
            shown, found = client.generate(question), small.write(question, max_tokens)
            assert found.text == shown.text
            assert [token.id for token in shown.tokens] == [i for i in found.ids if i not in small.engine.end_ids]
            assert (found.ids[-1] in small.engine.end_ids) == (shown.finish_reason == "stop")


def test_every_token_is_the_first_of_the_largest_in_its_row(written):
    for answer in each_of(written):
        assert answer.rows.shape[0] == len(answer.ids) > 0
        assert tuple(int(np.flatnonzero(row == row.max())[0]) for row in answer.rows) == answer.ids


def test_a_model_that_reads_its_own_answer_has_the_same_rows(small, written, agree):
    for answer in each_of(written):
        rows = read(small, answer)
        assert rows.shape == answer.rows.shape
        assert all(map(agree, map(Dense.from_logits, rows), map(Dense.from_logits, answer.rows)))


def test_an_answer_does_not_depend_on_what_was_asked_or_read_before(small, written, agree):
    for question, answer in each_of(reversed([*zip(QUESTIONS, written, strict=True)])):
        again = small.write(question)
        assert (again.prompt, again.ids, again.text) == (answer.prompt, answer.ids, answer.text)
        assert all(map(agree, map(Dense.from_logits, again.rows), map(Dense.from_logits, answer.rows)))
        read(small, written[0])


def test_the_prompt_is_the_question_in_the_models_own_template(small, written):
    for question, answer in each_of(zip(QUESTIONS, written, strict=True)):
        shown = b"".join(map(small.engine.piece, answer.prompt)).decode()
        assert shown == f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


WORDS = ("<end>", "a", "b", "c", "<stop>")


def scripted(table, ends=frozenset({0}), asked=None):
    """A model whose row after some words of an answer is given by ``table``: words to scores; "c" is the prompt."""

    def scores(ids):
        if asked is not None:
            asked.append(ids)
        return table(" ".join(WORDS[token] for token in ids[1:]))

    return AnsweringModel(ScriptedEngine(WORDS, scores, end_ids=ends))


@each("max_tokens", [1, 2, 7, MAX_TOKENS])
def test_an_answer_without_an_end_has_the_most_tokens_there_may_be(max_tokens):
    asked = []
    found = scripted(lambda _: (0, 1, 0, 0, 0), asked=asked).write("c", max_tokens)
    assert found.ids == (1,) * max_tokens
    assert found.text == "a " * max_tokens
    assert len(asked) == max_tokens  # the last token is not decoded for nothing


@each("end", [0, 4])
def test_the_end_is_among_the_ids_and_not_in_the_text(end):
    endings = scripted(lambda text: np.eye(5)[2 if text != "b b" else end], ends=frozenset({0, 4}))
    found = endings.write("c", 3)
    assert found.ids == (2, 2, end)
    assert found.text == "b b "
    assert (found.rows == np.eye(5)[[2, 2, end]]).all()


def test_an_answer_ends_where_the_context_is_full():
    """As the product's, which would call it a matter of length; a score is no place for an exception."""
    full = AnsweringModel(ScriptedEngine(WORDS, lambda _: (0, 1, 0, 0, 0), num_context=5))
    assert full.write("c b").ids == (1,) * 3


def test_half_a_character_at_the_end_is_not_shown():
    """The bytes of "é" are two tokens here, and the answer stops between them."""
    halves = ScriptedEngine(WORDS, lambda _: (0, 1, 0, 0, 0))
    halves.piece = lambda token: b"\xc3" if token == 1 else b"?"
    assert AnsweringModel(halves).write("c", 1).text == ""


def test_a_model_without_a_chat_template_is_refused_without_a_hint_at_flags_of_other_commands(monkeypatch):
    monkeypatch.setattr(answering.Weights, "metadata", lambda _, key: None if "template" in key else "?")
    with (
        pytest.raises(EngineError, match=r"small\.gguf has no chat template, so that no question"),
        answering.open_model(BUNDLED),
    ):
        pass


def test_an_answer_that_ends_at_once_is_empty():
    found = scripted(lambda _: (1, 0, 0, 0, 0)).write("c")
    assert (found.ids, found.text) == ((0,), "")


def test_the_lowest_id_wins_a_tie():
    assert scripted(lambda _: (0, 3, 3, 1, 3)).write("c", 2).ids == (1, 1)


def test_a_model_that_cannot_be_loaded_is_an_engine_error(tmp_path):
    with pytest.raises(EngineError, match=r"no model file .*none\.gguf"), answering.open_model(tmp_path / "none.gguf"):
        pass


# ---- two models beside each other ----------------------------------------------------------------------------------


def graded(*answers):
    return [GradedAnswer(Problem("facts", 1, "c", "", "", ""), answer, correct=True) for answer in answers]


def random_model(seed, questions):
    """A model over 7 words whose row depends on its whole prefix; and its answers of up to 6 tokens."""

    def scores(ids):
        return (2 * np.random.default_rng([seed, len(ids), *ids]).normal(size=7)).tolist()

    model = AnsweringModel(ScriptedEngine([f"w{i}" for i in range(7)], scores, end_ids=frozenset({3})))
    return model, scores, graded(*(model.write(question, 6) for question in questions))


def softmax(scores):
    weights = [math.exp(score) for score in scores]
    return [weight / math.fsum(weights) for weight in weights]


def likeliest(probs):
    return max(range(len(probs)), key=probs.__getitem__)


def naively(small, large, by_small, by_large):
    """Position by position, both models asked for the prefix anew."""
    found = {"kl": [], "same": [], "entropy": [], "differs": []}
    for text, along_large in [*((a.written, True) for a in by_large), *((a.written, False) for a in by_small)]:
        for num in range(len(text.ids)):
            theirs, ours = (softmax(scores((*text.prompt, *text.ids[:num]))) for scores in (large, small))
            same = likeliest(theirs) == likeliest(ours)
            if along_large:
                found["kl"].append(math.fsum(a * math.log(a / b) for a, b in zip(theirs, ours, strict=True)))
                found["same"].append(same)
            else:
                found["entropy"].append(-math.fsum(b * math.log(b) for b in ours))
                found["differs"].append(not same)
    return found


@given(st.integers(0, 10**6), st.integers(1, 4))
def test_a_comparison_is_that_of_a_naive_loop(seed, count):
    questions = [f"w{i} w{i + 1}" for i in range(count)]
    small, small_scores, by_small = random_model(seed, questions)
    large, large_scores, by_large = random_model(seed + 1, questions)
    found = compare(small, large, by_small, by_large)
    expected = naively(small_scores, large_scores, by_small, by_large)
    assert found.kl == pytest.approx(expected["kl"], rel=1e-5)
    assert found.entropy == pytest.approx(expected["entropy"], rel=1e-5)
    assert found.same.tolist() == expected["same"]
    assert found.differs.tolist() == expected["differs"]


@given(st.integers(0, 10**6))
def test_comparisons_joined_are_the_comparison_of_all(seed):
    questions = ["w1", "w2 w5", "w6"]
    small, _, by_small = random_model(seed, questions)
    large, _, by_large = random_model(seed + 1, questions)
    parts = [compare(small, large, by_small[i : i + 1], by_large[i : i + 1]) for i in range(3)]
    together, joined = compare(small, large, by_small, by_large), Agreement.joined(parts)
    for name in ("kl", "same", "entropy", "differs"):
        assert getattr(joined, name).tolist() == getattr(together, name).tolist()
    assert joined.summary() == together.summary()


def test_a_model_beside_itself_agrees_everywhere_at_a_kl_of_0(small, written):
    """To what batches of another shape do to float16 sums; where nothing is rounded, exactly."""
    exact, _, answers = random_model(5, ["w1", "w2", "w4"])
    found = compare(exact, exact, answers, answers)
    assert found.same.all()
    assert not found.differs.any()
    assert found.kl == pytest.approx(0, abs=1e-12)
    real = compare(small, small, graded(*written), graded(*written))
    assert real.kl == pytest.approx(0, abs=tolerance().nats ** 2)
    sure = np.concatenate([np.diff(np.sort(answer.rows, axis=-1)[:, -2:])[:, 0] > 0.03 for answer in written])
    assert sure.sum() > 20
    assert real.same[sure].all()
    assert not real.differs[sure].any()


# After these words: the small model's row, the large one's. In logarithms, so that a row is its own log-softmax.
PROBS = {
    "": ((0.1, 0.6, 0.1, 0.1, 0.1), (0.1, 0.5, 0.2, 0.1, 0.1)),  # both write a
    "a": ((0.1, 0.1, 0.4, 0.3, 0.1), (0.1, 0.1, 0.2, 0.5, 0.1)),  # b, c
    "a b": ((0.6, 0.1, 0.1, 0.1, 0.1), (0.9, 0.025, 0.025, 0.025, 0.025)),  # both end
    "a c": ((0.1, 0.1, 0.1, 0.6, 0.1), (0.6, 0.1, 0.1, 0.1, 0.1)),  # c, the end
}


def by_hand():
    small, large = (scripted(lambda text, i=i: np.log(PROBS[text][i])) for i in range(2))
    by_small, by_large = graded(small.write("c")), graded(large.write("c"))
    assert (by_small[0].written.text, by_large[0].written.text) == ("a b ", "a c ")
    return compare(small, large, by_small, by_large)


def test_a_position_differs_where_the_large_model_given_the_same_prefix_would_write_another_token():
    """After its own "a b" the small model is agreed with again, though the large one never wrote that."""
    assert by_hand().differs.tolist() == [False, True, False]


def test_along_the_large_models_answer_the_same_token_is_counted_and_the_kl_is_under_the_large_model():
    found = by_hand()
    assert found.same.tolist() == [True, False, False]
    assert found.kl == pytest.approx([
        0.5 * math.log(5 / 6) + 0.2 * math.log(2),
        0.2 * math.log(1 / 2) + 0.5 * math.log(5 / 3),
        0.6 * math.log(6) + 0.1 * math.log(1 / 6),
    ])  # fmt: skip


def test_the_entropy_is_the_small_models_along_its_own_answer():
    first = -0.6 * math.log(0.6) - 0.4 * math.log(0.1)
    second = -0.4 * math.log(0.4) - 0.3 * math.log(0.3) - 0.3 * math.log(0.1)
    found = by_hand()
    assert found.entropy == pytest.approx([first, second, first])
    assert found.auroc == 1.0


def test_the_summary_holds_shares_means_and_numbers():
    made = Agreement(
        kl=np.array([0.25, 0.5, 0.0, 2.0, 0.0]),
        same=np.array([True, False, True, False, True]),
        entropy=np.array([0.1, 0.9, 0.4, 0.4]),
        differs=np.array([False, True, False, True]),
    )
    assert made.summary() == AgreementSummary(
        agreement=0.6, mean_kl=0.55, num_large_tokens=5, auroc=0.875, num_differing=2, num_small_tokens=4
    )


@each("bit", [True, False])
def test_where_the_models_never_or_always_differ_there_is_nothing_to_rank(bit):
    made = Agreement(np.zeros(2), np.array([True, True]), np.array([0.5, 1.0]), np.array([bit, bit]))
    assert made.summary().auroc is None


# ---- right answers -------------------------------------------------------------------------------------------------


def knowing(problems, right):
    """A model that gives the worked answer where ``right`` says so; each answer is one token and the end."""
    asked = [problem for of_family in problems.values() for problem in of_family]
    words = sorted({word for problem in asked for word in problem.question.split()})
    pieces = ["<end>", *words, *(p.worked if right(p) else "nothing" for p in asked)]
    rows = np.eye(len(pieces))
    engine = ScriptedEngine(pieces, lambda ids: rows[answers.get(ids, 0)], end_ids=frozenset({0}))
    answers = {engine.tokenize(p.question): 1 + len(words) + i for i, p in enumerate(asked)}
    assert len(answers) == len(asked)
    return AnsweringModel(engine)


def test_an_answer_is_right_where_its_familys_grader_says_so():
    problems = evaluation.problems_of("test", 3)
    chosen = {p.canonical for number, of_family in enumerate(problems.values()) for p in of_family[: number % 4]}
    told = []
    found = evaluation.evaluate(knowing(problems, lambda p: p.canonical in chosen), problems, told.append)
    assert told == list(found) == [family.name for family in FAMILIES]
    for name, of_family in each_of(problems.items()):
        assert [answer.problem for answer in found[name]] == of_family
        assert [answer.correct for answer in found[name]] == [p.canonical in chosen for p in of_family]
    assert [evaluation.count_right(answers).num_correct for answers in found.values()] == [
        i % 4 for i in range(len(found))
    ]


def test_the_problems_are_those_of_the_split_and_the_seed():
    for split, seed in (("test", 0), ("calibration", 4)):
        drawn = evaluation.problems_of(split, 5, seed)
        assert drawn == {name: distinct(family, split, 5, seed) for name, family in BY_NAME.items()}
    assert evaluation.problems_of("test", 5) == evaluation.problems_of("test", 5, seed=0)


def test_more_problems_than_a_family_has_are_a_usage_error():
    group = replace(LADDER, families={"facts": BY_NAME["facts"]})
    with pytest.raises(UsageError, match=r"family facts has only \d+ distinct test problems, not 1000"):
        evaluation.problems_of("test", 1000, group=group)


scores = st.integers(1, 40).flatmap(lambda n: st.builds(Accuracy, st.just(n), st.integers(0, n)))


@given(st.lists(scores, min_size=1, max_size=6), st.lists(st.integers(1, 9), min_size=6, max_size=6))
def test_families_weigh_alike_however_many_problems_of_each_were_asked(found, times):
    by_family = {str(i): score for i, score in enumerate(found)}
    more = {
        str(i): Accuracy(score.num_problems * k, score.num_correct * k)
        for i, (score, k) in enumerate(zip(found, times, strict=False))
    }
    expected = math.fsum(score.num_correct / score.num_problems for score in found) / len(found)
    assert overall(by_family) == pytest.approx(expected)
    assert overall(more) == pytest.approx(expected)


def test_one_right_of_one_and_none_of_nine_is_a_half():
    assert overall({"gcd": Accuracy(1, 1), "facts": Accuracy(9, 0)}) == 0.5


def test_the_json_holds_these_keys_and_figures_and_no_others(small):
    """Other programs read them."""
    answer = small.write("Hello")
    problem = Problem("gcd", 1, "", "", "", "")
    found = evaluation.to_json(
        "a/path.gguf",
        {
            "gcd": [GradedAnswer(problem, answer, correct=bit) for bit in (True, False, True)],
            "facts": [GradedAnswer(problem, answer, correct=False)],
        },
    )
    assert json.loads(json.dumps(found)) == {
        "model": "a/path.gguf",
        "overall": 0.3333,
        "families": {
            "gcd": {"n": 3, "correct": 2, "low": 0.2077, "high": 0.9385},
            "facts": {"n": 1, "correct": 0, "low": 0.0, "high": 0.7935},
        },
    }


def test_the_same_model_on_the_same_problems_gives_the_same_figures(small):
    """In another order, too: what one question leaves in the cache is not there for the next."""
    problems = evaluation.problems_of("test", 2)
    backwards = {name: problems[name][::-1] for name in reversed(problems)}
    one, two = (evaluation.evaluate(small, asked, lambda _: None) for asked in (problems, backwards))
    for name, answers in each_of(one.items()):
        assert [answer.written.text for answer in answers] == [answer.written.text for answer in two[name][::-1]]
    first, second = (evaluation.to_json("small", found) for found in (one, two))
    assert first == second
    assert Counter(re.findall(r'"n": (\d+)', json.dumps(first))) == {"2": len(FAMILIES)}
