"""Experiments built from the parts of the package: the demo, the ladder, length generalisation, layer timing."""
