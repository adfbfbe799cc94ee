"""What an answer says: rows, texts, streams, each against the model itself."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from arithmetic import tolerance
from asking import TEXT, assert_greedy, assert_row, by_id, choice, cold, complete, streamed
from cases import each_of

from hybrid.types import Message

pytestmark = pytest.mark.slow


class TestScores:
    """Rows of the prompt: what the client's whole arithmetic stands on."""

    @pytest.mark.parametrize("k", [0, 1, 20])
    def test_prompt_rows_are_the_models(self, server, oracle, prompt, k):
        rows = choice(server, prompt=prompt, max_tokens=1, prompt_logprobs=k)["prompt_logprobs"]
        assert len(rows) == len(prompt)
        assert rows[0] is None
        for row, dense, actual in each_of(zip(rows[1:], oracle.rows(prompt), prompt[1:], strict=False)):
            assert_row({int(key): entry["logprob"] for key, entry in row.items()}, dense, k, actual)
            for token, entry in each_of(row.items()):
                assert entry["decoded_token"] == oracle.text([int(token)])
                value, noise = dense.logprobs[int(token)], tolerance().nats
                assert (dense.logprobs > value + noise).sum() < entry["rank"] <= (dense.logprobs > value - noise).sum()
            ranks = sorted(entry["rank"] for entry in row.values())
            assert ranks[:k] == list(range(1, k + 1))

    def test_rows_are_raw_whatever_is_sampled(self, server, prompt):
        """A client that computes a divergence from warped rows computes nonsense."""
        plain = choice(server, prompt=prompt, max_tokens=1, prompt_logprobs=5, logprobs=5)
        warped = choice(
            server,
            prompt=prompt,
            max_tokens=1,
            prompt_logprobs=5,
            logprobs=5,
            temperature=3,
            top_k=1,
            logit_bias={"5": -50},
            return_tokens_as_token_ids=True,
        )
        assert warped["prompt_logprobs"] == plain["prompt_logprobs"]

    def test_generated_rows_are_raw_too(self, server, oracle, prompt, no_end):
        fields = {"temperature": 1.5, "top_k": 20, "seed": 5, "logit_bias": no_end}
        found = choice(
            server,
            prompt=prompt,
            max_tokens=12,
            logprobs=4,
            return_token_ids=True,
            return_tokens_as_token_ids=True,
            **fields,
        )
        written, rows = found["token_ids"], found["logprobs"]
        assert rows["tokens"] == [f"token_id:{token}" for token in written]
        for n, (token, top) in each_of(enumerate(zip(written, rows["top_logprobs"], strict=True))):
            assert_row(by_id(top), oracle.row([*prompt, *written[:n]]), 4, token)
            assert rows["token_logprobs"][n] == top[f"token_id:{token}"]

    def test_keys_are_texts_unless_ids_are_asked_for(self, server, oracle, prompt):
        found = choice(server, prompt=prompt, max_tokens=3, logprobs=0, return_token_ids=True)
        assert found["logprobs"]["tokens"] == [oracle.text([token]) for token in found["token_ids"]]

    def test_echo_gives_the_prompts_rows_with_none_for_the_first(self, server, oracle, prompt):
        found = choice(server, prompt=prompt, max_tokens=0, echo=True, logprobs=3, return_tokens_as_token_ids=True)
        assert found["text"] == TEXT
        rows = found["logprobs"]
        assert rows["tokens"] == [f"token_id:{token}" for token in prompt]
        assert rows["token_logprobs"][0] is None
        assert rows["top_logprobs"][0] is None
        for row, dense, actual in each_of(zip(rows["top_logprobs"][1:], oracle.rows(prompt), prompt[1:], strict=False)):
            assert_row(by_id(row), dense, 3, actual)
        plain = choice(server, prompt=prompt, max_tokens=0, echo=True, logprobs=3)["logprobs"]
        starts = [*plain["text_offset"], len(TEXT)]
        assert [TEXT[a:b] for a, b in pairwise(starts)] == [oracle.text([token]) for token in prompt]

    def test_echo_goes_on_with_what_is_written(self, server, oracle, prompt, no_end):
        found = choice(
            server, prompt=prompt, max_tokens=5, echo=True, logprobs=2, return_token_ids=True, logit_bias=no_end
        )
        assert found["text"] == oracle.text(found["token_ids"])
        assert len(found["logprobs"]["tokens"]) == len(prompt) + 5
        assert found["logprobs"]["token_logprobs"][0] is None
        assert None not in found["logprobs"]["token_logprobs"][1:]
        assert_greedy(oracle, prompt, found["token_ids"], oracle.end_ids)


