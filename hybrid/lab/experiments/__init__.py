"""Experiments over two models in one process: every rule on the same questions, no prefix decoded twice."""
