"""One block for every Transformer: self-attention, cross-attention where there is a source, feed-forward; each with its residual.

The encoder and the decoder of 2017, BERT, GPT, T5 and ViT are this block with other settings.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from regard.attention.core import SoftCappedScore
from regard.attention.kv_cache import KVCache
from regard.attention.masks import NO_MASK, GridPattern, Mask
from regard.attention.multihead import Attention, MultiHeadAttention
from regard.attention.positions import Rotation
from regard.layers.embedding import SwitchOut
from regard.layers.feed_forward import FeedForward
from regard.layers.linear import may_split, partial_sums
from regard.layers.norm import Residual, Sublayer, Update, build_norm
from regard.layers.norm_kernel import PartialSums
from regard.layers.unpadding import is_hooked

if TYPE_CHECKING:
    from regard.recipe import Regularization
    from regard.recipe.model import BlockSettings


@dataclass(frozen=True)
class BlockConfig:
    """The settings of a block."""

    width: int
    heads: int
    feed_forward: int
    key_width: int | None = None
    value_width: int | None = None
    key_value_heads: int | None = None
    activation: str = "relu"
    norm: str = "layer"
    norm_first: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    residual: bool = True
    scale: float | None = None
    bias: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    score_cap: float | None = None
    sandwich_norm: bool = False
    norm_epsilon: float | None = None
    window: int | None = None
    """How far self-attention sees, if not everywhere."""
    grid: GridPattern | None = None
    """The part of an image grid that it sees, if not all."""
    drop_path: float = 0.0
    layer_scale: float | None = None


def block_config(settings: "BlockSettings", regularize: "Regularization | None") -> BlockConfig:
    """Return the block that a recipe's settings describe; its key width stays the same in layers of another width."""
    rates: dict[str, Any] = {}
    if regularize is not None:
        rates = dict(
            dropout=regularize.dropout,
            attention_dropout=regularize.attention_dropout,
            activation_dropout=regularize.activation_dropout,
            drop_path=regularize.drop_path,
        )
    return BlockConfig(
        settings.width,
        settings.heads,
        settings.feed_forward,
        settings.key_width or settings.width // settings.heads,
        settings.value_width,
        settings.key_value_heads,
        settings.activation,
        settings.norm,
        settings.norm_first,
        residual=settings.residual,
        scale=1.0 if not settings.scale_scores else settings.scale_width**-0.5 if settings.scale_width else None,
        bias=settings.bias,
        qkv_bias=settings.qkv_bias,
        qk_norm=settings.qk_norm,
        score_cap=settings.score_cap,
        sandwich_norm=settings.sandwich_norm,
        norm_epsilon=settings.norm_epsilon,
        layer_scale=settings.layer_scale,
        **rates,
    )


def embedding_dropout(regularize: "Regularization | None") -> nn.Module:
    """Return the regularisation of the embeddings: SwitchOut and dropout, as the settings say."""
    if regularize is None:
        return nn.Identity()
    dropout = nn.Dropout(regularize.dropout if regularize.embedding_dropout is None else regularize.embedding_dropout)
    return nn.Sequential(SwitchOut(regularize.switchout), dropout) if regularize.switchout else dropout


@dataclass
class SourceKV:
    """The keys and values of a source sequence for one block's cross-attention, projected once."""

    keys: Tensor  # (B, G, S, K)
    values: Tensor  # (B, G, S, J)
    mask: Mask | None = None


def build_attention(config: BlockConfig, width: int, **options: int | None) -> MultiHeadAttention:
    """Return one attention sub-layer of a block, for queries of this width."""
    score = None if config.score_cap is None else SoftCappedScore(config.scale, config.score_cap)
    return MultiHeadAttention(
        width,
        config.heads,
        key_width=config.key_width,
        value_width=config.value_width,
        key_value_heads=config.key_value_heads,
        attend=Attention(config.attention_dropout, config.scale, score),
        bias=config.bias,
        qkv_bias=config.bias or config.qkv_bias,
        head_norm=partial(build_norm, config.norm, epsilon=config.norm_epsilon) if config.qk_norm else None,
        **options,
    )


