"""Plans of every task: published sizes, and FLOPs equal to torch's counter."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard import plan as planning
from regard import recipe as recipes
from regard.models.vit import VitClassifier
from regard.plan.flops import count_components, total_cost
from regard.plan.memory import activation_bytes
from regard.tasks import build_recipe, find_task

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-base": 110_106_428,
    "bert-large": 336_226_108,  # with both heads
    "vit-base": 86_567_656,
    "vit-large": 304_326_632,
    "vit-small": 22_050_664,
    "vit-tiny": 5_717_416,  # 1,000 labels
    "clip-vit-b-32": 151_277_313,
    "clip-vit-l-14": 427_616_513,
}
GPT3 = {
    "125m": 2.25e20,
    "350m": 6.41e20,
    "760m": 1.37e21,
    "1.3b": 2.38e21,
    "2.7b": 4.77e21,
    "6.7b": 1.20e22,
    "13b": 2.31e22,
    "175b": 3.14e23,
}
"""Training FLOPs, Brown et al. 2020, table D.1, where they are computed from the parameters alone."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_their_published_size(name):
    assert planning.plan(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", GPT3)
def test_gpt3_costs_match_the_paper(name):
    found = planning.plan(f"gpt3-{name}")
    assert found.rule_of_thumb == pytest.approx(GPT3[name], rel=0.08)
    assert GPT3[name] < found.flops < 1.6 * GPT3[name], "ours counts the scores of long texts too"


STACK = {"kind": "transformer", "layers": 2, "width": 16, "heads": 2, "feed_forward": 32, "max_length": 12}
RECIPES = {
    "gpt": {"task": "language", "model": {**STACK, "key_value_heads": 1}},
    "masked": {"task": "masked", "model": {**STACK, "segments": 2}},
    "classifier": {"task": "classify", "model": {**STACK, "pool": "first"}},
    "convolution": {"task": "classify", "model": {**STACK, "convolution": 3}},
    "tagger": {"task": "tag", "model": {**STACK, "activation": "swiglu"}},
    "pointer": {"task": "answer", "model": {**STACK, "segments": 2}},
}


@pytest.mark.parametrize("name", RECIPES)
def test_macs_of_text_models_equal_torch_flop_counter(name):
    recipe = build_recipe({"data": {"world": {}}, **RECIPES[name]})
    sizes = (50,) if recipe.task in ("language", "masked", "answer") else (50, 3)
    model = find_task(recipe.task, "transformer").models["transformer"](recipe.model, *sizes).eval()
    text, n = torch.randint(4, 50, (1, 12)), torch.tensor([12])
    inputs = (text,) if recipe.task == "language" else (text, n)
    if recipe.task == "masked":
        inputs = (text, n, torch.zeros_like(text), torch.tensor([1]))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*inputs)
    assert 2 * total_cost(count_components(model, 12, 12)).macs == counter.get_total_flops()


VIT = {"kind": "vit", "layers": 2, "width": 16, "heads": 2, "feed_forward": 32, "patch_size": [4, 2]}
IMAGES = {"train": ["train"], "valid": ["valid"], "size": [8, 12]}


STEMS = [{"stem": "convolutions", "patch_size": 2}, {"stem": "residual", "patch_size": 4}]


@pytest.mark.parametrize("model", [{}, {"pool": "mean"}, {"distilled": "head"}, {"layer_scale": 0.1}, *STEMS], ids=str)
def test_macs_of_vit_equal_torch_flop_counter(model):
    recipe = build_recipe({"task": "classify", "data": IMAGES, "model": {**VIT, **model}})
    found = planning.plan(recipe)
    model = VitClassifier(recipe.model, (8, 12), 1000).eval()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 3, 8, 12))
    assert 2 * found.total.macs == counter.get_total_flops()
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.lengths[0] == model.hidden_states(torch.zeros(1, 3, 8, 12))[0].size(1)
    assert found.tokens_per_step == 256 * found.lengths[0]
    page = planning.render_text(found, by_layer=True)
    assert "images of 8 × 12 pixels" in page and "1,000 labels assumed" in page and "patches" in page


