"""Which steps are captured and compiled where the recipe says "auto"."""

import warnings
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from regard.batches.batch import Batch
from regard.recipe import RecurrentDecoderModel, Training, UniversalModel
from regard.run.build_loop import LENGTH_MULTIPLE, choose_batches
from regard.training import cuda_graphs
from regard.training.cuda_graphs import MAX_GRAPHS, WARMUP_CALLS, CudaGraphedStep
from regard.training.speedups import (
    MIN_GRAPH_STEPS,
    TrainingWork,
    capture_obstacle,
    choose_speedups,
    compile_gain,
    replayed_fraction,
)

AUTO = Training()
LONG = TrainingWork("cuda", 100_000, 0.05, compile_gain=1.25)
WORKS = st.builds(
    TrainingWork,
    st.sampled_from(["cpu", "cuda", "mps"]),
    st.integers(1, 10**7),
    st.none() | st.floats(1e-4, 10),
    st.floats(0, 1),
    st.sampled_from([None, "several processes"]),
    st.floats(1, 3),
    st.floats(1, 300),
)


@given(WORKS, st.booleans(), st.booleans())
def test_settings_that_are_true_or_false_stay_so(work, graphs, compiled):
    found = choose_speedups(Training(cuda_graphs=graphs, compile=compiled), work)
    assert (found.cuda_graphs, found.compile) == (graphs, compiled)


@given(WORKS)
def test_only_a_gpu_without_obstacles_gets_speedups(work):
    found = choose_speedups(AUTO, work)
    if work.device_type != "cuda" or work.obstacle is not None:
        assert not found.cuda_graphs and not found.compile


@given(WORKS, st.integers(1, 10**7))
def test_more_steps_never_take_a_speedup_away(work, more):
    fewer = choose_speedups(AUTO, work)
    longer = choose_speedups(AUTO, TrainingWork(**{**vars(work), "steps": work.steps + more}))
    assert longer.cuda_graphs >= fewer.cuda_graphs and longer.compile >= fewer.compile


def test_a_run_is_compiled_only_if_it_saves_more_than_the_compiler_takes():
    """1,000 steps of 0.4 s are 200 s at twice the speed."""
    saving = TrainingWork("cuda", 1_000, 0.4, compile_gain=2.0, compile_seconds=199.0)
    assert choose_speedups(AUTO, saving).compile
    assert not choose_speedups(AUTO, TrainingWork(**{**vars(saving), "compile_seconds": 201.0})).compile
    unknown = choose_speedups(AUTO, TrainingWork("cuda", 10**6, compile_gain=2.0))
    assert unknown.cuda_graphs and not unknown.compile and "cannot be estimated" in unknown.reason


@given(st.integers(1, 10**9), st.floats(1e-4, 10), st.floats(0.1, 1))
def test_no_run_is_compiled_for_a_gain_of_at_most_1(steps, step_seconds, gain):
    found = choose_speedups(AUTO, TrainingWork("cuda", steps, step_seconds, compile_gain=gain, compile_seconds=0.0))
    assert not found.compile and "not compiled (no gain over our own kernels is known)" in found.reason


def test_the_reason_names_what_was_chosen_and_why():
    assert choose_speedups(AUTO, LONG).reason == (
        "CUDA graphs (for 100% of 100,000 steps), compiled (would save about 1,000 s, and take about 90 s)"
    )
    short = choose_speedups(Training(compile=True), TrainingWork("cuda", MIN_GRAPH_STEPS - 1, 0.05))
    assert short.reason == "no CUDA graphs (299 steps are too few), compiled (as set)"


def test_shapes_that_hardly_recur_are_not_captured():
    assert replayed_fraction([100], 100) == 1 - WARMUP_CALLS / 100
    assert replayed_fraction([1] * 100, 100) == 0
    assert replayed_fraction([1] * 2 * MAX_GRAPHS, 1_000 * MAX_GRAPHS) == pytest.approx(0.5, abs=0.01)
    assert not choose_speedups(AUTO, TrainingWork("cuda", 1_000, 0.01, replayed_fraction=0.2)).cuda_graphs


