"""How long the local model takes to draft: the time of tokens that are decoded one by one."""

from __future__ import annotations

import time

from hybrid.engine.port import Engine
from hybrid.types import Ids

# A thousandth of a second is told from its noise, and a model of a thousand parameters is timed within one.
TIMED = 16


def drafting_ms(engine: Engine, text: Ids) -> float:
    """Return the milliseconds that a drafted token takes, after the first one of ``text``. The engine is left empty."""
    ids = (text * TIMED)[: min(TIMED, engine.num_context - 1) + 1]
    engine.rewind(0)
    engine.extend(ids[:1])
    began = time.perf_counter()
    for token in ids[1:]:
        engine.extend((token,))
    took = time.perf_counter() - began
    engine.rewind(0)
    return took * 1000.0 / max(1, len(ids) - 1)
