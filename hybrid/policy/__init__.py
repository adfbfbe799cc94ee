"""Decoding policies as data over one loop, written as a generator that asks and is answered. No I/O, no clocks."""

from hybrid.policy.choices import Choices, Preset
from hybrid.policy.coins import Coin, SeededCoin, Toss
from hybrid.policy.gates import Place
from hybrid.policy.loop import SAID, Need, Policy, decode
from hybrid.policy.presets import PRESETS, preset

__all__ = [
    "PRESETS",
    "SAID",
    "Choices",
    "Coin",
    "Need",
    "Place",
    "Policy",
    "Preset",
    "SeededCoin",
    "Toss",
    "decode",
    "preset",
]
