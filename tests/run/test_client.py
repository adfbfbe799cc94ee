"""Who stops listening leaves everything at rest; blocking is the same client through a portal."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import pytest
from anyio.from_thread import start_blocking_portal
from cases import each

from hybrid.cloud import Capabilities
from hybrid.errors import MissingCapability, Unreachable
from hybrid.run import Client, Finished, RequestSent, RequestSettled, TokenEmitted

PROMPT = "a b c"


@each("policy", ["kl", "cloud", "local", "paper", "greedy-exact"])
@each("after", [1, 4])
def test_closing_a_stream_early_rewinds_closes_and_settles(house, run, policy, after):
    h, emitted = house(), []
    observe = h.client._memory._timings.observe  # it is told of every event, read or not

    def observed(event, prompt_tokens):
        emitted.extend([event.token.id] if isinstance(event, TokenEmitted) else [])
        observe(event, prompt_tokens)

    h.client._memory._timings.observe = observed

    async def leave_early():
        stream = h.client.stream(PROMPT, policy=policy, max_tokens=200, span=4, threshold=0.05)
        shown = []
        async for event in stream:
            if isinstance(event, TokenEmitted):
                shown.append(event.token.id)
                if len(shown) == after:
                    break
        await stream.aclose()
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    assert run(leave_early()) == []
    text = h.prompt + tuple(emitted)
    assert h.engine.ids == text[: len(h.engine.ids)], "no token in the cache that was not emitted"
    assert h.cloud.num_open == 0
    assert h.ledger.reserved_nanousd == 0
    assert h.ledger.settled_nanousd >= sum(h.price.cost(usage) for usage in h.cloud.charged.values())
    assert len(run(h.client.generate(PROMPT, policy=policy, max_tokens=10)).tokens) <= 10, "the client still works"


def test_cancelling_the_task_does_the_same(house, run):
    h = house(num_context=1_000_000, small=lambda _: [0, 9, 0, 0, 0, 0, 0, 0])  # it never ends by itself

    async def cancel():
        task = asyncio.create_task(h.client.generate(PROMPT, policy="local", max_tokens=100_000))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        decoded = h.engine.num_decoded
        await asyncio.sleep(0.05)
        return h.engine.num_decoded - decoded

    assert run(cancel()) == 0


def test_a_request_that_hangs_is_given_up_when_the_reader_leaves(house, run):
    h, left = house(), asyncio.Event()

    async def hang(question, request_id, before_send):
        await before_send()
        left.set()
        await asyncio.sleep(60)

    h.cloud.score = hang

    async def leave():
        task = asyncio.create_task(h.client.generate(PROMPT, max_tokens=30, span=8))
        await left.wait()
        began = time.monotonic()
        task.cancel()
        await asyncio.wait([task])
        return time.monotonic() - began

    assert run(leave()) < 5
    assert h.ledger.reserved_nanousd == 0
    assert h.ledger.settled_nanousd == 11 * 1000 + 4000, "it may have been charged in full"


def test_answers_on_one_client_wait_for_each_other(house, run):
    """One context is one cache: interleaved answers would read each other's."""
    h = house()

    async def both():
        return await asyncio.gather(
            *(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=30) for _ in range(3))
        )

    texts = {answer.text for answer in run(both())}
    assert len(texts) == 1


def test_an_answer_after_a_failed_one_asks_again(house, run):
    """The cloud's bad minute is not the session's."""
    h = house(fault=lambda n: Unreachable("gone") if n == 1 else None)
    assert run(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=20)).degraded == "gone"
    answer = run(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=20))
    assert answer.degraded is None
    assert tuple(token.id for token in answer.tokens) == h.large(20)


