"""What was bought of a question: a text as numbers, what both models' rows say of each of its tokens.

No judge is in it: whether a token would be turned down is worked out for any judge afterwards, so that labels are
bought once. The laws (``tests/tune/test_labels.py``): ``turned_down`` is the verdict of the judge itself on the same
rows; what is written as JSON is read again to the last bit. Neither the question's words nor the rows are kept.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.defer import CriticNumbers, DraftSignals
from hybrid.defer.outcome import LabelledDraft, LabelledQuestion
from hybrid.defer.packed import pack_floats, read_number
from hybrid.defer.signals import OF_TOKENS
from hybrid.errors import UsageError
from hybrid.prob import (
    Floats,
    GreedyAcceptance,
    MultiplicativeAcceptance,
    Partition,
    TextRow,
    TopK,
    TopMAcceptance,
    certificate,
    concept_kl,
    excess_loss,
    excess_with_noise,
    kl_divergence,
    kl_with_noise,
    margin_certificate,
    total_variation,
    tree_certificate,
)
from hybrid.prob.acceptance import top_probs
from hybrid.run.text_rows import TextRows
from hybrid.types import num_shared

# The share that the preset relaxed asks for; three tokens, as many as a tree of drafts may offer at a position.
SHARE, COUNT = 0.3, 3
# A token is a row's likeliest where its probability is the largest, but for rounding.
ROUNDING = 1e-9
# The margin between the two best probabilities, by what it certifies; 1 would be infinitely much.
_MARGINS = np.linspace(0.0, 1.0, 1001)[:-1]
_CERTIFIED = np.array([margin_certificate(float(each)) for each in _MARGINS])


def _margin(row: TopK) -> float:
    best, second = top_probs(row, 2).tolist()
    return margin_certificate(min(1.0, max(0.0, best - second)))


def _least(certified: Callable[[TopK], float], row: TopK) -> float:
    """Return a certificate; none of a row of another vocabulary, whose tokens are not those that a rule compares."""
    return 0.0 if isinstance(row, TextRow) else certified(row)


CERTIFICATES: Mapping[str, Callable[[TopK], float]] = {
    "greedy": lambda row: certificate(row, GreedyAcceptance()),
    "margin": _margin,
    f"multiplicative:{SHARE}": lambda row: certificate(row, MultiplicativeAcceptance(SHARE)),
    f"top-m:{COUNT}": lambda row: certificate(row, TopMAcceptance(COUNT)),
    f"tree:{COUNT}": lambda row: tree_certificate(row, COUNT),
}
"""The least KL(cloud || local), in nats, at which a rule can turn the local model's favourite down, by the rule's name.

``margin``: the same for ``greedy``, known from the two best probabilities alone. ``tree``: at which the cloud's best
token can be outside the local model's three likeliest (arXiv:2606.30265)."""
_MEASURES = ("kl", "kl_upper", "tv", "tv_upper", "excess")


