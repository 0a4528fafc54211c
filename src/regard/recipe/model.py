"""Settings of Transformer blocks, and of the models that translate."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, Tag, model_validator

from regard.recipe.settings import Count, Layers, Natural, NonNegative, Positive, Settings, Size, discriminate_by_kind

Score = Literal["none", "dot", "scaled", "general", "additive", "cosine"]
T5: dict[str, Any] = dict(
    norm="rms",
    norm_first=True,
    bias=False,
    scale_scores=False,
    scale_embedding=False,
    scale_output=True,
    positions={"kind": "relative"},
)
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": dict(encoder_layers=2, decoder_layers=2, width=128, heads=4, feed_forward=512),
    "small": dict(encoder_layers=3, decoder_layers=3, width=256, heads=4, feed_forward=1024),
    "base": dict(encoder_layers=6, decoder_layers=6, width=512, heads=8, feed_forward=2048),
    "big": dict(encoder_layers=6, decoder_layers=6, width=1024, heads=16, feed_forward=4096),
    "t5-tiny": dict(encoder_layers=2, decoder_layers=2, width=128, heads=4, feed_forward=512, **T5),
    "t5-small": dict(encoder_layers=6, decoder_layers=6, width=512, heads=8, feed_forward=2048, **T5),
    "t5-base": dict(encoder_layers=12, decoder_layers=12, width=768, heads=12, feed_forward=3072, **T5),
    "t5-large": dict(encoder_layers=24, decoder_layers=24, width=1024, heads=16, feed_forward=4096, **T5),
}


class RotaryScaling(Settings):
    """Rotary positions of a model that is used on longer texts than it was first trained on."""

    kind: Literal["none", "linear", "llama3"] = "none"
    """`linear` divides every position by `factor` (position interpolation, Chen et al. 2023); `llama3` divides only those of the
    pairs that turn slowly (Llama 3.1, Grattafiori et al. 2024)."""
    factor: Positive = 1.0
    low_frequency: Positive = 1.0
    """Pairs that turn fewer times than this within `original_length` are divided by the whole factor (llama3)."""
    high_frequency: Positive = 4.0
    """Pairs that turn more often than this are left as they are; those in between are interpolated (llama3)."""
    original_length: Count = 8192
    """Longest text of the first training (llama3)."""

    @model_validator(mode="after")
    def check_frequencies(self) -> Self:
        if self.low_frequency >= self.high_frequency:
            raise ValueError(f"low_frequency {self.low_frequency:g} should be less than high_frequency {self.high_frequency:g}")
        return self


class PositionSettings(Settings):
    """Position encoding."""

    kind: Literal["sinusoidal", "learned", "rotary", "alibi", "relative", "none"] = "sinusoidal"
    base: float = Field(10_000.0, gt=1)
    """The constant of the sinusoids (Vaswani et al. 2017, sec. 3.5) and of the rotation angles."""
    scaling: RotaryScaling = RotaryScaling()
    """Scaling of rotary positions for longer texts."""
    local_base: float | None = Field(None, gt=1)
    """The constant of unscaled rotation angles in layers with a window (Gemma 3). Default: the same rotation in all layers."""
    sines_first: bool = False
    """All sines before all cosines (Marian), instead of interleaved as published."""
    first: Natural = 0
    """The position of the first token in the sinusoids (2 in M2M100)."""
    buckets: int = Field(32, ge=2, le=2**20)
    """Buckets of the relative bias (T5)."""
    max_distance: int = Field(128, ge=2, le=2**20)
    """Distance from which all relative positions share a bucket (T5)."""
    random_offset: Natural = 0
    """In training, positions start at a random offset up to this, the same in a source and its target; 0 is none (Dehghani et al.
    2019, sec. 3.4)."""


class BlockSettings(Settings):
    """Settings of every Transformer block."""

    width: Size = 512
    heads: Size = 8
    key_width: Size | None = None
    """Width of a head's queries and keys. Default: width / heads."""
    value_width: Size | None = None
    """Width of a head's values. Default: the key width."""
    key_value_heads: Size | None = None
    """Heads of keys and values, shared by groups of query heads (grouped-query attention). Default: `heads`."""
    feed_forward: Size = 2048
    activation: Literal["relu", "gelu", "quick_gelu", "gelu_tanh", "silu", "swiglu", "geglu", "geglu_exact"] = "relu"
    """Gated with `swiglu` and `geglu` (Shazeer 2020); `geglu` approximates GELU by tanh, `geglu_exact` does not."""
    norm: Literal["layer", "layer_no_bias", "rms", "zero_centered_rms", "batch"] = "layer"
    """`layer_no_bias` is layer norm without a bias (ModernBERT), `zero_centered_rms` multiplies by 1 + weight (Gemma). `batch`
    normalises over the batch instead of over a vector; for comparison only."""
    norm_epsilon: Positive | None = None
    """Added to the variance. Default: 1e-5 for layer norm, 1e-6 for RMS norm."""
    norm_first: bool = False
    """Normalise before each sub-layer (pre-norm) instead of after it (post-norm, as in the 2017 paper)."""
    sandwich_norm: bool = False
    """Normalise each sub-layer's output too, before it is added (Ding et al. 2021; Gemma 2); needs `norm_first`."""
    bias: bool = True
    """Bias of the projections and the feed-forward layer."""
    qkv_bias: bool = False
    """Bias of the query, key and value projections alone (Qwen2); needs `bias = false`."""
    qk_norm: bool = False
    """Normalise each head's queries and keys before they are rotated and compared (Dehghani et al. 2023, sec. 2; Qwen3)."""
    residual: bool = True
    """Residual connections; false is for comparison only."""
    scale_scores: bool = True
    """Divide the scores by √(key width)."""
    scale_width: Size | None = None
    """Divide them by √(this) instead (`query_pre_attn_scalar` of Gemma 2)."""
    score_cap: Positive | None = None
    """Keep scores s within ± this number c, by c · tanh(s / c) (Gemma 2); attention then runs without fused kernels."""
    layer_scale: Positive | None = None
    """Initial value of a learned vector that scales each sub-layer's output (CaiT, Touvron et al. 2021). Default: none."""

    @model_validator(mode="after")
    def check_heads(self) -> Self:
        if self.key_width is None and self.width % self.heads:
            near = nearest_divisor(self.width, self.heads)
            raise ValueError(
                f"width {self.width} is not divisible by heads {self.heads}: use {near} heads, or set model.key_width"
            )
        if self.key_value_heads and self.heads % self.key_value_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of key_value_heads {self.key_value_heads}")
        return self

    @model_validator(mode="after")
    def check_attention(self) -> Self:
        if self.qkv_bias and self.bias:
            raise ValueError("model.qkv_bias is for models with bias = false: with bias = true all projections have one")
        if self.sandwich_norm and not self.norm_first:
            raise ValueError("model.sandwich_norm adds a norm to that before each sub-layer: set norm_first = true")
        if self.scale_width and not self.scale_scores:
            raise ValueError("model.scale_width needs scale_scores = true")
        if self.qk_norm and self.norm == "batch":
            raise ValueError("model.qk_norm normalises vectors: use norm = 'layer' or 'rms'")
        return self


