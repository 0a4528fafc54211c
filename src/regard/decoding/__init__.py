"""Greedy search, sampling and beam search, written against the state protocol: start, step, reorder, keep, join."""