def test_the_blocking_client_gives_the_same_answer_and_events(house, run):
    h = house()
    expected = run(h.client.generate(PROMPT, max_tokens=30, threshold=0.1))
    again = house()
    with start_blocking_portal() as portal:
        client = Client(again.client, portal)
        assert client.generate(PROMPT, max_tokens=30, threshold=0.1).tokens == expected.tokens
        events = list(client.stream(PROMPT, max_tokens=30, threshold=0.1))
        assert isinstance(events[-1], Finished)
        assert events[-1].answer.tokens == expected.tokens


def test_a_blocking_stream_can_be_left_early(house):
    h = house()
    with start_blocking_portal() as portal:
        for event in (stream := Client(h.client, portal).stream(PROMPT, policy="cloud", max_tokens=100)):
            if isinstance(event, TokenEmitted):
                break
        stream.close()
        assert h.cloud.num_open == 0


def test_an_interruption_of_a_blocking_answer_ends_it_before_it_is_raised(house):
    """Ctrl-C reaches the main thread while the answer is written on another."""
    import _thread
    import threading

    h = house(num_context=1_000_000, small=lambda _: [0, 9, 0, 0, 0, 0, 0, 0])  # it never ends by itself
    with start_blocking_portal() as portal:
        client = Client(h.client, portal)
        for ask in (lambda: client.generate(PROMPT, policy="local", max_tokens=10**6), lambda: list(endless(client))):
            timer = threading.Timer(0.2, _thread.interrupt_main)
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                ask()
            timer.join()
            decoded = h.engine.num_decoded
            time.sleep(0.05)
            assert h.engine.num_decoded == decoded
        assert len(client.generate(PROMPT, policy="local", max_tokens=5).tokens) == 5, "the client still works"


def endless(client):
    yield from client.stream(PROMPT, policy="local", max_tokens=10**6)


def test_what_belongs_to_the_client_cannot_be_chosen_for_one_answer(house, run):
    """Silence would be worse: a cap that is not kept."""
    from hybrid.errors import UsageError

    for name, value in {"cap": "0", "price": "free", "cloud": "http://x", "local": "y", "ctx": 5, "threads": 1}.items():
        with pytest.raises(UsageError, match=f"{name}: fixed"):
            run(house().client.generate(PROMPT, **{name: value}))


def test_a_closed_client_says_so(house, run):
    h = house()

    async def close_and_ask():
        await h.client.aclose()
        await h.client.generate(PROMPT)

    with pytest.raises(RuntimeError, match="closed"):
        run(close_and_ask())


def test_a_blocking_stream_raises_what_the_answer_raised(house):
    from hybrid.errors import UsageError

    with start_blocking_portal() as portal, pytest.raises(UsageError):
        list(Client(house().client, portal).stream(PROMPT, policy="nonsense"))


def test_an_endpoint_that_cannot_do_it_is_told_with_the_policies_that_work_as_they_would_be_asked(house, run):
    """Greedy, ``exact`` needs no writing; sampled it does, and is no advice then."""
    h = house()

    async def connect(*_):
        return Capabilities("scores", continues=False)

    h.cloud.connect = connect
    with pytest.raises(MissingCapability, match="exact needs an endpoint that can continue a partial answer") as caught:
        run(h.client.generate("a b c", raw=True, policy="exact", temperature=1.0))
    advice = str(caught.value).partition("; here ")[2]
    assert "local" in advice
    assert "exact" not in advice
    with pytest.raises(MissingCapability, match=r"greedy-exact, exact, block.* work"):
        run(h.client.generate("a b c", raw=True, policy="kl"))


def test_whoever_hears_is_told_how_a_stream_that_was_left_was_settled(house, run):
    """A monitor that stopped listening with the reader would never know what the answer cost."""
    h, heard = house(), []

    async def leave():
        async with aclosing(
            h.client.stream("a b c", raw=True, policy="cloud", max_tokens=60, on_event=heard.append)
        ) as it:
            async for event in it:
                if isinstance(event, TokenEmitted):
                    break

    run(leave())
    sent = [event.request_id for event in heard if isinstance(event, RequestSent)]
    assert sent == [event.request_id for event in heard if isinstance(event, RequestSettled)] != []
