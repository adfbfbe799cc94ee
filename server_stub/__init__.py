"""The reference cloud: serves a GGUF model with top-k log-probabilities over HTTP."""
