"""Decoding policies as data over one loop, written as a generator that asks and is answered. No I/O, no clocks."""

from hybrid.policy.choices import Choices, Preset
from hybrid.policy.coins import Coin, CoinKey, SeededCoin
from hybrid.policy.gates import DraftPosition
from hybrid.policy.loop import SAID, Ability, Policy, decode
from hybrid.policy.presets import PRESETS, preset

__all__ = [
    "PRESETS",
    "SAID",
    "Ability",
    "Choices",
    "Coin",
    "CoinKey",
    "DraftPosition",
    "Policy",
    "Preset",
    "SeededCoin",
    "decode",
    "preset",
]
