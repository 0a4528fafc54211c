"""Transformer decoders that predict the next token: GPT (Radford et al. 2018), GPT-2 (2019), GPT-3 (Brown et al. 2020), and with
other settings Llama (Touvron et al. 2023): rotary positions, RMS norm, SwiGLU, grouped-query attention, no biases; Mistral, Qwen
and Gemma, which vary it.

Deviations: GPT-3's sparse layers see a window of the past, without the strided pattern of Child et al. 2019.
"""

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from regard.attention.core import soft_cap
from regard.attention.masks import Mask
from regard.attention.positions import build_positions
from regard.layers.block import block_config, embedding_dropout
from regard.layers.stack import Stack
from regard.layers.state import DecoderState, prefill

if TYPE_CHECKING:
    from regard.recipe import Regularization
    from regard.recipe.text_models import DecoderModel, StackSettings


class Gpt(nn.Module):
    """A decoder-only language model."""

    supports_cuda_graphs = True
    """No host–device synchronisation in `step`."""

    def __init__(self, settings: "DecoderModel", vocabulary: int, regularize: "Regularization | None" = None):
        super().__init__()
        self.settings = settings
        self.token_embedding = nn.Embedding(vocabulary, settings.width)
        self.decoder = build_stack(settings, regularize, causal=True, windows=settings.windows)
        self.output = nn.Linear(settings.width, vocabulary, bias=False)
        init_normal(self)
        if settings.tie:
            self.output.weight = self.token_embedding.weight

    def forward(self, target: Tensor, documents: Tensor | None = None) -> Tensor:
        """Return the logits (B, T, V) of the token after each position; with `documents` (B, T), of packed rows."""
        return self.logits(self.decoder(self.embed(target), mask=Mask(causal=True, documents=documents)))

    def embed(self, tokens: Tensor) -> Tensor:
        embedded = self.token_embedding(tokens)
        return embedded * self.settings.width**0.5 if self.settings.scale_embedding else embedded

    @property
    def output_stack(self) -> Stack:
        """The stack whose output `logits` reads."""
        return self.decoder

    def logits(self, features: Tensor) -> Tensor:
        """Return the logits (…, V) of the decoder's output (…, D)."""
        logits = self.output(features)
        return logits if self.settings.logit_cap is None else soft_cap(logits, self.settings.logit_cap)

    def hidden_states(self, source: Tensor, lengths: Tensor) -> list[Tensor]:
        """Return the embeddings with their positions, then the output of each layer: (B, S, D) each."""
        states: list[Tensor] = []
        self.decoder(self.embed(source), mask=Mask(causal=True), states=states)
        return states

    def start(self, inputs: Any, prefix: Tensor, capacity: int = 32) -> DecoderState:
        """Read a prefix (B, P), short rows padded with -1 on the left; there is no other input."""
        return prefill(self.step_features, prefix.size(0), [], len(self.decoder.blocks), prefix, capacity)

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read the next tokens (rows, T); return the logits (rows, T, V) after each."""
        return self.logits(self.step_features(tokens, state)), state

    def step_features(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Read the next tokens; return the decoder's output (rows, T, D), without logits."""
        return self.decoder(self.embed(tokens), mask=Mask(causal=True, starts=state.starts), caches=state.caches)


def build_stack(
    settings: "StackSettings",
    regularize: "Regularization | None",
    *,
    causal: bool,
    embedding_width: int | None = None,
    **options: Any,
) -> Stack:
    """Return the stack that settings of an encoder or a decoder describe."""
    config = block_config(settings, regularize)
    assert config.key_width is not None
    positions = build_positions(
        settings.positions,
        width=embedding_width or config.width,
        heads=config.heads,
        key_width=config.key_width,
        max_length=settings.max_length,
        causal=causal,
    )
    options |= {"embedding_dropout": embedding_dropout(regularize), "embedding_width": embedding_width}
    return Stack(config, settings.layers, positions, **options)


def init_normal(model: nn.Module) -> None:
    """Initialise matrices and embeddings from N(0, 0.02²), as in GPT-2 and BERT, and biases with zeros."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
