"""One table: what a setting means, and who writes. Through llama.cpp and HTTP, each writer's own rows beside it."""

from __future__ import annotations

import itertools

import pytest
from arithmetic import tolerance
from cases import each

import hybrid
from hybrid.errors import UsageError
from hybrid.prob import warp
from hybrid.types import Message, Sampling

QUESTION = "gcd of 246 and 82?"
WRITERS = {
    "local": {"policy": "local"},
    "cloud": {"policy": "cloud"},
    "exact": {"policy": "exact", "span": 3},
    "kl": {"policy": "kl", "span": 3, "threshold": 0.05},
}
SEEDS = range(2)
# All that ``exact`` can know of a tempered law is in the list; so hot that a cut which is not made shows at once.
LISTED, HOT = 19, 4.0
# The first seeds under which twelve tokens, any byte as likely as any other, hold a whole character of two.
SPLIT = {"local": 2, "cloud": 6, "exact": 6, "kl": 7}


@pytest.fixture(scope="module")
def client(stub):
    with hybrid.open(local="small", cloud=stub.url, max_tokens=12) as opened:
        yield opened


class Desk:
    """One writer, asked under settings, and what each token of its answers was drawn from."""

    def __init__(self, client, oracles, writer):
        self.client, self.oracles, self.writer = client, oracles, writer

    def ask(self, **setting):
        answer = self.client.generate(QUESTION, **WRITERS[self.writer], **setting)
        assert answer.degraded in {None, "this policy asks nothing"}
        return answer

    def rows(self, answer):
        """Yield each token with the raw row of the model whose law it has: under ``exact`` always the cloud's."""
        at = self.oracles[0].engine.render([Message("user", QUESTION)])
        for token in answer.tokens:
            large = token.source == "cloud" or self.writer == "exact"
            yield token.id, self.oracles[large].cursor.row(at)
            at += (token.id,)

    def piece(self, token):
        return self.oracles[0].engine.piece(token)


@pytest.fixture(params=WRITERS)
def desk(request, client, oracles):
    return Desk(client, oracles, request.param)


# ---- what a setting means ------------------------------------------------------------------------------------------


def a_seed_repeats_its_text_and_another_gives_another(desk):
    texts = [desk.ask(temperature=HOT, top_k=LISTED, seed=seed).text for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3


def a_temperature_is_how_often_the_best_token_is_taken(desk):
    share = {}
    for temperature in (0.0, 0.05, 5.0):
        answers = [desk.ask(temperature=temperature, top_k=LISTED, seed=seed) for seed in SEEDS]
        best = [token == row.best for answer in answers for token, row in desk.rows(answer)]
        share[temperature] = sum(best) / len(best)
    assert min(share[0.0], share[0.05]) > 0.9
    assert share[5.0] < 0.5


def a_cut(**cut):
    def draws_from_what_it_leaves_and_from_no_less(desk):
        """Also the unlikeliest that is left is drawn at times: nobody cuts more than was asked for."""
        places = []
        for seed in SEEDS:
            setting = {"temperature": HOT, "seed": seed} | cut
            for token, row in desk.rows(desk.ask(**setting)):
                left = warp(row, Sampling(**setting)).probs > 0.0
                assert row.logprobs[token] > row.logprobs[left].min() - tolerance().nats
                places.append((row.logprobs[left] > row.logprobs[token]).sum())
        assert len(set(places)) > 1

    return draws_from_what_it_leaves_and_from_no_less


def a_stop_string_ends_the_text_before_it_also_across_tokens_and_a_handover(desk):
    whole = desk.ask()
    ends = itertools.accumulate(len(token.text) for token in whole.tokens)
    crossed = {}
    for (before, after), end in zip(itertools.pairwise(whole.tokens), ends, strict=False):
        if whole.text.find(whole.text[end - 1 : end + 1]) == end - 1:
            crossed[before.source, after.source] = end
    for end in crossed.values():
        answer = desk.ask(stop=[whole.text[end - 1 : end + 1], "nowhere"])
        assert (answer.text, answer.finish_reason) == (whole.text[: end - 1], "stop")
    assert (("local", "cloud") if desk.writer in {"exact", "kl"} else (desk.writer,) * 2) in crossed


def max_tokens_is_how_many_there_are(desk):
    whole = desk.ask()
    for limit in (1, 2, 7):
        answer = desk.ask(max_tokens=limit)
        assert [token.id for token in answer.tokens] == [token.id for token in whole.tokens[:limit]]
        assert answer.finish_reason == "length"


def a_character_split_over_tokens_comes_with_its_last_one(desk):
    """And one that is cut off at the end is not shown."""
    answer = desk.ask(temperature=1e4, top_p=0.999999, seed=SPLIT[desk.writer])
    read = b"".join(desk.piece(token.id) for token in answer.tokens).decode("utf-8", "replace")
    assert read.removeprefix(answer.text) in {"", "\N{REPLACEMENT CHARACTER}"}
    assert any(letter > "\x7f" for letter in answer.text.replace("\N{REPLACEMENT CHARACTER}", ""))


SETTINGS = {
    "seed": a_seed_repeats_its_text_and_another_gives_another,
    "temperature": a_temperature_is_how_often_the_best_token_is_taken,
    "top-k": a_cut(top_k=3),
    "top-p": a_cut(top_p=0.8),
    "min-p": a_cut(min_p=0.05),
    "all three": a_cut(top_k=6, top_p=0.95, min_p=0.02),
    "stop": a_stop_string_ends_the_text_before_it_also_across_tokens_and_a_handover,
    "max tokens": max_tokens_is_how_many_there_are,
    "split characters": a_character_split_over_tokens_comes_with_its_last_one,
}


@pytest.mark.slow
@each("setting", SETTINGS)
def test_a_setting_means_the_same_whoever_writes(desk, setting):
    SETTINGS[setting](desk)


IMPOSSIBLE = [
    *({"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"min_p": 1.0}, {"min_p": -0.1}),
    *({"seed": -1}, {"stop": [""]}, {"max_tokens": -1}, {"temperature": float("nan")}),
]


@each("setting", IMPOSSIBLE, ids=str)
def test_a_setting_that_cannot_be_is_the_same_sentence_whoever_writes(client, setting):
    said = set()
    for writer in WRITERS.values():
        with pytest.raises(UsageError) as error:
            client.generate(QUESTION, **writer, **setting)
        said.add(str(error.value))
    (sentence,) = said
    assert sentence.startswith(next(iter(setting)))
    assert "\n" not in sentence
