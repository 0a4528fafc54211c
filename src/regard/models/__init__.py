"""One thin file per paper: embeddings, stack, head."""
