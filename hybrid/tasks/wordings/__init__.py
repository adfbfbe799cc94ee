"""Problems with many right wordings: a small world, its families, and what the wordings pair is taught of it."""

from hybrid.tasks.wordings.families import (
    CONCEPT_OF,
    CONCEPTS,
    FAMILIES,
    FIRST_WORDS,
    MAX_TOKENS,
    MISTAKEN,
    TASTES,
    WORDS,
    Lesson,
    Taste,
    WordingsModel,
    grade,
    is_told,
    lesson_stream,
    meaning,
    say,
)

__all__ = [
    "CONCEPTS",
    "CONCEPT_OF",
    "FAMILIES",
    "FIRST_WORDS",
    "MAX_TOKENS",
    "MISTAKEN",
    "TASTES",
    "WORDS",
    "Lesson",
    "Taste",
    "WordingsModel",
    "grade",
    "is_told",
    "lesson_stream",
    "meaning",
    "say",
]
