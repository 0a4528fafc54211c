"""Hugging Face folders in and out: one declarative map per family, and a proof for every conversion."""
