"""The encoder–decoder Transformer (Vaswani et al. 2017, "Attention is all you need").

Deviations: biases in the query, key, value and output projections (as in the authors' later code and torch.nn); dropout on
attention weights and inside the feed-forward layer are settings, off by default.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.attention.masks import Mask
from regard.attention.positions import PositionEncoding, build_positions
from regard.layers.block import BlockConfig, SourceKV, block_config, embedding_dropout
from regard.layers.embedding import TokenEmbedding
from regard.layers.stack import Stack
from regard.layers.state import DecoderState, prefill

if TYPE_CHECKING:
    from regard.recipe import Regularization, TransformerModel


class Transformer(nn.Module):
    supports_cuda_graphs = True
    """Its steps never ask the device anything."""

    def __init__(
        self,
        settings: "TransformerModel",
        source_vocabulary: int,
        target_vocabulary: int,
        regularize: "Regularization | None" = None,
    ):
        super().__init__()
        self.settings = settings
        shape = block_config(settings, regularize)

        def positions(causal: bool) -> PositionEncoding:
            assert shape.key_width is not None
            return build_positions(
                settings.positions,
                width=settings.width,
                heads=settings.heads,
                key_width=shape.key_width,
                max_length=settings.max_length + 1 + settings.positions.random_offset,
                causal=causal,
            )

        embedding = partial(TokenEmbedding, width=settings.width, scaled=settings.scale_embedding)
        self.source_embedding = embedding(source_vocabulary)
        self.target_embedding = self.source_embedding if settings.tie in ("all", "embeddings") else embedding(target_vocabulary)
        self.encoder = self.build_stack(
            shape,
            settings.encoder_layers,
            positions(False),
            widths=settings.encoder_widths,
            embedding_dropout=embedding_dropout(regularize),
        )
        self.decoder = self.build_stack(
            shape,
            settings.decoder_layers,
            positions(True),
            source_width=self.encoder.width,
            embedding_dropout=embedding_dropout(regularize),
        )
        self.output = nn.Linear(settings.width, target_vocabulary, bias=settings.output_bias)
        init_xavier(self)
        if settings.tie in ("all", "target"):
            self.output.weight = self.target_embedding.table.weight

    def build_stack(self, shape: BlockConfig, layers: int, positions: PositionEncoding, **options: Any) -> Stack:
        return Stack(shape, layers, positions, **options)

    def hidden_states(self, source: Tensor, lengths: Tensor) -> list[Tensor]:
        """The source's embeddings with their positions, then what each encoder layer makes of them: (B, S, D) each."""
        states: list[Tensor] = []
        self.encoder(self.source_embedding(source), mask=Mask(lengths=lengths), states=states)
        return states

    def encode(self, source: Tensor, lengths: Tensor, begins: Tensor | None = None) -> list[SourceKV]:
        """Read source ids (B, S), each row valid up to its length; what each decoder layer will look at."""
        mask = Mask(lengths=lengths)
        memory = self.encoder(self.source_embedding(source), mask=mask, begins=begins)  # (B, S, D)
        return [block.project_source(memory, mask) for block in self.decoder.layers()]

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """The logits (B, T, V) of the word after each target position, given all before it."""
        begins = self.draw_begins(source)
        x = self.decoder(
            self.target_embedding(target), mask=Mask(causal=True), sources=self.encode(source, lengths, begins), begins=begins
        )
        return self.say(x)

    def say(self, x: Tensor) -> Tensor:
        return self.output(x * self.settings.width**-0.5 if self.settings.scale_output else x)

    def draw_begins(self, source: Tensor) -> Tensor | None:
        """While training, where the positions of each source and its target begin: (B,), if anywhere but at 0."""
        offset = self.settings.positions.random_offset
        return torch.randint(offset + 1, (len(source),), device=source.device) if offset and self.training else None

    def start(self, inputs: tuple[Tensor, Tensor], prefix: Tensor | None = None, capacity: int = 32) -> DecoderState:
        """Read the sources (ids, lengths), and target tokens (B, P) already written, short ones filled with -1 on the left."""
        return prefill(self.hidden, len(inputs[0]), self.encode(*inputs), len(self.decoder.blocks), prefix, capacity)

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read the next target tokens (hypotheses, T); the logits (hypotheses, T, V) after each of them."""
        return self.say(self.hidden(tokens, state)), state

    def hidden(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Read the next target tokens; the vectors (hypotheses, T, D) that what comes after them is said from."""
        mask = Mask(causal=True, starts=state.starts)
        return self.decoder(self.target_embedding(tokens), mask=mask, caches=state.caches, sources=state.sources)


def init_xavier(model: nn.Module) -> None:
    """Glorot's uniform matrices and zero biases, as the authors' code does."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
