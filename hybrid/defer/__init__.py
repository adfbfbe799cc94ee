"""When asking pays: from a draft's signals to the chance that asking would change something. No prices, no HTTP."""

from hybrid.defer.calibration import (
    Calibration,
    CalibrationQuestion,
    KeptScore,
    LossKind,
    score_from_json,
    score_to_json,
)
from hybrid.defer.dials import FLOOR, RAISED_FLOOR, QuestionCosts, floor_coin
from hybrid.defer.learned import LearnedScore
from hybrid.defer.online import OnlineLearner
from hybrid.defer.outcome import DraftOutcome, LabelledDraft, LabelledQuestion
from hybrid.defer.score import (
    DEFAULT_JUDGE,
    DEFAULT_NATS,
    CorrectedScore,
    Correction,
    Forecast,
    QuestionForecast,
    Score,
    ScoreWrapper,
    UninformedScore,
)
from hybrid.defer.signals import STATISTICS, CriticNumbers, DraftSignals, mean_surprise, statistics
from hybrid.defer.words import BUCKETS, NOTHING_FAMILIAR, ExpertByWord, NoveltyScore, word_buckets

__all__ = [
    "BUCKETS",
    "DEFAULT_JUDGE",
    "DEFAULT_NATS",
    "FLOOR",
    "NOTHING_FAMILIAR",
    "RAISED_FLOOR",
    "STATISTICS",
    "Calibration",
    "CalibrationQuestion",
    "CorrectedScore",
    "Correction",
    "CriticNumbers",
    "DraftOutcome",
    "DraftSignals",
    "ExpertByWord",
    "Forecast",
    "KeptScore",
    "LabelledDraft",
    "LabelledQuestion",
    "LearnedScore",
    "LossKind",
    "NoveltyScore",
    "OnlineLearner",
    "QuestionCosts",
    "QuestionForecast",
    "Score",
    "ScoreWrapper",
    "UninformedScore",
    "floor_coin",
    "mean_surprise",
    "score_from_json",
    "score_to_json",
    "statistics",
    "word_buckets",
]
