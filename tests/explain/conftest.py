"""Attribution targets of every kind of model, tiny and random."""

import pytest
import torch

from regard.explain.target import ImageTarget, ImageTextTarget, TextTarget, patch_indices
from regard.recipe import (
    DecoderModel,
    EncoderClassifierModel,
    RecurrentDecoderModel,
    RecurrentEncoderModel,
    RecurrentModel,
    TransformerModel,
)
from regard.recipe.image_models import CaptionModel, VitModel
from regard.recipe.image_text import ClipModel
from regard.tasks import find_task

V, C, REPLACEMENT = 13, 3, 3
SIZE, GRID, PATCH = (12, 8), (3, 2), (4, 4)
TOWER = dict(layers=2, width=8, heads=2, feed_forward=16)
BLOCKS = dict(kind="transformer", width=8, heads=2, feed_forward=16, max_length=80)


def with_large_weights(model):
    """Enlarge the weights so that tokens make a difference."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model.double().eval()


def classifier(pool="first"):
    return with_large_weights(
        find_task("classify", "transformer").models["transformer"](EncoderClassifierModel(**BLOCKS, layers=2, pool=pool), V, C)
    )


def text_target(model, S=6, padding=0):
    source = torch.cat([torch.randint(4, V, (1, S)), torch.zeros(1, padding, dtype=torch.long)], dim=1)
    return TextTarget(model, {"source": source, "lengths": torch.tensor([S])}, "source", torch.arange(1, S - 1), 1, REPLACEMENT)


def translation_target(model, S=6, T=4, step=2):
    inputs = {"source": torch.randint(4, V, (1, S)), "lengths": torch.tensor([S]), "target": torch.randint(4, V, (1, T))}
    return TextTarget(model, inputs, "source", torch.arange(S - 1), 5, REPLACEMENT, step)


def language_target(model, T=6):
    return TextTarget(model, {"target": torch.randint(4, V, (1, T))}, "target", torch.arange(1, T), 5, REPLACEMENT, T - 1)


def recurrent_translator(attention):
    return find_task("translate", "recurrent").models["recurrent"](
        RecurrentModel(kind="recurrent", width=8, attention=attention), V, V
    )


def make_image_target(model, special=1, pooled=(0,), step=None, kind=ImageTarget, **inputs):
    """Return the target of an image of 3 × 2 patches of different colours."""
    pixels = torch.randn(1, 3, 3, 2).double().repeat_interleave(4, 2).repeat_interleave(4, 3) + 0.3 * torch.randn(1, 3, *SIZE)
    return kind(
        model,
        {"pixels": pixels.double(), **inputs},
        "pixels",
        torch.arange(6) + special,
        1,
        pixels[0].mean((1, 2)),
        step,
        patch_of_pixel=patch_indices(SIZE, GRID, PATCH),
        pooled=pooled,
    )


def vit(**settings):
    return with_large_weights(
        find_task("classify", "vit").models["vit"](VitModel(kind="vit", patch_size=4, **{**TOWER, **settings}), SIZE, C)
    )


def caption_target(encoder, decoder):
    model = find_task("caption", decoder["kind"]).models[decoder["kind"]](CaptionModel(encoder=encoder, decoder=decoder), SIZE, V)
    return make_image_target(with_large_weights(model), special=0, pooled=None, step=2, target=torch.randint(4, V, (1, 3)))


def clip_target(**image):
    model = with_large_weights(
        find_task("contrastive", "clip").models["clip"](
            ClipModel(projection_width=6, image={"patch_size": 4, **TOWER, **image}, text={**TOWER, "max_length": 9}), SIZE, V
        )
    )
    return make_image_target(model, kind=ImageTextTarget, source=torch.randint(4, V, (2, 5)), lengths=torch.tensor([5, 4]))


IMAGE_TARGETS = {
    "ViT": lambda: make_image_target(vit()),
    "mean ViT": lambda: make_image_target(vit(pool="mean"), special=0, pooled=None),
    "DeiT": lambda: make_image_target(vit(distilled="head"), special=2, pooled=(0, 1)),
    "CLIP": clip_target,
    "captioner": lambda: caption_target(
        {"kind": "patches", "patch_size": 4, "pool": "class", **TOWER}, {"kind": "transformer", **TOWER}
    ),
    "recurrent captioner": lambda: caption_target(
        {"kind": "cnn", "widths": [8, 8], "strides": [2, 2]}, {"kind": "lstm", "width": 8}
    ),
}
TARGETS = {
    **IMAGE_TARGETS,
    "classifier": lambda: text_target(classifier()),
    "mean classifier": lambda: text_target(classifier("mean")),
    "recurrent classifier": lambda: text_target(
        with_large_weights(
            find_task("classify", "recurrent").models["recurrent"](RecurrentEncoderModel(width=8, attention="additive"), V, C)
        )
    ),
    "translator": lambda: translation_target(
        with_large_weights(
            find_task("translate", "transformer").models["transformer"](
                TransformerModel(**BLOCKS, encoder_layers=2, decoder_layers=2, tie="all"), V, V
            )
        )
    ),
    "recurrent translator": lambda: translation_target(with_large_weights(recurrent_translator("additive"))),
    "without attention": lambda: translation_target(with_large_weights(recurrent_translator("none"))),
    "GPT": lambda: language_target(
        with_large_weights(
            find_task("language", "transformer").models["transformer"](DecoderModel(**BLOCKS, layers=2, tie=True), V)
        )
    ),
    "recurrent language": lambda: language_target(
        with_large_weights(
            find_task("language", "recurrent").models["recurrent"](RecurrentDecoderModel(width=8, attention="dot"), V)
        )
    ),
}


@pytest.fixture(params=TARGETS)
def target(request):
    torch.manual_seed(0)
    return TARGETS[request.param]()


@pytest.fixture(scope="session")
def tiny_classifier():
    return classifier


@pytest.fixture(scope="session")
def tiny_target():
    return text_target


@pytest.fixture
def kinds():
    return TARGETS


@pytest.fixture(params=IMAGE_TARGETS)
def image_target(request):
    torch.manual_seed(0)
    return IMAGE_TARGETS[request.param]()
