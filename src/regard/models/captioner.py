"""Show, attend and tell (Xu et al. 2015): an image becomes a map of feature vectors, and each word of its caption attends to it.

Deviations: the LSTM starts from one tanh layer over the mean of the map, not from an MLP; the encoder is a small CNN, a Vision
Transformer or EfficientNet-Lite0, not VGG. In evaluation, hard attention looks at the most likely position. The other decoder is
the Transformer's (Vaswani et al. 2017) over the same map.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.hard_attention import HardAttention, SoftAttention
from regard.attention.masks import Mask
from regard.attention.positions import build_positions
from regard.attention.scores import SingleHeadAttention
from regard.layers.block import SourceKV, block_config, embedding_dropout
from regard.layers.embedding import TokenEmbedding
from regard.layers.recurrent import RecurrentLayers, RecurrentState
from regard.layers.stack import Stack
from regard.layers.state import DecoderState, prefill
from regard.models.cnn import ImageFeatureMap
from regard.models.efficientnet import EfficientNetFeatureMap
from regard.models.image_encoders import build_image_encoder
from regard.models.transformer import init_xavier

if TYPE_CHECKING:
    from regard.batches.batch import Batch
    from regard.recipe.image_models import CaptionModel, LstmDecoderModel
    from regard.recipe.images import CaptionRegularization

BASELINE_DECAY = 0.9
"""Of the reward baseline: b ← 0.9 b + 0.1 log p (sec. 4.1)."""


class Captioner(nn.Module):
    """A decoder of captions (B, T) over the feature map of images (B, 3, H, W); subclasses add the decoder.

    In place of pixels all of its methods take what `feature_map` gives for them, (B, S, D): a frozen encoder need run only once.
    """

    output: nn.Linear

    def __init__(self, settings: "CaptionModel", size: tuple[int, int], regularize: "CaptionRegularization | None" = None):
        super().__init__()
        self.settings = settings
        self.grid = settings.encoder.grid(size)
        self.encoder = build_image_encoder(settings.encoder, size, regularize)
        self.feature_dropout = nn.Dropout1d(regularize.feature_dropout if regularize else 0.0)

    def adapt_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of another model for this one, whose image encoder may end earlier."""
        encoder = self.encoder
        return encoder.adapt_weights(weights, "encoder") if isinstance(encoder, EfficientNetFeatureMap) else weights

    def feature_map(self, pixels: Tensor) -> Tensor:
        """Return what the image encoder computes, but for the positions that a convolutional one adds at the end: (B, S, D)."""
        if isinstance(self.encoder, ImageFeatureMap):
            return self.encoder.feature_map(pixels)
        return self.encoder(pixels)[:, self.settings.encoder.prefix_tokens :]

    def feature_map_modules(self) -> list[nn.Module]:
        """Return the modules that `feature_map` computes with."""
        if isinstance(self.encoder, ImageFeatureMap):
            return [part for part in self.encoder.children() if part is not self.encoder.positions]
        return [self.encoder]

    def image_features(self, pixels: Tensor) -> Tensor:
        """Return the vectors (B, S, D) to attend to, of pixels (B, 3, H, W) or of their `feature_map` (B, S, D)."""
        x = self.feature_map(pixels) if pixels.dim() == 4 else pixels.to(self.output.weight.dtype)
        x = self.encoder.add_positions(x) if isinstance(self.encoder, ImageFeatureMap) else x
        return self.feature_dropout(x.transpose(1, 2)).transpose(1, 2)


