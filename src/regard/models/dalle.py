"""DALL·E (Ramesh et al. 2021, sec. 2.2): one Transformer decoder reads a caption and goes on with the codes of its picture.

A row is <s>, the caption filled up to `text_length` tokens, and the codes row by row. Words, what fills up (one token for each
position) and codes have one table: codes come after the fillers, fillers after the words. What can be said follows from the
place: the logits of all else are -inf, so that nothing but codes is ever drawn in a picture.

Deviations: no share of captions is hidden (10% of BPE-dropout as published); embedding and output are not tied.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.attention.masks import GridPattern, Mask
from regard.attention.positions import TextGridPositions
from regard.layers.block import block_config, embedding_dropout
from regard.layers.stack import Stack
from regard.layers.state import DecoderState, prefill
from regard.models.gpt import init_normal

if TYPE_CHECKING:
    from regard.recipe import DalleModel, Regularization


class Dalle(nn.Module):
    supports_cuda_graphs = True
    """Its steps never ask the device anything."""

    def __init__(
        self, settings: "DalleModel", words: int, codes: int, grid: tuple[int, int], regularize: "Regularization | None" = None
    ):
        super().__init__()
        self.settings, self.grid = settings, grid
        text = 1 + settings.text_length  # positions before the picture
        self.text, self.first_code = text, words + settings.text_length
        self.vocabulary = self.first_code + codes
        grids = [None if see == "full" else GridPattern(text, grid[1], see, settings.kernel_size) for see in settings.patterns()]
        self.token_embedding = nn.Embedding(self.vocabulary, settings.width)
        self.decoder = Stack(
            block_config(settings, regularize),
            settings.layers,
            TextGridPositions(settings.width, text, grid),
            grids=grids,
            embedding_dropout=embedding_dropout(regularize),
        )
        self.output = nn.Linear(settings.width, self.vocabulary, bias=False)
        init_normal(self)

    def forward(self, target: Tensor) -> Tensor:
        """The logits (B, T, V) of what comes after each position, given all before it."""
        return self.said(self.decoder(self.token_embedding(target), mask=Mask(causal=True)), 0)

    def said(self, x: Tensor, past: int) -> Tensor:
        at = torch.arange(past, past + x.size(1), device=x.device)
        return self.output(x).masked_fill(~self.sayable(at), -torch.inf)

    def sayable(self, at: Tensor) -> Tensor:
        """What may come after these positions: words and fillers in the text, codes in the picture: (T,) -> (T, V)."""
        codes = torch.arange(self.vocabulary, device=at.device) >= self.first_code
        return codes == (at >= self.text - 1)[:, None]

    def hidden_states(self, source: Tensor, lengths: Tensor) -> list[Tensor]:
        """The embeddings with their positions, then what each layer makes of them: (B, S, D) each."""
        states: list[Tensor] = []
        self.decoder(self.token_embedding(source), mask=Mask(causal=True), states=states)
        return states

    def start(self, inputs: Any, prefix: Tensor, capacity: int = 32) -> DecoderState:
        """Read what is already written (B, P), which begins in all rows at the same place; there is no other input."""
        return prefill(self.hidden, prefix.size(0), [], len(self.decoder.blocks), prefix, capacity)

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read the next tokens (rows, T); the logits (rows, T, V) after each of them."""
        past = state.caches[0].length
        return self.said(self.hidden(tokens, state), past), state

    def hidden(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Read the next tokens; the vectors (rows, T, D) that what comes after them is said from."""
        return self.decoder(self.token_embedding(tokens), mask=Mask(causal=True), caches=state.caches)
