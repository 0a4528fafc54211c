"""Token embeddings, scaled as published (Vaswani et al. 2017, sec. 3.4)."""

from torch import Tensor, nn


class Embedding(nn.Module):
    """Ids (B, T) -> √D · rows of the table (B, T, D). The same table can serve as the output projection."""

    def __init__(self, vocabulary: int, width: int, *, scaled: bool = True):
        super().__init__()
        self.scale = width ** 0.5 if scaled else 1.0
        self.table = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.table.weight, std=width ** -0.5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids) * self.scale
