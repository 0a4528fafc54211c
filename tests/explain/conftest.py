"""Targets of every kind of model, tiny and random."""

import pytest
import torch

from regard.explain.target import Target
from regard.models.zoo import MODELS
from regard.recipe import DecoderModel, EncoderModel, RecurrentLanguage, RecurrentModel, RecurrentReader, TransformerModel

V, C, STAND_IN = 13, 3, 3
BLOCKS = dict(kind="transformer", width=8, heads=2, feed_forward=16, max_length=80)


def larger(model):
    """Weights large enough that tokens make a difference."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model.double().eval()


def classifier(pool="first"):
    return larger(MODELS["classify"]["transformer"](EncoderModel(**BLOCKS, layers=2, pool=pool), V, C))


def reading(model, S=6, padding=0):
    source = torch.cat([torch.randint(4, V, (1, S)), torch.zeros(1, padding, dtype=torch.long)], dim=1)
    return Target(model, {"source": source, "lengths": torch.tensor([S])}, "source", torch.arange(1, S - 1), 1, STAND_IN)


def translating(model, S=6, T=4, step=2):
    inputs = {"source": torch.randint(4, V, (1, S)), "lengths": torch.tensor([S]), "target": torch.randint(4, V, (1, T))}
    return Target(model, inputs, "source", torch.arange(S - 1), 5, STAND_IN, step)


def writing(model, T=6):
    return Target(model, {"target": torch.randint(4, V, (1, T))}, "target", torch.arange(1, T), 5, STAND_IN, T - 1)


def recurrent_translator(attention):
    return MODELS["translate"]["recurrent"](RecurrentModel(kind="recurrent", width=8, attention=attention), V, V)


KINDS = {
    "classifier": lambda: reading(classifier()),
    "mean classifier": lambda: reading(classifier("mean")),
    "recurrent classifier": lambda: reading(larger(MODELS["classify"]["recurrent"](
        RecurrentReader(width=8, attention="additive"), V, C))),
    "translator": lambda: translating(larger(MODELS["translate"]["transformer"](
        TransformerModel(**BLOCKS, encoder_layers=2, decoder_layers=2, tie="all"), V, V))),
    "recurrent translator": lambda: translating(larger(recurrent_translator("additive"))),
    "without attention": lambda: translating(larger(recurrent_translator("none"))),
    "GPT": lambda: writing(larger(MODELS["language"]["transformer"](DecoderModel(**BLOCKS, layers=2, tie=True), V))),
    "recurrent language": lambda: writing(larger(MODELS["language"]["recurrent"](
        RecurrentLanguage(width=8, attention="dot"), V))),
}


@pytest.fixture(params=KINDS)
def target(request):
    torch.manual_seed(0)
    return KINDS[request.param]()


@pytest.fixture(scope="session")
def tiny_classifier():
    return classifier


@pytest.fixture(scope="session")
def tiny_target():
    return reading


@pytest.fixture
def kinds():
    return KINDS
