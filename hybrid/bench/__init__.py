"""Experiments: tasks, baselines, statistics."""
