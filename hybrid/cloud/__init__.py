"""One remote model behind one port; dialects are pure, one file speaks HTTP."""

from hybrid.cloud.port import Capabilities, Chunk, Cloud, ScoreQuestion, Scores, WriteQuestion

__all__ = ["Capabilities", "Chunk", "Cloud", "ScoreQuestion", "Scores", "WriteQuestion"]
