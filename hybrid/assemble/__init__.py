"""The composition root: settings in, running objects out. It knows which bundled models are the default.

What probes, and with it what sends, is loaded with ``hybrid.assemble.probing`` alone.
"""

from hybrid.assemble.local_models import BUNDLED_LOCAL, first_model
from hybrid.assemble.opening import ClientOpener, open  # noqa: A004  (hybrid.open is the front door's name)
from hybrid.assemble.reaching import BUNDLED_CLOUD, PROBE, bundled_server, known_price, served_model

__all__ = [
    "BUNDLED_CLOUD",
    "BUNDLED_LOCAL",
    "PROBE",
    "ClientOpener",
    "bundled_server",
    "first_model",
    "known_price",
    "open",
    "served_model",
]
