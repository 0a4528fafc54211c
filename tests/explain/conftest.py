"""Targets of every kind of model, tiny and random."""

import pytest
import torch

from regard.explain.image_target import ImageTarget, ImageTextTarget, cells
from regard.explain.target import TextTarget
from regard.recipe import (
    DecoderModel,
    EncoderModel,
    RecurrentDecoderModel,
    RecurrentEncoderModel,
    RecurrentModel,
    TransformerModel,
)
from regard.recipe.captioner import CaptionModel
from regard.recipe.image_text import ClipModel
from regard.recipe.images import VitModel
from regard.tasks import find_task

V, C, STAND_IN = 13, 3, 3
SIZE, GRID, PATCH = (12, 8), (3, 2), (4, 4)
TOWER = dict(layers=2, width=8, heads=2, feed_forward=16)
BLOCKS = dict(kind="transformer", width=8, heads=2, feed_forward=16, max_length=80)


def larger(model):
    """Weights large enough that tokens make a difference."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model.double().eval()


def classifier(pool="first"):
    return larger(find_task("classify", "transformer").models["transformer"](EncoderModel(**BLOCKS, layers=2, pool=pool), V, C))


def reading(model, S=6, padding=0):
    source = torch.cat([torch.randint(4, V, (1, S)), torch.zeros(1, padding, dtype=torch.long)], dim=1)
    return TextTarget(model, {"source": source, "lengths": torch.tensor([S])}, "source", torch.arange(1, S - 1), 1, STAND_IN)


def translating(model, S=6, T=4, step=2):
    inputs = {"source": torch.randint(4, V, (1, S)), "lengths": torch.tensor([S]), "target": torch.randint(4, V, (1, T))}
    return TextTarget(model, inputs, "source", torch.arange(S - 1), 5, STAND_IN, step)


def writing(model, T=6):
    return TextTarget(model, {"target": torch.randint(4, V, (1, T))}, "target", torch.arange(1, T), 5, STAND_IN, T - 1)


def recurrent_translator(attention):
    return find_task("translate", "recurrent").models["recurrent"](RecurrentModel(kind="recurrent", width=8, attention=attention), V, V)


def seeing(model, marks=1, pooled=(0,), step=None, kind=ImageTarget, **inputs):
    """A picture of 3 × 2 patches, which are told apart by their colour."""
    pixels = torch.randn(1, 3, 3, 2).double().repeat_interleave(4, 2).repeat_interleave(4, 3) + 0.3 * torch.randn(1, 3, *SIZE)
    return kind(
        model,
        {"pixels": pixels.double(), **inputs},
        "pixels",
        torch.arange(6) + marks,
        1,
        pixels[0].mean((1, 2)),
        step,
        cells=cells(SIZE, GRID, PATCH),
        pooled=pooled,
    )


def vit(**settings):
    return larger(find_task("classify", "vit").models["vit"](VitModel(kind="vit", patch_size=4, **{**TOWER, **settings}), SIZE, C))


def captioning(encoder, decoder):
    model = find_task("caption", decoder["kind"]).models[decoder["kind"]](CaptionModel(encoder=encoder, decoder=decoder), SIZE, V)
    return seeing(larger(model), marks=0, pooled=None, step=2, target=torch.randint(4, V, (1, 3)))


def matching(**image):
    model = larger(
        find_task("contrastive", "clip").models["clip"](
            ClipModel(projection_width=6, image={"patch_size": 4, **TOWER, **image}, text={**TOWER, "max_length": 9}), SIZE, V
        )
    )
    return seeing(model, kind=ImageTextTarget, source=torch.randint(4, V, (2, 5)), lengths=torch.tensor([5, 4]))


PICTURES = {
    "ViT": lambda: seeing(vit()),
    "mean ViT": lambda: seeing(vit(pool="mean"), marks=0, pooled=None),
    "DeiT": lambda: seeing(vit(distilled="head"), marks=2, pooled=(0, 1)),
    "CLIP": matching,
    "captioner": lambda: captioning(
        {"kind": "patches", "patch_size": 4, "pool": "class", **TOWER}, {"kind": "transformer", **TOWER}
    ),
    "recurrent captioner": lambda: captioning({"kind": "cnn", "widths": [8, 8], "strides": [2, 2]}, {"kind": "lstm", "width": 8}),
}
KINDS = {
    **PICTURES,
    "classifier": lambda: reading(classifier()),
    "mean classifier": lambda: reading(classifier("mean")),
    "recurrent classifier": lambda: reading(
        larger(find_task("classify", "recurrent").models["recurrent"](RecurrentEncoderModel(width=8, attention="additive"), V, C))
    ),
    "translator": lambda: translating(
        larger(
            find_task("translate", "transformer").models["transformer"](TransformerModel(**BLOCKS, encoder_layers=2, decoder_layers=2, tie="all"), V, V)
        )
    ),
    "recurrent translator": lambda: translating(larger(recurrent_translator("additive"))),
    "without attention": lambda: translating(larger(recurrent_translator("none"))),
    "GPT": lambda: writing(larger(find_task("language", "transformer").models["transformer"](DecoderModel(**BLOCKS, layers=2, tie=True), V))),
    "recurrent language": lambda: writing(
        larger(find_task("language", "recurrent").models["recurrent"](RecurrentDecoderModel(width=8, attention="dot"), V))
    ),
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


@pytest.fixture(params=PICTURES)
def picture(request):
    torch.manual_seed(0)
    return PICTURES[request.param]()
