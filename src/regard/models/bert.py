"""Transformer encoders of one text or two: BERT (Devlin et al. 2019), with other settings RoBERTa (Liu et al. 2019), DistilBERT
(Sanh et al. 2019), ALBERT (Lan et al. 2020), ELECTRA (Clark et al. 2020) and ModernBERT (Warner et al. 2024), and their heads:
masked tokens and the next sentence, a label, tags, the span of an answer.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.masks import Mask
from regard.layers.activations import ACTIVATIONS
from regard.layers.convolution import GatedConvolution
from regard.layers.norm import build_norm
from regard.layers.stack import Stack
from regard.models.gpt import build_stack, init_normal

if TYPE_CHECKING:
    from regard.batches.batch import Batch
    from regard.recipe import Regularization
    from regard.recipe.text_models import EncoderClassifierModel, EncoderModel

MASK_RATE = 0.15
"""The usual fraction of masked tokens, by which the next-sentence loss is weighted."""
FIRST_TOKEN: dict[str, Callable[[Tensor], Tensor]] = {"first": torch.tanh, "first_relu": F.relu, "first_gelu": F.gelu}
"""The kinds of pooling that read the first token, and their activations."""


class TextEncoder(nn.Module):
    """Ids (B, S) and their segments -> contextual vectors (B, S, D). For packed rows, `documents` (B, S) has the document of each
    token, padding being one of them."""

    def __init__(self, settings: "EncoderModel", vocabulary: int, regularize: "Regularization | None" = None):
        super().__init__()
        width = settings.embedding_width or settings.width
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.segments = nn.Embedding(settings.segments, width) if settings.segments else None
        self.convolution = GatedConvolution(width, settings.convolution) if settings.convolution else None
        self.stack = build_stack(
            settings,
            regularize,
            causal=False,
            embedding_norm=settings.embedding_norm,
            embedding_width=settings.embedding_width,
            share_layers=settings.share_layers,
            windows=settings.windows,
        )
        if not settings.first_norm:  # the embeddings are normalised already
            next(self.stack.layers()).self_residual.norm = nn.Identity()

    def forward(
        self,
        source: Tensor,
        lengths: Tensor,
        segments: Tensor | None = None,
        states: list[Tensor] | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        mask = Mask(lengths=lengths) if documents is None else Mask(documents=documents)
        x, segment = self.token_embedding(source), None
        if self.segments is not None and segments is not None:
            x = x + self.segments(segments.clamp(max=self.segments.num_embeddings - 1))  # RoBERTa has one segment
        elif self.segments is not None:
            segment = self.segments.weight[0]
        if self.convolution is not None:
            x, segment = self.convolution(x if segment is None else x + segment, lengths), None
        return self.stack(x, mask=mask, states=states, segment=segment)


class EncoderWithHead(nn.Module):
    """A text encoder, to which subclasses add a head."""

    def __init__(self, settings: "EncoderModel", vocabulary: int, regularize: "Regularization | None" = None):
        super().__init__()
        self.settings = settings
        self.encoder = TextEncoder(settings, vocabulary, regularize)
        self.dropout = nn.Dropout(regularize.dropout if regularize else 0.0)

    @property
    def token_embedding(self) -> nn.Embedding:
        """The embedding table."""
        return self.encoder.token_embedding

    def hidden_states(self, source: Tensor, lengths: Tensor, segments: Tensor | None = None) -> list[Tensor]:
        """Return the embeddings with their positions, then the output of each layer: (B, S, D) each."""
        states: list[Tensor] = []
        self.encoder(source, lengths, segments, states)
        return states


class Pooling(nn.Module):
    """The vector of a whole text, (B, S, D) -> (B, D): tanh(W x_1) of its first token as in BERT, relu(W x_1) as in DistilBERT,
    gelu(W x_1) as in ELECTRA, x_1 itself ("first_token"), its last token ("end"), or the mean or maximum of all tokens."""

    def __init__(self, kind: str, width: int):
        super().__init__()
        self.kind = kind
        self.dense = nn.Linear(width, width) if kind in FIRST_TOKEN else None

    def forward(self, x: Tensor, lengths: Tensor, inside: Tensor | None = None) -> Tensor:
        """Return the vector of each row's text; of the tokens `inside` (B, S) alone, for the mean and the maximum."""
        if self.dense is not None:
            return FIRST_TOKEN[self.kind](self.dense(x[:, 0]))
        if self.kind == "first_token":
            return x[:, 0]
        if self.kind == "end":
            return x[torch.arange(len(x), device=x.device), (lengths - 1).clamp(min=0)]
        real = torch.arange(x.size(1), device=x.device) < lengths[:, None] if inside is None else inside  # (B, S)
        lengths = lengths if inside is None else inside.sum(1)
        if self.kind == "max":
            padding = ~real & (lengths > 0)[:, None]  # an empty text gives the maximum of its padding, which is finite
            return x.masked_fill(padding[..., None], float("-inf")).amax(1)
        return (x * real[..., None]).sum(1) / lengths[:, None].clamp(min=1)


