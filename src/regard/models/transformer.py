"""The encoder–decoder Transformer (Vaswani et al. 2017, "Attention is all you need"), with other settings T5 (Raffel et al.
2020), BART (Lewis et al. 2020), mBART (Liu et al. 2020) and M2M100 (Fan et al. 2021).

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
    """An encoder–decoder of source and target tokens."""

    supports_cuda_graphs = True
    """No host–device synchronisation in `step`."""

    def __init__(
        self,
        settings: "TransformerModel",
        source_vocabulary: int,
        target_vocabulary: int,
        regularize: "Regularization | None" = None,
    ):
        super().__init__()
        self.settings = settings
        config = block_config(settings, regularize)

        def positions(causal: bool) -> PositionEncoding:
            assert config.key_width is not None
            return build_positions(
                settings.positions,
                width=settings.width,
                heads=settings.heads,
                key_width=config.key_width,
                max_length=settings.max_length + 1 + settings.positions.random_offset,
                causal=causal,
            )

        embedding = partial(TokenEmbedding, width=settings.width, scaled=settings.scale_embedding)
        self.source_embedding = embedding(source_vocabulary)
        self.target_embedding = self.source_embedding if settings.tie in ("all", "embeddings") else embedding(target_vocabulary)
        normed = {"embedding_norm": True} if settings.embedding_norm else {}
        self.encoder = self.build_stack(
            config,
            settings.encoder_layers,
            positions(False),
            widths=settings.encoder_widths,
            embedding_dropout=embedding_dropout(regularize),
            **normed,
        )
        self.decoder = self.build_stack(
            config,
            settings.decoder_layers,
            positions(True),
            source_width=self.encoder.width,
            embedding_dropout=embedding_dropout(regularize),
            **normed,
        )
        self.output = nn.Linear(settings.width, target_vocabulary, bias=settings.output_bias)
        init_xavier(self)
        if settings.tie in ("all", "target"):
            self.output.weight = self.target_embedding.table.weight

    @property
    def output_stack(self) -> Stack:
        """The stack whose output `logits` reads."""
        return self.decoder

    def build_stack(self, config: BlockConfig, layers: int, positions: PositionEncoding, **options: Any) -> Stack:
        return Stack(config, layers, positions, **options)

    def hidden_states(self, source: Tensor, lengths: Tensor) -> list[Tensor]:
        """Return the source embeddings with their positions, then the output of each encoder layer: (B, S, D) each."""
        states: list[Tensor] = []
        self.encoder(self.source_embedding(source), mask=Mask(lengths=lengths), states=states)
        return states

    def encode(self, source: Tensor, lengths: Tensor, position_offsets: Tensor | None = None) -> list[SourceKV]:
        """Encode source ids (B, S), each row up to its length; return the keys and values for each decoder layer."""
        mask = Mask(lengths=lengths)
        encoded = self.encoder(self.source_embedding(source), mask=mask, position_offsets=position_offsets)  # (B, S, D)
        return [block.project_source(encoded, mask) for block in self.decoder.layers()]

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Return the logits (B, T, V) of the token after each target position."""
        offsets = self.random_offsets(source)
        x = self.decoder(
            self.target_embedding(target),
            mask=Mask(causal=True),
            sources=self.encode(source, lengths, offsets),
            position_offsets=offsets,
        )
        return self.logits(x)

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits (…, V) of the decoder's output (…, D)."""
        return self.output(x * self.settings.width**-0.5 if self.settings.scale_output else x)

    def random_offsets(self, source: Tensor) -> Tensor | None:
        """Return the random first position (B,) of each source and its target while training, None where all start at 0."""
        offset = self.settings.positions.random_offset
        return torch.randint(offset + 1, (len(source),), device=source.device) if offset and self.training else None

    def start(self, inputs: tuple[Tensor, Tensor], prefix: Tensor | None = None, capacity: int = 32) -> DecoderState:
        """Encode the sources (ids, lengths) and read a target prefix (B, P), short rows padded with -1 on the left."""
        return prefill(self.step_features, len(inputs[0]), self.encode(*inputs), len(self.decoder.blocks), prefix, capacity)

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read the next target tokens (hypotheses, T); return the logits (hypotheses, T, V) after each."""
        return self.logits(self.step_features(tokens, state)), state

    def step_features(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Read the next target tokens; return the decoder's output (hypotheses, T, D), without logits."""
        mask = Mask(causal=True, starts=state.starts)
        return self.decoder(self.target_embedding(tokens), mask=mask, caches=state.caches, sources=state.sources)


def init_xavier(model: nn.Module) -> None:
    """Initialise matrices with Glorot's uniform distribution and biases with zeros, as the authors' code does."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