class Block(nn.Module):
    """(B, T, width) -> (B, T, out width); `source_width` adds cross-attention over a source of that width."""

    def __init__(self, config: BlockConfig, *, source_width: int | None = None, out_width: int | None = None):
        super().__init__()
        width, out = config.width, out_width or config.width
        residual = partial(
            Residual,
            norm=config.norm,
            norm_first=config.norm_first,
            dropout=config.dropout,
            residual=config.residual,
            epsilon=config.norm_epsilon,
            drop_path=config.drop_path,
            layer_scale=config.layer_scale,
            sandwich=config.sandwich_norm,
        )
        self.sparsity = None if config.window is None and config.grid is None else Mask(window=config.window, grid=config.grid)
        self.is_local = config.window is not None
        self.self_attention = build_attention(config, width, out_width=out)
        self.self_residual = residual(width, out)
        if source_width is not None:
            self.cross_attention = build_attention(config, out, source_width=source_width)
            self.cross_residual = residual(out, out)
        self.feed_forward = FeedForward(out, config.feed_forward, config.activation, config.activation_dropout, bias=config.bias)
        self.feed_forward_residual = residual(out, out)

    def project_source(self, source: Tensor, mask: Mask | None = None) -> SourceKV:
        """Project a source (B, S, source width) once for this block's cross-attention."""
        return SourceKV(*self.cross_attention.project_kv(source), mask)

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        """Return (B, T, out width); the options are those of `_sublayers`."""
        for residual, sublayer in self._sublayers(**options):
            x = residual(x, sublayer)
        return x

    def stream(self, x: Tensor, update: Update | None, **options: Any) -> tuple[Tensor, Update | None]:
        """Do the same to x + update, and return the result as such a pair (`Residual.stream`)."""
        for residual, sublayer in self._sublayers(**options):
            x, update = residual.stream(x, update, sublayer)
        return x, update

    @property
    def has_skipped_hooks(self) -> bool:
        """Whether `stream` would skip hooks: those of the block and of its residual connections, which it calls in parts."""
        return is_hooked(self) or any(is_hooked(part) for part in self._modules.values() if isinstance(part, Residual))

    def _sublayers(
        self,
        *,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        rotation: Rotation | None = None,
        cache: KVCache | None = None,
        source: SourceKV | None = None,
    ) -> Iterator[tuple[Residual, Sublayer]]:
        """Yield each sub-layer and the residual connection around it."""
        mask = mask if self.sparsity is None else self.sparsity & (mask or NO_MASK)

        def attend_to_self(y: Tensor) -> Tensor | PartialSums:
            attention = self.self_attention
            mixed = attention.mix_projected(*attention.project_qkv(y, rotation), mask=mask, bias=bias, cache=cache)
            if may_split(attention.out_proj, y) and self.self_residual.takes_parts:
                return partial_sums(mixed, attention.out_proj)
            return attention.out_proj(mixed)

        def attend_to_source(y: Tensor) -> Tensor | PartialSums:
            assert source is not None
            attention = self.cross_attention
            queries = y.reshape(source.keys.size(0), -1, y.size(-1))  # the hypotheses of one sentence share its keys
            if may_split(attention.out_proj, y) and self.cross_residual.takes_parts and not is_hooked(attention):
                mixed = attention.mix_projected(attention.project_q(queries), source.keys, source.values, mask=source.mask)
                return partial_sums(mixed.reshape(*y.shape[:-1], -1), attention.out_proj)
            return attention(queries, source.keys, source.values, mask=source.mask).reshape(y.shape)

        def feed_forward(y: Tensor) -> Tensor | PartialSums:
            layer = self.feed_forward
            if may_split(layer.outer, y) and self.feed_forward_residual.takes_parts and not is_hooked(layer):
                return partial_sums(layer.hidden(y), layer.outer)
            return layer(y)

        yield self.self_residual, attend_to_self
        if source is not None:
            yield self.cross_residual, attend_to_source
        yield self.feed_forward_residual, feed_forward