class TextEmbedder(EncoderWithHead):
    """An encoder without a head: its output are the vectors (B, S, D); `pool` may have pretrained weights."""

    def __init__(self, settings: "EncoderModel", vocabulary: int, regularize: "Regularization | None" = None):
        super().__init__(settings, vocabulary, regularize)
        self.pool = Pooling(settings.pool, settings.width)
        init_normal(self)

    def forward(self, source: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        return self.encoder(source, lengths, segments)


class MaskedLanguageModel(EncoderWithHead):
    """Predicts masked tokens, V (norm(f(W x))) + b with V the token embeddings (Devlin et al. 2019, sec. 3.1), and whether the
    second text follows the first."""

    once_per_example = ("pool.dense", "next_sentence")

    def __init__(self, settings: "EncoderModel", vocabulary: int, regularize: "Regularization | None" = None):
        super().__init__(settings, vocabulary, regularize)
        embedded = settings.embedding_width or settings.width
        self.transform = nn.Linear(settings.width, embedded, bias=settings.head_bias)
        self.activation = ACTIVATIONS[settings.head_activation]
        self.norm = build_norm(settings.norm, embedded, settings.norm_epsilon)
        self.output = nn.Linear(embedded, vocabulary)
        self.pool = Pooling("first", settings.width)
        self.next_sentence = nn.Linear(settings.width, 2)
        init_normal(self)
        self.output.weight = self.encoder.token_embedding.weight
        self.next_sentence_logits: Tensor | None = None

    def forward(
        self,
        source: Tensor,
        lengths: Tensor,
        segments: Tensor | None = None,
        follows: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Return the logits (B, S, V) of the token at each position. With `follows`, the next-sentence logits (B, 2) are
        kept for `auxiliary_loss`."""
        x = self.encoder(source, lengths, segments, documents=documents)
        self.next_sentence_logits = None if follows is None else self.next_sentence(self.pool(x, lengths))
        return self.logits(x)

    @property
    def output_stack(self) -> Stack:
        """The stack whose output `logits` reads."""
        return self.encoder.stack

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits (…, V) of the encoder's output (…, D)."""
        return self.output(self.norm(self.activation(self.transform(x))))

    def auxiliary_loss(self, batch: "Batch") -> Tensor:
        """Return the next-sentence loss of the last forward pass, each row weighted by its usual number of masked tokens."""
        if self.next_sentence_logits is None:
            return torch.zeros((), device=batch.labels.device)
        follows, lengths = batch.inputs["follows"], batch.inputs["lengths"]
        passes = len(self.next_sentence_logits) // len(follows)  # two under R-Drop
        nll = F.cross_entropy(self.next_sentence_logits.float(), follows.repeat(passes), reduction="none")
        return (nll * (MASK_RATE * lengths).repeat(passes)).sum() / passes


class HeadTransform(nn.Module):
    """norm(f(W x)), which ModernBERT has before the output of every head: (…, D) -> (…, D)."""

    def __init__(self, settings: "EncoderModel"):
        super().__init__()
        self.transform = nn.Linear(settings.width, settings.width, bias=settings.head_bias)
        self.activation = ACTIVATIONS[settings.head_activation]
        self.norm = build_norm(settings.norm, settings.width, settings.norm_epsilon)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.transform(x)))


