"""DALL·E (Ramesh et al. 2021, sec. 2.2): one Transformer decoder reads a caption and continues with the codes of its image.

A row is <s>, the caption padded to `text_length` tokens, and the codes row by row. Words, padding tokens (one for each position)
and codes share one embedding table, in this order. The position decides which tokens are possible: the logits of all others are
-inf, so that only codes are sampled in an image.

Deviations: no dropout of captions (10% BPE dropout as published); embedding and output are not tied.
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
    """A decoder of captions followed by image codes."""

    supports_cuda_graphs = True
    """No host–device synchronisation in `step`."""

    def __init__(
        self, settings: "DalleModel", words: int, codes: int, grid: tuple[int, int], regularize: "Regularization | None" = None
    ):
        super().__init__()
        self.settings, self.grid = settings, grid
        text = 1 + settings.text_length  # positions before the image
        self.text, self.first_code = text, words + settings.text_length
        self.vocabulary = self.first_code + codes
        grids = [
            None if kind == "full" else GridPattern(text, grid[1], kind, settings.kernel_size) for kind in settings.patterns()
        ]
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
        """Return the logits (B, T, V) of the token after each position."""
        return self._logits(self.decoder(self.token_embedding(target), mask=Mask(causal=True)), 0)

    def _logits(self, x: Tensor, past: int) -> Tensor:
        positions = torch.arange(past, past + x.size(1), device=x.device)
        return self.output(x).masked_fill(~self.possible_tokens(positions), -torch.inf)

    def possible_tokens(self, positions: Tensor) -> Tensor:
        """Return which tokens may follow these positions, words and padding in the text, codes in the image: (T,) -> (T, V)."""
        codes = torch.arange(self.vocabulary, device=positions.device) >= self.first_code
        return codes == (positions >= self.text - 1)[:, None]

    def hidden_states(self, source: Tensor, lengths: Tensor) -> list[Tensor]:
        """Return the embeddings with their positions, then the output of each layer: (B, S, D) each."""
        states: list[Tensor] = []
        self.decoder(self.token_embedding(source), mask=Mask(causal=True), states=states)
        return states

    def start(self, inputs: Any, prefix: Tensor, capacity: int = 32) -> DecoderState:
        """Read a prefix (B, P) without padding; there is no other input."""
        return prefill(self.step_features, prefix.size(0), [], len(self.decoder.blocks), prefix, capacity)

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read the next tokens (rows, T); return the logits (rows, T, V) after each."""
        past = state.caches[0].length
        return self._logits(self.step_features(tokens, state), past), state

    def step_features(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Read the next tokens; return the decoder's output (rows, T, D), without logits."""
        return self.decoder(self.token_embedding(tokens), mask=Mask(causal=True), caches=state.caches)
