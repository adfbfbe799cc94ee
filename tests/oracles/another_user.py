"""Act as a user whom mode bits bind: whoever runs tests in a container is often root, who may read and write all."""

from __future__ import annotations

import codecs
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534


@contextmanager
def bound_folder() -> Iterator[Path]:
    """Make a folder that another user can reach: pytest's own lie where nobody else may look."""
    folder = Path(tempfile.mkdtemp(dir="/tmp" if os.geteuid() == 0 else None))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def bound_by_mode_bits() -> Iterator[None]:
    """Be nobody where root runs this process. What is imported must have been imported: root's folders are closed."""
    is_root = os.geteuid() == 0
    codecs.lookup("ascii")  # a module, too
    try:
        if is_root:
            os.seteuid(NOBODY)
    except OSError as error:
        pytest.skip(f"this system has no other user: {error}")
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
