"""Greedy, sampling, beam; all written against the state protocol: start, step, reorder, keep."""