class TestText:
    """What is written: greedy is the model's, everything else keeps its promise."""

    def test_greedy_is_direct_greedy(self, server, oracle, prompt):
        found = choice(server, prompt=prompt, max_tokens=40, return_token_ids=True)
        assert_greedy(oracle, prompt, found["token_ids"])
        shown = [token for token in found["token_ids"] if token not in oracle.end_ids]
        assert found["text"] == oracle.text(shown)

    def test_a_text_prompt_is_tokenized_as_tokenize_does(self, server, oracle, prompt):
        body = server.client.post("/tokenize", json={"prompt": TEXT, "add_special_tokens": False}).json()
        assert body == {"count": len(prompt), "max_model_len": 1024, "tokens": prompt, "token_strs": None}
        found = choice(server, prompt=TEXT, max_tokens=1, return_token_ids=True, add_special_tokens=False)
        assert found["prompt_token_ids"] == prompt
        [control] = server.client.post("/tokenize", json={"prompt": oracle.text([oracle.control])}).json()["tokens"]
        assert control == oracle.control

    def test_a_conversation_is_tokenized_as_the_models_template_writes_it(self, server, oracle):
        """As vLLM's ``TokenizeChatRequest``; a client compares templates with it."""
        turns = (Message("user", "Why?"), Message("assistant", "So."), Message("user", "Oh?"))
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        told = server.client.post("/tokenize", json={"messages": messages, "add_generation_prompt": True}).json()
        assert told["tokens"] == list(oracle.weights.render(turns))
        for nothing in ({}, {"messages": []}, {"messages": [{"role": "owl", "content": "?"}]}):
            assert server.client.post("/tokenize", json=nothing).status_code == 400

    def test_a_seed_repeats_and_others_differ(self, server, prompt, no_end):
        fields = {"prompt": prompt, "max_tokens": 20, "temperature": 1.5, "logit_bias": no_end}
        texts = [choice(server, seed=seed, **fields, **cold())["text"] for seed in (1, 1, 2, 3, -1, -1)]
        assert texts[0] == texts[1]
        assert texts[4] == texts[5]
        assert len(set(texts)) > 2

    def test_top_k_and_top_p_keep_to_the_best(self, server, oracle, prompt):
        """20 draws each; the two laws exclude each other's extra tokens nearly always, and never are left."""
        row = oracle.row(prompt)
        order = np.argsort(-row.logprobs)
        mass = np.cumsum(row.probs[order])

        def drawn(**fields) -> set[int]:
            asked = {"prompt": prompt, "max_tokens": 1, "temperature": 1, "return_token_ids": True} | fields
            return {choice(server, seed=seed, **asked)["token_ids"][0] for seed in range(20)}

        assert drawn(top_k=3) <= set(order[:4].tolist())
        nucleus = int((mass < 0.5).sum()) + 1
        assert drawn(top_p=0.5) <= set(order[: nucleus + 1].tolist())
        assert drawn(top_k=1) == {int(order[0])}

    def test_a_banned_token_is_not_written(self, server, oracle, prompt):
        [best] = choice(server, prompt=prompt, max_tokens=1, return_token_ids=True)["token_ids"]
        found = choice(server, prompt=prompt, max_tokens=30, return_token_ids=True, logit_bias={str(best): -100})
        assert best not in found["token_ids"]
        assert_greedy(oracle, prompt, found["token_ids"], [best])

    def test_the_end_token_is_among_the_ids_and_not_in_the_text(self, server, oracle, prompt):
        found = complete(
            server, prompt=prompt, max_tokens=9, return_token_ids=True, logit_bias={str(oracle.control): 200}
        )
        [only] = found["choices"]
        assert (only["token_ids"], only["text"]) == ([oracle.control], "")
        assert (only["finish_reason"], only["stop_reason"]) == ("stop", None)
        assert only["prompt_token_ids"] == prompt
        assert found["usage"]["completion_tokens"] == 1

    @pytest.mark.parametrize(("start", "end"), [(0, 1), (3, 6), (9, 18)])
    def test_a_stop_string_cuts_wherever_the_tokens_end(self, server, prompt, no_end, start, end):
        fields = {"prompt": prompt, "max_tokens": 40, "logit_bias": no_end}
        text = choice(server, **fields)["text"]
        stop = text[start:end]
        found = complete(server, stop=["\u2603", stop], **fields)
        [only] = found["choices"]
        assert only["text"] == text[: text.find(stop)]
        assert (only["finish_reason"], only["stop_reason"]) == ("stop", stop)
        assert 1 <= found["usage"]["completion_tokens"] <= 40
        assert (
            "".join(c["text"] for event in streamed(server, stop=stop, **fields) for c in event["choices"])
            == (only["text"])
        )

    def test_text_held_back_for_a_stop_string_is_shown_in_the_end(self, server, prompt, no_end):
        fields = {"prompt": prompt, "max_tokens": 20, "logit_bias": no_end}
        text = choice(server, **fields)["text"]
        almost = text[-3:] + "\u2603"
        assert choice(server, stop=almost, **fields)["text"] == text
        events = [event["choices"][0]["text"] for event in streamed(server, stop=almost, **fields)]
        assert "".join(events) == text


COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


class TestStreams:
    """A stream is the whole answer in pieces."""

    @pytest.mark.parametrize(
        "fields",
        [
            {"max_tokens": 12, "temperature": 1.2, "seed": 3},
            {"max_tokens": 12, "echo": True},
            {"max_tokens": 0, "echo": True},
            {"max_tokens": 12, "stop": "e"},
            {"max_tokens": 1},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("logprobs", [None, 2])
    def test_the_pieces_of_a_stream_are_the_whole_answer(self, server, prompt, fields, logprobs):
        fields = fields | {"prompt": prompt, "return_token_ids": True, "return_tokens_as_token_ids": True}
        if logprobs is not None:
            fields["logprobs"] = logprobs
        whole = complete(server, **fields, **cold())
        *events, closing = streamed(server, stream_options={"include_usage": True}, **fields, **cold())
        assert all("usage" not in event for event in events)
        assert closing["choices"] == []
        assert closing["usage"].items() >= {name: whole["usage"][name] for name in COUNTS}.items()
        [expected] = whole["choices"]
        pieces = [event["choices"][0] for event in events]
        assert "".join(piece["text"] for piece in pieces) == expected["text"]
        assert [token for piece in pieces for token in piece["token_ids"]] == expected["token_ids"]
        assert [piece["prompt_token_ids"] for piece in pieces] == [prompt] + [None] * (len(pieces) - 1)
        for key in ("finish_reason", "stop_reason"):
            assert pieces[-1][key] == expected[key]
            assert all(piece[key] is None for piece in pieces[:-1])
        if logprobs is None:
            assert all(piece["logprobs"] is None for piece in [*pieces, expected])
            return
        for key, values in each_of(expected["logprobs"].items()):
            assert [value for piece in pieces for value in piece["logprobs"][key]] == values

    def test_usage_is_told_only_where_it_was_asked_for(self, server, prompt):
        events = streamed(server, prompt=prompt, max_tokens=3)
        assert all(event["choices"] and "usage" not in event for event in events)

    def test_ids_and_names_stay_the_same_along_a_stream(self, server, prompt):
        events = streamed(server, prompt=prompt, max_tokens=3)
        assert len({event["id"] for event in events}) == 1
        assert {event["model"] for event in events} == {"small"}
