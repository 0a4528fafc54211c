"""Examples to ids, over the `tokenizers` library."""
