"""Attention of a run as figures: record, select, draw."""
