"""Figures of what a run attends to: record, select, draw."""
