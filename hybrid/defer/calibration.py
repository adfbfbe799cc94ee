"""What is known of a pair of models: a score, and what the calibration questions showed. One file a pair and judge.

No text of a question is kept. The law (``tests/defer/test_calibration.py``): what is written is read again, to the last
bit, and nothing of another version is believed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from typing import Any, Literal, TypeAlias, cast, get_args

import msgspec

from hybrid.defer.learned import LearnedScore
from hybrid.defer.packed import read_number
from hybrid.defer.score import CorrectedScore, Correction, Score, UninformedScore

# Scores as JSON, exact to the last bit, each with the name of its kind.

FittedScore: TypeAlias = UninformedScore | LearnedScore
KeptScore: TypeAlias = FittedScore | CorrectedScore
_KINDS: dict[str, type[FittedScore]] = {each.kind: each for each in (UninformedScore, LearnedScore)}


def score_to_json(score: KeptScore) -> dict[str, Any]:
    """Return plain data for ``json.dumps``."""
    if isinstance(score, CorrectedScore):
        fitted, correction = score_to_json(cast(KeptScore, score.score)), score.correction.to_json()
        return {"kind": score.kind, "score": fitted, "correction": correction}
    return {"kind": score.kind, **score.to_json()}


def score_from_json(kept: Mapping[str, Any]) -> KeptScore:
    """Read what ``score_to_json`` gave. Raises ValueError for anything else."""
    try:
        if kept["kind"] == CorrectedScore.kind:
            return CorrectedScore(score_from_json(kept["score"]), Correction.from_json(kept["correction"]))
        return _KINDS[kept["kind"]].from_json(kept)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        msg = f"this is no score that can be read: {error!r}"
        raise ValueError(msg) from error


def score_digest(score: Score) -> str:
    """Name a score in 16 characters: another score, though of the same pair and judge, has another name."""
    kept = json.dumps(score_to_json(cast(KeptScore, score)), sort_keys=True)
    return blake2b(kept.encode(), digest_size=8).hexdigest()


LossKind: TypeAlias = Literal["verdict", "nats"]
"""What keeping a draft loses: the worth of a turned-down answer, or the expected excess of what is kept."""

# Files of another version are not read: a pair is calibrated again. A program that knows no critic would take the score
# that was fitted with one for its own, so that has a version of its own. Version 3 read numbers over concepts.
CALIBRATION_VERSION, WITH_CRITIC_VERSION = 1, 2
# Beyond any context.
MOST_TOKENS = 2**40


@dataclass(frozen=True)
class CalibrationQuestion:
    """One question of a calibration, without its text. Token counts; the texts' own end tokens are counted.

    ``chance``: that its draft is turned down, as told by a score that was fitted without it (a fold of its own).
    ``turned_down``: whether it was. ``excess_told`` and ``excess``: the draft's mean excess loss, in nats a token, as
    forecast in the same manner and as it was. ``first_rejection``: the offset of the token that was rejected first,
    None where none was. ``kept_tokens``: how many of the draft's tokens the judge accepts, each by itself; None: not
    known.
    """

    prompt_tokens: int
    draft_tokens: int
    cloud_tokens: int
    chance: float
    turned_down: bool
    excess_told: float
    excess: float
    first_rejection: int | None = None
    kept_tokens: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for what no question can have shown: files are read into this."""
        counts = (self.prompt_tokens, self.draft_tokens, self.cloud_tokens, self.first_rejection or 0)
        if not (
            all(0 <= each <= MOST_TOKENS for each in counts)
            and 0 <= (self.kept_tokens or 0) <= self.draft_tokens
            and 0.0 <= self.chance <= 1.0
            and math.isfinite(self.excess_told + self.excess)
        ):
            raise ValueError("no question can have shown this")


@dataclass(frozen=True)
class Calibration:
    """A pair's score, and what its dials should be. ``local``: the model's identity; ``cloud``: the model's name.

    ``judge``: as ``--judge`` writes it. ``loss``: what keeping loses on this pair. ``worth``: the default dial, in
    multiples of a price. ``unseen``: of the questions that the score was not fitted to, the chance that the score
    itself tells, and whether the draft was turned down; empty where no question was held out.
    """

    local: str
    cloud: str
    judge: str
    loss: LossKind
    worth: float
    score: KeptScore
    questions: tuple[CalibrationQuestion, ...] = ()
    unseen: tuple[tuple[float, bool], ...] = ()

    @property
    def critic(self) -> str | None:
        """The identity of the critic that the score was fitted with; None: without one."""
        return self.score.critic

    @property
    def version(self) -> int:
        """The version of its file."""
        return _version(self.score)

    @property
    def kept_share(self) -> float | None:
        """The share of drafted tokens that the judge accepts, each by itself; None where that is not known."""
        known = [(each.kept_tokens, each.draft_tokens) for each in self.questions if each.kept_tokens is not None]
        drafted = sum(num for _, num in known)
        return sum(kept for kept, _ in known) / drafted if drafted else None

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``."""
        names = [each.name for each in fields(CalibrationQuestion)]
        rows = [list(asdict(each).values()) for each in self.questions]
        own = {name: getattr(self, name) for name in ("version", "local", "cloud", "judge", "loss", "worth")}
        unseen = {"unseen": [list(each) for each in self.unseen]} if self.unseen else {}
        return {**own, "score": score_to_json(self.score), "question_fields": names, "questions": rows, **unseen}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Calibration:
        """Read what ``to_json`` gave. Raises ValueError for anything else, another version among it."""
        try:
            score = score_from_json(kept["score"])
            if kept["version"] != _version(score) or kept["loss"] not in get_args(LossKind):
                msg = f"a calibration of version {kept['version']}, loss {kept['loss']}"
                raise ValueError(msg)
            rows = (dict(zip(kept["question_fields"], row, strict=True)) for row in kept["questions"])
            questions = tuple(msgspec.convert(row, CalibrationQuestion) for row in rows)
            told = msgspec.convert(kept.get("unseen", ()), tuple[tuple[float, bool], ...])
            unseen = tuple((read_number(chance, 0.0, 1.0), turned_down) for chance, turned_down in told)
            local, cloud, judge = (msgspec.convert(kept[name], str) for name in ("local", "cloud", "judge"))
            worth = read_number(kept["worth"], 0.0)
            return cls(local, cloud, judge, kept["loss"], worth, score, questions, unseen)
        except (KeyError, TypeError, msgspec.ValidationError) as error:
            msg = f"this is no calibration that can be read: {error!r}"
            raise ValueError(msg) from error


def _version(score: KeptScore) -> int:
    return CALIBRATION_VERSION if score.critic is None else WITH_CRITIC_VERSION
