"""Figures: matplotlib, HTML and plain text; each function takes data and returns a figure or a string."""
