"""Laws of the Vision Transformer, stochastic depth and layer scale."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from regard.attention.positions import sinusoids
from regard.attention.watch import watch
from regard.errors import UserError
from regard.layers.norm import Residual
from regard.models.vit import VitClassifier, interpolate_positions
from regard.recipe import Regularization, VitModel
from regard.tasks import find_task

C = 5


def close(one, other, atol=1e-10):
    torch.testing.assert_close(one, other, atol=atol, rtol=0)


def enlarge_weights(model):
    """Larger weights, which tell errors from rounding: small ones make all outputs nearly equal."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * (0.3 if p.dim() > 1 else 1.0) + ("norm.weight" in name))
    return model


@st.composite
def models(draw, **fixed):
    """A model, and the size of its images."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    patch = (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    grid = (draw(st.integers(1, 3)), draw(st.integers(2, 3)))
    pool = fixed.pop("pool", None) or draw(st.sampled_from(["class", "mean"]))
    settings = VitModel(
        **{
            **dict(
                kind="vit",
                layers=draw(st.integers(1, 2)),
                width=8,
                heads=2,
                feed_forward=16,
                patch_size=patch,
                pool=pool,
                distilled=draw(st.sampled_from(["none", "token", "head"])) if pool == "class" else "none",
                positions={"kind": draw(st.sampled_from(["learned", "sinusoidal", "none"]))},
                norm_first=draw(st.booleans()),
                layer_scale=draw(st.sampled_from([None, 0.1])),
                mean=(0.4, 0.5, 0.6),
                std=(0.2, 0.3, 0.4),
            ),
            **fixed,
        }
    )
    size = patch[0] * grid[0], patch[1] * grid[1]
    return enlarge_weights(VitClassifier(settings, size, C, Regularization(dropout=0.3, drop_path=0.3)).double().eval()), size


def random_images(size, number=4):
    return torch.randint(0, 256, (number, 3, *size), dtype=torch.uint8)


@given(models())
def test_batched_equals_one_by_one(given):
    model, size = given
    x = random_images(size)
    together = model(x)
    assert together.shape == (4, C) and together.std() > 1e-3
    for one, alone in zip(together, x):
        close(one, model(alone[None])[0])


@given(models(positions={"kind": "none"}), st.data())
def test_without_positions_the_order_of_patches_does_not_matter(given, data):
    model, size = given
    (rows, columns), (tall, wide) = model.encoder.patches.grid, model.encoder.patches.kernel_size
    x = random_images(size)
    blocks = x.unflatten(2, (rows, tall)).unflatten(4, (columns, wide)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    order = torch.tensor(data.draw(st.permutations(range(rows * columns))))
    mixed = blocks[:, order].unflatten(1, (rows, columns)).permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    assert mixed.shape == x.shape
    close(model(mixed), model(x))
    prefix = model.settings.prefix_tokens
    before, after = model.hidden_states(x)[-1], model.hidden_states(mixed)[-1]
    close(after[:, prefix:], before[:, prefix:][:, order])
    close(after[:, :prefix], before[:, :prefix])


@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_with_positions_the_order_of_patches_matters(kind):
    model = enlarge_weights(
        VitClassifier(
            VitModel(kind="vit", layers=1, width=8, heads=2, feed_forward=16, patch_size=2, positions={"kind": kind}), (4, 6), C
        ).eval()
    )
    x = random_images((4, 6))
    assert (model(x) - model(x.flip(3).unflatten(3, (3, 2)).flip(4).flatten(3))).abs().max() > 1e-3


def test_patch_embedding_is_a_linear_map_in_row_major_order():
    model = enlarge_weights(
        VitClassifier(VitModel(kind="vit", width=8, heads=2, layers=1, patch_size=(2, 3)), (4, 9), C).double()
    )
    pixels, patches = torch.randn(1, 3, 4, 9, dtype=torch.float64), model.encoder.patches
    for number, found in enumerate(patches(pixels)[0]):
        row, column = divmod(number, 3)
        patch = pixels[0, :, 2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
        close(found, patches.weight.flatten(1) @ patch.flatten() + patches.bias)


@pytest.mark.parametrize(("patch", "size"), [(2, (4, 6)), (4, (8, 16)), (8, (16, 8))])
def test_a_convolutional_stem_has_as_many_tokens_as_patches(patch, size):
    """And each of them sees beyond its patch: a change of one pixel may reach its neighbours, but nothing far away."""
    settings = VitModel(kind="vit", width=8, heads=2, layers=1, patch_size=patch, stem="convolutions")
    model = VitClassifier(settings, size, C).eval()
    pixels = torch.randn(1, 3, *size)
    grid = settings.grid(size)
    before = model.encoder.patches(pixels)
    assert before.shape == (1, grid[0] * grid[1], 8) and model(pixels).shape == (1, C)
    for convolution in model.encoder.patches.convolutions:
        with torch.no_grad():
            convolution.weight.abs_()  # so that no ReLU hides the change
    before, pixels[0, :, 0, 0] = model.encoder.patches(pixels), 1e3
    changed = (model.encoder.patches(pixels) - before).abs().amax(-1).reshape(grid) > 0
    assert changed[0, 0] and not changed[2:].any() and not changed[:, 2:].any()


@pytest.mark.parametrize("stem", ["convolutions", "residual"])
@pytest.mark.parametrize("patch", [6, 64, (4, 4)])
def test_a_convolutional_stem_halves_the_map(stem, patch):
    problem = f"model.stem = '{stem}' halves the map at every stage: model.patch_size = {patch} should be 2, 4, 8, 16 or 32"
    with pytest.raises(ValueError, match=re.escape(problem)):
        VitModel(kind="vit", patch_size=patch, stem=stem)


def residual_model(patch, size, **settings):
    """A model with a residual stem in double precision; the statistics of its batch norms are those of random images."""
    torch.manual_seed(0)
    settings = VitModel(kind="vit", width=8, heads=2, layers=1, feed_forward=16, patch_size=patch, stem="residual", **settings)
    model = VitClassifier(settings, size, C).double()
    for _ in range(3):
        model(random_images(size, 8))
    return model.eval()


@pytest.mark.parametrize(("patch", "size"), [(2, (4, 6)), (4, (8, 16)), (16, (32, 16))])
def test_a_residual_stem_has_as_many_tokens_as_patches(patch, size):
    model, grids = residual_model(patch, size), {}
    stem, rows_and_columns = model.encoder.patches, model.settings.grid(size)
    convolutions = [module for module in stem.modules() if isinstance(module, nn.Conv2d)]
    for module in convolutions:
        module.register_forward_hook(lambda module, _, output: grids.update({module: tuple(output.shape[2:])}))
    assert stem(torch.randn(2, 3, *size).double()).shape == (2, rows_and_columns[0] * rows_and_columns[1], 8)
    assert grids == {module: module.grid for module in convolutions}  # what `regard plan` counts with
    assert stem.first.grid == size and stem.output.grid == stem.grid == rows_and_columns
    widths = {2: [64, 128], 4: [64, 128, 256], 16: [64, 128, 256, 256, 256]}[patch]
    assert [block.second.out_channels for block in stem.stages[::2]] == widths and len(stem.stages) == 2 * len(widths)


def test_tokens_of_a_residual_stem_are_the_cells_row_by_row():
    """A change of one pixel reaches the token of its cell, and none beyond the 26 pixels that the convolutions see."""
    model = residual_model(4, (64, 128))
    pixels = torch.randn(1, 3, 64, 128, dtype=torch.float64)
    before, pixels[0, :, 50, 20] = model.encoder.patches(pixels), 3.0
    changed = (model.encoder.patches(pixels) - before).abs().amax(-1).reshape(16, 32) > 1e-9
    assert changed[50 // 4, 20 // 4] and not changed[: (50 - 26) // 4 - 1].any() and not changed[:, (20 + 26) // 4 + 1 :].any()


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_batched_equals_one_by_one_with_a_residual_stem(pool):
    model, x = enlarge_weights(residual_model(4, (8, 12), pool=pool)), random_images((8, 12))
    together = model(x)
    assert together.std() > 1e-3
    for one, alone in zip(together, x):
        close(one, model(alone[None])[0], atol=1e-8)


def test_gradients_reach_all_weights_of_a_residual_stem():
    model = residual_model(4, (16, 16)).train()
    model(random_images((16, 16))).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.encoder.patches.parameters())


def test_a_residual_stem_is_resized_to_multiples_of_the_patch():
    model = residual_model(4, (8, 8))
    model.resize((16, 12))
    assert model.encoder.patches.grid == (4, 3) and model(random_images((16, 12))).shape == (4, C)
    with pytest.raises(UserError, match=r"of 18 × 12 pixels: model.stem = 'residual' needs multiples of model.patch_size = 4"):
        model.resize((18, 12))


def test_uint8_pixels_are_normalized_and_float_pixels_are_not():
    colours = dict(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    model = VitClassifier(VitModel(kind="vit", width=8, heads=2, layers=1, patch_size=2, **colours), (4, 4), C)
    x = random_images((4, 4))
    by_hand = (x / 255 - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / torch.tensor([0.5, 0.6, 0.7])[:, None, None]
    close(model(x), model(by_hand), atol=1e-6)


def test_2d_sinusoidal_positions_are_those_of_row_and_column():
    model = VitClassifier(
        VitModel(kind="vit", width=8, heads=2, layers=1, patch_size=2, positions={"kind": "sinusoidal"}), (4, 6), C
    )
    table = model.encoder.stack.positions.table
    assert table.shape == (7, 8) and not table[0].any()
    for number in range(6):
        row, column = divmod(number, 3)
        close(table[1 + number], torch.cat([sinusoids(torch.tensor(at), 4) for at in (row, column)]).float())


@given(models(pool="class"))
def test_another_image_size_is_rejected_unless_resized(given):
    model, size = given
    other = tuple(2 * side for side in size)
    with pytest.raises(UserError, match=rf"of {other[0]} × {other[1]} pixels, the model reads {size[0]} × {size[1]}") as error:
        model(random_images(other))
    assert "\n" not in str(error.value)
    before = model(random_images(size, 1).fill_(7))
    model.resize(size)
    close(model(random_images(size, 1).fill_(7)), before, atol=1e-6)  # the same size changes nothing
    model.resize(other)
    assert model(random_images(other)).shape == (4, C)


def test_interpolated_positions_keep_prefix_tokens_and_grid():
    table = torch.cat([torch.tensor([[5.0, 6.0]]), torch.cartesian_prod(torch.arange(8.0), torch.arange(8.0))])
    found = interpolate_positions(table, 1, (8, 8), (16, 16))
    assert torch.equal(found[0], table[0]) and found.shape == (257, 2)
    inner = found[1:].view(16, 16, 2)[4:-4, 4:-4]  # a plane stays nearly one, away from the border
    close(inner[:, :, 0], (torch.arange(4.0, 12.0)[:, None] / 2 - 0.25).expand(8, 8), atol=0.06)
    close(inner[:, :, 1], (torch.arange(4.0, 12.0) / 2 - 0.25).expand(8, 8), atol=0.06)


def test_distilled_logits_are_the_mean_of_both_heads():
    model = enlarge_weights(
        VitClassifier(VitModel(kind="vit", width=8, heads=2, layers=1, patch_size=2, distilled="head"), (4, 4), C).eval()
    )
    x = random_images((4, 4))
    states = model.hidden_states(x)[-1]
    close(model(x), (model.output(states[:, 0]) + model.distilled_output(states[:, 1])) / 2)


@given(models())
def test_watched_equals_unwatched(given):
    model, size = given
    x = random_images(size)
    plain = model(x)
    with watch(model) as seen:
        assert torch.equal(model(x), plain)
    weights = seen.stack()  # (L, B, H, S, S)
    assert weights.shape[-1] == weights.shape[-2] == model.settings.length(size)
    close(weights.sum(-1), torch.ones_like(weights.sum(-1)))


def test_vit_is_registered():
    assert find_task("classify", "vit").models["vit"] is VitClassifier and "vit" in find_task("encode", "vit").models


def residual(**options):
    return Residual(4, 4, norm="layer", norm_first=True, dropout=0.0, **options)


def test_stochastic_depth_drops_whole_examples_and_keeps_the_mean():
    layer, x = residual(drop_path=0.25).train(), torch.randn(4000, 3, 4)
    added = layer(x, lambda y: torch.ones_like(y)) - x  # (B, T, D)
    close(added, added[:, :1, :1].expand_as(added), atol=1e-5)
    dropped = (added[:, 0, 0].abs() < 1e-6).float().mean()
    assert abs(dropped - 0.25) < 0.03 and added.mean() == pytest.approx(1, abs=0.05)
    assert added[:, 0, 0].max() == pytest.approx(4 / 3, abs=1e-5)
    close(layer.eval()(x, torch.ones_like), x + 1, atol=1e-6)


def test_stochastic_depth_rate_grows_with_the_layer():
    model = VitClassifier(
        VitModel(kind="vit", width=8, heads=2, layers=4, patch_size=2), (4, 4), C, Regularization(drop_path=0.2)
    )
    rates = [(block.self_residual.drop_path, block.feed_forward_residual.drop_path) for block in model.encoder.stack.layers()]
    assert rates == [(pytest.approx(rate), pytest.approx(rate)) for rate in (0.05, 0.1, 0.15, 0.2)]


def test_layer_scale_multiplies_the_residual_branch_and_is_learned():
    layer, x = residual(layer_scale=0.1), torch.randn(2, 3, 4)
    close(layer(x, torch.ones_like), x + 0.1, atol=1e-6)
    assert [name for name, _ in layer.named_parameters()] == ["scale", "norm.weight", "norm.bias"]
    assert "scale" not in dict(residual().named_parameters())
