"""Experiments with the pair, and the speed of the mechanisms. Problems and graders stand in ``hybrid.tasks``."""
