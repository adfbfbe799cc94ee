"""Hand-made records of a study's answers, and a design over the bundled pair that they may be of."""

from __future__ import annotations

import math

import numpy as np

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.frame import PRICES, SETTINGS, CountedRequest
from hybrid.lab.experiments.grid import ModelPair
from hybrid.lab.study.design import Design, NamedTariff

TARIFFS = tuple(NamedTariff(f"1/0.1/4 {each.name}", PRICES[0], each) for each in SETTINGS[:2])
KL = tuple(Arm(f"kl:{nats:g}", "kl", {"threshold": nats}) for nats in (0.0, 0.7, math.inf))
ARMS = (*KL, Arm("once", "once"), Arm("auto", "auto"))


def design(questions, arms=ARMS, **more):
    pairs = {"bundled": ModelPair(BUNDLED_LOCAL, BUNDLED_CLOUD)}
    return Design("x", ("threshold",), pairs, questions, arms, TARIFFS, **more)


def made(rights, bills, kind="sum"):
    """A record by hand: who is right, and the tokens that one request of each arm sent; 0: none was sent."""
    arms = {
        name: {
            "right": bool(rights[name]),
            "requests": [CountedRequest("write", bills[name], 0, 0, 0)] if bills[name] else [],
            "cloud_tokens": 1, "tokens": 2, "excess": 1.0 - rights[name], "nll": 2.0 - rights[name],
            "degraded": None, "answer": name, "handoff": 0, "parts": 0,
            "candidates": {"0": [[["a", 0.5]], [["b", 0.9]]]},
            "pieces": [["x", "local"], ["y", "cloud"]], "trace": [[0, 0.4, None, "accepted", "a", "b"]],
        }
        for name in rights
    }  # fmt: skip
    return {"text": "1 + 1?", "kind": kind, "seed": 0, "arms": arms}


def drawn_records(num, seed):
    """``once`` is the KL hand-off of 0.7 at half its bill; at 0 it is the cloud, at infinity the local model."""
    rng, records = np.random.default_rng(seed), []
    for number in range(num):
        local, cloud = rng.random() < 0.4, rng.random() < 0.9
        hybrid = cloud if rng.random() < 0.6 else local
        rights = {"local": local, "cloud": cloud, "kl:0": cloud, "kl:0.7": hybrid, "kl:inf": local, "once": hybrid}
        length = int(rng.integers(10, 30)) * 2
        bills = {
            "local": 0,
            "cloud": length,
            "kl:0": 2 * length,
            "kl:0.7": length // 2 * 2,
            "kl:inf": length,
            "once": length // 2,
        }
        records.append(made(rights, bills, ("sum", "fact")[number % 2]))
    return records
