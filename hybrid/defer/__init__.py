"""When asking pays: from a draft's signals to the chance that asking would change something. No prices, no HTTP."""

from hybrid.defer.calibration import CALIBRATION_VERSION, Calibration, CalibrationQuestion, LossKind
from hybrid.defer.labels import LabelledDraft, LabelledQuestion
from hybrid.defer.learned import LearnedScore
from hybrid.defer.routing_dial import RoutedQuestions
from hybrid.defer.score import Forecast, PriorScore, QuestionForecast, Score
from hybrid.defer.score_json import KeptScore, score_from_json, score_to_json
from hybrid.defer.signals import STATISTICS, DraftSignals, mean_surprise, statistics
from hybrid.defer.words import BUCKETS, word_buckets

__all__ = [
    "BUCKETS",
    "CALIBRATION_VERSION",
    "STATISTICS",
    "Calibration",
    "CalibrationQuestion",
    "DraftSignals",
    "Forecast",
    "KeptScore",
    "LabelledDraft",
    "LabelledQuestion",
    "LearnedScore",
    "LossKind",
    "PriorScore",
    "QuestionForecast",
    "RoutedQuestions",
    "Score",
    "mean_surprise",
    "score_from_json",
    "score_to_json",
    "statistics",
    "word_buckets",
]
