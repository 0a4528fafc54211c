"""A model that computes no finite numbers gives an error, never fewer lines than it read."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard.decoding.batching import SearchParams
from regard.decoding.continuous_batching import ContinuousBatcher
from regard.errors import UserError
from regard.tasks.shared.requests import translate_task
from regard.training.checkpoint import require_finite


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_loading_refuses_weights_that_are_not_finite(tiny_run, tmp_path, value):
    folder = tmp_path / "run"
    shutil.copytree(tiny_run.folder, folder, ignore=shutil.ignore_patterns("checkpoints"))
    weights = load_file(folder / "model.safetensors")
    name = max(weights, key=lambda name: weights[name].numel())
    weights[name].view(-1)[7] = value
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(UserError, match=rf"{name} has 1 values that are NaN or infinite"):
        regard.load(folder, device="cpu")


def test_a_sum_that_overflows_is_not_taken_for_infinite_weights():
    require_finite(torch.full((4,), 3e38), "large")
    require_finite(torch.full((4,), 6e4, dtype=torch.float16), "half")
    with pytest.raises(UserError, match="2 values"):
        require_finite(torch.tensor([float("nan"), 1.0, float("inf")]), "x")


@pytest.fixture
def nan_run(tiny_run):
    """A run whose output layer computes NaN, with finite weights."""
    run = regard.load(tiny_run.folder, device="cpu")
    hook = run.model.register_forward_hook(lambda *_: None)  # keep the search in this thread
    step = run.model.step

    def broken(tokens, state):
        logits, state = step(tokens, state)
        return logits * float("nan"), state

    run.model.step = broken
    yield run
    hook.remove()


@pytest.mark.parametrize("options", [{}, {"beam": 1}, {"temperature": 1.0}, {"beam": 3, "number": 2}])
def test_translate_gives_an_error_if_probabilities_are_nan(nan_run, options):
    with pytest.raises(UserError, match="probabilities are NaN"):
        nan_run.translate(["the dog sleeps .", "a cat runs ."], **options)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_served_request_gives_an_error_if_probabilities_are_nan(nan_run, beam):
    task = translate_task(nan_run, "the dog sleeps .", beam=beam)
    batcher = ContinuousBatcher(nan_run.model, nan_run.device)
    batcher.add([task.request])
    while len(batcher):
        batcher.step()
    with pytest.raises(UserError, match="probabilities are NaN"):
        task.result()


@pytest.mark.parametrize(
    "options",
    [
        {"length_penalty": float("nan")},
        {"length_penalty": float("inf")},
        {"length_penalty": 400.0},
        {"beam": 100_000},
        {"beam": 0},
        {"max_tokens": 2**70},
        {"temperature": float("inf")},
        {"temperature": 1e308},
        {"temperature": float("nan")},
        {"temperature": 1.0, "seed": 2**64},
        {"temperature": 1.0, "top_k": 2**70},
        {"number": 0},
    ],
)
def test_search_settings_out_of_bounds_are_refused_by_name(tiny_run, options):
    name = list(options)[-1]
    with pytest.raises(UserError, match=f"{name} = "):
        tiny_run.translate(["the dog sleeps ."], **options)


@pytest.mark.parametrize("alpha", [-5.0, 5.0])
def test_the_largest_length_penalties_give_one_line_per_text(tiny_run, alpha):
    texts = ["the dog sleeps .", "", "a"]
    assert len(tiny_run.translate(texts, length_penalty=alpha)) == 3
    assert SearchParams(length_penalty=alpha).width == 1