class PositionedBlockSettings(BlockSettings):
    """Settings of Transformer blocks with positions."""

    positions: PositionSettings = PositionSettings()

    @model_validator(mode="after")
    def check_rotary(self) -> Self:
        if self.positions.kind == "rotary" and (self.key_width or self.width // self.heads) % 2:
            raise ValueError("rotary positions need an even key width")
        return self


class TextBlockSettings(PositionedBlockSettings):
    """Settings of Transformers that read text."""

    max_length: int = Field(256, ge=2, le=2**24)
    """Longest text in tokens."""


def with_preset(given: object, presets: Mapping[str, Mapping[str, object]]) -> object:
    """Return settings with the missing ones filled in from their preset."""
    name = given.get("preset") if isinstance(given, dict) else None
    return {**presets[name], **given} if isinstance(given, dict) and isinstance(name, str) and name in presets else given


class TransformerModel(TextBlockSettings):
    """The Transformer (Vaswani et al. 2017). Any field of a preset may be overridden."""

    kind: Literal["transformer"] = "transformer"
    preset: Literal["tiny", "small", "base", "big", "t5-tiny", "t5-small", "t5-base", "t5-large"] | None = None
    """`tiny` 2+2 layers of 128; `small` 3+3 of 256; `base` 6+6 of 512 and `big` 6+6 of 1024, as published; T5 (Raffel et al.
    2020) with its norms and relative positions."""
    encoder_layers: Layers = 6
    decoder_layers: Layers = 6
    encoder_widths: list[Size] | None = None
    """Width after each encoder layer, if they differ; the residual connection is then projected."""
    tie: Literal["all", "embeddings", "target", "none"] = "all"
    """Share embedding weights: both embeddings and the output (as published), both embeddings (T5 1.1), target embedding and
    output, or none."""
    scale_embedding: bool = True
    """Multiply embeddings by √width (sec. 3.4)."""
    embedding_norm: bool = False
    """Normalise the embeddings with their positions (BART)."""
    scale_output: bool = False
    """Divide the input of the output layer by √width, as T5 does if weights are tied."""
    output_bias: bool = False

    @model_validator(mode="before")
    @classmethod
    def fill_from_preset(cls, given: object) -> object:
        return with_preset(given, PRESETS)

    @model_validator(mode="after")
    def fits(self) -> Self:
        if self.encoder_widths is not None and len(self.encoder_widths) != self.encoder_layers:
            raise ValueError(f"encoder_widths names {len(self.encoder_widths)} layers, encoder_layers is {self.encoder_layers}")
        return self


class RecurrentSettings(Settings):
    """Settings of models with recurrent cells."""

    kind: str
    cell: Literal["rnn", "lstm", "gru"] = "lstm"
    width: Size = 256
    """Width of the states; two directions share it."""
    embedding_width: Size | None = None
    """Default: `width`."""
    max_length: int = Field(256, ge=2, le=2**24)
    """Longest text in tokens."""


class RecurrentModel(RecurrentSettings):
    """Sequence to sequence with recurrent cells, with attention or without (Sutskever et al. 2014; Bahdanau et al. 2015;
    Luong et al. 2015)."""

    kind: Literal["recurrent"]
    cell: Literal["rnn", "lstm", "gru"] = "gru"
    encoder_layers: Layers = 1
    decoder_layers: Layers = 1
    bidirectional: bool = True
    """Bidirectional encoder."""
    attention: Score = "additive"
    """The score function; `none` passes the whole source through one vector."""
    decoder: Literal["bahdanau", "luong"] = "bahdanau"
    """Attend before each step with the previous state (Bahdanau), or after it with the new one (Luong)."""
    input_feeding: bool = True
    """Input feeding (Luong): the attentional vector is fed to the next step."""
    attention_width: Size | None = None
    """Width of the additive score. Default: `width`."""
    tie: Literal["all", "target", "none"] = "none"
    """Share embedding weights, as in the Transformer; needs embedding_width = width."""

    @model_validator(mode="after")
    def fits(self) -> "RecurrentModel":
        if self.bidirectional and self.width % 2:
            raise ValueError(
                f"width {self.width} is not even: two directions share it; use {self.width + 1}, or bidirectional = false"
            )
        if self.tie != "none" and self.embedding_width not in (None, self.width):
            raise ValueError(f"model.tie = {self.tie!r} needs embedding_width = width = {self.width}")
        return self


class UniversalModel(TransformerModel):
    """The Universal Transformer (Dehghani et al. 2019): one block applied repeatedly. `encoder_layers` and `decoder_layers` are
    the maximum number of steps; everything else is as in the Transformer."""

    kind: Literal["universal"]  # type: ignore[assignment]
    halting: Literal["none", "act"] = "act"
    """Take all steps, or halt each token adaptively (ACT, Graves 2016)."""
    ponder_cost: NonNegative = 0.01
    """Cost of a step in the loss, in nats per token."""
    threshold: float = Field(0.99, gt=0, lt=1)
    """A token halts when its halting probabilities sum to this."""

    @model_validator(mode="after")
    def check_widths(self) -> "UniversalModel":
        if self.embedding_norm:
            raise ValueError("model.embedding_norm: a Universal Transformer adds positions before every step; set it to false")
        if self.encoder_widths is not None:
            raise ValueError(
                "model.encoder_widths: a Universal Transformer applies one block repeatedly, at one width; leave it out"
            )
        return self


Model = Annotated[
    Annotated[TransformerModel, Tag("transformer")]
    | Annotated[RecurrentModel, Tag("recurrent")]
    | Annotated[UniversalModel, Tag("universal")],
    discriminate_by_kind("transformer", "transformer, recurrent or universal"),
]


def nearest_divisor(width: int, heads: int) -> int:
    return min((n for n in range(1, width + 1) if width % n == 0), key=lambda n: abs(n - heads))
