"""Self-critical sequence training (Rennie et al. 2017): train on the score of what a model generates.

Cross-entropy asks for the next word of a reference after a reference's words. In use a model reads its own words, and is judged
by a score of the whole output. Here it samples K outputs ŷ_k of each input x, and is trained by REINFORCE (Williams 1992) on
their sentence BLEU r_k, with the mean of the other samples as the baseline of each (Luo 2020):

    ∇ L = - 1/K Σ_k (r_k - 1/(K-1) Σ_{j≠k} r_j) ∇ log p(ŷ_k | x)
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.batches.batch import IGNORE_INDEX, Batch
from regard.batches.ragged import Ragged
from regard.batches.rows import decoder_inputs, decoder_labels
from regard.decoding.greedy import greedy_or_sample
from regard.decoding.sampling import Sampler
from regard.recipe import Regularization, SelfCritical
from regard.scoring import ReferenceNgrams
from regard.tasks.shared.images import in_mode
from regard.tokens.special_tokens import SpecialTokens
from regard.tokens.tokenizer import Tokenizer
from regard.training.losses import CrossEntropy, nll

MAX_LENGTH_RATIO = 1.5
"""Samples end at this times the length of the longest reference, and `EXTRA_TOKENS` more."""
EXTRA_TOKENS = 5
END = "</s>"


class SelfCriticalLoss:
    """The self-critical loss of an encoder–decoder whose batches have `references`.

    The gradient is the one above. The value is (1 - mean reward) times the number of labels, which the loop divides by: the log
    shows 1 - BLEU of the samples. Dropout is off while samples are drawn, and on for their log p.
    """

    def __init__(
        self,
        settings: SelfCritical,
        regularize: Regularization,
        tokenizer: Tokenizer,
        special_tokens: SpecialTokens,
        max_length: int,
    ):
        self.settings, self.tokenizer, self.special_tokens, self.max_length = settings, tokenizer, special_tokens, max_length
        self.cross_entropy = CrossEntropy(regularize)

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        assert batch.references is not None, "the rows give no references"
        samples, rewards = self.sample(model, batch)
        advantages = self.advantages(rewards.to(batch.labels.device))  # (B, K)
        log_p = self.log_probabilities(model, batch, samples)  # (B, K)
        loss = -(advantages * log_p).mean(1).sum()
        value = (1 - rewards.mean()) * batch.label_count()
        loss = loss + (value - loss).detach()
        if self.settings.cross_entropy_weight:
            loss = loss + self.settings.cross_entropy_weight * self.cross_entropy(model, batch)
        return loss

    def limits(self, references: Sequence[Sequence[Sequence[int]]]) -> Tensor:
        """Return the most tokens of each sample, the end included: (B·K,)."""
        longest = torch.tensor([max(map(len, own)) for own in references])
        limits = ((MAX_LENGTH_RATIO * longest).long() + EXTRA_TOKENS).clamp(max=self.max_length)
        return limits.repeat_interleave(self.settings.samples)

    @torch.no_grad()
    def sample(self, model: Any, batch: Batch) -> tuple[list[list[int]], Tensor]:
        """Return K outputs for each row, one row's after another, and their rewards (B, K) on the host."""
        assert batch.references is not None
        inputs = [part.repeat_interleave(self.settings.samples, 0) for part in source_inputs(batch).values()]
        seed = int(torch.randint(2**62, ()))  # follows the seed of the step
        with in_mode(model, training=False):
            found = greedy_or_sample(
                model,
                inputs[0] if len(inputs) == 1 else tuple(inputs),
                self.limits(batch.references).to(batch.labels.device),
                Sampler(seed),
                special_tokens=self.special_tokens,
            )
        samples = [hypothesis.tokens for hypothesis in found]
        return samples, self.rewards(samples, batch.references)

    def rewards(self, samples: Sequence[Sequence[int]], references: Sequence[Sequence[Sequence[int]]]) -> Tensor:
        """Return the BLEU of K samples for each row, over the words that they are shown as and their end: (B, K)."""
        words = iter(self._words(samples))
        found = []
        for own in references:
            known = ReferenceNgrams(self._words(own))
            found.append([known.bleu(next(words)) for _ in range(self.settings.samples)])
        return torch.tensor(found)

    def _words(self, ids: Sequence[Sequence[int]]) -> list[list[str]]:
        """Return the words of each text and an end token. Without it, BLEU does not see where a caption stops."""
        return [[*text.split(), END] for text in self.tokenizer.decode([list(row) for row in ids])]

    def advantages(self, rewards: Tensor) -> Tensor:
        """Return how much better each sample is than the mean of the row's others: (B, K) -> (B, K)."""
        others = (rewards.sum(1, keepdim=True) - rewards) / (rewards.size(1) - 1)
        return rewards - others

    def log_probabilities(self, model: nn.Module, batch: Batch, samples: Sequence[Sequence[int]]) -> Tensor:
        """Return log p of the sampled tokens: (B, K). The end token of a sample at its limit was forced, and is left out."""
        assert batch.references is not None
        ids = Ragged.from_rows(samples)
        target, labels = decoder_inputs(ids, self.special_tokens), decoder_labels(ids, self.special_tokens)  # (B·K, T)
        at_limit = torch.from_numpy(ids.lengths) + 1 == self.limits(batch.references)
        labels[at_limit, torch.from_numpy(ids.lengths)[at_limit]] = IGNORE_INDEX
        target, labels = target.to(batch.labels.device), labels.to(batch.labels.device)
        inputs = {name: part.repeat_interleave(self.settings.samples, 0) for name, part in source_inputs(batch).items()}
        logits: Tensor = model(**inputs, target=target)  # (B·K, T, V)
        log_p = -nll(logits.float().log_softmax(-1), labels).sum(1)  # (B·K,)
        return log_p.view(-1, self.settings.samples)


def source_inputs(batch: Batch) -> dict[str, Tensor]:
    """Return the inputs of the encoder."""
    return {name: part for name, part in batch.inputs.items() if name != "target"}
