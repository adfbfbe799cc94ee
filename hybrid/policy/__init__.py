"""Decoding policies as data over one loop, written as a generator that asks and is answered. No I/O, no clocks."""

from hybrid.policy.choices import PolicyOptions, Preset
from hybrid.policy.gates import Coin, CoinKey, DraftPosition, SeededCoin
from hybrid.policy.loop import decode
from hybrid.policy.policy import ABILITY_TEXT, Policy
from hybrid.policy.presets import PRESETS, choices_without_effect, exact_stages, parse_policy, preset, with_stages
from hybrid.types import Ability

__all__ = [
    "ABILITY_TEXT",
    "PRESETS",
    "Ability",
    "Coin",
    "CoinKey",
    "DraftPosition",
    "Policy",
    "PolicyOptions",
    "Preset",
    "SeededCoin",
    "choices_without_effect",
    "decode",
    "exact_stages",
    "parse_policy",
    "preset",
    "with_stages",
]