def test_memory_of_a_residual_stem():
    """Its activations are what autograd saves, and Muon has one moment for its convolutions but the first."""
    model = {**VIT, "stem": "residual", "patch_size": 4}
    recipe = {"task": "classify", "data": IMAGES, "model": model}
    adam, muon = (planning.plan(build_recipe({**recipe, "train": {"optimizer": {"kind": kind}}})) for kind in ("adamw", "muon"))
    model, saved = VitClassifier(adam.recipe.model, (8, 12), 1000), {}
    hidden = [p for p in model.encoder.stack.blocks.parameters() if p.dim() == 2]
    hidden += [module.weight for module in model.encoder.patches.stages.modules() if isinstance(module, torch.nn.Conv2d)]
    assert adam.memory["fp32"]["optimiser"] - muon.memory["fp32"]["optimiser"] == 4 * sum(p.numel() for p in hidden)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.setdefault(t.untyped_storage().data_ptr(), t), lambda t: t):
        model.encoder(torch.zeros(8, 3, 8, 12))
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    bytes_saved = sum(t.untyped_storage().nbytes() for at, t in saved.items() if at not in weights)
    assert activation_bytes(model.encoder, 6, 6, False) == pytest.approx(bytes_saved / 8, rel=0.1)


SMALL_CNN = {"kind": "cnn", "widths": [8, 12, 16], "strides": [2, 1, 2]}


@pytest.mark.parametrize(
    "encoder",
    [SMALL_CNN, {**VIT, "kind": "patches"}, {"kind": "efficientnet-lite2", "channels": 120, "frozen": False}],
    ids=lambda e: e["kind"],
)
@pytest.mark.parametrize(
    "decoder",
    [
        {"kind": "lstm", "width": 12, "embedding_width": 8, "attention_width": 6},
        {"kind": "transformer", "layers": 2, "width": 16, "heads": 2, "feed_forward": 32},
    ],
    ids=lambda d: d["kind"],
)
def test_macs_of_captioners_equal_torch_flop_counter(encoder, decoder):
    size = (32, 64) if encoder["kind"] == "efficientnet-lite2" else (8, 12)
    recipe = build_recipe(
        {
            "task": "caption",
            "data": {**IMAGES, "size": size},
            "tokens": {"size": 50},
            "model": {"encoder": encoder, "decoder": decoder},
            "train": {"images_per_batch": 64},
        }
    )
    found = planning.plan(recipe, target_length=7)
    model = find_task("caption", decoder["kind"]).models[decoder["kind"]](recipe.model, size, 50).eval()
    with (
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.mkldnn.flags(enabled=False, allow_tf32=None),
        FlopCounterMode(display=False) as counter,
        torch.no_grad(),
    ):
        model(torch.zeros(1, 3, *size), torch.zeros(1, 7, dtype=torch.long))
    scores = 6 * 7 * found.lengths[0] if decoder["kind"] == "lstm" else 0  # matrix–vector products, which torch does not count
    assert 2 * (found.total.macs - scores) == counter.get_total_flops()
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert "texts of 7 tokens" in planning.render_text(found) and "frozen" not in planning.render_text(found)


def test_macs_of_a_convolutional_image_tower_equal_torch_flop_counter():
    recipe = build_recipe(
        {"task": "contrastive", "data": IMAGES, "tokens": {"size": 50}, "model": {"projection_width": 8, "image": SMALL_CNN}}
    )
    model = find_task("contrastive", "clip").models["clip"](recipe.model, (8, 12), 50).eval()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 3, 8, 12), torch.zeros(1, 77, dtype=torch.long), torch.tensor([77]))
    assert 2 * planning.plan(recipe).total.macs == counter.get_total_flops()


