"""Show, attend and tell (Xu et al. 2015): a picture is read as a map of vectors, and told in words that each look at the map.

Deviations: the LSTM begins from one layer with tanh over the mean of the map, not from an MLP; the encoder is a small network of
its own, a Vision Transformer or EfficientNet-Lite0, not VGG. When hard attention is not trained, it looks at the likeliest place.
The other decoder is the Transformer's (Vaswani et al. 2017) over the same map.
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
from regard.models.image_encoders import build_image_encoder
from regard.models.transformer import init_xavier

if TYPE_CHECKING:
    from regard.batches.batch import Batch
    from regard.recipe import Regularization
    from regard.recipe.captioner import CaptionModel, LstmDecoderModel

BASELINE_DECAY = 0.9
"""Of the baseline: b ← 0.9 b + 0.1 log p (sec. 4.1)."""


class Captioner(nn.Module):
    """Reads pixels (B, 3, H, W) and a caption so far (B, T); says the next word."""

    def __init__(self, settings: "CaptionModel", size: tuple[int, int], regularize: "Regularization | None" = None):
        super().__init__()
        self.settings = settings
        self.grid = settings.encoder.grid(size)
        self.encoder = build_image_encoder(settings.encoder, size, regularize)

    def image_features(self, pixels: Tensor) -> Tensor:
        """The map of each picture: (B, S, D)."""
        return self.encoder(pixels)[:, self.settings.encoder.num_prefix_tokens :]


class LstmCaptioner(Captioner):
    """ẑ_t = β_t Σ_i α_ti a_i;  h_t = LSTM(h_{t-1}, y_{t-1}, ẑ_t);  p(y_t) ∝ exp L(E y_{t-1} + L_h h_t + L_z ẑ_t)   (eq. 7)"""

    once_per_example = ("bridge",)

    def __init__(
        self, settings: "CaptionModel", size: tuple[int, int], vocabulary: int, regularize: "Regularization | None" = None
    ):
        super().__init__(settings, size, regularize)
        told, width = settings.decoder, settings.encoder.width
        assert told.kind == "lstm"
        self.told = told
        embedding = told.embedding_width or told.width
        self.token_embedding = nn.Embedding(vocabulary, embedding)
        self.decoder = AttentiveLstm(told, width, embedding, regularize.dropout if regularize else 0.0)
        self.dropout = nn.Dropout(regularize.dropout if regularize else 0.0)
        self.bridge = nn.Linear(width, 2 * told.layers * told.width)
        self.output = nn.Linear(embedding, vocabulary)
        self.hard = told.attention == "hard"
        if self.hard:
            self.baseline: Tensor
            self.register_buffer("baseline", torch.zeros(()))
        self.said: Tensor | None = None

    def show(self, pixels: Tensor) -> tuple[list[SourceKV], RecurrentState]:
        """What the decoder may look at, projected once, and the state it begins from."""
        places = self.image_features(pixels)
        begun = self.bridge(places.mean(1)).tanh().unflatten(1, (2, self.told.layers, -1))  # (B, 2, L, H)
        return [SourceKV(*self.decoder.cross_attention.project_kv(places))], RecurrentState(begun[:, 0], begun[:, 1])

    def forward(self, pixels: Tensor, target: Tensor) -> Tensor:
        """The logits (B, T, V) of the word after each target position, given all before it."""
        sources, carry = self.show(pixels)
        self.decoder.place.begin(len(target), target.device)
        features, _ = self.decoder(self.dropout(self.token_embedding(target)), carry, sources)
        logits = self.output(self.dropout(features))
        self.said = logits if self.training and self.hard else None
        return logits

    def auxiliary_loss(self, batch: "Batch") -> Tensor:
        """What the last forward pass is asked for besides its words, summed over the batch."""
        place = self.decoder.place
        if not place.seen:
            return torch.zeros((), device=batch.labels.device)
        passes = len(place.seen[0]) // len(batch.labels)  # two under R-Drop
        labels = batch.labels.repeat(passes, 1)
        return (self.reinforced(place, labels) if isinstance(place, HardAttention) else self.uneven(place, labels)) / passes

    def uneven(self, place: SoftAttention, labels: Tensor) -> Tensor:
        """λ Σ_i (1 - Σ_t α_ti)², over the words that are said (eq. 14)."""
        looked = place.weights()[:, 0] * (labels >= 0)[..., None]  # (B, T, S)
        return self.told.doubly_stochastic_weight * (1 - looked.sum(1)).square().sum()

    def reinforced(self, place: HardAttention, labels: Tensor) -> Tensor:
        """-λ_r (log p(y) - b) log p(s) - λ_e H(s), whose gradient, with that of -log p(y), is on average the one of eq. 11; the
        baseline b, a moving average, makes it vary less (eq. 12)."""
        assert self.said is not None
        told, spoken = self.told, labels >= 0
        surprise = F.cross_entropy(self.said.detach().float().transpose(1, 2), labels, ignore_index=-1, reduction="none")
        reward = -surprise.sum(1)  # (B,) log p of each caption
        better = (reward - self.baseline)[:, None]
        loss = -(told.reinforce_weight * better * place.chances()[:, 0] + told.entropy_weight * place.entropy()[:, 0])
        with torch.no_grad():
            self.baseline.lerp_(reward.mean().to(self.baseline), 1 - BASELINE_DECAY)
        return torch.where(spoken, loss, 0.0).sum()

    def start(self, inputs: Tensor, prefix: Tensor | None = None, capacity: int = 32) -> DecoderState:
        """Read the pictures, and tokens (B, P) already written, short ones filled with -1 on the left."""
        sources, carry = self.show(inputs)
        for token in () if prefix is None else prefix.unbind(1):
            _, after = self.decoder(self.token_embedding(token.clamp(min=0))[:, None], carry, sources)
            carry = after.where(token >= 0, carry)
        return DecoderState(len(inputs), sources, [carry])

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read the next tokens (hypotheses, T); the logits (hypotheses, T, V) after each of them."""
        features, carry = self.decoder(self.token_embedding(tokens), state.caches[0], state.sources)
        return self.output(features), replace(state, caches=[carry])


