"""Decoding policies as data over one loop, written as a generator that asks and is answered. No I/O, no clocks."""

from hybrid.policy.coins import Coin, SeededCoin, Toss
from hybrid.policy.loop import Need, Policy, decode
from hybrid.policy.presets import PRESETS, Choices, preset

__all__ = ["PRESETS", "Choices", "Coin", "Need", "Policy", "SeededCoin", "Toss", "decode", "preset"]
