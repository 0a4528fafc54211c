"""Recurrent sequence-to-sequence models: without attention (Sutskever et al. 2014), with Bahdanau's (Bahdanau et al. 2015), and
with Luong's global attention and input feeding (Luong et al. 2015).

Deviations: the source is not reversed; layers are stacked with torch's fused cells; Bahdanau's decoder starts from tanh(W h) of
the backward direction as published, the others from both directions. Bahdanau's output is g(y_{i-1}, s_i, c_i) of eq. 4, a maxout
layer as in his appendix A.2.2 (which has s_{i-1} there).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.attention.masks import Mask
from regard.attention.scores import SingleHeadAttention
from regard.layers.block import SourceKV
from regard.layers.recurrent import RecurrentLayers, RecurrentState
from regard.layers.state import DecoderState

if TYPE_CHECKING:
    from regard.recipe import RecurrentModel, Regularization


class RecurrentTranslator(nn.Module):
    """A recurrent encoder, and a recurrent decoder with or without attention."""

    def __init__(
        self,
        settings: "RecurrentModel",
        source_vocabulary: int,
        target_vocabulary: int,
        regularize: "Regularization | None" = None,
    ):
        super().__init__()
        self.settings = settings
        width, embedding = settings.width, settings.embedding_width or settings.width
        dropout = regularize.dropout if regularize else 0.0
        self.source_embedding = nn.Embedding(source_vocabulary, embedding)
        self.target_embedding = self.source_embedding if settings.tie == "all" else nn.Embedding(target_vocabulary, embedding)
        self.dropout = nn.Dropout(dropout)
        self.encoder = RecurrentLayers(
            settings.cell, embedding, width, settings.encoder_layers, bidirectional=settings.bidirectional, dropout=dropout
        )
        self.decoder = build_decoder(settings, embedding, dropout)
        backward_only = settings.bidirectional and isinstance(self.decoder, BahdanauDecoder)
        bridge_width = width // 2 if backward_only else width
        self.bridge = nn.Linear(bridge_width, settings.decoder_layers * width)
        self.bridge_cell = nn.Linear(bridge_width, settings.decoder_layers * width) if settings.cell == "lstm" else None
        self.output = nn.Linear(self.decoder.out_width, target_vocabulary, bias=settings.tie == "none")
        if settings.tie != "none":
            nn.init.normal_(self.target_embedding.weight, std=embedding**-0.5)
            self.output.weight = self.target_embedding.weight

    def hidden_states(self, source: Tensor, lengths: Tensor) -> list[Tensor]:
        """Return the source embeddings, then the states of each encoder layer (CoVe, McCann et al. 2017): (B, S, D) each."""
        x = self.source_embedding(source)
        return [x, *self.encoder.encode(x, lengths)[0]]

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[list[SourceKV], RecurrentState]:
        """Encode source ids (B, S); return their keys and values, projected once, and the decoder's first state."""
        (*_, annotations), last = self.encoder.encode(self.dropout(self.source_embedding(source)), lengths)
        width, layers = self.bridge.in_features, self.settings.decoder_layers
        hidden = self.bridge(last.hidden[:, -1, -width:]).tanh().unflatten(1, (layers, -1))
        cell = None
        if self.bridge_cell is not None and last.cell is not None:
            cell = self.bridge_cell(last.cell[:, -1, -width:]).unflatten(1, (layers, -1))
        sources = self.decoder.project_source(annotations, Mask(lengths=lengths))
        return sources, RecurrentState(hidden, cell, self.decoder.first_input_feed(hidden))

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Return the logits (B, T, V) of the token after each target position."""
        sources, state = self.encode(source, lengths)
        features, _ = self.decoder(self.dropout(self.target_embedding(target)), state, sources)
        return self.output(self.dropout(features))

    def start(self, inputs: tuple[Tensor, Tensor], prefix: Tensor | None = None, capacity: int = 32) -> DecoderState:
        """Encode the sources (ids, lengths) and read a target prefix (B, P), short rows padded with -1 on the left."""
        sources, state = self.encode(*inputs)
        for token in () if prefix is None else prefix.unbind(1):
            _, after = self.decoder(self.target_embedding(token.clamp(min=0))[:, None], state, sources)
            state = after.where(token >= 0, state)
        return DecoderState(len(inputs[0]), sources, [state])

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read the next target tokens (hypotheses, T); return the logits (hypotheses, T, V) after each."""
        features, after = self.decoder(self.target_embedding(tokens), state.caches[0], state.sources)
        return self.output(features), replace(state, caches=[after])


def build_decoder(settings: "RecurrentModel", embedding: int, dropout: float) -> "RecurrentDecoder":
    if settings.attention == "none":
        return RecurrentDecoder(settings, embedding, dropout)
    if settings.decoder == "bahdanau":
        return BahdanauDecoder(settings, embedding, dropout)
    return LuongDecoder(settings, embedding, dropout)