def build_head(settings: "EncoderModel") -> nn.Module:
    """Return what comes before the output of a head that predicts labels, tags or spans."""
    return HeadTransform(settings) if settings.head_transform else nn.Identity()


class EncoderClassifier(EncoderWithHead):
    """A classifier on the pooled vector. Of a pair whose texts are read alone, on what compares their vectors u and v: the output
    is W [u; v; |u − v|] + b (Reimers & Gurevych 2019, sec. 3), or w cos(u, v) + b."""

    once_per_example = ("output", "pool.dense", "head.transform")

    def __init__(
        self,
        settings: "EncoderClassifierModel",
        vocabulary: int,
        labels: int,
        regularize: "Regularization | None" = None,
        features: None = None,
    ):
        super().__init__(settings, vocabulary, regularize)
        self.settings: EncoderClassifierModel = settings
        self.pool = Pooling(settings.pool, settings.width)
        self.head = build_head(settings)
        compared = {"cross-encoder": settings.width, "bi-encoder": 3 * settings.width, "cosine": 1}[settings.pairs]
        self.output = nn.Linear(compared, labels)
        init_normal(self)

    def forward(self, source: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """Return the logits (B, C) of the labels of each text, or of each pair, whose texts have `segments` 0 and 1 (B, S)."""
        if self.settings.reads_texts_alone:
            assert segments is not None, "the segments tell the texts of a pair apart"
            return self.output(self.compare(*self.text_vectors(source, lengths, segments)))
        pooled = self.pool(self.encoder(source, lengths, segments), lengths)  # (B, D)
        return self.output(self.dropout(self.head(pooled)))

    def text_vectors(self, source: Tensor, lengths: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors (B, D) of both texts of each row, of which neither attends to the other."""
        padding = torch.arange(source.size(1), device=source.device) >= lengths[:, None]  # (B, S)
        documents = segments.masked_fill(padding, 2)
        x = self.encoder(source, lengths, documents=documents)
        u, v = (self.head(self.pool(x, lengths, documents == number)) for number in (0, 1))
        return u, v

    def compare(self, u: Tensor, v: Tensor) -> Tensor:
        """Return what the output reads of two vectors: [u; v; |u − v|] (B, 3D), or their cosine (B, 1)."""
        if self.settings.pairs == "cosine":
            exact = torch.promote_types(u.dtype, torch.float32)
            return F.cosine_similarity(u.to(exact), v.to(exact), dim=-1)[:, None].to(u.dtype)
        return self.dropout(torch.cat([u, v, (u - v).abs()], dim=-1))


class SpanPredictor(EncoderWithHead):
    """Predicts where the answer to a question starts and ends in its context (Devlin et al. 2019, sec. 4.2)."""

    def __init__(self, settings: "EncoderModel", vocabulary: int, regularize: "Regularization | None" = None):
        super().__init__(settings, vocabulary, regularize)
        self.head = build_head(settings)
        self.output = nn.Linear(settings.width, 2)
        init_normal(self)

    def forward(self, source: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """Return the logits (B, 2, S) of each position as the first and the last of the answer; -inf for padding."""
        logits = self.output(self.head(self.encoder(source, lengths, segments))).transpose(1, 2)  # (B, 2, S)
        padding = torch.arange(source.size(1), device=source.device) >= lengths[:, None].clamp(min=1)  # (B, S)
        return logits.masked_fill(padding[:, None], -torch.inf)


class EncoderTagger(EncoderWithHead):
    """A tagger of every token."""

    def __init__(
        self,
        settings: "EncoderModel",
        vocabulary: int,
        labels: int,
        regularize: "Regularization | None" = None,
        features: None = None,
    ):
        super().__init__(settings, vocabulary, regularize)
        self.head = build_head(settings)
        self.output = nn.Linear(settings.width, labels)
        init_normal(self)

    def forward(self, source: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """Return the logits (B, S, C) of the labels of each token."""
        return self.output(self.dropout(self.head(self.encoder(source, lengths, segments))))
