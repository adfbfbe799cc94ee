"""Which tokens of the local vocabulary say the same: read where the settings say, when a policy first asks."""

from __future__ import annotations

from pathlib import Path

from hybrid.config import Settings
from hybrid.engine.llama import Weights
from hybrid.errors import UsageError
from hybrid.partitions.partition_file import load_partition
from hybrid.prob import Partition


def partition_of(settings: Settings, words: Weights) -> Partition:
    """Read the partition that the settings name, or the one kept for the local vocabulary. Raises UsageError."""
    if settings.concepts == "off":
        raise UsageError("concepts off contradicts a policy that asks which tokens say the same")
    path = None if settings.concepts in {None, "auto"} else Path(str(settings.concepts)).expanduser()
    return load_partition(path, words.vocabulary_digest, words.num_tokens)