class LstmCaptioner(Captioner):
    """ẑ_t = β_t Σ_i α_ti a_i;  h_t = LSTM(h_{t-1}, y_{t-1}, ẑ_t);  p(y_t) ∝ exp L(E y_{t-1} + L_h h_t + L_z ẑ_t)   (eq. 7)"""

    once_per_example = ("bridge",)

    def __init__(
        self, settings: "CaptionModel", size: tuple[int, int], vocabulary: int, regularize: "CaptionRegularization | None" = None
    ):
        super().__init__(settings, size, regularize)
        decoder, width = settings.decoder, settings.encoder.width
        assert decoder.kind == "lstm"
        self.decoder_settings = decoder
        embedding = decoder.embedding_width or decoder.width
        self.token_embedding = nn.Embedding(vocabulary, embedding)
        self.decoder = AttentiveLstm(decoder, width, embedding, regularize.dropout if regularize else 0.0)
        self.dropout = nn.Dropout(regularize.dropout if regularize else 0.0)
        self.bridge = nn.Linear(width, 2 * decoder.layers * decoder.width)
        self.output = nn.Linear(embedding, vocabulary)
        self.hard = decoder.attention == "hard"
        if self.hard:
            self.baseline: Tensor
            self.register_buffer("baseline", torch.zeros(()))
        self.last_logits: Tensor | None = None

    def encode(self, pixels: Tensor) -> tuple[list[SourceKV], RecurrentState]:
        """Return the keys and values of the image, projected once, and the decoder's first state."""
        features = self.image_features(pixels)
        first = self.bridge(features.mean(1)).tanh().unflatten(1, (2, self.decoder_settings.layers, -1))  # (B, 2, L, H)
        return [SourceKV(*self.decoder.cross_attention.project_kv(features))], RecurrentState(first[:, 0], first[:, 1])

    def forward(self, pixels: Tensor, target: Tensor) -> Tensor:
        """Return the logits (B, T, V) of the token after each target position."""
        sources, state = self.encode(pixels)
        self.decoder.attention.reset(len(target), target.device)
        features, _ = self.decoder(self.dropout(self.token_embedding(target)), state, sources)
        logits = self.output(self.dropout(features))
        self.last_logits = logits if self.training and self.hard else None
        return logits

    def auxiliary_loss(self, batch: "Batch") -> Tensor:
        """Return the loss on the attention of the last forward pass, summed over the batch."""
        attention = self.decoder.attention
        if not attention.step_weights:
            return torch.zeros((), device=batch.labels.device)
        passes = len(attention.step_weights[0]) // len(batch.labels)  # two under R-Drop
        labels = batch.labels.repeat(passes, 1)
        if isinstance(attention, HardAttention):
            return self._reinforce_loss(attention, labels) / passes
        return self._doubly_stochastic_loss(attention, labels) / passes

    def _doubly_stochastic_loss(self, attention: SoftAttention, labels: Tensor) -> Tensor:
        """Return λ Σ_i (1 - Σ_t α_ti)², over the labelled tokens (eq. 14)."""
        weights = attention.weights()[:, 0] * (labels >= 0)[..., None]  # (B, T, S)
        return self.decoder_settings.doubly_stochastic_weight * (1 - weights.sum(1)).square().sum()

    def _reinforce_loss(self, attention: HardAttention, labels: Tensor) -> Tensor:
        """Return -λ_r (log p(y) - b) log p(s) - λ_e H(s), whose gradient, with that of -log p(y), is in expectation eq. 11; the
        moving-average baseline b reduces its variance (eq. 12)."""
        assert self.last_logits is not None
        settings = self.decoder_settings
        logits = self.last_logits.detach().float().transpose(1, 2)
        log_likelihood = -F.cross_entropy(logits, labels, ignore_index=-1, reduction="none").sum(1)  # (B,)
        advantage = (log_likelihood - self.baseline)[:, None]
        policy, entropy = attention.log_probs()[:, 0], attention.entropy()[:, 0]
        loss = -(settings.reinforce_weight * advantage * policy + settings.entropy_weight * entropy)
        with torch.no_grad():
            self.baseline.lerp_(log_likelihood.mean().to(self.baseline), 1 - BASELINE_DECAY)
        return torch.where(labels >= 0, loss, 0.0).sum()

    def start(self, inputs: Tensor, prefix: Tensor | None = None, capacity: int = 32) -> DecoderState:
        """Encode the images and read a prefix (B, P), short rows padded with -1 on the left."""
        sources, state = self.encode(inputs)
        for token in () if prefix is None else prefix.unbind(1):
            _, after = self.decoder(self.token_embedding(token.clamp(min=0))[:, None], state, sources)
            state = after.where(token >= 0, state)
        return DecoderState(len(inputs), sources, [state])

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read the next tokens (hypotheses, T); return the logits (hypotheses, T, V) after each."""
        features, after = self.decoder(self.token_embedding(tokens), state.caches[0], state.sources)
        return self.output(features), replace(state, caches=[after])


class AttentiveLstm(nn.Module):
    """Embeddings (rows, T, E) of the tokens read -> features (rows, T, E) of the next tokens."""

    def __init__(self, settings: "LstmDecoderModel", source_width: int, embedding: int, dropout: float):
        super().__init__()
        width = settings.width
        self.query_with_word = settings.query_with_word
        self.cross_attention = SingleHeadAttention(
            "additive",
            width + embedding * settings.query_with_word,
            source_width,
            settings.attention_width or width,
            HardAttention if settings.attention == "hard" else SoftAttention,
        )
        if isinstance(self.attention, HardAttention):
            self.attention.soft_probability = settings.soft_probability
        self.gate = nn.Linear(width, 1) if settings.gate else None
        self.cells = RecurrentLayers("lstm", embedding + source_width, width, settings.layers, dropout=dropout)
        self.from_state = nn.Linear(width, embedding)
        self.from_context = nn.Linear(source_width, embedding, bias=False)

    @property
    def attention(self) -> SoftAttention:
        attention = self.cross_attention.attend
        assert isinstance(attention, SoftAttention)
        return attention

    def context(self, state: Tensor, y: Tensor, sources: list[SourceKV]) -> Tensor:
        """Return the context of states (rows, 1, H) after a token (rows, 1, E); the hypotheses of one image share its keys."""
        (source,) = sources
        query = torch.cat([state, y], dim=-1) if self.query_with_word else state
        queries = query.reshape(source.keys.size(0), -1, query.size(-1))
        context = self.cross_attention(queries, source.keys, source.values, mask=source.mask).reshape(*state.shape[:-1], -1)
        return context if self.gate is None else self.gate(state).sigmoid() * context  # sec. 4.2.1

    def forward(self, x: Tensor, state: RecurrentState, sources: list[SourceKV]) -> tuple[Tensor, RecurrentState]:
        features = []
        for y in x.split(1, dim=1):  # (rows, 1, E)
            context = self.context(state.hidden[:, -1:], y, sources)
            output, state = self.cells(torch.cat([y, context], dim=-1), state)
            features.append(y + self.from_state(output) + self.from_context(context))
        return torch.cat(features, dim=1), state


class TransformerCaptioner(Captioner):
    """The decoder of the 2017 Transformer over the feature map."""

    def __init__(
        self, settings: "CaptionModel", size: tuple[int, int], vocabulary: int, regularize: "CaptionRegularization | None" = None
    ):
        super().__init__(settings, size, regularize)
        decoder = settings.decoder
        assert decoder.kind == "transformer"
        config = block_config(decoder, regularize)
        assert config.key_width is not None
        positions = build_positions(
            decoder.positions,
            width=decoder.width,
            heads=decoder.heads,
            key_width=config.key_width,
            max_length=settings.max_length + 1,
            causal=True,
        )
        self.token_embedding = TokenEmbedding(vocabulary, decoder.width)
        self.decoder = Stack(
            config,
            decoder.layers,
            positions,
            source_width=settings.encoder.width,
            embedding_dropout=embedding_dropout(regularize),
        )
        self.output = nn.Linear(decoder.width, vocabulary, bias=False)
        init_xavier(self.decoder)
        if decoder.tie:
            self.output.weight = self.token_embedding.table.weight

    def encode(self, pixels: Tensor) -> list[SourceKV]:
        """Return the keys and values of the image for each decoder layer, projected once."""
        features = self.image_features(pixels)
        return [block.project_source(features) for block in self.decoder.layers()]

    def forward(self, pixels: Tensor, target: Tensor) -> Tensor:
        """Return the logits (B, T, V) of the token after each target position."""
        return self.output(self.decoder(self.token_embedding(target), mask=Mask(causal=True), sources=self.encode(pixels)))

    def start(self, inputs: Tensor, prefix: Tensor | None = None, capacity: int = 32) -> DecoderState:
        """Encode the images and read a prefix (B, P), short rows padded with -1 on the left."""
        return prefill(self.step_features, len(inputs), self.encode(inputs), len(self.decoder.blocks), prefix, capacity)

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read the next tokens (hypotheses, T); return the logits (hypotheses, T, V) after each."""
        return self.output(self.step_features(tokens, state)), state

    def step_features(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Read the next tokens; return the decoder's output (hypotheses, T, D), without logits."""
        mask = Mask(causal=True, starts=state.starts)
        return self.decoder(self.token_embedding(tokens), mask=mask, caches=state.caches, sources=state.sources)
