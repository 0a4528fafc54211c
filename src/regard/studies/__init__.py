"""Experiments built from the package: the demo, the ladder and its ablations, length generalisation, layer timing."""
