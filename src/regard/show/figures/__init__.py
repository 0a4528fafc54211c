"""Pictures worth printing: deterministic, vector where it can be, words as words."""