class AttentiveLstm(nn.Module):
    """Embeddings (rows, T, E) of the words read -> features (rows, T, E) for the words to say."""

    def __init__(self, settings: "LstmDecoderModel", source_width: int, embedding: int, dropout: float):
        super().__init__()
        width, place = settings.width, HardAttention if settings.attention == "hard" else SoftAttention
        self.asks_with_word = settings.query_with_word
        self.cross_attention = SingleHeadAttention(
            "additive", width + embedding * settings.query_with_word, source_width, settings.attention_width or width, place
        )
        if isinstance(self.place, HardAttention):
            self.place.expected = settings.soft_probability
        self.gate = nn.Linear(width, 1) if settings.gate else None
        self.cells = RecurrentLayers("lstm", embedding + source_width, width, settings.layers, dropout=dropout)
        self.from_state = nn.Linear(width, embedding)
        self.from_seen = nn.Linear(source_width, embedding, bias=False)

    @property
    def place(self) -> SoftAttention:
        """Where it looks from."""
        place = self.cross_attention.attend
        assert isinstance(place, SoftAttention)
        return place

    def look(self, state: Tensor, y: Tensor, sources: list[SourceKV]) -> Tensor:
        """What states (rows, 1, H) see after a word (rows, 1, E); the hypotheses of one picture ask the same keys together."""
        (source,) = sources
        asked = torch.cat([state, y], dim=-1) if self.asks_with_word else state
        shared = asked.reshape(source.keys.size(0), -1, asked.size(-1))
        seen = self.cross_attention(shared, source.keys, source.values, mask=source.mask).reshape(*state.shape[:-1], -1)
        return seen if self.gate is None else self.gate(state).sigmoid() * seen  # sec. 4.2.1

    def forward(self, x: Tensor, carry: RecurrentState, sources: list[SourceKV]) -> tuple[Tensor, RecurrentState]:
        features = []
        for y in x.split(1, dim=1):  # (rows, 1, E)
            seen = self.look(carry.hidden[:, -1:], y, sources)
            state, carry = self.cells(torch.cat([y, seen], dim=-1), carry)
            features.append(y + self.from_state(state) + self.from_seen(seen))
        return torch.cat(features, dim=1), carry


class TransformerCaptioner(Captioner):
    def __init__(
        self, settings: "CaptionModel", size: tuple[int, int], vocabulary: int, regularize: "Regularization | None" = None
    ):
        super().__init__(settings, size, regularize)
        told = settings.decoder
        assert told.kind == "transformer"
        shape = block_config(told, regularize)
        assert shape.key_width is not None
        positions = build_positions(
            told.positions,
            width=told.width,
            heads=told.heads,
            key_width=shape.key_width,
            max_length=settings.max_length + 1,
            causal=True,
        )
        self.token_embedding = TokenEmbedding(vocabulary, told.width)
        self.decoder = Stack(
            shape, told.layers, positions, source_width=settings.encoder.width, embedding_dropout=embedding_dropout(regularize)
        )
        self.output = nn.Linear(told.width, vocabulary, bias=False)
        init_xavier(self.decoder)
        if told.tie:
            self.output.weight = self.token_embedding.table.weight

    def show(self, pixels: Tensor) -> list[SourceKV]:
        """What each decoder layer may look at, projected once."""
        places = self.image_features(pixels)
        return [block.project_source(places) for block in self.decoder.layers()]

    def forward(self, pixels: Tensor, target: Tensor) -> Tensor:
        """The logits (B, T, V) of the word after each target position, given all before it."""
        return self.output(self.decoder(self.token_embedding(target), mask=Mask(causal=True), sources=self.show(pixels)))

    def start(self, inputs: Tensor, prefix: Tensor | None = None, capacity: int = 32) -> DecoderState:
        """Read the pictures, and tokens (B, P) already written, short ones filled with -1 on the left."""
        return prefill(self.hidden, len(inputs), self.show(inputs), len(self.decoder.blocks), prefix, capacity)

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read the next tokens (hypotheses, T); the logits (hypotheses, T, V) after each of them."""
        return self.output(self.hidden(tokens, state)), state

    def hidden(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Read the next tokens; the vectors (hypotheses, T, D) that what comes after them is said from."""
        mask = Mask(causal=True, starts=state.starts)
        return self.decoder(self.token_embedding(tokens), mask=mask, caches=state.caches, sources=state.sources)
