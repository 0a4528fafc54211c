"""Sequence to sequence with recurrent cells: without attention (Sutskever et al. 2014), with Bahdanau's (Bahdanau et al. 2015)
and with Luong's global attention and input feeding (Luong et al. 2015).

Deviations: the source is read as it is, not reversed; layers are stacked with torch's fused cells; Bahdanau's decoder begins from
tanh(W h) of the backward direction as published, the others from both directions. Bahdanau's output is g(y_{i-1}, s_i, c_i) of
eq. 4, a maxout layer as in his appendix A.2.2 (which has s_{i-1} there).
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
        seen = width // 2 if settings.bidirectional and isinstance(self.decoder, BahdanauDecoder) else width
        self.bridge = nn.Linear(seen, settings.decoder_layers * width)
        self.bridge_cell = nn.Linear(seen, settings.decoder_layers * width) if settings.cell == "lstm" else None
        self.output = nn.Linear(self.decoder.out_width, target_vocabulary, bias=settings.tie == "none")
        if settings.tie != "none":
            nn.init.normal_(self.target_embedding.weight, std=embedding**-0.5)
            self.output.weight = self.target_embedding.weight

    def hidden_states(self, source: Tensor, lengths: Tensor) -> list[Tensor]:
        """The source's word embeddings, then the states of each encoder layer (CoVe, McCann et al. 2017): (B, S, D) each."""
        x = self.source_embedding(source)
        return [x, *self.encoder.read(x, lengths)[0]]

    def read(self, source: Tensor, lengths: Tensor) -> tuple[list[SourceKV], RecurrentState]:
        """Source ids (B, S): what the decoder may look at, projected once, and the state it begins from."""
        (*_, annotations), last = self.encoder.read(self.dropout(self.source_embedding(source)), lengths)
        hidden = (
            self.bridge(last.hidden[:, -1, -self.bridge.in_features :]).tanh().unflatten(1, (self.settings.decoder_layers, -1))
        )
        cell = None
        if self.bridge_cell is not None and last.cell is not None:
            cell = self.bridge_cell(last.cell[:, -1, -self.bridge.in_features :]).unflatten(1, (self.settings.decoder_layers, -1))
        sources = self.decoder.project_source(annotations, Mask(lengths=lengths))
        return sources, RecurrentState(hidden, cell, self.decoder.nothing_fed(hidden))

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """The logits (B, T, V) of the word after each target position, given all before it."""
        sources, carry = self.read(source, lengths)
        features, _ = self.decoder(self.dropout(self.target_embedding(target)), carry, sources)
        return self.output(self.dropout(features))

    def start(self, inputs: tuple[Tensor, Tensor], prefix: Tensor | None = None, capacity: int = 32) -> DecoderState:
        """Read the sources (ids, lengths), and target tokens (B, P) already written, short ones filled with -1 on the left."""
        sources, carry = self.read(*inputs)
        for token in () if prefix is None else prefix.unbind(1):
            _, after = self.decoder(self.target_embedding(token.clamp(min=0))[:, None], carry, sources)
            carry = after.where(token >= 0, carry)
        return DecoderState(len(inputs[0]), sources, [carry])

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read the next target tokens (hypotheses, T); the logits (hypotheses, T, V) after each of them."""
        features, carry = self.decoder(self.target_embedding(tokens), state.caches[0], state.sources)
        return self.output(features), replace(state, caches=[carry])


def build_decoder(settings: "RecurrentModel", embedding: int, dropout: float) -> "RecurrentDecoder":
    if settings.attention == "none":
        return RecurrentDecoder(settings, embedding, dropout)
    if settings.decoder == "bahdanau":
        return BahdanauDecoder(settings, embedding, dropout)
    return LuongDecoder(settings, embedding, dropout)


class RecurrentDecoder(nn.Module):
    """No attention: all it knows of the source is the state it begins from."""

    def __init__(self, settings: "RecurrentModel", embedding: int, dropout: float, read_width: int | None = None):
        super().__init__()
        self.cells = RecurrentLayers(
            settings.cell, read_width or embedding, settings.width, settings.decoder_layers, dropout=dropout
        )
        self.out_width = settings.width

    def project_source(self, annotations: Tensor, mask: Mask) -> list[SourceKV]:
        return []

    def nothing_fed(self, hidden: Tensor) -> Tensor | None:
        return None

    def forward(self, x: Tensor, carry: RecurrentState, sources: list[SourceKV]) -> tuple[Tensor, RecurrentState]:
        """Embeddings (rows, T, E) of the words read -> features (rows, T, out width) for the words to say."""
        return self.cells(x, carry)


class RecurrentAttentionDecoder(RecurrentDecoder):
    """A decoder that looks at the source's annotations."""

    def __init__(self, settings: "RecurrentModel", embedding: int, dropout: float, read_width: int):
        super().__init__(settings, embedding, dropout, read_width)
        self.cross_attention = SingleHeadAttention(settings.attention, settings.width, settings.width, settings.attention_width)

    def project_source(self, annotations: Tensor, mask: Mask) -> list[SourceKV]:
        return [SourceKV(*self.cross_attention.project_kv(annotations), mask)]

    def look(self, x: Tensor, sources: list[SourceKV]) -> Tensor:
        """What states (rows, T, H) see; the hypotheses of one sentence ask the same keys together."""
        (source,) = sources
        shared = x.reshape(source.keys.size(0), -1, x.size(-1))
        return self.cross_attention(shared, source.keys, source.values, mask=source.mask).reshape(*x.shape[:-1], -1)


