"""The endpoint's key: read from the variable that the settings name, and never kept anywhere else.

The law: a variable that is named and holds no key is refused before anything is opened (``tests/test_assemble.py``).
"""

from __future__ import annotations

import os

from pydantic import SecretStr

from hybrid.config import Settings
from hybrid.errors import UsageError
from hybrid.model_names import NAMED


def endpoint_key(settings: Settings) -> SecretStr | None:
    """Read the endpoint's key; None without one, and for a server of our own.

    Raises UsageError, without showing it, where no header could carry it, and where the variable that was named for it
    holds none; "" names no variable.
    """
    variable = settings.api_key_env
    if settings.cloud is None or settings.cloud in NAMED:
        return None
    key = os.environ.get(variable, "").strip()
    if any(not "!" <= char <= "~" for char in key):
        msg = f"the key in {variable} holds characters that no key has (spaces, line breaks or others than ASCII)"
        raise UsageError(msg)
    if not key and variable not in {"", Settings.model_fields["api_key_env"].default}:
        msg = f"{variable}, which is named as the key's variable, {_missing(variable)}"
        raise UsageError(msg)
    return SecretStr(key) if key else None


def key_hint(variable: str, mend: str, *, sent: bool) -> str:
    """Say of the key what mends a 401: none was sent (then ``mend``), or it is the wrong one."""
    return f"the key in {variable} was sent and turned down" if sent else f"{variable} {_missing(variable)}: {mend}"


def _missing(variable: str) -> str:
    return "is empty" if variable in os.environ else "is not set"
