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
    supports_cuda_graphs = False  # how long it thinks is decided as it does
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
                nn.init.ones_(stack.halt.bias)  # early in training, think little

    def build_stack(self, shape: BlockConfig, layers: int, positions: PositionEncoding, **options: Any) -> UniversalStack:
        halting = self.settings.halting == "act"
        return UniversalStack(shape, layers, positions, **options, halting=halting, threshold=self.settings.threshold)

    def encode(self, source: Tensor, lengths: Tensor, begins: Tensor | None = None) -> list[SourceKV]:
        """As in the Transformer, but all steps look at one projection of the source."""
        sources = super().encode(source, lengths, begins)
        return [sources[0]] * len(sources)

    def auxiliary_loss(self, batch: "Batch") -> Tensor:
        """The ponder cost of the last forward pass, summed over its words (Graves 2016, eq. 13)."""
        if self.encoder.ponder is None or self.decoder.ponder is None:
            return torch.zeros((), device=batch.labels.device)
        passes = len(self.decoder.ponder) // len(batch.labels)  # two under R-Drop
        source, lengths = batch.inputs["source"], batch.inputs["lengths"]
        read = torch.arange(source.size(1), device=lengths.device) < lengths[:, None]
        said = batch.labels >= 0
        thought = (self.encoder.ponder * read.repeat(passes, 1)).sum() + (self.decoder.ponder * said.repeat(passes, 1)).sum()
        return self.settings.ponder_cost * thought / passes
