"""Step time: extrapolated from shallow models, and measured for every model with a cross-entropy loss."""

import json
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from regard import cli
from regard.plan import DeviceSpeed, plan, step_time
from regard.plan.planner import plan_recipe
from regard.plan.throughput import H200
from regard.tasks import build_recipe, recipe_task

CPU = torch.device("cpu")
TINY = {"width": 16, "heads": 2, "feed_forward": 32}
FILES = {"train": ["a"], "valid": ["b"]}
IMAGES = {"train": ["a"], "valid": ["b"], "size": 8}
RECIPES = {
    "translate": {"data": {"train": ["a", "b"], "valid": ["a", "b"]}, "model": {"preset": "tiny", **TINY, "encoder_layers": 5}},
    "translate, of any width": {
        "data": {"train": ["a", "b"], "valid": ["a", "b"]},
        "model": {"preset": "tiny", **TINY, "encoder_layers": 4, "encoder_widths": [16, 24, 24, 16]},
    },
    "translate, recurrent": {"data": {"train": ["a", "b"], "valid": ["a", "b"]}, "model": {"kind": "recurrent", "width": 16}},
    "language": {"task": "language", "data": FILES, "model": {"kind": "transformer", "layers": 4, **TINY, "max_length": 12}},
    "masked": {"task": "masked", "data": FILES, "model": {"kind": "transformer", "layers": 4, **TINY, "max_length": 12}},
    "span-corruption": {"task": "span-corruption", "data": FILES, "model": {"preset": "tiny", **TINY}},
    "classify": {"task": "classify", "data": {"world": {}}, "model": {"kind": "transformer", "layers": 1, **TINY}},
    "pairs": {
        "task": "classify",
        "data": {"world": {}, "text_pair": 2},
        "model": {"kind": "transformer", "layers": 4, **TINY, "pairs": "bi-encoder"},
    },
    "images": {"task": "classify", "data": IMAGES, "model": {"kind": "vit", "layers": 4, **TINY, "patch_size": 4}},
    "caption": {
        "task": "caption",
        "data": IMAGES,
        "model": {"encoder": {"kind": "cnn", "widths": [8, 12], "strides": [2, 2]}, "decoder": {"kind": "lstm", "width": 12}},
    },
}


def planned(name, **train):
    settings = RECIPES[name]
    few = {"images_per_batch": 3} if name in ("images", "caption") else {"tokens_per_batch": 36}
    tokens = {} if name == "images" else {"tokens": {"size": 40}}
    recipe = build_recipe({**settings, **tokens, "train": {"precision": "fp32", **few, **train}}, name=name)
    return plan_recipe(name, recipe, (40, 40), (12, 12))


@pytest.mark.parametrize("name", RECIPES)
def test_every_model_with_cross_entropy_is_measured(name, monkeypatch):
    monkeypatch.setattr(step_time, "measure_device", lambda device, precision: DeviceSpeed("mine", 1e9, 0.5, "assumed"))
    mine = step_time.measure_step(planned(name), "cpu").devices[0]
    assert mine.name == "mine" and "measured" in mine.basis and 0 < mine.seconds(planned(name).flops_per_step) < 10


@given(st.integers(1, 12), st.integers(1, 12), st.floats(0, 1), st.floats(0, 1), st.floats(0.1, 1))
def test_step_time_is_extrapolated_linearly_in_the_layers(encoder, decoder, per_encoder_layer, per_decoder_layer, rest):
    plan = planned("translate")
    deep = plan.recipe.model_copy(
        update={"model": plan.recipe.model.model_copy(update={"encoder_layers": encoder, "decoder_layers": decoder})}
    )

    def seconds(plan, device, rows, recipes):
        return [
            rest + per_encoder_layer * recipe.model.encoder_layers + per_decoder_layer * recipe.model.decoder_layers
            for recipe in recipes
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_time, "time_steps", seconds)
        found = step_time.extrapolate_step_seconds(plan_recipe("deep", deep, (40, 40), (12, 12)), CPU, 3)
    assert found == pytest.approx(seconds(plan, CPU, 3, [deep])[0])


def test_long_steps_or_small_memory_are_measured_with_fewer_rows():
    plan = planned("language", tokens_per_batch=12_000)
    fast, slow = DeviceSpeed("", 1e15, 0.5, ""), DeviceSpeed("", plan.flops_per_step / step_time.MAX_STEP_SECONDS / 5, 1.0, "")
    assert step_time.rows_that_fit(plan, fast, "fp32", 1e12) == 1000
    assert step_time.rows_that_fit(plan, slow, "fp32", 1e12) == 200
    assert 0 < step_time.rows_that_fit(plan, fast, "fp32", 1e7) < 1000
    assert step_time.rows_that_fit(plan, fast, "fp32", 1e3) == 0


def test_a_batch_has_at_least_one_example():
    plan = planned("language", tokens_per_batch=5)
    assert step_time.rows_that_fit(plan, DeviceSpeed("", 1e15, 0.5, ""), "fp32", 1e12) == step_time.examples_per_batch(plan) == 1


