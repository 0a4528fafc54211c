"""Multi-head attention (Vaswani et al. 2017, sec. 3.2.2)."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.overrides import has_torch_function

from regard.attention.core import DecomposableScore, DotProductScore, attend
from regard.attention.kv_cache import KVCache
from regard.attention.masks import NO_MASK, Mask
from regard.attention.positions import Rotation, apply_rotary


class Attention(nn.Module):
    """`attend` as a module without weights: the named place that `watch` records and `edit` changes."""

    def __init__(self, dropout: float = 0.0, scale: float | None = None, score: DecomposableScore | None = None):
        super().__init__()
        self.dropout, self.scale, self.score = dropout, scale, score

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask | None = None, bias: Tensor | None = None) -> Tensor:
        return attend(q, k, v, score=self.score, mask=mask, bias=bias, scale=self.scale, dropout=self.dropout * self.training)

    def append_and_attend(self, q: Tensor, keys: Tensor, values: Tensor, cache: KVCache, mask: Mask | None) -> Tensor | None:
        """Append to the cache and attend to it in one kernel; None where it does not run, or where somebody watches."""
        watched = self._forward_hooks or self._forward_pre_hooks or has_torch_function((q,))
        if watched or self.score is not None or self.dropout * self.training:
            return None
        return cache.append_and_attend(q, keys, values, mask or NO_MASK, self.scale)

    @property
    def decomposable_score(self) -> DecomposableScore:
        """The score as a sum over components."""
        return self.score or DotProductScore(self.scale)


class MultiHeadAttention(nn.Module):
    """Attend from queries (B, T, D) to keys and values projected from any source; return (B, T, D).

    H·K and H·J need not be D: the number and width of the heads are free. `head_norm(K)` builds a norm of each head's queries and
    keys.
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
        attend: Attention | None = None,
        bias: bool = True,
        qkv_bias: bool | None = None,
        head_norm: Callable[[int], nn.Module] | None = None,
    ):
        super().__init__()
        key_width = key_width or width // heads
        value_width = value_width or key_width
        source_width = source_width or width
        self.heads, self.kv_heads = heads, key_value_heads or heads
        qkv_bias = bias if qkv_bias is None else qkv_bias
        self.q_proj = nn.Linear(width, heads * key_width, bias=qkv_bias)
        self.k_proj = nn.Linear(source_width, self.kv_heads * key_width, bias=qkv_bias)
        self.v_proj = nn.Linear(source_width, self.kv_heads * value_width, bias=qkv_bias)
        self.qkv_proj: nn.Module | None = None
        """All three in one product, in a model converted for inference (layers/quantized.py)."""
        self.q_norm, self.k_norm = (None if head_norm is None else head_norm(key_width) for _ in "qk")
        self.attend = attend or Attention()
        self.out_proj = nn.Linear(heads * value_width, out_width or width, bias=bias)

    def project_kv(self, source: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, Tensor]:
        """Project a source once: the encoder output for cross-attention, each new token for self-attention."""
        keys = self._keys(self.k_proj(source), rotation)
        return keys, split_heads(self.v_proj(source), self.kv_heads)  # (B, G, S, K), (B, G, S, J)

    def project_q(self, x: Tensor, rotation: Rotation | None = None) -> Tensor:
        """Project the queries of attention to any source: (B, H, T, K)."""
        return self._queries(self.q_proj(x), rotation)

    def project_qkv(self, x: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Project queries, keys and values of self-attention: (B, H, T, K), (B, G, T, K), (B, G, T, J)."""
        if self.qkv_proj is None:
            return self.project_q(x, rotation), *self.project_kv(x, rotation)
        widths = [layer.out_features for layer in (self.q_proj, self.k_proj, self.v_proj)]
        q, k, v = self.qkv_proj(x).split_with_sizes(widths, dim=-1)
        return self._queries(q, rotation), self._keys(k, rotation), split_heads(v, self.kv_heads)

    def _queries(self, projected: Tensor, rotation: Rotation | None) -> Tensor:
        q = split_heads(projected, self.heads)  # (B, H, T, K)
        return apply_rotary(q if self.q_norm is None else self.q_norm(q), rotation)

    def _keys(self, projected: Tensor, rotation: Rotation | None) -> Tensor:
        k = split_heads(projected, self.kv_heads)  # (B, G, S, K)
        return apply_rotary(k if self.k_norm is None else self.k_norm(k), rotation)

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
        return self.out_proj(self.mix_projected(self.project_q(x, rotation), keys, values, mask=mask, bias=bias))

    def mix_projected(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Return the mixed values (B, T, H·J), which `out_proj` is still to project, of projected queries (B, H, T, K); with a
        cache, append to it first, and attend to all of it."""
        mixed = self.attend.append_and_attend(q, keys, values, cache, mask) if cache is not None and bias is None else None
        if mixed is None:
            keys, values = (keys, values) if cache is None else cache.append(keys, values)
            mixed = self.attend(q, keys, values, mask=mask, bias=bias)  # (B, H, T, J)
        return mixed.transpose(1, 2).flatten(2)  # (B, T, H·J)


def split_heads(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)  # (B, T, H·K) -> (B, H, T, K)
