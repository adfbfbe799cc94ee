"""Which tokens of the local vocabulary say the same: read where the settings say, when a policy first asks."""

from __future__ import annotations

from hybrid.config import Settings
from hybrid.errors import UsageError
from hybrid.prob import Partition
from hybrid.run.contexts import no_partition


def partition_of(settings: Settings) -> Partition:
    """Read the partition that the settings name. Raises UsageError where there is none."""
    if settings.concepts == "off":
        raise UsageError("concepts off contradicts a policy that asks which tokens say the same")
    return no_partition()
