"""When asking pays: from a draft's signals to the chance that asking would change something. No prices, no HTTP."""

from hybrid.defer.calibration import (
    Calibration,
    CalibrationQuestion,
    KeptScore,
    LossKind,
    score_from_json,
    score_to_json,
)
from hybrid.defer.dials import FLOOR, RAISED_FLOOR, RoutedQuestions, floor_coin
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
    ScoreOver,
)
from hybrid.defer.signals import STATISTICS, CriticNumbers, DraftSignals, mean_surprise, statistics
from hybrid.defer.words import BUCKETS, NOTHING_FAMILIAR, Familiarity, NearestByWord, word_buckets

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
    "Familiarity",
    "Forecast",
    "KeptScore",
    "LabelledDraft",
    "LabelledQuestion",
    "LearnedScore",
    "LossKind",
    "NearestByWord",
    "OnlineLearner",
    "PriorScore",
    "QuestionForecast",
    "RoutedQuestions",
    "Score",
    "ScoreOver",
    "floor_coin",
    "mean_surprise",
    "score_from_json",
    "score_to_json",
    "statistics",
    "word_buckets",
]
