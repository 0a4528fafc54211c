"""Step time: extrapolated from shallow models, and measured for every model with a cross-entropy loss."""

import json
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from regard import cli
from regard.plan import DeviceSpeed, plan, step_time
from regard.plan.planner import plan_recipe
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


def test_launches_bound_the_step_of_a_small_model_on_a_gpu():
    """RESULTS.md: Multi30k with `small` takes 37 ms a step without CUDA graphs and 9 ms with them; base follows its FLOPs."""

    def milliseconds(*overrides, preset="small"):
        found = plan(preset, [*overrides])
        return 1000 * next(found.step_seconds(device) for device in found.devices if "H200" in device.name)

    eight_thousand = "train.tokens_per_batch=8192"
    assert milliseconds(eight_thousand, "train.cuda_graphs=false") == pytest.approx(37, rel=0.3)
    assert milliseconds(eight_thousand) == milliseconds(eight_thousand, "train.cuda_graphs=true") == pytest.approx(9, rel=0.3)
    base = plan("base", ["train.cuda_graphs=true"])
    assert all(base.step_seconds(device) == device.seconds(base.flops_per_step) for device in base.devices)
    assert plan("small", ["train.gradient_accumulation_steps=2"]).step_seconds(base.devices[1]) == pytest.approx(
        2 * plan("small", []).step_seconds(base.devices[1])
    )
