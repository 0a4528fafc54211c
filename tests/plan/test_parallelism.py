"""Parallelism: one GPU equals the plan, shards add up, an all-reduce sends twice the gradients."""

import math

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import UserError
from regard.plan import plan, plan_parallelism, render_text
from regard.plan.parallelism import MODEL_STATES, GpuCluster, stack_depths


@pytest.mark.parametrize("name", ["base", "gpt2", "bert-base", "vit-base"])
def test_one_gpu_equals_the_plan(name):
    found = plan(name, gpus=1)
    whole, sharded = found.strategies
    assert whole.memory == pytest.approx({**next(iter(found.memory.values()))})
    assert whole.bytes_sent == sharded.bytes_sent == whole.exposed_seconds == 0
    assert whole.step_seconds == pytest.approx(found.flops_per_step / (GpuCluster.speed * GpuCluster.utilisation))


@pytest.mark.parametrize("gpus", [2, 8, 64])
def test_shards_add_up_and_ring_all_reduce_sends_twice(gpus):
    found = plan("gpt2-xl", gpus=gpus)
    whole, sharded = found.strategies
    for name in set(MODEL_STATES) & whole.memory.keys() - {"bf16 weights"}:
        assert sharded.memory[name] * gpus == pytest.approx(whole.memory[name])
    assert whole.bytes_sent == pytest.approx(8 * found.parameters * (gpus - 1) / gpus)
    assert whole.bytes_sent < sharded.bytes_sent < 1.5 * whole.bytes_sent + 1
    assert sharded.memory["gathered"] < 4 * found.parameters


def test_gpus_get_whole_examples():
    found = plan("gpt2", ["train.tokens_per_batch=10240"])  # ten texts of 1,024 tokens
    ten, eight, hundred = (plan_parallelism(found, gpus)[0] for gpus in (10, 8, 100))
    assert ten.memory["activations"] == hundred.memory["activations"] == eight.memory["activations"] / 2
    assert ten.compute_seconds == hundred.compute_seconds == eight.compute_seconds / 2


def test_slow_network_is_exposed():
    found = plan("gpt2-xl", ["train.tokens_per_batch=65536"])
    near, far = plan_parallelism(found, 8)[0], plan_parallelism(found, 8, GpuCluster(gpus_per_node=1))[0]
    assert near.compute_seconds == far.compute_seconds and far.exposed_seconds > near.exposed_seconds
    assert far.exposed_seconds == pytest.approx(far.bytes_sent / GpuCluster.network_bandwidth - far.compute_seconds * 2 / 3)


def test_gpt3_fits_a_thousand_gpus_with_3d_parallelism():
    """Brown et al. 2020: 175 billion parameters, 3.14·10²³ FLOPs."""
    found = plan("gpt3-175b", gpus=1024)
    ddp, fsdp, strategy_3d = found.strategies
    assert found.parameters == pytest.approx(175e9, rel=0.01) and found.flops == pytest.approx(3.14e23, rel=0.05)
    assert not ddp.fits and ddp.total_memory > 16 * 174e9 and not fsdp.fits and strategy_3d.fits
    assert math.prod(int(word) for word in strategy_3d.name.split() if word.isdigit()) == 1024
    assert 10 < strategy_3d.step_seconds * found.recipe.train.steps / 86400 < 40
    assert fsdp.memory["parameters"] == pytest.approx(4 * found.parameters / 1024)
    again = plan("gpt3-175b", ["train.tokens_per_batch=1600000", "train.gradient_accumulation_steps=2"], gpus=1024)
    assert again.strategies[1].memory["gradients"] == 4 * found.parameters  # whole until the last micro-batch
    assert plan("gpt3-175b", ["train.tokens_per_batch=2097152"], gpus=1024).strategies[1].fits  # one text each


def test_tables_and_json_agree():
    found = plan("base", gpus=8)
    text, as_json = render_text(found), found.to_json()
    assert "each of 8 GPUs" in text and "sent per GPU" in text and "docs/scaling.md" in text
    assert [strategy["strategy"] for strategy in as_json["parallelism"]] == ["ddp", "fsdp"] and as_json["gpus"] == 8
    assert as_json["parallelism"][0]["memory"]["total"] == sum(found.strategies[0].memory.values())
    assert "parallelism" not in plan("base").to_json() and "GPUs" not in render_text(plan("base"))
    assert stack_depths(found) == [6, 6]


def test_invalid_options_raise_an_error():
    with pytest.raises(UserError, match="--gpus 0: give at least 1"):
        plan("base", gpus=0)
    with pytest.raises(UserError, match="one block is not trained in parallel"):
        plan("block", gpus=2)
    result = CliRunner().invoke(app, ["plan", "--costs", "--gpus", "8"])
    assert isinstance(result.exception, UserError) and "leave out --layers and --costs" in str(result.exception)
