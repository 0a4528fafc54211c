"""Recurrent language models (one to many): one that goes forward (Mikolov et al. 2010), with attention over its earlier states or
without; and ELMo, one forward and one backward (Peters et al. 2018).

Deviations of ELMo: words, sub-words or characters are embedded directly, without convolutions over a word's characters; the two
directions share embedding and output as published; no residual connections between layers.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.attention.kv_cache import KVCache
from regard.attention.masks import Mask
from regard.attention.scores import SingleHeadAttention
from regard.layers.recurrent import RecurrentLayers
from regard.layers.state import DecoderState, leading_padding

if TYPE_CHECKING:
    from regard.recipe import ElmoModel, RecurrentDecoderModel, Regularization


class RecurrentLanguageModel(nn.Module):
    """s_i = f(s_{i-1}, y_{i-1});  with attention, c_i = look(s_i) over s_1 … s_i and the output reads tanh(W [c_i; s_i])."""

    def __init__(self, settings: "RecurrentDecoderModel", vocabulary: int, regularize: "Regularization | None" = None):
        super().__init__()
        width, embedding = settings.width, settings.embedding_width or settings.width
        dropout = regularize.dropout if regularize else 0.0
        self.token_embedding = nn.Embedding(vocabulary, embedding)
        self.dropout = nn.Dropout(dropout)
        self.cells = RecurrentLayers(settings.cell, embedding, width, settings.layers, dropout=dropout)
        self.self_attention = None
        if settings.attention != "none":
            self.self_attention = SingleHeadAttention(settings.attention, width, width, settings.attention_width)
            self.combine = nn.Linear(2 * width, width, bias=False)
        self.output = nn.Linear(width, vocabulary, bias=not settings.tie)
        if settings.tie:
            nn.init.normal_(self.token_embedding.weight, std=embedding**-0.5)
            self.output.weight = self.token_embedding.weight

    def forward(self, target: Tensor) -> Tensor:
        """The logits (B, T, V) of the word after each position, given all before it."""
        nothing = self.cells.nothing(target.size(0), self.output.weight)
        states, _ = self.cells(self.dropout(self.token_embedding(target)), nothing)
        return self.output(self.dropout(self.seen(states, None, Mask(causal=True))))

    def seen(self, states: Tensor, cache: KVCache | None, mask: Mask) -> Tensor:
        if self.self_attention is None:
            return states
        keys, values = self.self_attention.project_kv(states)
        if cache is not None:
            keys, values = cache.append(keys, values)
        return self.combine(torch.cat([self.self_attention(states, keys, values, mask=mask), states], dim=-1)).tanh()

    def hidden_states(self, source: Tensor, lengths: Tensor) -> list[Tensor]:
        """The word embeddings, then the states of each layer, which know only what is before them: (B, S, D) each."""
        x = self.token_embedding(source)
        return [x, *self.cells.read(x, lengths)[0]]

    def start(self, inputs: Any, prefix: Tensor, capacity: int = 32) -> DecoderState:
        """Read what is already written (B, P), short rows filled with -1 on the left; there is no other input."""
        carry = self.cells.nothing(prefix.size(0), self.output.weight)
        state = DecoderState(
            prefix.size(0), [], [carry] if self.self_attention is None else [carry, KVCache(capacity)], leading_padding(prefix)
        )
        for token in prefix.unbind(1):
            before = state.caches[0]
            _, state = self.hidden(token.clamp(min=0)[:, None], state)
            state = replace(state, caches=[state.caches[0].where(token >= 0, before), *state.caches[1:]])
        return state

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read the next tokens (rows, T); the logits (rows, T, V) after each of them."""
        seen, state = self.hidden(tokens, state)
        return self.output(seen), state

    def hidden(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read the next tokens; the vectors (rows, T, D) that what comes after them is said from."""
        carry, *caches = state.caches
        states, carry = self.cells(self.token_embedding(tokens), carry)
        seen = self.seen(states, caches[0] if caches else None, Mask(causal=True, starts=state.starts))
        return seen, replace(state, caches=[carry, *caches])


class Elmo(nn.Module):
    """Says at every word the next one, from what is before it, and the one before, from what is after it."""

    outputs_per_token = 2

    def __init__(self, settings: "ElmoModel", vocabulary: int, regularize: "Regularization | None" = None):
        super().__init__()
        half, embedding = settings.width // 2, settings.embedding_width or settings.width // 2
        dropout = regularize.dropout if regularize else 0.0
        self.token_embedding = nn.Embedding(vocabulary, embedding)
        self.dropout = nn.Dropout(dropout)
        self.ahead = RecurrentLayers(settings.cell, embedding, half, settings.layers, dropout=dropout)
        self.back = RecurrentLayers(settings.cell, embedding, half, settings.layers, dropout=dropout)
        self.output = nn.Linear(half, vocabulary)

    def both_ways(self, x: Tensor, lengths: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Every layer's states (B, S, D/2) of the two directions, each in reading order."""
        ahead, _ = self.ahead.read(x, lengths)
        back, _ = self.back.read(reverse_sequences(x, lengths), lengths)
        return ahead, [reverse_sequences(states, lengths) for states in back]

    def hidden_states(self, source: Tensor, lengths: Tensor) -> list[Tensor]:
        """The word embeddings twice, then both directions of each layer side by side: (B, S, ·) each."""
        x = self.token_embedding(source)
        ahead, back = self.both_ways(x, lengths)
        return [torch.cat(pair, dim=-1) for pair in [(x, x), *zip(ahead, back)]]

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        """The logits (B, S, 2, V) of the word after and of the word before each."""
        ahead, back = self.both_ways(self.dropout(self.token_embedding(source)), lengths)
        return self.output(self.dropout(torch.stack([ahead[-1], back[-1]], dim=2)))


def reverse_sequences(x: Tensor, lengths: Tensor) -> Tensor:
    """Each row's first `length` positions the other way round: (B, S, D) -> (B, S, D)."""
    at = torch.arange(x.size(1), device=x.device)
    back = torch.where(at < lengths[:, None], lengths[:, None] - 1 - at, at)  # (B, S)
    return x.gather(1, back[..., None].expand_as(x))
