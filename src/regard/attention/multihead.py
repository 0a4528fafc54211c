"""Multi-head attention (Vaswani et al. 2017, sec. 3.2.2)."""

from torch import Tensor, nn

from regard.attention.core import DecomposableScore, DotProductScore, attend
from regard.attention.masks import Mask
from regard.attention.positions import Rotation, apply_rotary


class Attention(nn.Module):
    """`attend` as a module: a named place where `watch` can look and `edit` can change what is seen."""

    def __init__(self, dropout: float = 0.0, scale: float | None = None, score: DecomposableScore | None = None):
        super().__init__()
        self.dropout, self.scale, self.score = dropout, scale, score

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask | None = None, bias: Tensor | None = None) -> Tensor:
        return attend(q, k, v, score=self.score, mask=mask, bias=bias, scale=self.scale, dropout=self.dropout * self.training)

    @property
    def decomposable_score(self) -> DecomposableScore:
        """The score as a sum over components."""
        return self.score or DotProductScore(self.scale)


class MultiHeadAttention(nn.Module):
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
        self.q_proj = nn.Linear(width, heads * key_width, bias=bias)
        self.k_proj = nn.Linear(source_width, groups * key_width, bias=bias)
        self.v_proj = nn.Linear(source_width, groups * value_width, bias=bias)
        self.qkv_proj: nn.Module | None = None
        """All three at once, where a model is packed for use alone (layers/quantized.py)."""
        self.attend = Attention(dropout, scale)
        self.out_proj = nn.Linear(heads * value_width, out_width or width, bias=bias)

    def project_kv(self, source: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, Tensor]:
        """Project a source once: a sentence for cross-attention, each new token for self-attention."""
        keys = apply_rotary(split_heads(self.k_proj(source), self.groups), rotation)
        return keys, split_heads(self.v_proj(source), self.groups)  # (B, G, S, K), (B, G, S, J)

    def project_qkv(self, x: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Project what looks at itself: (B, H, T, K), (B, G, T, K), (B, G, T, J)."""
        if self.qkv_proj is None:
            return apply_rotary(split_heads(self.q_proj(x), self.heads), rotation), *self.project_kv(x, rotation)
        q, k, v = self.qkv_proj(x).split([layer.out_features for layer in (self.q_proj, self.k_proj, self.v_proj)], dim=-1)
        return (
            apply_rotary(split_heads(q, self.heads), rotation),
            apply_rotary(split_heads(k, self.groups), rotation),
            split_heads(v, self.groups),
        )

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
        return self.look(apply_rotary(split_heads(self.q_proj(x), self.heads), rotation), keys, values, mask=mask, bias=bias)

    def look(self, q: Tensor, keys: Tensor, values: Tensor, *, mask: Mask | None = None, bias: Tensor | None = None) -> Tensor:
        """What queries (B, H, T, K) find."""
        mixed = self.attend(q, keys, values, mask=mask, bias=bias)  # (B, H, T, J)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))  # (B, T, D)


def split_heads(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)  # (B, T, H·K) -> (B, H, T, K)
