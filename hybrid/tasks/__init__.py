"""Generated tasks with exact answers: what the reference models are trained and graded on. See README.md."""

from hybrid.bench.tasks.families import BY_NAME, FAMILIES, MAX_TOKENS
from hybrid.bench.tasks.mix import MIXES, Curriculum, Model, training_stream
from hybrid.bench.tasks.problem import Family, Level, Problem, Split, distinct, split_of, stream

__all__ = [
    "BY_NAME",
    "FAMILIES",
    "MAX_TOKENS",
    "MIXES",
    "Curriculum",
    "Family",
    "Level",
    "Model",
    "Problem",
    "Split",
    "distinct",
    "split_of",
    "stream",
    "training_stream",
]
