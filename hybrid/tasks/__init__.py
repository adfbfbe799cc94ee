"""Generated tasks with exact answers: what the reference models are trained and graded on. See README.md."""

from hybrid.tasks.families import BY_NAME, FAMILIES, MAX_TOKENS, MIXES, Curriculum, Model, training_stream
from hybrid.tasks.problem import Problem, Split, TaskFamily, TaskLevel, distinct, split_of, stream

__all__ = [
    "BY_NAME",
    "FAMILIES",
    "MAX_TOKENS",
    "MIXES",
    "Curriculum",
    "Model",
    "Problem",
    "Split",
    "TaskFamily",
    "TaskLevel",
    "distinct",
    "split_of",
    "stream",
    "training_stream",
]
