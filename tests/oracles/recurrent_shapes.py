"""Shapes of models that keep a state beside their cache, with next to no weights."""

from __future__ import annotations

from dataclasses import replace

from hybrid.lab.speed.random_model import RandomModelShape

# One of each architecture that keeps a state, with next to no weights; LFM2 with a window and without.
_STATEFUL = RandomModelShape(288, 32, 64, 4, 2, 1, 1024, "granitehybrid", 64, 16, 4, head=16)
_LFM2 = replace(_STATEFUL, architecture="lfm2", inner=0, state=0, state_heads=0, kernel=3)
TINY_RECURRENT = {
    "mamba2": replace(_STATEFUL, architecture="mamba2", layers=2, hidden=0, heads=0, kv_heads=0),
    "falcon-h1": replace(_STATEFUL, architecture="falcon-h1", layers=2),
    "granitehybrid": _STATEFUL,
    "lfm2": _LFM2,
    "lfm2-window": replace(_LFM2, window=8),
}
