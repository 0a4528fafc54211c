"""Sentences that several model cards share."""

HUMAN_CHECK = "Text that matters to somebody's health, rights or safety without a person who checks"
TEXT_LIMITS = """It knows only what its training text says, and repeats its biases and mistakes. Text unlike its training data,
texts longer than `model.max_length` tokens and unknown characters come out badly."""
GENERATED_MISUSE = "Misleading news, impersonation, spam, and any text passed off as a person's."