@dataclass(frozen=True, eq=False)
class OverConcepts:
    """What is known over the concepts of a partition: its ``digest``, and ``kl``, at least, in nats, shape (M,)."""

    digest: str
    kl: Floats

    @classmethod
    def of_rows(cls, partition: Partition, found: TextRows) -> OverConcepts:
        """Measure what came with the cloud's rows."""
        pairs = zip(found.cloud, found.local, strict=False)
        return cls(partition.digest, np.array([concept_kl(row, local, partition).lower for row, local in pairs]))

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``."""
        return {"digest": self.digest, "kl": pack_floats(self.kl)}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> OverConcepts:
        """Read what ``to_json`` returned; more is passed over. Raises ValueError, TypeError or KeyError."""
        return cls(str(kept["digest"]), _unpacked(kept["kl"]))


@dataclass(frozen=True, eq=False)
class LabelledText:
    """A text of T tokens, and what the cloud's rows say of the first M of them, M at most T.

    Shapes (M,): ``kl`` and ``kl_upper``, the ends of KL(cloud || local) in nats; ``tv`` and ``tv_upper``, those of the
    total variation; ``excess``, log P_cloud(best) - log P_cloud(token), at least; ``certificates``, one array a rule.
    The log-probabilities of the two models may be off by ``local_noise`` and ``cloud_noise`` nats. ``nanousd``: what
    the text cost, None where that is not known. ``concepts``: what was worked out over the concepts of a partition;
    None: none was known.
    """

    signals: DraftSignals
    kl: Floats
    kl_upper: Floats
    tv: Floats
    tv_upper: Floats
    excess: Floats
    certificates: Mapping[str, Floats]
    local_noise: float = 0.0
    cloud_noise: float = 0.0
    nanousd: int | None = None
    concepts: OverConcepts | None = None

    @classmethod
    def of_rows(cls, words: tuple[int, ...], found: TextRows, partition: Partition | None = None) -> LabelledText:
        """Reduce a text's rows to numbers. ``words``: the question's ``word_buckets``; ``partition``: its concepts."""
        signals = DraftSignals.of_rows(words, len(found.prompt), 0, found.tokens, found.local, ended=found.ended)
        known = list(zip(found.cloud, found.local, found.tokens, strict=False))
        divergences = [kl_divergence(row, local) for row, local, _ in known]
        variations = [total_variation(row, local) for row, local, _ in known]
        return cls(
            signals,
            np.array([each.lower for each in divergences]),
            np.array([each.upper for each in divergences]),
            np.array([each.lower for each in variations]),
            np.array([each.upper for each in variations]),
            np.array([excess_loss(row, token).lower for row, _, token in known]),
            {name: np.array([_least(least, row) for row in found.cloud]) for name, least in CERTIFICATES.items()},
            max((row.noise for row in found.local), default=0.0),
            max((row.noise for row in found.cloud), default=0.0),
            found.nanousd,
            None if partition is None else OverConcepts.of_rows(partition, found),
        )

    def __len__(self) -> int:
        """M."""
        return len(self.kl)

    def turned_down(self, judge: str) -> NDArray[np.bool_]:
        """Return which tokens a judge turns down, each by itself, shape (M,): ``kl:0.7``, ``excess:0.5``.

        As in a policy the lower end decides, moved outwards by the noise, but for threshold 0. Raises UsageError for
        another judge, and for ``concept:0.5`` where no concepts were known.
        """
        kind, threshold = read_judge(judge)
        if kind in {"kl", "concept"}:
            if kind == "concept" and self.concepts is None:
                msg = f"the labels were bought before it was known which tokens say the same: {judge} has none"
                raise UsageError(msg)
            # KL over concepts is never above that over tokens, so one threshold for both is one for the former.
            values = self.kl if self.concepts is None or kind == "kl" else self.concepts.kl
            noise = -(self.local_noise + self.cloud_noise) if threshold > 0.0 else 0.0
            return np.array([kl_with_noise(value, noise) > threshold for value in values], dtype=np.bool_)
        noise = -2.0 * self.cloud_noise if threshold > 0.0 else 0.0
        return np.array([excess_with_noise(value, noise) > threshold for value in self.excess], dtype=np.bool_)

    def first_rejection(self, judge: str) -> int | None:
        """Return the offset of the first token that a judge turns down; None where it accepts all."""
        found = np.flatnonzero(self.turned_down(judge))
        return int(found[0]) if found.size else None

    def certified(self, rule: str) -> NDArray[np.bool_]:
        """Return at which tokens the rule is certain to accept the local model's favourite, shape (M,).

        So it is where the largest KL that the rows and their noise allow is below the rule's certificate.
        """
        noise = self.local_noise + self.cloud_noise
        most = np.array([kl_with_noise(value, noise) for value in self.kl_upper])
        return np.asarray(most < self.certificates[rule], dtype=np.bool_)

    def labelled(self, judge: str, critic: CriticNumbers | None = None) -> LabelledDraft:
        """Return the text as a label, cut where the cloud's rows end. ``critic``: what a critic says of its tokens."""
        kept = len(self) - int(self.turned_down(judge).sum())
        signals = _cut(replace(self.signals, critic=critic), len(self))
        return LabelledDraft(signals, self.first_rejection(judge), self.excess, self.kl, kept)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``."""
        told, signals = {name: pack_floats(getattr(self, name)) for name in _MEASURES}, self.signals
        told |= {name: pack_floats(getattr(signals, name)) for name in OF_TOKENS}
        return {
            "words": list(signals.words),
            "prompt_tokens": signals.prompt_tokens,
            "tokens": signals.tokens.tolist(),
            "ended": signals.ended,
            **told,
            "certificates": {name: pack_floats(values) for name, values in self.certificates.items()},
            "noise": [self.local_noise, self.cloud_noise],
            "nanousd": self.nanousd,
        } | ({} if self.concepts is None else {"concepts": self.concepts.to_json()})

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> LabelledText:
        """Read what ``to_json`` returned. Raises ValueError, TypeError or KeyError for anything else."""
        entropy, top, second, logprob = (_unpacked(kept[name]) for name in OF_TOKENS)
        tokens = np.array([*map(_whole, kept["tokens"])], dtype=np.int64)
        words, prompt_tokens, ended = tuple(map(_whole, kept["words"])), _whole(kept["prompt_tokens"]), kept["ended"]
        if not isinstance(ended, bool):
            raise TypeError("a text has ended or not")
        concepts = OverConcepts.from_json(kept["concepts"]) if "concepts" in kept else None
        signals = DraftSignals(words, prompt_tokens, 0, tokens, entropy, top, second, logprob, ended)
        kl, kl_upper, tv, tv_upper, excess = measures = [_unpacked(kept[name]) for name in _MEASURES]
        certificates = {name: _unpacked(kept["certificates"][name]) for name in CERTIFICATES}
        if len({len(each) for each in (*measures, *certificates.values())}) > 1 or len(kl) > len(signals):
            raise ValueError("the numbers of a text are not of one length")
        local_noise, cloud_noise = (read_number(each, 0.0) for each in kept["noise"])
        noise_and_cost = local_noise, cloud_noise, None if kept["nanousd"] is None else _whole(kept["nanousd"])
        return cls(signals, kl, kl_upper, tv, tv_upper, excess, certificates, *noise_and_cost, concepts)


@dataclass(frozen=True, eq=False)
class LabelledAnswers:
    """A question's two texts: the local model's, and the cloud's own. ``written`` tells what the cloud alone takes.

    ``critic``: what a critic says of ``judged``; it is not bought and not kept. None: none has read it.
    """

    draft: LabelledText
    written: LabelledText
    critic: CriticNumbers | None = None

    @property
    def judged(self) -> LabelledText:
        """The text that labels the question: the draft; where drafts cannot be scored, the cloud's own."""
        return self.draft if len(self.draft) else self.written

    @cached_property
    def answer(self) -> LabelledText:
        """The cloud's answer as a text that the local model follows: what its favourites lose there, at least.

        KL, or ln(best / second) of the cloud's row, as far as its margin tells, where that is more.
        """
        least = 2.0 * np.arctanh(np.interp(self.written.certificates["margin"], _CERTIFIED, _MARGINS))
        own = is_favourite(self.written.signals)[: len(self.written)]
        return replace(self.written, excess=np.where(own, 0.0, np.maximum(self.written.kl, least)))

    @cached_property
    def num_same(self) -> int:
        """How many first tokens of the labelled text are the cloud's own answer; -1 where no row of that is known."""
        texts = (tuple(text.signals.tokens.tolist()) for text in (self.judged, self.written))
        return num_shared(*texts) if len(self.written) else -1

    def labelled(self, judge: str) -> LabelledQuestion:
        """Return the question as a score is fitted to it."""
        return LabelledQuestion(self.judged.labelled(judge, self.critic), len(self.written.signals))