class BahdanauDecoder(RecurrentAttentionDecoder):
    """c_i = look(s_{i-1});  s_i = f(s_{i-1}, y_{i-1}, c_i);  t_i = maxout(U s_i + V y_{i-1} + C c_i)."""

    def __init__(self, settings: "RecurrentModel", embedding: int, dropout: float):
        super().__init__(settings, embedding, dropout, embedding + settings.width)
        self.out_width = embedding
        self.deep = nn.Linear(2 * settings.width + embedding, 2 * embedding)

    def forward(self, x, carry, sources):
        features = []
        for y in x.split(1, dim=1):  # (rows, 1, E)
            context = self.look(carry.hidden[:, -1:], sources)
            state, carry = self.cells(torch.cat([y, context], dim=-1), carry)
            pairs = self.deep(torch.cat([state, y, context], dim=-1)).unflatten(-1, (-1, 2))
            features.append(pairs.amax(-1))
        return torch.cat(features, dim=1), carry


class LuongDecoder(RecurrentAttentionDecoder):
    """s_i = f(s_{i-1}, y_{i-1}, h̃_{i-1});  c_i = look(s_i);  h̃_i = tanh(W [c_i; s_i]).

    Without input feeding, all words at once.
    """

    def __init__(self, settings: "RecurrentModel", embedding: int, dropout: float):
        width = settings.width
        super().__init__(settings, embedding, dropout, embedding + width if settings.input_feeding else embedding)
        self.feeds = settings.input_feeding
        self.combine = nn.Linear(2 * width, width, bias=False)

    def nothing_fed(self, hidden):
        return hidden.new_zeros(hidden.size(0), self.combine.out_features) if self.feeds else None

    def forward(self, x, carry, sources):
        if not self.feeds:
            states, carry = self.cells(x, carry)
            return self.seen(states, sources), carry
        features = []
        for y in x.split(1, dim=1):  # (rows, 1, E)
            state, after = self.cells(torch.cat([y, carry.fed[:, None]], dim=-1), carry)
            features.append(self.seen(state, sources))
            carry = replace(after, fed=features[-1][:, 0])
        return torch.cat(features, dim=1), carry

    def seen(self, states: Tensor, sources: list[SourceKV]) -> Tensor:
        return self.combine(torch.cat([self.look(states, sources), states], dim=-1)).tanh()
