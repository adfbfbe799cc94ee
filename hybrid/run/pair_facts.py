"""Who the local model is, and what was measured of an endpoint's speed: the facts that prices and a score depend on.

The law (``tests/run/test_pair_facts.py``): facts of another model, endpoint or vocabulary are none; what cannot be read
is none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hybrid.cloud import Capabilities
from hybrid.cloud.probe_result import ProbeCache
from hybrid.engine.identity import identify
from hybrid.errors import UsageError
from hybrid.sources import identities_file
from hybrid.spend import TokenTimes


@dataclass(frozen=True)
class PairFacts:
    """Facts of a client's two models.

    ``local``: what identifies the model's file; None: nothing is known of any pair, and nothing is kept. ``times``:
    what a probe has measured of an endpoint; it may read a file. ``shipped_only``: of the pair is known what comes with
    the package, and neither what a user has bought nor what was learned. ``critic``: what identifies the critic's file;
    None: there is no critic.
    """

    local: str | None = None
    times: Callable[[Capabilities], TokenTimes | None] = lambda _: None
    shipped_only: bool = False
    critic: str | None = None

    @classmethod
    def of(
        cls, model: Path, cloud: str | None, probes: Callable[[], ProbeCache | None], critic: Path | None = None
    ) -> PairFacts:
        """Return the facts of a model file and an endpoint, and of a critic's file.

        ``probes``: where probes are kept; None: nowhere.
        """
        return cls(
            _identity(model),
            lambda can: token_times(can, cloud, probes),
            critic=None if critic is None else _identity(critic),
        )


def _identity(model: Path) -> str | None:
    with contextlib.suppress(OSError, UsageError):
        return identify(model, identities_file())
    return None


def token_times(can: Capabilities, cloud: str | None, probes: Callable[[], ProbeCache | None]) -> TokenTimes | None:
    """Return the times that the last probe of an endpoint measured; None where there was none, or not all of them."""
    cache = None
    with contextlib.suppress(UsageError):  # no home to keep a file in
        cache = probes()
    found = cache.read_all(cloud, can.model) if cloud and cache else []
    last = found[-1] if found else None
    if last is None or last.written_ms is None or last.scored_ms is None or last.check_ms is None:
        return None
    return TokenTimes(last.written_ms, last.scored_ms, last.reread_ms, last.check_ms)
