"""Transformer encoders that read one text or two: BERT (Devlin et al. 2019), with other settings RoBERTa (Liu et al. 2019) and
DistilBERT (Sanh et al. 2019); what they say of a text (masked words and the next sentence, a label, tags, where an answer
stands) is their head."""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.masks import Mask
from regard.layers.convolution import GatedConvolution
from regard.layers.norm import build_norm
from regard.models.gpt import build_stack, init_normal

if TYPE_CHECKING:
    from regard.batches.batch import Batch
    from regard.recipe import Regularization
    from regard.recipe.stacks import EncoderModel


MASK_RATE = 0.15


class TextEncoder(nn.Module):
    """Ids (B, S) and the segment of each -> contextual vectors (B, S, D). Packed rows say which document each is of, what fills
    them up being one too."""

    def __init__(self, settings: "EncoderModel", vocabulary: int, regularize: "Regularization | None" = None):
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, settings.width)
        self.segments = nn.Embedding(settings.segments, settings.width) if settings.segments else None
        self.convolution = GatedConvolution(settings.width, settings.convolution) if settings.convolution else None
        self.stack = build_stack(settings, regularize, causal=False, embedding_norm=settings.embedding_norm)

    def forward(
        self,
        source: Tensor,
        lengths: Tensor,
        segments: Tensor | None = None,
        states: list[Tensor] | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        x = self.token_embedding(source)
        if self.segments is not None:
            last = self.segments.num_embeddings - 1  # RoBERTa has one segment
            x = x + self.segments(torch.zeros_like(source) if segments is None else segments.clamp(max=last))
        if self.convolution is not None:
            x = self.convolution(x, lengths)
        mask = Mask(lengths=lengths) if documents is None else Mask(documents=documents)
        return self.stack(x, mask=mask, states=states)


class EncoderWithHead(nn.Module):
    """An encoder, to which a head is added."""

    def __init__(self, settings: "EncoderModel", vocabulary: int, regularize: "Regularization | None" = None):
        super().__init__()
        self.settings = settings
        self.encoder = TextEncoder(settings, vocabulary, regularize)
        self.dropout = nn.Dropout(regularize.dropout if regularize else 0.0)

    @property
    def token_embedding(self) -> nn.Embedding:
        """The table of word vectors."""
        return self.encoder.token_embedding

    def hidden_states(self, source: Tensor, lengths: Tensor, segments: Tensor | None = None) -> list[Tensor]:
        """The embeddings with their positions, then what each layer makes of them: (B, S, D) each."""
        states: list[Tensor] = []
        self.encoder(source, lengths, segments, states)
        return states


class Pooling(nn.Module):
    """What a text is judged by (B, S, D) -> (B, D): tanh(W x_1) of its first token, as BERT has it, relu(W x_1) as DistilBERT,
    its last token as it is, or the mean or the largest numbers of all."""

    def __init__(self, kind: str, width: int):
        super().__init__()
        self.kind = kind
        self.dense = nn.Linear(width, width) if kind.startswith("first") else None

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        if self.dense is not None:
            return self.dense(x[:, 0]).tanh() if self.kind == "first" else self.dense(x[:, 0]).relu()
        if self.kind == "end":
            return x[torch.arange(len(x), device=x.device), (lengths - 1).clamp(min=0)]
        real = torch.arange(x.size(1), device=x.device) < lengths[:, None]  # (B, S)
        if self.kind == "max":
            hidden = ~real & (lengths > 0)[:, None]  # of nothing, the largest is whatever fills it up
            return x.masked_fill(hidden[..., None], float("-inf")).amax(1)
        return (x * real[..., None]).sum(1) / lengths[:, None].clamp(min=1)


class TextEmbedder(EncoderWithHead):
    """Says nothing: what is wanted of it is the vectors (B, S, D), and what it thinks of the whole where it has learned to."""

    def __init__(self, settings: "EncoderModel", vocabulary: int, regularize: "Regularization | None" = None):
        super().__init__(settings, vocabulary, regularize)
        self.pool = Pooling(settings.pool, settings.width)
        init_normal(self)

    def forward(self, source: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        return self.encoder(source, lengths, segments)


class MaskedLanguageModel(EncoderWithHead):
    """Says the words that were masked: V (norm(gelu(W x))) + b, V the word embeddings (Devlin et al. 2019, sec. 3.1)."""

    once_per_example = ("pool.dense", "next_sentence")

    def __init__(self, settings: "EncoderModel", vocabulary: int, regularize: "Regularization | None" = None):
        super().__init__(settings, vocabulary, regularize)
        self.transform = nn.Linear(settings.width, settings.width)
        self.norm = build_norm(settings.norm, settings.width, settings.norm_epsilon)
        self.output = nn.Linear(settings.width, vocabulary)
        self.pool = Pooling("first", settings.width)
        self.next_sentence = nn.Linear(settings.width, 2)
        init_normal(self)
        self.output.weight = self.encoder.token_embedding.weight

        self.followed: Tensor | None = None

    def forward(
        self,
        source: Tensor,
        lengths: Tensor,
        segments: Tensor | None = None,
        follows: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """The logits (B, S, V) of the word at each position. Where it is known whether the second text follows the first, what
        is thought of that (B, 2) is left behind in `followed`."""
        x = self.encoder(source, lengths, segments, documents=documents)
        self.followed = None if follows is None else self.next_sentence(self.pool(x, lengths))
        return self.output(self.norm(F.gelu(self.transform(x))))

    def auxiliary_loss(self, batch: "Batch") -> Tensor:
        """The surprise at whether one text follows the other, each row counting as much as the words usually hidden in it."""
        if self.followed is None:
            return torch.zeros((), device=batch.labels.device)
        follows, lengths = batch.inputs["follows"], batch.inputs["lengths"]
        passes = len(self.followed) // len(follows)  # two under R-Drop
        surprise = F.cross_entropy(self.followed.float(), follows.repeat(passes), reduction="none")
        return (surprise * (MASK_RATE * lengths).repeat(passes)).sum() / passes


class EncoderClassifier(EncoderWithHead):
    once_per_example = ("output", "pool.dense")

    def __init__(
        self,
        settings: "EncoderModel",
        vocabulary: int,
        labels: int,
        regularize: "Regularization | None" = None,
        features: None = None,
    ):
        super().__init__(settings, vocabulary, regularize)
        self.pool = Pooling(settings.pool, settings.width)
        self.output = nn.Linear(settings.width, labels)
        init_normal(self)

    def forward(self, source: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """The logits (B, C) of the labels of each text."""
        return self.output(self.dropout(self.pool(self.encoder(source, lengths, segments), lengths)))


class SpanPredictor(EncoderWithHead):
    """Says where the answer to a question begins and ends in the text beside it (Devlin et al. 2019, sec. 4.2)."""

    def __init__(self, settings: "EncoderModel", vocabulary: int, regularize: "Regularization | None" = None):
        super().__init__(settings, vocabulary, regularize)
        self.output = nn.Linear(settings.width, 2)
        init_normal(self)

    def forward(self, source: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """The logits (B, 2, S) of each position to be the first and the last of the answer; -inf behind a text's end."""
        logits = self.output(self.encoder(source, lengths, segments)).transpose(1, 2)  # (B, 2, S)
        outside = torch.arange(source.size(1), device=source.device) >= lengths[:, None].clamp(min=1)  # (B, S)
        return logits.masked_fill(outside[:, None], -torch.inf)


class EncoderTagger(EncoderWithHead):
    def __init__(
        self,
        settings: "EncoderModel",
        vocabulary: int,
        labels: int,
        regularize: "Regularization | None" = None,
        features: None = None,
    ):
        super().__init__(settings, vocabulary, regularize)
        self.output = nn.Linear(settings.width, labels)
        init_normal(self)

    def forward(self, source: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """The logits (B, S, C) of the labels of each token."""
        return self.output(self.dropout(self.encoder(source, lengths, segments)))
