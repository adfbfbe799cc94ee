"""Addresses without a scheme: completed where they lead to this machine, and nowhere else."""

from __future__ import annotations

import pytest
from cases import each
from typer.testing import CliRunner

from hybrid.cli import app
from hybrid.errors import UsageError
from hybrid.settings.names import complete_address, is_address, is_loopback
from hybrid.settings.sources import choosing, load
from hybrid.spend import endpoint_id

HERE = {
    "127.0.0.1:8000": "http://127.0.0.1:8000",
    "localhost:8000/v1": "http://localhost:8000/v1",
    "localhost": "http://localhost",
    "LOCALHOST:80": "http://LOCALHOST:80",
    "[::1]:8000": "http://[::1]:8000",
    "127.9.9.9:1/": "http://127.9.9.9:1/",
}
ELSEWHERE = [
    "gpu:8000", "api.example.com/v1", "10.0.0.1:80", "localhost.example.com:80", "127.0.0.1.example.com", "::1",
    "[::1:8000", "localhost:x", "localhost:99999", "local host:1", "", "localhost@evil.example:80", "//localhost",
]  # fmt: skip


@each("written", HERE)
def test_an_address_on_this_machine_is_completed(written):
    assert complete_address(written) == HERE[written]
    assert is_address(HERE[written])
    assert is_loopback(HERE[written])
    assert load(cloud=written).cloud == HERE[written]
    assert choosing(load(), {"cloud": written}).cloud == HERE[written]


@each("written", ELSEWHERE)
def test_another_address_is_left_as_it_is_and_no_endpoint(written):
    """With http:// before it a key would be sent where anybody on the way can read it."""
    assert complete_address(written) == written
    with pytest.raises(UsageError, match="write https:// or http:// before it"):
        load(cloud=written)


@each("written", [*HERE.values(), "https://localhost:8000", "http://gpu:8000", "ftp://localhost", "localhost://8000"])
def test_what_has_a_scheme_keeps_it(written):
    assert complete_address(written) == written


@each("written", HERE)
def test_both_spellings_are_one_endpoint_in_price_files_and_ledgers(written, tmp_path):
    assert endpoint_id(written) == endpoint_id(HERE[written])
    prices = tmp_path / "prices.toml"
    for entry, asked in ((written, HERE[written]), (HERE[written], written)):
        amounts = "prompt = 1\ncached_prompt = 1\ncompletion = 1"
        prices.write_text(f'[[price]]\nendpoint = "{entry}"\nmodel = "m"\n{amounts}\nsource = "s"\n')
        asked_for = ["price", "--prices", str(prices), "--cloud", asked, "--cloud-model", "m", "--json"]
        done = CliRunner().invoke(app, asked_for)
        assert (done.exit_code, done.stderr) == (0, "")
