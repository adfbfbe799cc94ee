"""A model file's vocabulary alone: how a model that runs elsewhere splits text, without its weights.

Any GGUF of the model will do, however small its weights were rounded; files that hold a vocabulary and nothing else
(llama.cpp's own ``ggml-vocab-*.gguf``) do, too.
"""

from __future__ import annotations

import os
from pathlib import Path

from hybrid.engine.model_check import check_model, check_vocabulary
from hybrid.engine.native import ll
from hybrid.engine.runtime import safe_model_params, take_log, why_not_loaded
from hybrid.engine.shards import first_shard, read_model
from hybrid.engine.vocabulary import LlamaVocabulary
from hybrid.errors import EngineError


class VocabularyFile(LlamaVocabulary):
    """The vocabulary of a GGUF file, held until it is closed."""

    def __init__(self, path: str | Path) -> None:
        """Read it. Raises EngineError: missing, not GGUF, damaged or not loadable."""
        self.path = first_shard(Path(path))
        header = read_model(self.path)
        check_model(header) if header.tensors else check_vocabulary(header)
        take_log()
        params = safe_model_params()
        params.vocab_only = True
        self._model = ll.llama_model_load_from_file(os.fsencode(self.path), params)
        if not self._model:
            msg = f"llama.cpp cannot read the vocabulary of {self.path}: {why_not_loaded()}"
            raise EngineError(msg)
        super().__init__(self._model, self.path.name)

    def close(self) -> None:
        """Free it."""
        if self._model:
            ll.llama_model_free(self._model)
            self._model = None
