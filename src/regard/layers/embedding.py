"""Token embeddings, scaled as published (Vaswani et al. 2017, sec. 3.4)."""

import torch
from torch import Tensor, nn


class TokenEmbedding(nn.Module):
    """Ids (B, T) -> √D · rows of the table (B, T, D). The same table can serve as the output projection."""

    def __init__(self, vocabulary: int, width: int, *, scaled: bool = True):
        super().__init__()
        self.scale = width**0.5 if scaled else 1.0
        self.table = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.table.weight, std=width**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids) * self.scale


class SwitchOut(nn.Module):
    """While training, some of the words (B, T, D) are switched for others of the batch (after Wang et al. 2018, SwitchOut).

    Not left out: a word of zeros stays one through every block where it sees no other, and the gradient of each norm on it is
    1/√ε, which in eight layers is too much for any number.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        words = x.flatten(0, 1)  # (B · T, D)
        others = words[torch.randint(len(words), (len(words),), device=x.device)]
        switched = torch.rand(len(words), 1, device=x.device) < self.rate
        return torch.where(switched, others, words).view_as(x)
