"""All families, in the order in which they are shown. A new one is a file of its own and a name here."""

from __future__ import annotations

from hybrid.tasks import (
    arithmetic,
    base,
    command,
    differentiation,
    equation,
    facts,
    gcd,
    integration,
    multiplication,
    ordering,
    rewriting,
    sorting,
    units,
    word_problem,
)

_REASONING = (
    *(arithmetic, multiplication, word_problem, equation, integration, differentiation),
    *(gcd, sorting, ordering, base),
)
FAMILIES = tuple(room.FAMILY for room in (*_REASONING, command, units, rewriting, facts))
# The longest worked answer seen has 215 tokens (a multiplication) in the vocabulary of the reference models.
MAX_TOKENS = 240
BY_NAME = {family.name: family for family in FAMILIES}
