"""Laws of self-critical sequence training, on a model whose outputs can be enumerated; and a captioner that is trained by it."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from regard.batches.batch import Batch
from regard.recipe import Regularization, SelfCritical
from regard.scoring import ReferenceNgrams
from regard.tasks.self_critical import END, SelfCriticalLoss
from regard.tokens.special_tokens import BOS, DEFAULT_SPECIAL_TOKENS, EOS, PAD, UNK

WORDS, V = [4, 5], 6
REFERENCES = [[4, 5], [5]]


@dataclass
class NoState:
    """The state of a model that reads the last token only."""

    def keep(self, rows):
        return self


class Bigrams(nn.Module):
    """Predicts a token from the one before it: a table of logits."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.table = nn.Parameter(torch.randn(V, V, generator=torch.Generator().manual_seed(1), dtype=dtype))
        with torch.no_grad():
            self.table[:, [PAD, BOS, UNK]] = -1e9

    def start(self, inputs, prefix=None, capacity=32):
        return NoState()

    def step(self, tokens, state):
        return self.table[tokens], state

    def forward(self, source, target):
        return self.table[target]


class Numbers:
    """A tokenizer whose words are the ids."""

    def decode(self, rows):
        return [" ".join(map(str, row)) for row in rows]


def make_loss(max_length, **settings):
    return SelfCriticalLoss(SelfCritical(**settings), Regularization(), Numbers(), DEFAULT_SPECIAL_TOKENS, max_length)


def make_batch(B):
    labels = torch.tensor([[4, 5, EOS]]).repeat(B, 1)
    return Batch({"source": torch.zeros(B, 1), "target": labels}, labels, np.arange(B), references=[REFERENCES] * B)


def expected_reward(model, max_length):
    """Return the sum over all outputs of at most max_length - 1 words of p · BLEU, as a function of the table."""
    known, log_p, total = ReferenceNgrams([[*map(str, one), END] for one in REFERENCES]), model.table.log_softmax(-1), 0.0
    for length in range(max_length):
        for words in product(WORDS, repeat=length):
            tokens = [*words, EOS] if length < max_length - 1 else list(words)  # at the limit the end is certain
            p = sum((log_p[a, b] for a, b in zip([BOS, *tokens], tokens)), torch.zeros((), dtype=log_p.dtype)).exp()
            total = total + p * known.bleu([*map(str, words), END])
    return total


@pytest.mark.parametrize("max_length", [2, 4])
@pytest.mark.parametrize("samples", [2, 5])
def test_gradient_is_that_of_the_expected_reward(max_length, samples):
    torch.manual_seed(0)
    model, B = Bigrams(), 12_000 // samples
    loss = make_loss(max_length, samples=samples)(model, make_batch(B)) / B
    (found,) = torch.autograd.grad(-loss, model.table)
    (expected,) = torch.autograd.grad(expected_reward(model, max_length), model.table)
    assert (found - expected).norm() < 0.06 * expected.norm()


def test_loss_per_label_is_one_less_the_mean_reward():
    model, loss, batch = Bigrams(), make_loss(4), make_batch(64)
    torch.manual_seed(3)
    value = loss(model, batch)
    torch.manual_seed(3)
    _, rewards = loss.sample(model, batch)
    assert value.item() / batch.label_count() == pytest.approx(1 - float(rewards.mean()))


def test_samples_of_equal_reward_leave_the_model_as_it_is():
    loss = make_loss(4)
    assert not loss.advantages(torch.full((3, 5), 0.7)).any()
    advantages = loss.advantages(torch.rand(3, 5))
    assert advantages.sum(1).abs().max() < 1e-6, "no row is pushed up or down as a whole"


def test_cross_entropy_is_added_with_its_weight():
    model, batch = Bigrams(), make_batch(8)
    values = []
    for weight in (0.0, 0.5):
        torch.manual_seed(1)
        values.append(make_loss(4, cross_entropy_weight=weight)(model, batch))
    expected = 0.5 * make_loss(4).cross_entropy(model, batch)
    assert (values[1] - values[0]).item() == pytest.approx(expected.item())
