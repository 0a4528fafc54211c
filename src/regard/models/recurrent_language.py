"""Recurrent language models (one to many): a forward one (Mikolov et al. 2010), with or without attention over its earlier
states; and ELMo, a forward and a backward one (Peters et al. 2018).

The forward one may be regularised as the AWD-LSTM (Merity et al. 2018). Deviations: all layers have one width, and a linear layer
projects the last one's states to the width of tied embeddings (Melis et al. 2018); every window starts from a zero state.

Deviations of ELMo: tokens are embedded directly, without convolutions over a word's characters; the two directions share
embedding and output as published; no residual connections between layers.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.kv_cache import KVCache
from regard.attention.masks import Mask
from regard.attention.scores import SingleHeadAttention
from regard.layers.recurrent import RecurrentLayers, VariationalDropout, reverse_sequences
from regard.layers.state import DecoderState, leading_padding

if TYPE_CHECKING:
    from regard.batches.batch import Batch
    from regard.recipe import ElmoModel, LanguageRegularization, RecurrentDecoderModel, Regularization


class RecurrentLanguageModel(nn.Module):
    """s_i = f(s_{i-1}, y_{i-1});  with attention, c_i = attend(s_i) over s_1 … s_i, and the output reads tanh(W [c_i; s_i])."""

    def __init__(self, settings: "RecurrentDecoderModel", vocabulary: int, regularize: "LanguageRegularization | None" = None):
        super().__init__()
        width, embedding = settings.width, settings.embedding_width or settings.width

        def rate(name: str) -> float:
            given: float | None = getattr(regularize, name, 0.0)
            return rate("dropout") if given is None else given

        dropout = VariationalDropout if regularize and regularize.variational_dropout else nn.Dropout
        self.word_dropout = rate("word_dropout")
        self.penalties = rate("activation_penalty"), rate("temporal_penalty")
        self._penalized: tuple[Tensor, Tensor] | None = None
        self.token_embedding = nn.Embedding(vocabulary, embedding)
        self.embedding_dropout = dropout(rate("embedding_dropout"))
        self.cells = RecurrentLayers(
            settings.cell,
            embedding,
            width,
            settings.layers,
            dropout=dropout(rate("dropout")),
            weight_dropout=rate("weight_dropout"),
        )
        self.self_attention = None
        if settings.attention != "none":
            self.self_attention = SingleHeadAttention(settings.attention, width, width, settings.attention_width)
            self.combine = nn.Linear(2 * width, width, bias=False)
        self.projection = nn.Linear(width, embedding, bias=False) if settings.tie and embedding != width else None
        self.output_dropout = dropout(rate("output_dropout"))
        self.output = nn.Linear(embedding if settings.tie else width, vocabulary)
        if settings.tie:
            nn.init.normal_(self.token_embedding.weight, std=embedding**-0.5)
            self.output.weight = self.token_embedding.weight

    def forward(self, target: Tensor) -> Tensor:
        """Return the logits (B, T, V) of the token after each position."""
        zeros = self.cells.zero_state(target.size(0), self.output.weight)
        states, _ = self.cells(self.embedding_dropout(self._embed(target)), zeros)
        features = self._features(states, None, Mask(causal=True))
        dropped = self.output_dropout(features)
        self._penalized = (dropped, features) if self.training and any(self.penalties) else None
        return self.output(dropped)

    def auxiliary_loss(self, batch: "Batch") -> Tensor:
        """Return α ‖m ⊙ h_t‖² + β ‖h_t - h_{t-1}‖² of the output layer's last inputs h with their dropout mask m, a mean over the
        width, summed over the labelled tokens (AR and TAR, Merity et al. 2017)."""
        if self._penalized is None:
            return torch.zeros((), device=batch.labels.device)
        dropped, features = (part.float() for part in self._penalized)  # (B, T, D) each
        passes = len(features) // len(batch.labels)  # two under R-Drop
        labelled = (batch.labels >= 0).repeat(passes, 1)  # (B, T)
        activation = (dropped.square().mean(-1) * labelled).sum()
        temporal = (features.diff(dim=1).square().mean(-1) * labelled[:, 1:]).sum()
        return (self.penalties[0] * activation + self.penalties[1] * temporal) / passes

    def _embed(self, target: Tensor) -> Tensor:
        """Return the embeddings (B, T, E); while training, those of dropped words are zero."""
        x = self.token_embedding(target)
        if not (self.training and self.word_dropout):
            return x
        return x * F.dropout(x.new_ones(self.token_embedding.num_embeddings, 1), self.word_dropout)[target]

    def _features(self, states: Tensor, cache: KVCache | None, mask: Mask) -> Tensor:
        """Return the inputs (rows, T, ·) of the output layer: states (rows, T, H), with attention combined with the context from
        earlier states, and projected to the width of tied embeddings if it differs."""
        x = states if self.self_attention is None else self._with_context(states, cache, mask)
        return x if self.projection is None else self.projection(self.cells.dropout(x))

    def _with_context(self, states: Tensor, cache: KVCache | None, mask: Mask) -> Tensor:
        """Return states (rows, T, H) combined with their context from earlier states."""
        assert self.self_attention is not None
        keys, values = self.self_attention.project_kv(states)
        if cache is not None:
            keys, values = cache.append(keys, values)
        return self.combine(torch.cat([self.self_attention(states, keys, values, mask=mask), states], dim=-1)).tanh()

    def hidden_states(self, source: Tensor, lengths: Tensor) -> list[Tensor]:
        """Return the embeddings, then the states of each layer, which depend on earlier tokens only: (B, S, D) each."""
        x = self.token_embedding(source)
        return [x, *self.cells.encode(x, lengths)[0]]

    def start(self, inputs: Any, prefix: Tensor, capacity: int = 32) -> DecoderState:
        """Read a prefix (B, P), short rows padded with -1 on the left; there is no other input."""
        recurrent = self.cells.zero_state(prefix.size(0), self.output.weight)
        state = DecoderState(
            prefix.size(0),
            [],
            [recurrent] if self.self_attention is None else [recurrent, KVCache(capacity)],
            leading_padding(prefix),
        )
        for token in prefix.unbind(1):
            before = state.caches[0]
            _, state = self.step_features(token.clamp(min=0)[:, None], state)
            state = replace(state, caches=[state.caches[0].where(token >= 0, before), *state.caches[1:]])
        return state

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read the next tokens (rows, T); return the logits (rows, T, V) after each."""
        features, state = self.step_features(tokens, state)
        return self.output(features), state

    def step_features(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read the next tokens; return the features (rows, T, D) of what follows them, without logits, and the new state."""
        recurrent, *caches = state.caches
        states, recurrent = self.cells(self.token_embedding(tokens), recurrent)
        features = self._features(states, caches[0] if caches else None, Mask(causal=True, starts=state.starts))
        return features, replace(state, caches=[recurrent, *caches])


class Elmo(nn.Module):
    """Predicts at every token the next one from those before it, and the previous one from those after it."""

    outputs_per_token = 2

    def __init__(self, settings: "ElmoModel", vocabulary: int, regularize: "Regularization | None" = None):
        super().__init__()
        half, embedding = settings.width // 2, settings.embedding_width or settings.width // 2
        dropout = regularize.dropout if regularize else 0.0
        self.token_embedding = nn.Embedding(vocabulary, embedding)
        self.dropout = nn.Dropout(dropout)
        self.forward_layers = RecurrentLayers(settings.cell, embedding, half, settings.layers, dropout=dropout)
        self.backward_layers = RecurrentLayers(settings.cell, embedding, half, settings.layers, dropout=dropout)
        self.output = nn.Linear(half, vocabulary)

    def _both_directions(self, x: Tensor, lengths: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return every layer's states (B, S, D/2) of the two directions, both from left to right."""
        forward, _ = self.forward_layers.encode(x, lengths)
        backward, _ = self.backward_layers.encode(reverse_sequences(x, lengths), lengths)
        return forward, [reverse_sequences(states, lengths) for states in backward]

    def hidden_states(self, source: Tensor, lengths: Tensor) -> list[Tensor]:
        """Return the embeddings twice, then both directions of each layer concatenated: (B, S, ·) each."""
        x = self.token_embedding(source)
        forward, backward = self._both_directions(x, lengths)
        return [torch.cat(pair, dim=-1) for pair in [(x, x), *zip(forward, backward)]]

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Return the logits (B, S, 2, V) of the next and of the previous token at each position."""
        forward, backward = self._both_directions(self.dropout(self.token_embedding(source)), lengths)
        return self.output(self.dropout(torch.stack([forward[-1], backward[-1]], dim=2)))
