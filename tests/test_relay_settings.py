"""``[relay]``: where it may stand, what it takes from the cloud's settings, and whom a key is shown."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from cases import each
from chat_upstream import Script, upstream

import hybrid
from hybrid.assemble.reaching import make_relayer, relay_settings
from hybrid.errors import UsageError
from hybrid.run.relaying import Relayer
from hybrid.settings.config import Settings
from hybrid.settings.sources import CONFIG_FILE, load
from hybrid.spend import Account, MemoryLedger, Price
from hybrid.store.files import APP

CLOUD, OTHER = "https://api.example.com/v1", "https://other.example.com/v1"
TABLE = f"""
[relay]
url = "{OTHER}"
model = "big"
price = "2/0.2/8"
api_key_env = "OTHER_KEY"
image_tokens = 765
"""


@pytest.fixture(autouse=True)
def keys(monkeypatch, tmp_path):
    """Keys of two services; a folder without files."""
    monkeypatch.setenv("HYBRID_API_KEY", "sk-cloud")
    monkeypatch.setenv("OTHER_KEY", "sk-other")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_table_of_the_users_own_file_and_variables_say_the_same(keys, monkeypatch):
    said = {"url": OTHER, "model": "big", "price": "2/0.2/8", "api_key_env": "OTHER_KEY", "image_tokens": 765}

    def read():
        found = load()
        return {name: getattr(found, f"relay_{name}") for name in said}

    own = keys / "configuration" / APP / CONFIG_FILE
    own.parent.mkdir(parents=True)
    own.write_text(TABLE)
    own.chmod(0o600)
    assert read() == said
    own.unlink()
    for name, value in said.items():
        monkeypatch.setenv(f"HYBRID_RELAY_{name.upper()}", str(value))
    assert read() == said


def test_a_cloned_folders_table_is_refused_and_an_unknown_name_in_ones_own_is_named(keys):
    (keys / CONFIG_FILE).write_text(TABLE)
    with pytest.raises(UsageError, match=r"relay_url \(line 2\)"):
        load()
    (keys / CONFIG_FILE).unlink()
    other = keys / "mine.toml"
    other.write_text('[relay]\nurls = "x"\n')
    with pytest.raises(UsageError, match="there is no setting called relay_urls"):
        load(config=other)


@each(
    "settings, key",
    [
        ({}, "sk-cloud"),
        ({"relay_model": "big"}, "sk-cloud"),
        ({"relay_url": "https://api.example.com/other", "relay_model": "m"}, "sk-cloud"),
        ({"relay_url": "https://api.example.com:443/other", "relay_model": "m"}, "sk-cloud"),
        ({"relay_url": "http://api.example.com", "relay_model": "m"}, None),
        ({"relay_url": "https://api.example.com:8443", "relay_model": "m"}, None),
        ({"relay_url": OTHER, "relay_model": "m"}, None),
        ({"relay_url": "https://api.example.com.evil.example", "relay_model": "m"}, None),
        ({"relay_url": OTHER, "relay_model": "m", "relay_api_key_env": "OTHER_KEY"}, "sk-other"),
    ],
)
def test_a_key_goes_to_the_origin_it_was_named_for_and_to_no_other(settings, key):
    async def made():
        async with AsyncExitStack() as stack:
            account = Account(None, MemoryLedger())
            relayer = make_relayer(Settings(cloud=CLOUD, **settings), account, _never, stack)
            wire = relayer.target.wire
            return wire._key, wire._pools[0]._network_backend._floods is not None

    assert asyncio.run(made()) == (key, True)


async def _never():
    raise AssertionError("nobody is asked")


def test_a_variable_that_holds_no_key_and_an_address_without_a_model_are_refused_at_once():
    with pytest.raises(UsageError, match="NO_SUCH_KEY"):
        hybrid.open(relay_url=OTHER, relay_model="m", relay_api_key_env="NO_SUCH_KEY")
    with pytest.raises(UsageError, match="relay_url needs relay_model"):
        hybrid.open(relay_url=OTHER)
    with pytest.raises(UsageError, match="relay_url"):
        hybrid.open(relay_url="ftp://other", relay_model="m")


@each("settings", [{}, {"cloud": "large"}, {"offline": True, "cloud": CLOUD}, {"offline": True, "relay_url": OTHER}])
def test_there_is_nowhere_to_relay_to_offline_or_beside_the_bundled_models(settings):
    assert relay_settings(Settings(**settings)) is None


@each(
    "settings, price",
    [
        ({}, "1/0.1/4"),
        ({"relay_price": "2/0.2/8"}, "2/0.2/8"),
        ({"relay_model": "big"}, None),  # what is charged for another model nobody has said
        ({"relay_url": OTHER, "relay_model": "big"}, None),
        ({"relay_url": OTHER, "relay_model": "big", "relay_price": "free"}, "free"),
    ],
)
def test_a_price_is_that_of_the_model_that_is_asked_and_the_caps_are_the_clients(settings, price):
    async def made():
        async with AsyncExitStack() as stack:
            account = Account(Price.parse("1/0.1/4"), MemoryLedger(), "there", 5_000, "me")
            given = Settings(cloud=CLOUD, price="1/0.1/4", **settings)
            paid = make_relayer(given, account, _never, stack).target.account
            assert (paid._ledger, paid._cap, paid._client) == (account._ledger, 5_000, "me")
            return paid.price

    found = asyncio.run(made())
    assert (None if found is None else str(found)) == price


def test_a_client_that_is_opened_relays_with_the_bundled_pair_and_pays_from_the_users_ledger(keys):
    async def asked():
        async with upstream(Script.whole()) as there:
            ledger = keys / "ledger.sqlite"
            given = {"relay_url": there.url, "relay_model": "big", "relay_price": "1/0.1/4"}
            async with hybrid.open(**given, ledger=ledger) as client:
                assert isinstance(client.relayer, Relayer)
                body = {"messages": [{"role": "user", "content": "hi"}]}
                async with client.relay(body, lambda _: None) as reply:
                    await reply.whole()
                return there.bodies, client.spent.nanousd, ledger.exists()

    bodies, spent, kept = asyncio.run(asked())
    assert [body["model"] for body in bodies] == ["big"]
    assert (spent, kept) == (12 * 1000 + 3 * 4000, True)
