"""The parts every model is assembled from."""
