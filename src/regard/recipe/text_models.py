"""Settings of models that read one text: Transformer encoders (BERT) and decoders (GPT), recurrent models, ELMo."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, Tag, model_validator

from regard.recipe.model import RecurrentSettings, Score, TextBlockSettings, with_preset
from regard.recipe.settings import Count, Layers, Natural, NonNegative, Positive, Settings, Size, discriminate_by_kind

BERT: dict[str, Any] = dict(
    norm_first=False,
    norm_epsilon=1e-12,
    activation="gelu",
    positions={"kind": "learned"},
    segments=2,
    embedding_norm=True,
    pool="first",
    max_length=512,
)
GPT: dict[str, Any] = dict(
    norm_first=True, norm_epsilon=1e-5, activation="gelu_tanh", positions={"kind": "learned"}, tie=True, max_length=1024
)


def _preset(style: dict[str, Any], layers: int, width: int, heads: int, **more: object) -> dict[str, Any]:
    return {**style, "layers": layers, "width": width, "heads": heads, "feed_forward": 4 * width, **more}


ENCODERS = {
    "tiny": dict(layers=2, width=128, heads=4, feed_forward=512),
    "small": dict(layers=4, width=256, heads=4, feed_forward=1024),
    "bert-tiny": _preset(BERT, 2, 128, 2),
    "bert-mini": _preset(BERT, 4, 256, 4),
    "bert-small": _preset(BERT, 4, 512, 8),
    "bert-medium": _preset(BERT, 8, 512, 8),
    "bert-base": _preset(BERT, 12, 768, 12),
    "bert-large": _preset(BERT, 24, 1024, 16),
}
DECODERS = {
    "tiny": dict(layers=2, width=128, heads=4, feed_forward=512),
    "small": dict(layers=6, width=384, heads=6, feed_forward=1536),
    "gpt": _preset(GPT, 12, 768, 12, norm_first=False, max_length=512),
    "gpt2": _preset(GPT, 12, 768, 12),
    "gpt2-medium": _preset(GPT, 24, 1024, 16),
    "gpt2-large": _preset(GPT, 36, 1280, 20),
    "gpt2-xl": _preset(GPT, 48, 1600, 25),
    **{
        f"gpt3-{name}": _preset(GPT, layers, width, heads, key_width=key_width, max_length=2048, window=256)
        for name, layers, width, heads, key_width in [
            ("125m", 12, 768, 12, 64),
            ("350m", 24, 1024, 16, 64),
            ("760m", 24, 1536, 16, 96),
            ("1.3b", 24, 2048, 16, 128),
            ("2.7b", 32, 2560, 32, 80),
            ("6.7b", 32, 4096, 32, 128),
            ("13b", 40, 5140, 40, 128),
            ("175b", 96, 12288, 96, 128),
        ]
    },
}
"""Radford et al. 2018 and 2019; Brown et al. 2020, table 2.1, whose window of the local layers is not published, and whose 24
heads of 128 for 1.3b are more than its width and its stated size allow: 16 here."""


class StackSettings(TextBlockSettings):
    """Settings of a stack that reads one text."""

    layers: Layers = 6
    activation: Literal["relu", "gelu", "quick_gelu", "gelu_tanh", "silu", "swiglu", "geglu", "geglu_exact"] = "gelu"
    norm_first: bool = True
    window: Count | None = None
    """Some layers attend only to this many positions, the own and those before it, in an encoder as many after it (banded
    attention, Child et al. 2019; GPT-3, Mistral, ModernBERT)."""
    window_layers: list[Annotated[int, Field(ge=0)]] | None = None
    """The layers with the window, counted from 0. Default: every other one, from the second (GPT-3)."""

    @model_validator(mode="after")
    def check_window_layers(self) -> Self:
        if self.window_layers is not None and self.window is None:
            raise ValueError("model.window_layers needs model.window, the width of the window")
        if self.window_layers and max(self.window_layers) >= self.layers:
            raise ValueError(f"model.window_layers names layer {max(self.window_layers)}; layers are 0 to {self.layers - 1}")
        return self

    @property
    def windows(self) -> list[int | None]:
        """The window of each layer."""
        windowed = range(1, self.layers, 2) if self.window_layers is None else self.window_layers
        return [self.window if number in windowed else None for number in range(self.layers)]

    @model_validator(mode="after")
    def check_offset(self) -> Self:
        if self.positions.random_offset:
            raise ValueError("model.positions.random_offset: only models that translate have random offsets; set it to 0")
        return self


class EncoderModel(StackSettings):
    """A Transformer encoder such as BERT (Devlin et al. 2019). Any field of a preset may be overridden."""

    kind: Literal["transformer"]
    preset: Literal["tiny", "small", "bert-tiny", "bert-mini", "bert-small", "bert-medium", "bert-base", "bert-large"] | None = (
        None
    )
    segments: Natural = 0
    """Segment embeddings, for the first and the second text of a pair; 0 is none."""
    embedding_norm: bool = False
    """Normalise the sum of the embeddings."""
    convolution: Natural = 0
    """Kernel size, an odd number, of a convolution before the stack: neighbouring words such as "not good" are combined from the
    first layer on (after Johnson & Zhang 2015); 0 is none."""
    embedding_width: Size | None = None
    """Width of the embeddings, which a layer projects to `width` (ALBERT, ELECTRA). Default: `width`, without that layer."""
    share_layers: bool = False
    """All layers share their weights (ALBERT, Lan et al. 2020)."""
    head_activation: Literal["relu", "gelu", "quick_gelu", "gelu_tanh", "silu"] = "gelu"
    """Activation before the prediction of masked words."""
    head_bias: bool = True
    """Bias of the layer before the prediction of masked words."""
    head_transform: bool = False
    """That layer, its activation and a norm also before labels, tags and spans (ModernBERT)."""
    first_norm: bool = True
    """With `norm_first`, normalise the input of the first layer; false where the embeddings are normalised (ModernBERT)."""
    pool: Literal["first", "first_relu", "first_gelu", "first_token", "mean", "max"] = "mean"
    """What the text's vector comes from: its first token through a layer with tanh (BERT), ReLU (DistilBERT) or GELU (ELECTRA),
    its first token as it is (ModernBERT), the mean of all tokens, or their maximum."""

    @model_validator(mode="before")
    @classmethod
    def fill_from_preset(cls, given: object) -> object:
        return with_preset(given, ENCODERS)

    @model_validator(mode="after")
    def check_convolution(self) -> Self:
        if self.convolution and self.convolution % 2 == 0:
            raise ValueError(f"model.convolution = {self.convolution}: use an odd number, or 0 for none")
        return self


class EncoderClassifierModel(EncoderModel):
    """A Transformer encoder that predicts a label or a number of a text, or of a pair of texts."""

    pairs: Literal["cross-encoder", "bi-encoder", "cosine"] = "cross-encoder"
    """How a pair is read. `cross-encoder`: as one text, in which each attends to the other. `bi-encoder`: each text alone; the
    output reads both vectors and their absolute difference (Reimers & Gurevych 2019). `cosine`: each alone; the output reads only
    the cosine of both vectors, for few pairs and an encoder that was trained to embed single texts."""

    @model_validator(mode="after")
    def check_pairs(self) -> Self:
        if self.reads_texts_alone and self.pool not in ("mean", "max"):
            raise ValueError(f"model.pool = {self.pool!r}: with model.pairs = {self.pairs!r} use 'mean' or 'max'")
        if self.reads_texts_alone and self.convolution:
            raise ValueError(f"model.convolution would mix the texts of a pair: with model.pairs = {self.pairs!r} set it to 0")
        return self

    @property
    def reads_texts_alone(self) -> bool:
        """Whether neither text of a pair attends to the other."""
        return self.pairs != "cross-encoder"


class DecoderModel(StackSettings):
    """A Transformer decoder such as GPT (Radford et al. 2018, 2019; Brown et al. 2020). Any field of a preset may be
    overridden."""

    kind: Literal["transformer"]
    preset: (
        Literal[
            "tiny",
            "small",
            "gpt",
            "gpt2",
            "gpt2-medium",
            "gpt2-large",
            "gpt2-xl",
            "gpt3-125m",
            "gpt3-350m",
            "gpt3-760m",
            "gpt3-1.3b",
            "gpt3-2.7b",
            "gpt3-6.7b",
            "gpt3-13b",
            "gpt3-175b",
        ]
        | None
    ) = None
    tie: bool = True
    """Tie the weights of embedding and output."""
    scale_embedding: bool = False
    """Multiply embeddings by √width (Gemma)."""
    logit_cap: Positive | None = None
    """Keep logits x within ± this number c, by c · tanh(x / c) (Gemma 2)."""

    @model_validator(mode="before")
    @classmethod
    def fill_from_preset(cls, given: object) -> object:
        return with_preset(given, DECODERS)


class WordVectors(Settings):
    """Pre-computed word vectors to initialise the embedding: a text file (word2vec, GloVe), a word and its numbers per line."""

    file: str
    """Relative to data.root; plain, .gz or .xz."""
    frozen: bool = False
    """Freeze them."""


class ContextualFeatures(Settings):
    """Read the frozen contextual embeddings of another run instead of word embeddings: CoVe from a translator's encoder, ELMo
    from a bidirectional language model or a tagger. The other run's tokenizer is used, and the run is copied into this one."""

    run: str
    """A run folder."""
    layer: int | Literal["mix", "random"] = "mix"
    """One layer (0 is its word embeddings), or all layers mixed with learned scalars (Peters et al. 2018, eq. 1). For
    comparison, `random` vectors as wide as layer 0 instead, one for each token."""
    layer_norm: bool = False
    """Normalise every layer before they are mixed (Peters et al. 2018, sec. 3.2)."""
    mix_decay: NonNegative = 0.0
    """Weight λ of the L2 penalty on the scalars of the mix; 1 nearly gives the mean of the layers (sec. 3.2). Without it, few
    labelled examples are soon known by heart from their words, and the mix forgets the upper layers."""


