"""Ids to tensors: a memory-mapped token store, and batches that are pure functions of (seed, epoch, step)."""
