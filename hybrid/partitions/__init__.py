"""Which tokens of a vocabulary say the same: built from their texts and embeddings, and kept in a file."""
