"""Logits changed before the next token is chosen from them: pure functions of the logits and of what is written already.

How likely the model found a text is told by the logits as they were.
"""

import torch
from torch import Tensor


def apply_repetition_penalty(logits: Tensor, written: Tensor, penalty: float) -> Tensor:
    """Make tokens (rows, V) that are already written (rows, L; -1 is none) less likely, each once: a positive logit is divided by
    the penalty (Keskar et al. 2019, sec. 4.1). A negative one, where that would help it, is multiplied, as transformers does."""
    V = logits.size(-1)
    seen = torch.zeros(len(logits), V + 1, dtype=torch.bool, device=logits.device)
    seen = seen.scatter(1, written.where(written >= 0, V), True)[:, :V]  # (rows, V)
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)