def test_obstacles_to_capturing():
    class Annealed(nn.Module):
        def begin_step(self, step): ...

    assert capture_obstacle(nn.Linear(1, 1), "none") is None
    assert capture_obstacle(nn.Linear(1, 1), "ddp") == "several processes"
    assert "schedule" in capture_obstacle(Annealed(), "none")


def test_batches_are_padded_where_steps_are_captured_and_models_that_gain_are_compiled(tiny_run):
    """The choice of a run on a GPU, without one: its work is estimated from the recipe and the data."""

    def choose(device, decoder_only=False, norm_first=True, **settings):
        train = tiny_run.recipe.train.model_copy(update={"cuda_graphs": "auto", "compile": "auto", **settings})
        model = tiny_run.recipe.model.model_copy(update={"norm_first": norm_first})
        recipe = tiny_run.recipe.model_copy(update={"train": train, "model": model})
        names = ("folder", "model", "_max_positions", "_config_sizes")
        run = SimpleNamespace(recipe=recipe, device=torch.device(device), **{name: getattr(tiny_run, name) for name in names})
        run.task = replace(tiny_run.task, decoder_only=decoder_only)
        rows = tiny_run._encode(tiny_run.data.valid)
        batches, speedups = choose_batches(run, rows)
        return batches.pad_to_multiple_of, speedups

    padding, speedups = choose("cuda", steps=5_000)
    assert padding == LENGTH_MULTIPLE and speedups.cuda_graphs and not speedups.compile
    assert not choose("cuda", steps=10**7)[1].compile and choose("cuda", decoder_only=True, steps=10**7)[1].compile
    assert (
        choose("cuda", norm_first=False, steps=10**6)[1].compile and not choose("cuda", norm_first=False, steps=5_000)[1].compile
    )
    universal = UniversalModel(kind="universal", preset="tiny", norm_first=False)
    assert compile_gain(universal, decoder_only=False) == 1  # not measured
    assert compile_gain(RecurrentDecoderModel(), decoder_only=True) == 1
    assert "would save" in choose("cuda", decoder_only=True, steps=5_000)[1].reason
    assert choose("cuda", steps=100)[0] == choose("cpu", steps=5_000)[0] == 1


@pytest.mark.parametrize("synchronises", [False, True])
def test_a_step_that_waits_for_the_device_is_not_captured(monkeypatch, synchronises):
    """torch's sync debug mode warns in the last eager call of a shape; every step still runs."""
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(cuda_graphs, "new_stream", lambda device: SimpleNamespace(device=device, wait_stream=waits.append))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(wait_stream=waits.append))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    modes, notes, runs, captured, waits = [], [], [], [], []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    class FakeGraph:
        def replay(self):
            captured.append(self)

    monkeypatch.setattr(CudaGraphedStep, "capture", lambda self, batches, count: (FakeGraph(), [], count))

    def step(batches, count):
        if modes and modes[-1] == "warn" and synchronises:
            warnings.warn("called a synchronizing CUDA operation (Triggered internally …)", stacklevel=1)
        runs.append(count)
        return count

    graphed = CudaGraphedStep(step, notes.append, torch.device("cpu"))
    batch = Batch({"x": torch.zeros(2, 3)}, torch.zeros(2), np.arange(2))
    for _ in range(WARMUP_CALLS + 2):
        graphed([batch], torch.ones(()))
    assert len(waits) == 2 * (WARMUP_CALLS + 2)  # its stream waits for the caller's, which then waits for it
    assert modes == ["warn", 0] and len(notes) == int(synchronises)
    assert len(captured) == (0 if synchronises else 2) and len(runs) == WARMUP_CALLS + 2 - len(captured)
