"""Multi-head attention (Vaswani et al. 2017, sec. 3.2.2)."""

from torch import Tensor, nn

from regard.attention.core import Dot, Summed, attend
from regard.attention.masks import Mask
from regard.attention.positions import Rotation, rotate


class Attend(nn.Module):
    """`attend` as a module: a named place where `watch` can look and `edit` can change what is seen."""

    def __init__(self, dropout: float = 0.0, scale: float | None = None, score: Summed | None = None):
        super().__init__()
        self.dropout, self.scale, self.score = dropout, scale, score

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask | None = None, bias: Tensor | None = None) -> Tensor:
        return attend(q, k, v, score=self.score, mask=mask, bias=bias, scale=self.scale, dropout=self.dropout * self.training)

    @property
    def sum(self) -> Summed:
        """The score as a sum over components."""
        return self.score or Dot(self.scale)


class MultiHead(nn.Module):
    """Queries (B, T, D) over keys and values prepared from any source -> (B, T, D).

    Heads are as many and as wide as one likes: H·K and H·J need not be D.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_width: int | None = None,
        value_width: int | None = None,
        key_value_heads: int | None = None,
        source_width: int | None = None,
        out_width: int | None = None,
        dropout: float = 0.0,
        scale: float | None = None,
        bias: bool = True,
    ):
        super().__init__()
        key_width = key_width or width // heads
        value_width = value_width or key_width
        groups = key_value_heads or heads
        source_width = source_width or width
        self.heads, self.groups = heads, groups
        self.to_q = nn.Linear(width, heads * key_width, bias=bias)
        self.to_k = nn.Linear(source_width, groups * key_width, bias=bias)
        self.to_v = nn.Linear(source_width, groups * value_width, bias=bias)
        self.to_all: nn.Module | None = None
        """All three at once, where a model is packed for use alone (layers/quantized.py)."""
        self.attend = Attend(dropout, scale)
        self.to_out = nn.Linear(heads * value_width, out_width or width, bias=bias)

    def keys_values(self, source: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, Tensor]:
        """Project a source once: a sentence for cross-attention, each new token for self-attention."""
        keys = rotate(split(self.to_k(source), self.groups), rotation)
        return keys, split(self.to_v(source), self.groups)  # (B, G, S, K), (B, G, S, J)

    def queries_keys_values(self, x: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Project what looks at itself: (B, H, T, K), (B, G, T, K), (B, G, T, J)."""
        if self.to_all is None:
            return rotate(split(self.to_q(x), self.heads), rotation), *self.keys_values(x, rotation)
        q, k, v = self.to_all(x).split([layer.out_features for layer in (self.to_q, self.to_k, self.to_v)], dim=-1)
        return rotate(split(q, self.heads), rotation), rotate(split(k, self.groups), rotation), split(v, self.groups)

    def forward(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        return self.look(rotate(split(self.to_q(x), self.heads), rotation), keys, values, mask=mask, bias=bias)

    def look(self, q: Tensor, keys: Tensor, values: Tensor, *, mask: Mask | None = None, bias: Tensor | None = None) -> Tensor:
        """What queries (B, H, T, K) find."""
        mixed = self.attend(q, keys, values, mask=mask, bias=bias)  # (B, H, T, J)
        return self.to_out(mixed.transpose(1, 2).flatten(2))  # (B, T, D)


def split(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)  # (B, T, H·K) -> (B, H, T, K)
