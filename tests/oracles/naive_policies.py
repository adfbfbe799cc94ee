"""Decoding rules as separate programs, written down without the loop; models are functions from a prefix to a row."""

from __future__ import annotations

import math

import numpy as np
from naive_divergence import naive_kl, naive_overlap
from naive_rules import accepted

from hybrid.prob import MultiplicativeAcceptance, TopK, certificate, warp
from hybrid.types import Sampling


def text(shown):
    return tuple(held.id for held in shown)


def walk(choose, length):
    """Write token by token."""
    shown = ()
    while len(shown) < length:
        shown += (choose(shown),)
    return shown


# ---- whether the local model's best token stands at a position -----------------------------------------------------


def accepting(rule):
    """Whether the local model's best token is accepted by the cloud's row."""
    return lambda local, cloud: local.best in accepted(cloud.probs, rule)


def near(measure, threshold):
    return lambda local, cloud: measure(cloud.probs, local.probs) <= threshold


def costing(nats):
    """Whether the local model's best token costs at most so much more than the cloud's."""
    return lambda local, cloud: math.log(cloud.probs.max()) - math.log(cloud.probs[local.best]) <= nats


def undeferred(deferral, alpha):
    def keeps(local, cloud):
        best, other = local.probs.max(), cloud.probs.max()
        apart = np.abs(local.probs - cloud.probs).sum() / 2
        return best >= {"chow": 1 - alpha, "diff": other - alpha, "opt": other - alpha * apart}[deferral]

    return keeps


def certain(bound):
    """The nearest cloud row that has another favourite pools the two best tokens at their geometric mean."""

    def keeps(local, cloud):
        first, second = sorted(local.probs, reverse=True)[:2]
        return -math.log(1 - (math.sqrt(first) - math.sqrt(second)) ** 2) > bound or local.best == cloud.best

    return keeps


def unperturbed(limit):
    def keeps(local, cloud):
        agree = [warp(local, Sampling(t)).probs[local.best] for t in np.arange(1, 9) / 4]
        return 1 - np.mean(agree) <= limit or local.best == cloud.best

    return keeps


def below_certificate(share):
    """A list of all tokens does not say that it is one: the certificate is the row's."""

    def keeps(local, cloud):
        row = TopK.from_dense(cloud, cloud.num_tokens)
        return naive_kl(cloud.probs, local.probs) < certificate(row, MultiplicativeAcceptance(share))

    return keeps


def naive_tv(target, draft):
    return 1 - naive_overlap(target, draft)


# ---- BiLD --------------------------------------------------------------------------------------------------------


def naive_bild(small, large, fall_back, roll_back, span, draw, length, end=-1):
    """Draft until unsure, roll back to what the cloud finds too unlikely, and let it write the next token."""
    shown = ()

    def over():
        return len(shown) >= length or end in shown

    while not over():
        drafted = ()
        while len(drafted) < span and len(shown + drafted) < length and end not in drafted:
            if small(shown + drafted).probs.max() < fall_back:
                break
            drafted += (draw(small, shown + drafted),)
        rolled_back = False
        for token in drafted:
            row = large(shown)
            if token != row.best and -math.log(row.probs[token]) > roll_back:
                rolled_back = True
                break
            shown += (token,)
        if rolled_back or not over():
            shown += (draw(large, shown),)
    return shown