class RecurrentDecoder(nn.Module):
    """A decoder without attention: it knows the source only through its first state."""

    def __init__(self, settings: "RecurrentModel", embedding: int, dropout: float, input_width: int | None = None):
        super().__init__()
        self.cells = RecurrentLayers(
            settings.cell, input_width or embedding, settings.width, settings.decoder_layers, dropout=dropout
        )
        self.out_width = settings.width

    def project_source(self, annotations: Tensor, mask: Mask) -> list[SourceKV]:
        """Return the keys and values of the source; empty without attention."""
        return []

    def first_input_feed(self, hidden: Tensor) -> Tensor | None:
        """Return the input feed before the first token; None without input feeding."""
        return None

    def forward(self, x: Tensor, state: RecurrentState, sources: list[SourceKV]) -> tuple[Tensor, RecurrentState]:
        """Embeddings (rows, T, E) of the tokens read -> features (rows, T, out width) of the next tokens."""
        return self.cells(x, state)


class RecurrentAttentionDecoder(RecurrentDecoder):
    """A decoder that attends to the states of the encoder, its annotations."""

    def __init__(self, settings: "RecurrentModel", embedding: int, dropout: float, input_width: int):
        super().__init__(settings, embedding, dropout, input_width)
        self.cross_attention = SingleHeadAttention(settings.attention, settings.width, settings.width, settings.attention_width)

    def project_source(self, annotations: Tensor, mask: Mask) -> list[SourceKV]:
        return [SourceKV(*self.cross_attention.project_kv(annotations), mask)]

    def context(self, x: Tensor, sources: list[SourceKV]) -> Tensor:
        """Return the context of states (rows, T, H); the hypotheses of one sentence share its keys."""
        (source,) = sources
        queries = x.reshape(source.keys.size(0), -1, x.size(-1))
        return self.cross_attention(queries, source.keys, source.values, mask=source.mask).reshape(*x.shape[:-1], -1)


class BahdanauDecoder(RecurrentAttentionDecoder):
    """c_i = attend(s_{i-1});  s_i = f(s_{i-1}, y_{i-1}, c_i);  t_i = maxout(U s_i + V y_{i-1} + C c_i)."""

    def __init__(self, settings: "RecurrentModel", embedding: int, dropout: float):
        super().__init__(settings, embedding, dropout, embedding + settings.width)
        self.out_width = embedding
        self.maxout = nn.Linear(2 * settings.width + embedding, 2 * embedding)

    def forward(self, x: Tensor, state: RecurrentState, sources: list[SourceKV]) -> tuple[Tensor, RecurrentState]:
        contexts, outputs = [], []
        for y in x.split(1, dim=1):  # (rows, 1, E)
            contexts.append(self.context(state.hidden[:, -1:], sources))
            output, state = self.cells(torch.cat([y, contexts[-1]], dim=-1), state)
            outputs.append(output)
        pairs = self.maxout(torch.cat([torch.cat(outputs, dim=1), x, torch.cat(contexts, dim=1)], dim=-1)).unflatten(-1, (-1, 2))
        return pairs.amax(-1), state


class LuongDecoder(RecurrentAttentionDecoder):
    """s_i = f(s_{i-1}, y_{i-1}, h̃_{i-1});  c_i = attend(s_i);  h̃_i = tanh(W [c_i; s_i]).

    Without input feeding, all tokens are processed at once.
    """

    def __init__(self, settings: "RecurrentModel", embedding: int, dropout: float):
        width = settings.width
        super().__init__(settings, embedding, dropout, embedding + width if settings.input_feeding else embedding)
        self.input_feeding = settings.input_feeding
        self.combine = nn.Linear(2 * width, width, bias=False)

    def first_input_feed(self, hidden: Tensor) -> Tensor | None:
        return hidden.new_zeros(hidden.size(0), self.combine.out_features) if self.input_feeding else None

    def forward(self, x: Tensor, state: RecurrentState, sources: list[SourceKV]) -> tuple[Tensor, RecurrentState]:
        if not self.input_feeding:
            states, state = self.cells(x, state)
            return self._with_context(states, sources), state
        features: list[Tensor] = []
        for y in x.split(1, dim=1):  # (rows, 1, E)
            assert state.input_feed is not None
            output, after = self.cells(torch.cat([y, state.input_feed[:, None]], dim=-1), state)
            features.append(self._with_context(output, sources))
            state = replace(after, input_feed=features[-1][:, 0])
        return torch.cat(features, dim=1), state

    def _with_context(self, states: Tensor, sources: list[SourceKV]) -> Tensor:
        return self.combine(torch.cat([self.context(states, sources), states], dim=-1)).tanh()