class RecurrentStackSettings(RecurrentSettings):
    layers: Layers = 1
    attention: Score = "none"
    attention_width: Size | None = None
    """Width of the additive score. Default: `width`."""
    vectors: WordVectors | None = None


class RecurrentEncoderModel(RecurrentStackSettings):
    """A recurrent encoder, with one output per text or per word."""

    kind: Literal["recurrent"] = "recurrent"
    layers: Annotated[int, Field(ge=0, le=1000)] = 1
    """0 is a linear model of the inputs: a classifier reads their mean, a tagger each of them (a probe of `features`)."""
    bidirectional: bool = True
    attention: Score = "none"
    """Without attention a classifier uses the last state; with it, the last state attends to all states. A tagger adds to each
    state what it attends to in the others."""
    embedding_width: Size | None = None
    """Default: `width`; with `features`, none: learned embeddings of this width are concatenated with them."""
    features: ContextualFeatures | None = None

    @model_validator(mode="after")
    def check_width(self) -> "RecurrentEncoderModel":
        if self.bidirectional and self.width % 2:
            raise ValueError(
                f"width {self.width} is not even: two directions share it; use {self.width + 1}, or bidirectional = false"
            )
        if self.features and self.vectors:
            raise ValueError("give model.features or model.vectors, not both: features replace the word embeddings")
        return self


