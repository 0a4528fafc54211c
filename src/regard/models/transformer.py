"""The encoder–decoder Transformer (Vaswani et al. 2017, "Attention is all you need").

Deviations: biases in the query, key, value and output projections (as in the authors' later code and torch.nn); dropout on
attention weights and inside the feed-forward layer are settings, off by default.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from regard.attention.cache import Cache
from regard.attention.masks import Mask
from regard.attention.positions import Positions, build_positions
from regard.layers.block import Shape, Source
from regard.layers.embedding import Embedding
from regard.layers.stack import Stack
from regard.layers.state import State

if TYPE_CHECKING:
    from regard.recipe import Regularize, TransformerModel

PAD = 0


class Transformer(nn.Module):
    def __init__(self, settings: "TransformerModel", source_vocabulary: int, target_vocabulary: int,
                 regularize: "Regularize | None" = None):
        super().__init__()
        self.settings = settings
        shape = block_shape(settings, regularize)
        dropout = 0.0
        if regularize is not None:
            dropout = regularize.dropout if regularize.embedding_dropout is None else regularize.embedding_dropout

        def positions(causal: bool) -> Positions:
            assert shape.key_width is not None
            return build_positions(settings.positions, width=settings.width, heads=settings.heads, key_width=shape.key_width,
                                   max_length=settings.max_length + 1, causal=causal)

        self.source_embedding = Embedding(source_vocabulary, settings.width)
        self.target_embedding = self.source_embedding if settings.tie == "all" else Embedding(target_vocabulary, settings.width)
        self.encoder = self.build_stack(shape, settings.encoder_layers, positions(False), widths=settings.encoder_widths,
                                        embedding_dropout=dropout)
        self.decoder = self.build_stack(shape, settings.decoder_layers, positions(True), source_width=self.encoder.width,
                                        embedding_dropout=dropout)
        self.output = nn.Linear(settings.width, target_vocabulary, bias=False)
        initialise(self)
        if settings.tie != "none":
            self.output.weight = self.target_embedding.table.weight

    def build_stack(self, shape: Shape, layers: int, positions: Positions, **options: Any) -> Stack:
        return Stack(shape, layers, positions, **options)

    def layers_of(self, source: Tensor, lengths: Tensor) -> list[Tensor]:
        """The source's embeddings with their positions, then what each encoder layer makes of them: (B, S, D) each."""
        states: list[Tensor] = []
        self.encoder(self.source_embedding(source), mask=Mask(lengths=lengths), states=states)
        return states

    def encode(self, source: Tensor, lengths: Tensor) -> list[Source]:
        """Read source ids (B, S), each row valid up to its length; what each decoder layer will look at."""
        mask = Mask(lengths=lengths)
        memory = self.encoder(self.source_embedding(source), mask=mask)           # (B, S, D)
        return [block.look_at(memory, mask) for block in self.decoder.layers()]

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """The logits (B, T, V) of the word after each target position, given all before it."""
        x = self.decoder(self.target_embedding(target), mask=Mask(causal=True), sources=self.encode(source, lengths))
        return self.output(x)

    def start(self, inputs: tuple[Tensor, Tensor], prefix: Tensor | None = None, room: int = 32) -> State:
        """Read the sources (ids, lengths), and target tokens (B, P) already written, short ones padded on the left."""
        state = State(len(inputs[0]), self.encode(*inputs), [Cache(room) for _ in self.decoder.blocks])
        if prefix is None or prefix.size(1) == 0:
            return state
        _, state = self.step(prefix, replace(state, starts=leading(prefix, PAD)))
        return state

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read the next target tokens (hypotheses, T); the logits (hypotheses, T, V) after each of them."""
        mask = Mask(causal=True, starts=state.starts)
        x = self.decoder(self.target_embedding(tokens), mask=mask, caches=state.memories, sources=state.sources)
        return self.output(x), state


def leading(tokens: Tensor, pad: int) -> Tensor:
    """How many tokens at the beginning of each row are padding: (B, P) -> (B,)."""
    return (tokens == pad).long().cumprod(1).sum(1)


def block_shape(settings: "TransformerModel", regularize: "Regularize | None") -> Shape:
    rates = {} if regularize is None else dict(dropout=regularize.dropout, attention_dropout=regularize.attention_dropout,
                                               activation_dropout=regularize.activation_dropout)
    key_width = settings.key_width or settings.width // settings.heads            # the same in layers of another width
    return Shape(settings.width, settings.heads, settings.feed_forward, key_width, settings.value_width, settings.key_value_heads,
                 settings.activation, settings.norm, settings.norm_first, residual=settings.residual,
                 scale=None if settings.scale_scores else 1.0, **rates)


def initialise(model: nn.Module) -> None:
    """Glorot's uniform matrices and zero biases, as the authors' code does."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