@pytest.mark.parametrize("activation", ["gelu", "quick_gelu"])
def test_macs_and_memory_of_clip(activation):
    text = {"layers": 1, "width": 16, "heads": 2, "activation": activation}
    towers = {"image": {**VIT, "activation": activation}, "text": text}
    recipe = build_recipe(
        {
            "task": "contrastive",
            "data": IMAGES,
            "model": {"projection_width": 8, **towers},
            "tokens": {"size": 50},
            "train": {"images_per_batch": 64},
        }
    )
    found = planning.plan(recipe)
    model = find_task("contrastive", "clip").models["clip"](recipe.model, (8, 12), 50).train()
    pair = torch.zeros(1, 3, 8, 12), torch.zeros(1, 77, dtype=torch.long), torch.tensor([77])
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*pair)
    assert 2 * found.total.macs == counter.get_total_flops()
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.lengths == (13, 77) and found.tokens_per_step == 64 * 77
    assert found.flops_per_step == 3 * 2 * found.total.macs * 64
    saved = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.setdefault(t.untyped_storage().data_ptr(), t), lambda t: t):
        model(*(part.expand(8, *part.shape[1:]) for part in pair))
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    bytes_saved = sum(t.untyped_storage().nbytes() for at, t in saved.items() if at not in weights)
    assert activation_bytes(model, 13, 77, False) == pytest.approx(bytes_saved / 8, rel=0.1)
    page = planning.render_text(found, by_layer=True)
    assert "13 positions, and texts of 77 tokens" in page and "image, 2 layers" in page and "vocabulary 50" in page


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("model", [{}, {"layer_scale": 0.1}, {"pool": "mean", "positions": {"kind": "sinusoidal"}}], ids=str)
def test_activation_bytes_of_vit_are_within_4_percent_of_autograd(model, bf16):
    settings = recipes.VitModel(kind="vit", layers=3, width=64, heads=4, feed_forward=256, patch_size=4, **model)
    vit = VitClassifier(settings, (32, 32), 10, recipes.Regularization(dropout=0.0, drop_path=0.1)).train()
    weights, saved = {p.untyped_storage().data_ptr() for p in vit.parameters()}, {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    precision = torch.autocast("cpu", torch.bfloat16, enabled=bf16)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), precision:
        vit(torch.zeros(8, 3, 32, 32, dtype=torch.uint8))
    copies = 2 * sum(m.weight.numel() for m in vit.modules() if isinstance(m, torch.nn.Linear | torch.nn.Conv2d)) if bf16 else 0
    n = settings.length((32, 32))
    assert activation_bytes(vit, n, n, bf16) == pytest.approx((sum(size for size, _ in saved.values()) - copies) / 8, rel=0.04)


@pytest.mark.parametrize(
    "settings",
    [
        {"task": "language", "model": {"kind": "elmo"}},
        {"task": "language", "model": {"attention": "additive"}},
        {"task": "language", "model": {"layers": 3, "width": 48, "embedding_width": 20, "tie": True}},
        {"task": "classify", "model": {"attention": "dot"}},
        {"task": "tag"},
        {"model": {"kind": "recurrent"}},
        {"task": "regress"},
        {"task": "answer"},
        {"task": "span-corruption", "model": {"preset": "t5-tiny"}},
        {"model": {"kind": "recurrent", "decoder": "luong", "attention": "none"}},
        {"model": {"kind": "universal", "width": 64, "heads": 4}},
        {"task": "span-corruption", "model": {"preset": "t5-tiny"}},
        {"task": "regress", "model": {"kind": "transformer"}},
        {"task": "text-to-text", "model": {"preset": "t5-tiny"}, "data": {"tasks": {"a": {"prefix": "a: ", "world": {}}}}},
    ],
    ids=str,
)
def test_every_kind_of_model_can_be_planned(settings):
    recipe = build_recipe({"data": {"world": {}}, **settings})
    found = planning.plan(recipe)
    assert found.flops > 0 and all(sum(sizes.values()) > 0 for sizes in found.memory.values())
    model = planning.planner.build_on_meta(recipe, found.vocabulary)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert "total" in planning.render_text(found) and "total" in planning.render_text(found, by_layer=True)


def test_attention_cost_grows_faster_than_the_length():
    short, long = (planning.plan("gpt2", source_length=n, target_length=n).flops_per_token for n in (512, 1024))
    assert long > short
    lstm = build_recipe({"task": "language", "data": {"world": {}}})
    short, long = (planning.plan(lstm, source_length=n, target_length=n).flops_per_token for n in (64, 128))
    assert long == short
