"""How a recipe spreads: one GPU is the plan itself, shards add up to the whole, a ring sends what a ring sends."""

import math

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import UserError
from regard.plan import plan, plan_parallelism, render_text
from regard.plan.parallelism import MODEL_STATES, GpuCluster, stack_depths


@pytest.mark.parametrize("name", ["base", "gpt2", "bert-base", "vit-base"])
def test_one_gpu_is_the_plan(name):
    found = plan(name, gpus=1)
    whole, sharded = found.strategies
    assert whole.memory == pytest.approx({**next(iter(found.memory.values()))})
    assert whole.sent == sharded.sent == whole.waiting == 0
    assert whole.step == pytest.approx(found.flops_a_step / (GpuCluster.speed * GpuCluster.utilisation))


@pytest.mark.parametrize("gpus", [2, 8, 64])
def test_shards_add_up_and_a_ring_sends_twice(gpus):
    found = plan("gpt2-xl", gpus=gpus)
    whole, sharded = found.strategies
    for name in set(MODEL_STATES) & whole.memory.keys() - {"bf16 weights"}:
        assert sharded.memory[name] * gpus == pytest.approx(whole.memory[name])
    assert whole.sent == pytest.approx(8 * found.parameters * (gpus - 1) / gpus)
    assert whole.sent < sharded.sent < 1.5 * whole.sent + 1
    assert sharded.memory["gathered"] < 4 * found.parameters


def test_a_gpu_reads_whole_examples():
    found = plan("gpt2", ["train.tokens_per_batch=10240"])  # ten texts of 1,024 tokens
    ten, eight, hundred = (plan_parallelism(found, gpus)[0] for gpus in (10, 8, 100))
    assert ten.memory["activations"] == hundred.memory["activations"] == eight.memory["activations"] / 2
    assert ten.computing == hundred.computing == eight.computing / 2


def test_slow_wires_are_waited_for():
    found = plan("gpt2-xl", ["train.tokens_per_batch=65536"])
    near, far = plan_parallelism(found, 8)[0], plan_parallelism(found, 8, GpuCluster(gpus=1))[0]
    assert near.computing == far.computing and far.waiting > near.waiting
    assert far.waiting == pytest.approx(far.sent / GpuCluster.far - far.computing * 2 / 3)


def test_gpt_3_fits_no_gpu_but_a_thousand():
    """Brown et al. 2020: 175 billion parameters, 3.14·10²³ FLOPs."""
    found = plan("gpt3-175b", gpus=1024)
    ddp, fsdp, cut = found.strategies
    assert found.parameters == pytest.approx(175e9, rel=0.01) and found.flops == pytest.approx(3.14e23, rel=0.05)
    assert not ddp.fits and ddp.total > 16 * 174e9 and not fsdp.fits and cut.fits
    assert math.prod(int(word) for word in cut.name.split() if word.isdigit()) == 1024
    assert 10 < cut.step * found.recipe.train.steps / 86400 < 40
    assert fsdp.memory["parameters"] == pytest.approx(4 * found.parameters / 1024)
    again = plan("gpt3-175b", ["train.tokens_per_batch=1600000", "train.gradient_accumulation_steps=2"], gpus=1024)
    assert again.strategies[1].memory["gradients"] == 4 * found.parameters  # whole until the last micro-batch
    assert plan("gpt3-175b", ["train.tokens_per_batch=2097152"], gpus=1024).strategies[1].fits  # one text each


def test_the_tables_and_json_say_the_same():
    found = plan("base", gpus=8)
    said, told = render_text(found), found.to_json()
    assert "each of 8 GPUs" in said and "sent by a GPU" in said and "docs/scaling.md" in said
    assert [way["way"] for way in told["spread"]] == ["ddp", "fsdp"] and told["gpus"] == 8
    assert told["spread"][0]["memory"]["total"] == sum(found.strategies[0].memory.values())
    assert "spread" not in plan("base").to_json() and "GPUs" not in render_text(plan("base"))
    assert stack_depths(found) == [6, 6]


def test_nonsense_is_refused():
    with pytest.raises(UserError, match="--gpus 0: there is at least 1"):
        plan("base", gpus=0)
    with pytest.raises(UserError, match="one block does not spread"):
        plan("block", gpus=2)
    result = CliRunner().invoke(app, ["plan", "--costs", "--gpus", "8"])
    assert isinstance(result.exception, UserError) and "leave out --layers and --costs" in str(result.exception)
