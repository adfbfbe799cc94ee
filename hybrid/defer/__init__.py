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
    PriorScore,
    QuestionForecast,
    Score,
    ScoreWrapper,
)
from hybrid.defer.signals import STATISTICS, CriticNumbers, DraftSignals, mean_surprise, statistics
from hybrid.defer.words import BUCKETS, NOTHING_FAMILIAR, NearestByWord, NoveltyScore, word_buckets

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
    "Forecast",
    "KeptScore",
    "LabelledDraft",
    "LabelledQuestion",
    "LearnedScore",
    "LossKind",
    "NearestByWord",
    "NoveltyScore",
    "OnlineLearner",
    "PriorScore",
    "QuestionCosts",
    "QuestionForecast",
    "Score",
    "ScoreWrapper",
    "floor_coin",
    "mean_surprise",
    "score_from_json",
    "score_to_json",
    "statistics",
    "word_buckets",
]
