"""Laws of CLIP's encoders and of the space they share."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.models.clip import MAX_LOG_SCALE, Clip
from regard.plan.flops import count_components, total_cost
from regard.recipe import ClipModel
from regard.recipe.image_text import ContrastiveRegularization
from regard.tasks import build_recipe

V, SIZE = 19, (8, 12)


def enlarge_weights(model):
    """Larger weights, which tell errors from rounding: small ones make all outputs nearly equal."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim():
                p.copy_(torch.randn_like(p) * (0.3 if p.dim() > 1 else 1.0) + ("norm.weight" in name))
    return model


@st.composite
def models(draw):
    torch.manual_seed(draw(st.integers(0, 1000)))
    block = dict(
        layers=draw(st.integers(1, 2)),
        width=8,
        heads=2,
        feed_forward=16,
        activation=draw(st.sampled_from(["gelu", "quick_gelu"])),
    )
    settings = ClipModel(
        projection_width=6,
        image=dict(
            **block,
            patch_size=4,
            pool=draw(st.sampled_from(["class", "mean"])),
            patch_bias=draw(st.booleans()),
            embedding_norm=draw(st.booleans()),
        ),
        text=dict(
            **block,
            max_length=16,
            causal=draw(st.booleans()),
            pool=draw(st.sampled_from(["end", "mean"])),
            positions={"kind": draw(st.sampled_from(["learned", "rotary"]))},
            segments=draw(st.sampled_from([0, 2])),
            embedding_norm=draw(st.booleans()),
        ),
    )
    regularize = ContrastiveRegularization(dropout=0.3, projection_dropout=0.3)
    return enlarge_weights(Clip(settings, SIZE, V, regularize).double().eval())


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_projection_dropout_drops_the_vectors_of_both_towers_and_nothing_else(rate):
    torch.manual_seed(0)
    settings = ClipModel(image=dict(patch_size=4, layers=1), text=dict(layers=1))
    model = Clip(settings, SIZE, V, ContrastiveRegularization(projection_dropout=rate)).train()
    projected = []
    for projection in (model.image_projection, model.text_projection):
        projection.register_forward_pre_hook(lambda _, inputs: projected.append(inputs[0]))
    inputs = pairs()
    first, second = model(*inputs)[:2], model(*inputs)[:2]
    for one, other, vectors in zip(first, second, projected):
        assert torch.equal(one, other) == (rate == 0)
        assert (0.3 < float((vectors == 0).float().mean()) < 0.7) == (rate > 0)


def pairs(number=4):
    lengths = torch.randint(3, 9, (number,))
    return torch.randint(0, 256, (number, 3, *SIZE), dtype=torch.uint8), torch.randint(5, V, (number, 9)), lengths


def close(one, other, atol=1e-10):
    torch.testing.assert_close(one, other, atol=atol, rtol=0)


@given(models())
def test_batched_equals_one_by_one_and_padding_does_not_change_features(model):
    pixels, source, lengths = pairs()
    images, texts, _ = model(pixels, source, lengths)
    assert images.shape == texts.shape == (4, 6) and min(images.std(), texts.std()) > 1e-3
    for i in range(4):
        close(model.image_features(pixels[i : i + 1])[0], images[i])
        close(model.text_features(source[i : i + 1, : lengths[i]], lengths[i : i + 1])[0], texts[i])
    other = torch.where(torch.arange(9) < lengths[:, None], source, (source + 3) % V)
    close(model.text_features(other, lengths), texts)


@given(models())
def test_features_are_unit_vectors_and_independent_of_the_batch_order(model):
    pixels, source, lengths = pairs()
    images, texts, _ = model(pixels, source, lengths)
    close(images.norm(dim=-1), torch.ones(4).double())
    close(texts.norm(dim=-1), torch.ones(4).double())
    order = torch.tensor([2, 0, 3, 1])
    again, words, _ = model(pixels[order], source[order], lengths[order])
    close(again @ words.T, (images @ texts.T)[order][:, order])


