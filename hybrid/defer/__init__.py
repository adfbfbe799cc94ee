"""When asking pays: from a draft's signals to the chance that asking would change something. No prices, no HTTP."""

from hybrid.defer.calibration import CALIBRATION_VERSION, Calibration, CalibrationQuestion, LossKind
from hybrid.defer.correction import CorrectedScore, Correction
from hybrid.defer.familiarity import NOTHING_FAMILIAR, Familiarity
from hybrid.defer.floor import FLOOR, RAISED_FLOOR, floor_coin
from hybrid.defer.labels import LabelledDraft, LabelledQuestion
from hybrid.defer.learned import LearnedScore
from hybrid.defer.nearest import NearestByWord
from hybrid.defer.online import OnlineLearner
from hybrid.defer.outcome import DraftOutcome, DraftPlace
from hybrid.defer.pacing import worth_factor
from hybrid.defer.routing_dial import RoutedQuestions
from hybrid.defer.score import DEFAULT_JUDGE, DEFAULT_NATS, Forecast, PriorScore, QuestionForecast, Score
from hybrid.defer.score_json import KeptScore, score_from_json, score_to_json
from hybrid.defer.signals import STATISTICS, CriticNumbers, DraftSignals, mean_surprise, statistics
from hybrid.defer.state import KeptOutcomes, PairState, forget_outcomes
from hybrid.defer.words import BUCKETS, word_buckets

__all__ = [
    "BUCKETS",
    "CALIBRATION_VERSION",
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
    "DraftPlace",
    "DraftSignals",
    "Familiarity",
    "Forecast",
    "KeptOutcomes",
    "KeptScore",
    "LabelledDraft",
    "LabelledQuestion",
    "LearnedScore",
    "LossKind",
    "NearestByWord",
    "OnlineLearner",
    "PairState",
    "PriorScore",
    "QuestionForecast",
    "RoutedQuestions",
    "Score",
    "floor_coin",
    "forget_outcomes",
    "mean_surprise",
    "score_from_json",
    "score_to_json",
    "statistics",
    "word_buckets",
    "worth_factor",
]
