"""The logit lens: the last layer is the model, each layer goes through the final norm and the output layer, words stay text."""

import numpy as np
import pytest
import torch

from regard.errors import UserError
from regard.show.figures.figure_files import render
from regard.show.figures.lens_grid import MAX_POSITIONS, LensCell, LogitLens, lens_figure, lens_page, lens_text
from regard.show.forward_pass.lens import lens_inputs, lens_log_probs, logit_lens

NAMES = ["gpt", "bert", "post-norm gpt", "translator"]
NASTY = "<img src=x onerror=alert(1)>"


@pytest.mark.parametrize("name", NAMES)
def test_the_last_layer_of_the_lens_is_the_models_own_distribution(token_runs, name):
    run, text = token_runs[name]
    inputs = lens_inputs(run, text)
    with torch.no_grad():
        own = run._forward(inputs.inputs)[0].log_softmax(-1)
    found = lens_log_probs(run, inputs)
    assert len(found) == len(run.model.output_stack.blocks) + 1
    assert torch.allclose(found[-1], own, atol=1e-6)
    assert not torch.allclose(found[-2], own, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_of_the_lens_is_a_model_cut_off_after_it(token_runs, name):
    """With the blocks after a layer removed, the model itself predicts what the lens shows of that layer."""
    run, text = token_runs[name]
    inputs = lens_inputs(run, text)
    found, stack = lens_log_probs(run, inputs), run.model.output_stack
    blocks = stack.blocks
    try:
        for layer in range(1, len(blocks)):
            stack.blocks = blocks[:layer]
            with torch.no_grad():
                cut = run._forward(inputs.inputs)[0].log_softmax(-1)
            assert torch.allclose(found[layer], cut, atol=1e-5), layer
    finally:
        stack.blocks = blocks


def test_the_lens_leaves_no_hooks_behind(token_runs):
    run, text = token_runs["gpt"]
    logit_lens(run, text)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in run.model.modules())


def test_cells_hold_the_best_tokens_and_the_rank_of_the_answer(token_runs):
    run, text = token_runs["translator"]
    lens, log_probs = logit_lens(run, text), lens_log_probs(run, lens_inputs(run, text))
    answers = log_probs[-1].argmax(-1)
    for layer, row in enumerate(lens.cells):
        for position, cell in enumerate(row):
            p = log_probs[layer, position].exp()
            assert cell.top[0][1] == pytest.approx(float(p.max()), abs=1e-6)
            assert cell.answer == pytest.approx(float(p[answers[position]]), abs=1e-6)
            assert cell.rank == 1 + int((p > p[answers[position]]).sum()) and cell.agrees == (cell.rank == 1)
    assert all(cell.agrees for cell in lens.cells[-1])
    assert lens.reads[0] == "<s>" and lens.answers[0] == lens.targets[0]


def test_an_answer_is_decided_in_the_first_layer_after_which_all_agree():
    rows = [[1, 1, 0], [1, 0, 0], [1, 1, 1]]
    cells = [[LensCell([("a", 0.5)], 0.5, 1 if agrees else 2, 0.1, bool(agrees)) for agrees in row] for row in rows]
    assert LogitLens(["x"] * 3, [""] * 3, ["a"] * 3, ["embeddings", "layer 1", "layer 2"], cells).decided == [0, 2, 2]


def make_lens(positions=3):
    words = [NASTY, "$x^2$", "", *(f"w{i}" for i in range(positions))][:positions]
    cells = [[LensCell([(word, 0.6), ("b", 0.2)], 0.6, 1, 0.5, True) for word in words] for _ in range(3)]
    return LogitLens(words, words, words, ["embeddings", "layer 1", "layer 2"], cells)


@pytest.mark.parametrize("positions", [1, 3, MAX_POSITIONS + 5])
def test_lens_figures_render_to_the_same_bytes_with_words_as_text(positions):
    lens = make_lens(positions)
    svg = render(lens_figure(lens, title=NASTY), "svg")
    assert svg == render(lens_figure(lens, title=NASTY), "svg") and b"<img" not in svg
    page = lens_page(lens, title=NASTY)
    assert "<img" not in page and "drawLens(stage, data);" in page
    assert lens_text(lens).count("\n") == positions + 1


def test_show_gives_the_lens_as_a_figure_with_its_data(token_runs, tmp_path):
    run, text = token_runs["bert"]
    figure = run.show(text, view="lens")
    assert isinstance(figure.data, LogitLens) and figure.data.probabilities.shape == (3, len(figure.data.reads))
    assert np.all(figure.data.probabilities > 0) and figure.save(tmp_path / "a.svg").stat().st_size > 1000


def test_models_without_a_lens_say_which_models_have_one(image_runs, image_path):
    with pytest.raises(UserError, match="the logit lens is for Transformers that predict tokens"):
        image_runs["classify"].show(image_path, view="lens")


def test_a_hugging_face_folder_has_the_lens_and_the_flow_of_its_run(token_runs, tmp_path):
    from regard.run.convert import convert
    from regard.run.load import load
    from regard.show.forward_pass.flow import record_flow

    run, text = token_runs["gpt"]
    convert(run.folder, tmp_path / "hf", to="hf", device="cpu")
    folder = load(tmp_path / "hf", device="cpu")
    native, converted = logit_lens(run, text), logit_lens(folder, text)
    assert native.answers == converted.answers and np.allclose(native.probabilities, converted.probabilities, atol=1e-5)
    assert [stage.title for stage in record_flow(folder, text).stages] == [stage.title for stage in record_flow(run, text).stages]
