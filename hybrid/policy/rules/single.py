"""One model alone, or a hand-over at random: what every other policy is compared with. local, cloud and random."""

from __future__ import annotations

from hybrid.policy.choices import Choices, Preset, number
from hybrid.policy.gates import NEVER, RandomGate
from hybrid.policy.loop import Policy

SPAN = 1
RATE, HOLD = 0.1, 4


def _local(_: Choices) -> Policy:
    return Policy("local", SPAN, NEVER)


def _cloud(choices: Choices) -> Policy:
    return Policy("cloud", SPAN, NEVER, lead=choices.max_tokens)


def _random(choices: Choices) -> Policy:
    rate = number("a rate", choices.threshold, RATE, most=1.0)
    gate = RandomGate(rate, choices.sampling.seed)
    return Policy("random", SPAN, gate, hold=HOLD)


LOCAL = Preset(
    "local",
    "the local model alone; no request is sent",
    source="plain decoding",
    guarantee="the local model's own law",
    build=_local,
)
CLOUD = Preset(
    "cloud",
    "the cloud model alone; the local one only finishes if it fails",
    source="plain decoding",
    guarantee="the cloud model's own law, while it answers",
    build=_cloud,
)
RANDOM = Preset(
    "random",
    "at each position the cloud takes the pen for a few tokens, by a coin",
    source="the baseline of every deferral curve",
    guarantee="each local position is handed over with the chance --threshold, whatever it holds",
    build=_random,
)