def test_unmeasurable_steps_fall_back_to_timed_products(monkeypatch):
    monkeypatch.setattr(step_time, "free_memory", lambda device: 0)
    mine = step_time.measure_step(planned("language"), "cpu").devices[0]
    assert "assumed" in mine.basis and "fp32" in mine.name


def test_plan_measure_command(monkeypatch, capsys):
    def regard(*words):
        monkeypatch.setattr(sys, "argv", ["regard", "plan", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, capsys.readouterr().out

    code, out = regard("tiny", "--measure", "--json", "--device", "cpu", "--set", "train.tokens_per_batch=60")
    as_json = json.loads(out)
    assert code == 0 and "measured" in as_json["time"][0]["basis"] and len(as_json["time"]) == 1 + len(plan("tiny").devices)
    assert as_json["time"][0]["step"] * as_json["steps"] == pytest.approx(as_json["time"][0]["seconds"])
    assert regard("block", "--measure")[0] == 2


class CountOperations(TorchDispatchMode):
    """Counts the operations that reach a device: neither views nor empty tensors."""

    number = 0

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        free = operation.is_view or operation._schema.name in ("aten::detach", "aten::_unsafe_view", "aten::empty_like")
        self.number += not free
        return operation(*arguments, **(options or {}))


@pytest.mark.parametrize("name", ["translate", "language", "masked", "classify", "images", "translate, of any width"])
def test_operations_of_a_step_are_those_that_torch_launches(name):
    """Within 30%, with dropout."""
    found = planned(name, regularize={"dropout": 0.1})
    task = recipe_task(found.recipe)
    model = task.build(found.recipe.model, *task.model_sizes(found.recipe, (40, 40)), found.recipe.train.regularize)
    batch = step_time._random_batch(model, found.recipe, 2, found)
    with CountOperations() as counted:
        model(**batch.inputs).sum().backward()
    assert found.operations == pytest.approx(counted.number, rel=0.3)


MULTI30K = Path(__file__).parents[2] / "recipes" / "multi30k-en-de.toml"
TRANSLATE = {"data": {"train": ["a", "b"], "valid": ["a", "b"]}, "train": {"tokens_per_batch": 25_600, "steps": 100_000}}


def plan_base():
    return plan_recipe("base", build_recipe({**TRANSLATE, "model": {"preset": "base"}}), (32_000, 32_000), (40, 40))


def plan_gpt2():
    settings = {"task": "language", "data": FILES, "model": {"kind": "transformer", "preset": "gpt2"}}
    recipe = build_recipe({**settings, "train": {"tokens_per_batch": 32 * 1024, "steps": 100_000}})
    return plan_recipe("gpt2", recipe, (50_304, 50_304), (1024, 1024))


def plan_vit():
    settings = {"task": "classify", "data": {**IMAGES, "size": 224}, "model": {"kind": "vit", "preset": "vit-base"}}
    return plan_recipe("vit", build_recipe({**settings, "train": {"images_per_batch": 256, "steps": 100_000}}), (1000, 1000))


H200_STEPS = {
    "multi30k": (lambda: plan(MULTI30K), 2.93 / 300),
    "GPT-2": (plan_gpt2, 32 * 1024 / 520_300),
    "GPT-2, compiled": (plan_gpt2, 32 * 1024 / 538_700),
    "base": (plan_base, 640 * 40 / 765_700),
    "base, compiled": (plan_base, 640 * 40 / 906_800),
    "ViT": (plan_vit, 256 / 3_436),
    "ViT, compiled": (plan_vit, 256 / 3_232),
}
"""How to plan what RESULTS.md measured on one H200, and the seconds of its step there."""
OLDER_H200_STEPS = {
    "small": (lambda: plan("small", ["train.tokens_per_batch=8192"]), 6_500 / 835_000),
    "small, uncaptured": (lambda: plan("small", ["train.tokens_per_batch=8192", "train.cuda_graphs=false"]), 7_200 / 194_000),
    "multi30k, uncaptured": (lambda: plan(MULTI30K, ["train.cuda_graphs=false"]), 209 / 6_000),
}
"""The same, measured before residual connections, norms and activations had kernels of their own."""


@pytest.mark.parametrize("name", [*H200_STEPS, *OLDER_H200_STEPS])
def test_steps_on_a_gpu_are_planned_within_20_percent_of_the_measured_ones(name):
    """Older ones within 30 percent."""
    make_plan, measured = {**H200_STEPS, **OLDER_H200_STEPS}[name]
    found = make_plan()
    assert found.captured == ("uncaptured" not in name)
    assert found.step_seconds(H200) == pytest.approx(measured, rel=0.2 if name in H200_STEPS else 0.3)


def test_operations_count_on_a_gpu_only():
    base = plan("base")
    cluster, gpu, cpu = base.devices
    assert base.step_seconds(gpu) == pytest.approx(gpu.seconds(base.flops_per_step) + 12e-6 * base.operations)
    assert all(base.step_seconds(device) == device.seconds(base.flops_per_step) for device in (cluster, cpu))
    twice = plan("small", ["train.gradient_accumulation_steps=2"])
    assert twice.step_seconds(gpu) == pytest.approx(2 * plan("small").step_seconds(gpu))
