"""Questions to a general assistant, in plain English, short and long, graded where an answer is right or wrong."""

from hybrid.tasks.assistant.answers import AnswerSpec, NumberAnswer, PhraseAnswer
from hybrid.tasks.assistant.question import KINDS, QUESTIONS, AssistantQuestion, QuestionSplit, parse_questions

__all__ = [
    "KINDS",
    "QUESTIONS",
    "AnswerSpec",
    "AssistantQuestion",
    "NumberAnswer",
    "PhraseAnswer",
    "QuestionSplit",
    "parse_questions",
]
