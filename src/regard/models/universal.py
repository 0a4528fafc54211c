"""The Universal Transformer (Dehghani et al. 2019): the Transformer with one block for all depths, and adaptive halting."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.attention.positions import PositionEncoding
from regard.layers.block import BlockConfig, SourceKV
from regard.layers.universal import UniversalStack
from regard.models.transformer import Transformer

if TYPE_CHECKING:
    from regard.batches.batch import Batch
    from regard.recipe import Regularization, UniversalModel


class UniversalTransformer(Transformer):
    """The Transformer with universal stacks in the encoder and the decoder."""

    settings: "UniversalModel"
    encoder: UniversalStack
    decoder: UniversalStack

    def __init__(
        self,
        settings: "UniversalModel",
        source_vocabulary: int,
        target_vocabulary: int,
        regularize: "Regularization | None" = None,
    ):
        super().__init__(settings, source_vocabulary, target_vocabulary, regularize)
        for stack in (self.encoder, self.decoder):
            if stack.halt is not None:
                nn.init.ones_(stack.halt.bias)  # few steps early in training

    def build_stack(self, config: BlockConfig, layers: int, positions: PositionEncoding, **options: Any) -> UniversalStack:
        halting = self.settings.halting == "act"
        return UniversalStack(config, layers, positions, **options, halting=halting, threshold=self.settings.threshold)

    def encode(self, source: Tensor, lengths: Tensor, position_offsets: Tensor | None = None) -> list[SourceKV]:
        """Encode the source as in the Transformer; all steps share one projection of it."""
        sources = super().encode(source, lengths, position_offsets)
        return [sources[0]] * len(sources)

    def auxiliary_loss(self, batch: "Batch") -> Tensor:
        """Return the ponder cost of the last forward pass, summed over its tokens (Graves 2016, eq. 13)."""
        if self.encoder.ponder is None or self.decoder.ponder is None:
            return torch.zeros((), device=batch.labels.device)
        passes = len(self.decoder.ponder) // len(batch.labels)  # two under R-Drop
        source, lengths = batch.inputs["source"], batch.inputs["lengths"]
        real = torch.arange(source.size(1), device=lengths.device) < lengths[:, None]
        labelled = batch.labels >= 0
        ponder = (self.encoder.ponder * real.repeat(passes, 1)).sum() + (self.decoder.ponder * labelled.repeat(passes, 1)).sum()
        return self.settings.ponder_cost * ponder / passes
