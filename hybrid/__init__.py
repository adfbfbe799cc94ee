"""A small model writes here, a large one in the cloud is asked only where it would disagree.

``hybrid.open(...)`` is the front door. Importing this package loads neither llama.cpp nor httpx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybrid.types import Message, Sampling

if TYPE_CHECKING:
    from hybrid.assemble import Opening, open  # noqa: A004  (the front door's name)

__all__ = ["Message", "Opening", "Sampling", "open"]


def __getattr__(name: str) -> object:
    """Load the composition root when it is first needed."""
    if name in {"Opening", "open"}:
        from hybrid import assemble  # noqa: PLC0415  (lazy on purpose)

        return getattr(assemble, name)
    msg = f"module 'hybrid' has no attribute {name!r}"
    raise AttributeError(msg)
