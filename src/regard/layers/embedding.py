"""Token embeddings, scaled as published (Vaswani et al. 2017, sec. 3.4), and SwitchOut."""

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
    """While training, replace some of the embeddings (B, T, D) by others of the batch (after Wang et al. 2018, SwitchOut).

    Setting them to zero instead fails: a zero vector stays zero through every block where it sees no other token, and the
    gradient of each norm on it is 1/√ε, which overflows after eight layers.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        tokens = x.flatten(0, 1)  # (B · T, D)
        others = tokens[torch.randint(len(tokens), (len(tokens),), device=x.device)]
        switched = torch.rand(len(tokens), 1, device=x.device) < self.rate
        return torch.where(switched, others, tokens).view_as(x)