class RecurrentDecoderModel(RecurrentStackSettings):
    """A recurrent language model."""

    kind: Literal["recurrent"] = "recurrent"
    attention: Score = "none"
    """Attention over its own earlier states."""
    tie: bool = False
    """Tie the weights of embedding and output; where `embedding_width` is not `width`, a linear layer projects the states to it
    (Melis et al. 2018)."""


class ElmoModel(RecurrentSettings):
    """ELMo (Peters et al. 2018): a forward and a backward language model, whose states are contextual embeddings. With
    tokens.kind = "characters" it reads characters, else words or sub-words."""

    kind: Literal["elmo"]
    layers: Layers = 2
    width: int = Field(512, ge=2, multiple_of=2)
    """Width of both directions together."""
    embedding_width: Size | None = None
    """Default: half the `width`."""
    vectors: WordVectors | None = None


LanguageModel = Annotated[
    Annotated[DecoderModel, Tag("transformer")]
    | Annotated[RecurrentDecoderModel, Tag("recurrent")]
    | Annotated[ElmoModel, Tag("elmo")],
    discriminate_by_kind("recurrent", "transformer, recurrent or elmo"),
]

TextClassifierModel = Annotated[
    Annotated[EncoderClassifierModel, Tag("transformer")] | Annotated[RecurrentEncoderModel, Tag("recurrent")],
    discriminate_by_kind("recurrent", "transformer or recurrent, or vit to classify images"),
]

TextEncoderModel = Annotated[
    Annotated[EncoderModel, Tag("transformer")] | Annotated[RecurrentEncoderModel, Tag("recurrent")],
    discriminate_by_kind("recurrent", "transformer or recurrent"),
]
