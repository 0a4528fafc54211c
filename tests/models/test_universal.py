"""The Universal Transformer: one block shared by all steps, and adaptive halting."""

import pytest
import torch

from regard.attention.modules import attention_modules
from regard.attention.positions import sinusoids
from regard.batches.batch import IGNORE_INDEX, Batch
from regard.models.transformer import Transformer
from regard.models.universal import UniversalTransformer
from regard.recipe import TransformerModel, UniversalModel

SHAPE = dict(width=16, heads=2, feed_forward=32, max_length=32)


def universal(**settings):
    shape = {**SHAPE, "encoder_layers": 4, "decoder_layers": 4, **settings}
    return UniversalTransformer(UniversalModel(kind="universal", **shape), 20, 20)


def test_number_of_parameters_does_not_depend_on_the_steps():
    counts = [sum(p.numel() for p in universal(encoder_layers=n, decoder_layers=n).parameters()) for n in (1, 2, 6)]
    assert len(set(counts)) == 1
    plain = Transformer(TransformerModel(**SHAPE, encoder_layers=1, decoder_layers=1), 20, 20)
    assert counts[0] == sum(p.numel() for p in plain.parameters()) + 2 * 17  # and two halting units


def test_every_step_has_its_own_attention_module():
    assert len(attention_modules(universal())) == 4 + 4 + 4


def inputs():
    return torch.randint(4, 20, (3, 7)), torch.tensor([7, 5, 3]), torch.randint(4, 20, (3, 6))


def test_halting_probability_decides_the_number_of_steps():
    model = universal().eval()
    for bias, steps in ((20.0, 1), (-20.0, 4)):
        for stack in (model.encoder, model.decoder):
            torch.nn.init.zeros_(stack.halt.weight)
            torch.nn.init.constant_(stack.halt.bias, bias)
        model(*inputs())
        assert model.encoder.steps.eq(steps).all() and model.decoder.steps.eq(steps).all()


def test_halting_probabilities_sum_to_one():
    """With states that do not change, the mean under the halting probabilities is the state itself."""
    model = universal().eval()
    stack = model.encoder
    constant = torch.randn(16)
    for block in stack.layers():
        block.forward = lambda x, constant=constant, **_: constant.expand_as(x)
    torch.nn.init.normal_(stack.halt.weight)
    torch.testing.assert_close(stack(torch.randn(2, 5, 16)), stack.norm(constant.expand(2, 5, 16)))
    assert stack.ponder.ge(1).all() and (stack.ponder <= stack.steps + 1 + 1e-6).all()


def test_ponder_cost_reduces_the_number_of_steps():
    torch.manual_seed(1)
    model = universal(ponder_cost=1.0, encoder_layers=8, decoder_layers=8)
    for stack in (model.encoder, model.decoder):
        torch.nn.init.normal_(stack.halt.weight, std=0.2)
        torch.nn.init.constant_(stack.halt.bias, -0.5)
    source, lengths, target = inputs()
    batch = Batch({"source": source, "lengths": lengths}, target, None)
    model(source, lengths, target)
    before = model.encoder.ponder.mean().item()
    assert model.encoder.steps.unique().numel() > 1
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        model(source, lengths, target)
        model.auxiliary_loss(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert model.encoder.ponder.mean().item() < before - 0.5


def test_halted_tokens_keep_their_state():
    """When all tokens halt after the first step, every later step reads the same state plus its step encoding."""
    model = universal().eval()
    torch.nn.init.zeros_(model.encoder.halt.weight)
    torch.nn.init.constant_(model.encoder.halt.bias, 20.0)
    read = []
    for block in model.encoder.layers():
        block.register_forward_pre_hook(lambda _, args: read.append(args[0]))
    model.encode(*inputs()[:2])
    states = [x - sinusoids(torch.tensor(time), 16).float() for time, x in enumerate(read)]
    assert len(states) == 4 and not torch.allclose(states[0], states[1], atol=1e-3)
    for later in states[2:]:
        torch.testing.assert_close(later, states[1], atol=1e-5, rtol=1e-5)


def test_padding_has_no_ponder_cost():
    model = universal(ponder_cost=0.5).eval()
    source, lengths, target = inputs()
    labels = target.clone()
    labels[0, 2:] = IGNORE_INDEX
    model(source, lengths, target)
    charged = model.encoder.ponder[0].sum() + model.encoder.ponder[1, :5].sum() + model.encoder.ponder[2, :3].sum()
    charged = charged + model.decoder.ponder[0, :2].sum() + model.decoder.ponder[1:].sum()
    batch = Batch({"source": source, "lengths": lengths}, labels, None)
    assert model.auxiliary_loss(batch).item() == pytest.approx(0.5 * charged.item(), rel=1e-5)
