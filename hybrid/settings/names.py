"""Names of models and addresses of endpoints, as users write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

# An endpoint's address as users write it.
#
# The law (``tests/test_endpoint_address.py``): an address without a scheme is completed where its host is this machine,
# and is otherwise no address: which of https and http is meant decides whether a question and a key can be read on the
# way. Whether somebody answers there is not known here.


def complete_address(written: str) -> str:
    """Return an address with ``http://`` before it, where it has no scheme and its host is this machine.

    >>> complete_address("localhost:8000/v1"), complete_address("gpu:8000")
    ('http://localhost:8000/v1', 'gpu:8000')
    """
    whole = f"http://{written}"
    return whole if "://" not in written and is_address(whole) and is_loopback(whole) else written


def is_address(value: str) -> bool:
    """Whether a text is an http or https address: a host, and perhaps a port and a path."""
    try:
        parts = urlsplit(value)
        is_http = parts.scheme in {"http", "https"} and not re.search(r"[\s\x00-\x1f]", value)
        return is_http and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a bracket that is left open
        return False


def is_loopback(url: str) -> bool:
    """Whether an address leads to this machine: localhost, 127.0.0.0/8 or ::1."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # another name: whether it leads here, only a look-up could tell
        return False


# The models that have a name, which stands where a file or an endpoint's address may stand, and what each is for.
#
# A name wins over a file of that name in the working directory, which somebody else may have written.
# ``engine.real_models`` finds the files.

MODELS = Path(__file__).parents[1] / "models"
BUNDLED: Mapping[str, str] = {
    "small": "the local model by default",
    "mid": "between small and large",
    "large": "the cloud by default",
    "alien": "another vocabulary",
    "numbers": "an expert for calculating",
    "words": "an expert for language",
    "student": "as small, taught by large",
    "wordings-large": "a world of synonyms: plain words",
    "wordings-small": "the same in fancy words, with errors",
}
REAL: Mapping[str, str] = {
    "real": "real text, as published",
    "real:q3": "rounded to 3 bits: little worse",
    "real:d2": "without 2 layers: clearly worse",
    "real:d4": "without 4 layers: of little use",
}
NAMED: Mapping[str, str] = {**BUNDLED, **REAL}
