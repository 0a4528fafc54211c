"""Recurrent classifier (many to one) and tagger (many to many), with or without self-attention over their states.

Their inputs are token embeddings, or contextual vectors of another model (CoVe, McCann et al. 2017; ELMo, Peters et al. 2018).
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.attention.masks import Mask
from regard.attention.scores import SingleHeadAttention
from regard.layers.block import embedding_dropout
from regard.layers.recurrent import RecurrentLayers

if TYPE_CHECKING:
    from regard.recipe import RecurrentEncoderModel, Regularization


class RandomVectors(nn.Module):
    """A frozen random vector for each token, with the interface of a model whose only layer is its embedding."""

    def __init__(self, vocabulary: int, width: int):
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, width)

    def hidden_states(self, source: Tensor, lengths: Tensor) -> list[Tensor]:
        return [self.token_embedding(source)]


class ContextualEmbedding(nn.Module):
    """The frozen contextual vectors of another model: one layer, or γ Σ_j s_j h_j over all of them, with s_j a softmax of learned
    scalars and γ learned (Peters et al. 2018, eq. 1). Narrower layers are padded with zeros. With `layer_norm`, every layer is
    normalised first (sec. 3.2), so that none outweighs the others by its scale. `mix_decay` λ adds the gradient of λ‖w‖² of the
    scalars w, which pulls the mix towards the mean of the layers (sec. 3.2)."""

    def __init__(self, model: Any, layer: int | str, widths: list[int], *, layer_norm: bool = False, mix_decay: float = 0.0):
        super().__init__()
        self.model, self.layer, self.layer_norm = model.requires_grad_(False), layer, layer_norm
        self.width = max(widths) if layer == "mix" else widths[int(layer)]
        if layer == "mix":
            self.scalars = nn.Parameter(torch.zeros(len(widths)))
            self.gamma = nn.Parameter(torch.ones(()))
            if mix_decay:
                self.scalars.register_hook(lambda gradient: gradient + 2 * mix_decay * self.scalars.detach())

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        self.model.eval()  # frozen, without dropout
        with torch.no_grad():
            layers = self.model.hidden_states(source, lengths)
            if self.layer_norm:
                layers = [nn.functional.layer_norm(x, x.shape[-1:]) for x in layers]
        if self.layer != "mix":
            return layers[int(self.layer)]
        wide = torch.stack([nn.functional.pad(x, (0, self.width - x.size(-1))) for x in layers], dim=-1)  # (B, S, D, L)
        weights = (self.scalars - self.scalars.logsumexp(0)).exp()
        return self.gamma * (wide @ weights)


class RecurrentTextEncoder(nn.Module):
    """Ids (B, S) -> states (B, S, H), and the last states of both directions (B, H); without layers, inputs and their mean."""

    def __init__(
        self,
        settings: "RecurrentEncoderModel",
        vocabulary: int,
        regularize: "Regularization | None" = None,
        features: ContextualEmbedding | None = None,
    ):
        super().__init__()
        width = settings.embedding_width or (settings.width if features is None else 0)
        self.features = features
        self.embedding = nn.Embedding(vocabulary, width) if width else None
        self.dropout = embedding_dropout(regularize)
        self.width = inputs = width + (0 if features is None else features.width)
        self.cells = None
        if settings.layers:
            self.width = settings.width
            self.cells = RecurrentLayers(
                settings.cell,
                inputs,
                settings.width,
                settings.layers,
                bidirectional=settings.bidirectional,
                dropout=regularize.dropout if regularize else 0.0,
            )

    def embed(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Return the inputs (B, S, D): contextual vectors, learned embeddings, or both."""
        parts = [] if self.features is None else [self.features(source, lengths)]
        parts += [] if self.embedding is None else [self.embedding(source)]
        return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]

    def hidden_states(self, source: Tensor, lengths: Tensor) -> list[Tensor]:
        """Return the embeddings, then the states of each layer: (B, S, ·) each."""
        x = self.embed(source, lengths)
        return [x] if self.cells is None else [x, *self.cells.encode(x, lengths)[0]]

    def forward(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x = self.dropout(self.embed(source, lengths))
        if self.cells is None:
            inside = torch.arange(x.size(1), device=x.device) < lengths[:, None]  # (B, S)
            return x, (x * inside[..., None]).sum(1) / lengths.clamp(min=1)[:, None]
        (*_, states), last = self.cells.encode(x, lengths)
        return states, last.hidden[:, -1]


class RecurrentTextModel(nn.Module):
    """An encoder, self-attention over its states, and an output layer."""

    def __init__(
        self,
        settings: "RecurrentEncoderModel",
        vocabulary: int,
        labels: int,
        regularize: "Regularization | None" = None,
        features: ContextualEmbedding | None = None,
    ):
        super().__init__()
        self.reader = RecurrentTextEncoder(settings, vocabulary, regularize, features)
        self.self_attention = None
        if settings.attention != "none":
            self.self_attention = SingleHeadAttention(
                settings.attention, self.reader.width, self.reader.width, settings.attention_width
            )
        self.dropout = nn.Dropout(regularize.dropout if regularize else 0.0)
        self.output = nn.Linear(self.reader.width * (1 if self.self_attention is None else 2), labels)

    @property
    def token_embedding(self) -> nn.Embedding | None:
        """The embedding table, None where the inputs are contextual vectors or have some."""
        return self.reader.embedding if self.reader.features is None else None

    def hidden_states(self, source: Tensor, lengths: Tensor) -> list[Tensor]:
        return self.reader.hidden_states(source, lengths)

    def with_context(self, queries: Tensor, states: Tensor, lengths: Tensor) -> Tensor:
        """Return queries (B, T, H), concatenated with their context from the states (B, S, H) if there is attention."""
        if self.self_attention is None:
            return queries
        context = self.self_attention(queries, *self.self_attention.project_kv(states), mask=Mask(lengths=lengths))
        return torch.cat([queries, context], dim=-1)


class RecurrentClassifier(RecurrentTextModel):
    """A classifier on the last states."""

    once_per_example = ("output", "self_attention", "self_attention.q_proj")

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Return the logits (B, C) of the labels of each text."""
        states, last = self.reader(source, lengths)
        return self.output(self.dropout(self.with_context(last[:, None], states, lengths)[:, 0]))


class RecurrentTagger(RecurrentTextModel):
    """A tagger on the states of every token."""

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Return the logits (B, S, C) of the labels of each token."""
        states, _ = self.reader(source, lengths)
        return self.output(self.dropout(self.with_context(states, states, lengths)))