def is_favourite(signals: DraftSignals) -> NDArray[np.bool_]:
    """Return which tokens are the drafter's likeliest ones, shape (T,)."""
    return np.asarray(signals.logprob >= np.log(signals.top) - ROUNDING, dtype=np.bool_)


def read_judge(judge: str) -> tuple[str, float]:
    """Return the measure and the threshold in nats of ``kl:0.7``, ``concept:0.7`` or ``excess:0.5``.

    Raises UsageError for others.
    """
    kind, _, number = judge.partition(":")
    try:
        threshold = float(number)
    except ValueError:
        threshold = -1.0
    if kind not in {"kl", "concept", "excess"} or not threshold >= 0.0:
        msg = f"a calibration is of the judge kl:NATS, concept:NATS or excess:NATS, not of {judge}"
        raise UsageError(msg)
    return kind, threshold


def _cut(signals: DraftSignals, num: int) -> DraftSignals:
    if num == len(signals):
        return signals
    return replace(signals.part(slice(num)), ended=False)


def _unpacked(text: str) -> Floats:
    found = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f8").astype(np.float64)
    if np.isnan(found).any():  # an upper end may be infinite
        raise ValueError("a number that is none")
    return found


def _whole(kept: object) -> int:
    """Read a token, a count or an amount. Raises ValueError for what can be none of them."""
    if isinstance(kept, bool) or not isinstance(kept, int) or not 0 <= kept < 2**63:
        msg = f"{str(kept)[:40]} is no whole number"
        raise ValueError(msg)
    return kept
