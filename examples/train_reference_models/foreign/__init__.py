"""Two foreign ladders: tasks, taught mistakes and splits that share nothing with the fourteen families of ``hybrid``.

They are ground to measure on, no feature of the client: what is chosen by the bundled pair's own tasks is tested where
nobody chose it. Whoever made the tasks had not read the rules that are measured on them. README.md has the laws.
"""

from foreign.families import FAMILY_NAMES
from foreign.ladders import (
    LADDERS,
    MAX_TOKENS,
    MISTAKEN,
    MODELS,
    ForeignModel,
    Ladder,
    families_of,
    ladder_of,
    problems_of,
    training_stream,
    validation_problems,
)

__all__ = [
    "FAMILY_NAMES",
    "LADDERS",
    "MAX_TOKENS",
    "MISTAKEN",
    "MODELS",
    "ForeignModel",
    "Ladder",
    "families_of",
    "ladder_of",
    "problems_of",
    "training_stream",
    "validation_problems",
]
