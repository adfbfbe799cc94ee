"""The models that have a name, which stands where a file or an endpoint's address may stand, and what each is for.

A name wins over a file of that name in the working directory, which somebody else may have written.
``engine.real_models`` finds the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

MODELS = Path(__file__).parent / "models"
BUNDLED: Mapping[str, str] = {
    "small": "the local model by default",
    "mid": "between small and large",
    "large": "the cloud by default",
    "alien": "another vocabulary",
    "numbers": "an expert for calculating",
    "words": "an expert for language",
    "student": "as small, taught by large",
    "wordings-large": "a world of synonyms: plain words",
    "wordings-small": "the same in fancy words, with errors",
}
REAL: Mapping[str, str] = {
    "real": "real text, as published",
    "real:q3": "rounded to 3 bits: little worse",
    "real:d2": "without 2 layers: clearly worse",
    "real:d4": "without 4 layers: of little use",
}
NAMED: Mapping[str, str] = {**BUNDLED, **REAL}
