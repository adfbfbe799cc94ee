"""One remote model behind one port; dialects are pure, one file speaks HTTP."""

from hybrid.cloud.port import (
    BeforeSend,
    Capabilities,
    Chunk,
    Cloud,
    ModelQuestion,
    ScoreQuestion,
    Scores,
    WriteQuestion,
    max_usage,
    unrecorded,
)

__all__ = [
    "BeforeSend",
    "Capabilities",
    "Chunk",
    "Cloud",
    "ModelQuestion",
    "ScoreQuestion",
    "Scores",
    "WriteQuestion",
    "max_usage",
    "unrecorded",
]
