"""Calibrating a pair of models: labels bought from the cloud once, a score fitted to them, a report of the pair."""
