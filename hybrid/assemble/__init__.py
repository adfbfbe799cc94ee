"""The composition root: settings in, running objects out. It knows which bundled models are the default."""

from hybrid.assemble.local_models import BUNDLED_LOCAL, first_model
from hybrid.assemble.opening import ClientOpener, open  # noqa: A004  (hybrid.open is the front door's name)
from hybrid.assemble.prices import known_price
from hybrid.assemble.probing import ProbeReport, probe
from hybrid.assemble.reaching import PROBE, served_model
from hybrid.bundled_server import BUNDLED_CLOUD, bundled_server

__all__ = [
    "BUNDLED_CLOUD",
    "BUNDLED_LOCAL",
    "PROBE",
    "ClientOpener",
    "ProbeReport",
    "bundled_server",
    "first_model",
    "known_price",
    "open",
    "probe",
    "served_model",
]
