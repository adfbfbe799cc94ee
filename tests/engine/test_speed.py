"""How long a token takes: timed one by one, over as many tokens as are there, and nothing is left behind."""

from __future__ import annotations

import numpy as np
from scripted_engine import ScriptedEngine

from hybrid.engine.identity import TIMED, drafting_ms


def test_tokens_are_timed_one_by_one_and_the_engine_is_left_empty():
    for num_context, text in ((100, (0, 1, 2)), (4, (0, 1, 2)), (2, (1,)), (100, tuple(range(3)) * 40)):
        engine = ScriptedEngine(tuple("abc"), lambda _: np.zeros(3), end_ids=frozenset({2}), num_context=num_context)
        sizes, extend = [], engine.extend

        def counted(ids, *rest, extend=extend, sizes=sizes):
            sizes.append(len(ids))
            return extend(ids, *rest)

        engine.extend = counted
        assert drafting_ms(engine, text) >= 0.0
        assert sizes == [1] * len(sizes)
        assert len(sizes) == min(TIMED + 1, num_context, len(text) * TIMED)
        assert engine.ids == ()
