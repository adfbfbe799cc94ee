"""Generated tasks with exact answers: what the reference models are trained and graded on."""

from hybrid.bench.tasks import arithmetic, command, integration, sorting, word_problem
from hybrid.bench.tasks.problem import Family, Problem, Split, distinct, split_of, stream

FAMILIES = tuple(room.FAMILY for room in (arithmetic, word_problem, sorting, integration, command))

__all__ = ["FAMILIES", "Family", "Problem", "Split", "distinct", "split_of", "stream"]
