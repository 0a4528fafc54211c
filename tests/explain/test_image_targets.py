"""Laws of attributions of images, patch by patch."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from regard.attention.multihead import MultiHeadAttention
from regard.attention.watch import watch
from regard.explain.faithfulness import GroundTruth, class_discrimination, measure_faithfulness, permutation_effect
from regard.explain.methods import METHODS, attribute
from regard.explain.target import ImageTarget, patch_indices
from regard.explain.verdict import single_verdict
from regard.tasks import find_task

GRID, SIZE = (3, 3), (6, 6)


class Peephole(nn.Module):
    """A class token whose one layer attends to the patch `seen` alone; each label depends on the brightness of a patch of its own
    (`reads`): through attention if that is the attended one, else through the residual."""

    def __init__(self, seen, reads):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Module()])
        self.blocks[0].self_attention = MultiHeadAttention(4, 1, key_width=9, value_width=4)
        self.scale = nn.Parameter(torch.ones(()))
        self.seen, self.reads = seen, reads

    def forward(self, pixels):
        light = pixels.mean(1).unflatten(1, (3, 2)).unflatten(3, (3, 2)).mean((2, 4)).flatten(1)  # (B, 9)
        place = self.blocks[0].self_attention
        x = torch.cat([torch.zeros_like(light[:, :1]), light], dim=1)  # the class token first
        looks = 60 * nn.functional.one_hot(torch.tensor(self.seen + 1), 10).to(x).expand(len(x), 1, 10, 10)
        keys, values = torch.eye(10).to(x).expand(len(x), 1, 10, 10), (self.scale * x)[:, None, :, None].expand(-1, -1, -1, 4)
        mixed = place.attend(looks, keys, values)
        given = place.out_proj(mixed.transpose(1, 2).flatten(2))[:, 0].sum(-1)  # (B,)
        return torch.stack([given if read == self.seen else 4 * light[:, read] for read in self.reads] + [given * 0], dim=1)


def peephole(seen=4, reads=(4,), bright=(4,), output=0):
    torch.manual_seed(0)
    model = Peephole(seen, reads).double()
    with torch.no_grad():
        model.blocks[0].self_attention.out_proj.weight.fill_(1)
    light = torch.rand(9).double() / 10
    light[list(bright)] = 2
    pixels = light.view(1, 1, 3, 3).repeat_interleave(2, 2).repeat_interleave(2, 3).expand(1, 3, 6, 6).clone()
    return ImageTarget(
        model,
        {"pixels": pixels},
        "pixels",
        torch.arange(9) + 1,
        output,
        pixels[0].mean((1, 2)),
        patch_of_pixel=patch_indices(SIZE, GRID, (2, 2)),
        pooled=(0,),
    )


def test_model_that_attends_to_one_patch_is_attributed_to_it():
    target = peephole()
    found, unavailable = attribute(target)
    assert not unavailable and found.keys() == METHODS.keys()
    for name, values in found.items():
        assert int(values.argmax()) == 4, name
        others = values[torch.arange(9) != 4]
        assert others.abs().max() < 1e-6 * values[4] or (name == "rollout" and others.max() < values[4] / 2), name
    measured = measure_faithfulness(target, found, truth={"box": GroundTruth(frozenset({4}), tuple(range(9)))})
    random = measured["random"]
    for name in found:
        assert measured[name]["comprehensiveness"] > 3 * random["comprehensiveness"] and measured[name]["box"] == 1
        assert abs(measured[name]["sufficiency"]) < random["sufficiency"]
    verdict = single_verdict(
        list("abcdefghi"), {name: values.tolist() for name, values in found.items()}, measured, target.wording
    )
    assert verdict.best in found and "top patches" in verdict.headline and verdict.methods.keys() == found.keys()


def test_equal_outputs_have_map_distance_zero(image_target):
    found = attribute(image_target)[0]
    for name, row in class_discrimination(image_target, image_target, found, found, randomized=image_target.model).items():
        if name != "random":
            assert row["map distance"] == pytest.approx(0, abs=1e-12) and row["map distance randomized"] == pytest.approx(
                0, abs=1e-12
            )
            assert row["selectivity"] == row["margin own"] == row["margin other"] == 0


def test_gradient_methods_are_class_discriminative_and_attention_is_not():
    """One label depends on patch 4, the other on patch 0; attention is on 4 for both."""
    target = peephole(reads=(4, 0), bright=(4, 0))
    other = replace(target, output=1)
    own, others = attribute(target)[0], attribute(other)[0]
    rows = class_discrimination(target, other, own, others)
    for name in ("integrated-gradients", "occlusion", "input-gradient"):
        assert int(own[name].argmax()) == 4 and int(others[name].argmax()) == 0, name
        assert rows[name]["map distance"] > 0.5 and rows[name]["selectivity"] > 1, name
        assert rows[name]["margin own"] > 0 > rows[name]["margin other"]
    for name in ("attention", "rollout", "flow", "norms"):
        assert rows[name]["map distance"] == pytest.approx(0, abs=1e-12) and rows[name]["selectivity"] == 0, name
    measured = measure_faithfulness(target, own)
    measured = {name: measured[name] | rows[name] for name in measured}
    verdicts = single_verdict(list("abcdefghi"), {}, measured, target.wording).methods
    assert "nearly the same map" in verdicts["attention"] and "supports its own output" in verdicts["occlusion"]
    swapped = class_discrimination(other, target, others, own)["occlusion"]  # the margin is the other's: the same difference
    assert swapped["selectivity"] == pytest.approx(rows["occlusion"]["selectivity"])


def test_map_of_a_permuted_image_is_the_permuted_map(kinds):
    """Of a Vision Transformer without positions."""
    from regard.recipe import VitModel

    torch.manual_seed(0)
    target = kinds["ViT"]()
    model = (
        find_task("classify", "vit")
        .models["vit"](
            VitModel(kind="vit", patch_size=4, layers=2, width=8, heads=2, feed_forward=16, positions={"kind": "none"}),
            (12, 8),
            3,
        )
        .double()
        .eval()
    )
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    target = replace(target, model=model)
    order = torch.tensor([3, 0, 5, 1, 2, 4])
    tiles = target.input.unflatten(2, (3, 4)).unflatten(4, (2, 4)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (1, N, 3, 4, 4)
    moved = tiles[:, order].unflatten(1, (3, 2)).permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
    there = attribute(replace(target, inputs={"pixels": moved}))[0]
    for name, values in attribute(target)[0].items():
        torch.testing.assert_close(there[name], values[order], atol=1e-9, rtol=0, msg=name)


def test_pixels_belong_to_patches_row_by_row_and_leftover_ones_to_none():
    found = patch_indices((5, 7), (2, 3), (2, 2))
    assert found.tolist() == [[0, 0, 1, 1, 2, 2, -1]] * 2 + [[3, 3, 4, 4, 5, 5, -1]] * 2 + [[-1] * 7]
    assert patch_indices((4, 6), (2, 3)).tolist() == [[0, 0, 1, 1, 2, 2]] * 2 + [[3, 3, 4, 4, 5, 5]] * 2
    target = replace(
        peephole(), inputs={"pixels": torch.randn(1, 3, 5, 7).double()}, positions=torch.arange(6), patch_of_pixel=found
    )
    hidden = target.mask(torch.tensor([[False, True, False, False, False, True]]))
    changed = (hidden != target.input).any(1)[0]
    assert torch.equal(changed, (found == 1) | (found == 5))
    assert float(target.sum_features(target.input).sum()) == pytest.approx(float(target.input[..., :4, :6].sum()))


def test_similarity_does_not_depend_on_other_texts(kinds):
    torch.manual_seed(0)
    target = kinds["CLIP"]()
    alone = replace(
        target, output=0, inputs={**target.inputs, "source": target.inputs["source"][1:], "lengths": target.inputs["lengths"][1:]}
    )
    both, one = attribute(target)[0], attribute(alone)[0]
    assert both.keys() == one.keys() == METHODS.keys()
    for name, values in both.items():
        torch.testing.assert_close(values, one[name], atol=1e-9, rtol=0, msg=name)
    assert permutation_effect(target) == pytest.approx(permutation_effect(alone), abs=1e-9) and permutation_effect(target) > 1e-4


def test_comprehensiveness_is_in_log_probability_or_similarity(kinds):
    torch.manual_seed(0)
    hidden = torch.eye(6, dtype=torch.bool)[3:4]
    for name in ("CLIP", "ViT"):
        target = kinds[name]()
        lost = measure_faithfulness(target, {"first": torch.eye(6)[3]})["first"]["comprehensiveness 1"]
        assert lost == pytest.approx(float(target.full_score() - target.masked_scores(hidden)))
    moved = target.output_change(torch.tensor([[0.2, 0.8, 0.0]]).log(), torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]).log())
    assert moved == pytest.approx((0.3 + 0.5) / 2)


def test_rollout_reaches_patches_through_an_encoder_with_a_class_token(kinds):
    torch.manual_seed(0)
    target = kinds["captioner"]()
    with torch.no_grad(), watch(target.model) as seen:
        target.score(target.input)
    below = torch.eye(7).double()
    for weights in seen.stack("encoder").mean(2)[:, 0]:
        below = (weights @ below + below) / 2
    above = torch.zeros(3, 7).double()  # attributions of words are not asked for
    for own, across in zip(seen.stack("decoder.*self").mean(2)[:, 0], seen.stack("cross").mean(2)[:, 0]):
        above = (own @ above + above) / 2
        above = (across @ below[1:] + above) / 2  # the decoder does not attend to the class token
    torch.testing.assert_close(METHODS["rollout"](target), above[2, 1:], atol=1e-10, rtol=0)