def test_causal_text_encoder_pools_at_the_end_token():
    for causal, pool in ((True, "end"), (True, "mean"), (False, "end")):
        torch.manual_seed(1)
        settings = ClipModel(
            text=dict(layers=1, width=8, heads=2, feed_forward=16, causal=causal, pool=pool),
            image=dict(layers=1, width=8, heads=2, feed_forward=16, patch_size=4),
        )
        tower = enlarge_weights(Clip(settings, SIZE, V).double().eval()).text
        source = torch.randint(5, V, (1, 6))
        states = tower.stack(tower.token_embedding(source), mask=tower_mask(causal))
        expected = states[:, -1] if pool == "end" else states.mean(1)
        close(tower(source, torch.tensor([6])), expected)
        earlier = tower.stack(tower.token_embedding(source[:, :4]), mask=tower_mask(causal))
        assert torch.allclose(states[:, :4], earlier) == causal


def tower_mask(causal):
    from regard.attention.masks import Mask

    return Mask(causal=causal)


def test_temperature_is_learned_and_clamped():
    model = Clip(ClipModel(image=dict(patch_size=4, layers=1), text=dict(layers=1)), SIZE, V)
    assert model.scale().item() == pytest.approx(1 / 0.07)
    with torch.no_grad():
        model.log_scale.fill_(9.0)
    model.eval()
    assert model.scale().item() == pytest.approx(100) and model.log_scale.item() == 9.0
    model.train()
    scale = model.scale()
    scale.backward()
    assert scale.item() == pytest.approx(100) and model.log_scale.item() == pytest.approx(math.log(100))
    assert model.log_scale.grad.item() == pytest.approx(100, rel=1e-3)  # it can come back
    assert pytest.approx(math.log(100)) == MAX_LOG_SCALE
    model.log_scale.grad = None
    torch.compile(lambda: model.scale() * 1.0, backend="aot_eager")().backward()
    assert model.log_scale.grad.item() == pytest.approx(100, rel=1e-3)


def test_published_settings_have_the_published_number_of_parameters():
    settings = ClipModel(preset="clip-vit-b-32")
    with torch.device("meta"):
        model = Clip(settings, (224, 224), 49_408)
    assert sum(p.numel() for p in model.parameters()) == total_cost(count_components(model, 50, 77)).parameters == 151_277_313
    other = ClipModel(preset="clip-vit-b-32", image={"layers": 3}, projection_width=64)
    assert (other.image.layers, other.image.width, other.text.layers, other.projection_width) == (3, 768, 12, 64)


def test_resize_to_another_image_size():
    model = enlarge_weights(
        Clip(ClipModel(image=dict(patch_size=4, layers=1, width=8, heads=2), text=dict(layers=1)), (8, 8), V).eval()
    )
    with pytest.raises(UserError, match="the model reads 8 × 8"):
        model.image_features(torch.zeros(1, 3, 16, 16, dtype=torch.uint8))
    theirs = dict(model.state_dict())
    larger = Clip(model.settings, (16, 16), V).eval()
    larger.load_state_dict(larger.adapt_weights(theirs))
    model.resize((16, 16))
    pixels = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    close(model.image_features(pixels), larger.image_features(pixels), atol=1e-6)


WORLD = {"size": 32, "world": {"kind": "shapes"}}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"train": {"gradient_accumulation_steps": 2}}, "the loss compares the pairs of one batch"),
        ({"train": {"regularize": {"r_drop": 1.0}}}, "train.regularize.r_drop"),
        ({"train": {"augment": {"mixup": 0.2}}}, "captions cannot be blended"),
        ({"train": {"images_per_batch": 1}}, "train.images_per_batch = 1"),
        ({"model": {"image": {"patch_size": 5}}}, "data.size = 32 is not a multiple of model.image.patch_size = 5"),
        ({"model": {"image": {"distilled": "token"}}}, "model.image.distilled"),
        ({"model": {"temperature": 0.001}}, "model.temperature = 0.001"),
        ({"model": {"text": {"pool": "cls"}}}, "model.text.pool = 'cls'"),
        ({"model": {"text": {"head": 2}}}, "no setting 'head' in model.text; did you mean 'heads'?"),
        ({"data": {"size": 32, "world": {"kind": "bilingual"}}}, "has no images"),
    ],
)
def test_invalid_settings_give_one_line_errors(changes, message):
    with pytest.raises(UserError) as caught:
        build_recipe({"task": "contrastive", "data": WORLD, **changes})
    assert message in str(caught.value) and "\n" not in str(caught.value)
