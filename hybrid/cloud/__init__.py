"""One remote model behind one port; dialects are pure, one file speaks HTTP."""

from hybrid.cloud.port import Capabilities, Chunk, Cloud, Question, ScoreQuestion, Scores, WriteQuestion, worst

__all__ = ["Capabilities", "Chunk", "Cloud", "Question", "ScoreQuestion", "Scores", "WriteQuestion", "worst"]
