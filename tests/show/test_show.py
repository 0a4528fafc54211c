"""`regard show` on runs of every task: every view, from runs and from records, and the tree of a beam search."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from regard.attention.record import Record
from regard.attention.watch import watch
from regard.cli import app
from regard.errors import UserError
from regard.run.train import train
from regard.show.attention import show_attention
from regard.show.beam import tree_nodes
from regard.show.figures.attention_maps import tile_attention
from regard.show.generation import show_generation, trace_generation
from regard.show.image_attention import image_attention
from regard.show.neurons import record_neurons, show_neurons
from regard.show.recording import attention_maps, record_attention
from regard.show.selection import ViewSelection

SHORT = {"steps": 2, "tokens_per_batch": 512, "evaluate_every": 2, "save_every": 2, "log_every": 2}
STACK = {"kind": "transformer", "layers": 2, "heads": 4, "feed_forward": 32, "width": 16, "max_length": 48}
BOTH = {"encoder_layers": 2, "decoder_layers": 2, "heads": 4, "feed_forward": 32, "width": 16, "max_length": 48}
TASKS = {
    "gpt": {"task": "language", "model": STACK},
    "recurrent": {"task": "language", "model": {"attention": "dot", "width": 16}},
    "masked": {"task": "masked", "model": STACK},
    "classify": {"task": "classify", "model": STACK},
    "tag": {"task": "tag", "model": STACK},
    "reader": {"task": "tag", "model": {"attention": "scaled", "width": 16}},
    "universal": {"task": "translate", "model": {"kind": "universal", **BOTH}},
    "Bahdanau": {"task": "translate", "model": {"kind": "recurrent", "width": 16, "max_length": 48}},
    "span-corruption": {"task": "span-corruption", "model": {"preset": "t5-tiny", **BOTH}, "tokens": {"size": 400}},
}


@pytest.mark.parametrize("name", TASKS)
def test_every_view_of_every_task(name, tmp_path):
    base = {"data": {"world": {"number": 100, "held_out": 10}}, "tokens": {"size": 300}, "train": SHORT}
    run = train({**base, **TASKS[name]}, tmp_path / "run", device="cpu")
    text = "The dog [MASK] ." if name in ("masked", "span-corruption") else "The dog sleeps ."
    found = attention_maps(record_attention(run, text))
    for group in found:
        np.testing.assert_allclose(group.weights.sum(-1), 1, rtol=1e-4)
    assert "dog" in "".join("".join(group.keys) for group in found).replace("·", "")
    for view in ("matrix", "heads", "model", "entropy", "token"):
        choice = ViewSelection(view, token="2")
        figure = show_attention(run, text, choice)
        assert figure.text().count("\n") > 2
        figure.save(tmp_path / f"{view}.svg")
        figure.save(tmp_path / f"{view}.html")
        assert (tmp_path / f"{view}.svg").stat().st_size > 2000 and "http" not in (tmp_path / f"{view}.html").read_text()[:200]
    head, at = record_neurons(run, text, ViewSelection("neurons", layer=1, head=1))
    for row, one in enumerate(head.queries):  # the shown weights are the used ones
        together = torch.from_numpy(one.scores).softmax(-1).numpy()
        np.testing.assert_allclose(together, one.weights, atol=1e-6)
        np.testing.assert_allclose(one.weights, found[0].weights[0, 0, row], atol=1e-6)
        np.testing.assert_allclose(one.bias, 0, atol=1e-4 if name != "span-corruption" else 9)
        np.testing.assert_allclose(one.sums + one.bias, one.scores.clip(one.sums + one.bias), atol=1e-9)
    assert head.queries[at].word == found[0].queries[at] and list(head.words) == list(found[0].keys)
    figure = show_neurons(run, text, ViewSelection("neurons", token="2"))
    assert "query" in figure.text()
    for ending in ("svg", "html"):
        assert figure.save(tmp_path / f"n.{ending}").stat().st_size > 2000
    if name in ("gpt", "recurrent", "universal", "Bahdanau", "span-corruption"):
        steps = trace_generation(run, text, ViewSelection("steps", layer=1))
        np.testing.assert_allclose(steps.weights.sum(-1), 1, rtol=1e-4)
    else:
        with pytest.raises(UserError, match="for runs that generate"):
            trace_generation(run, text, ViewSelection("steps"))
    if name == "universal":
        assert [group.weights.shape[0] for group in found] == [2, 2, 2]  # steps are layers
        head, _ = record_neurons(run, text, ViewSelection("neurons", layer=2, head=3))
        np.testing.assert_allclose([one.weights for one in head.queries], found[0].weights[1, 2], atol=1e-6)
        for one in head.queries:
            np.testing.assert_allclose(one.terms, one.query * head.keys / 2, atol=1e-9)
        steps = trace_generation(run, text, ViewSelection("steps", layer=2, head=3))
        np.testing.assert_allclose(steps.weights, found[0].weights[1, 2], atol=1e-6)


@pytest.mark.parametrize(
    "kind, where",
    [("alibi", "bias: a slope"), ("rotary", "rotation"), ("relative", "bias: learned"), ("learned", "part of q and k")],
)
def test_neuron_view_describes_positions_and_masks(kind, where, tmp_path):
    run = train(
        {
            "task": "language",
            "model": {**STACK, "positions": {"kind": kind}},
            "train": SHORT,
            "tokens": {"size": 300},
            "data": {"world": {"number": 100, "held_out": 10}},
        },
        tmp_path / "run",
        device="cpu",
    )
    if kind == "relative":
        torch.nn.init.normal_(run.model.decoder.positions.table.weight)
    (weights,) = attention_maps(record_attention(run, "The dog sleeps ."))
    found, at = record_neurons(run, "The dog sleeps .", ViewSelection("neurons", layer=2, head=3, token="3"))
    asked = found.queries[at]
    assert where in found.positions and at == 2 and found.biased == ("bias" in where)
    np.testing.assert_allclose(torch.from_numpy(asked.scores).softmax(-1).numpy(), weights.weights[1, 2, 2], atol=1e-6)
    assert np.isneginf(asked.scores[3:]).all() and np.isfinite(asked.scores[:3]).all()
    if kind == "alibi":
        np.testing.assert_allclose(asked.bias[:3], -(2.0**-6) * np.array([2, 1, 0]), atol=1e-5)


def test_image_tokens_are_labelled_by_patch(tmp_path):
    for name in ("above", "below"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(np.full((12, 12, 3), 40 * i, np.uint8)).save(tmp_path / "set" / name / f"{i}.png")
    run = train(
        {
            "task": "classify",
            "data": {"root": str(tmp_path), "train": ["set"], "valid": ["set"], "size": 12},
            "model": {"kind": "vit", "layers": 1, "width": 16, "heads": 2, "feed_forward": 32, "patch_size": 4},
            "train": {"steps": 1, "images_per_batch": 4, "evaluate_every": 1, "save_every": 1},
        },
        tmp_path / "run",
        device="cpu",
    )
    (found,) = attention_maps(record_attention(run, str(tmp_path / "set" / "above" / "1.png")))
    assert list(found.keys) == ["[class]", *(f"{y},{x}" for y in (1, 2, 3) for x in (1, 2, 3))]


def test_maps_equal_the_watched_weights(tiny_run):
    """Cross-attention comes first, its queries labelled by the predicted tokens; every kind has its own labels."""
    text = tiny_run.data.valid.source[0]
    cross, encoder, decoder = attention_maps(record_attention(tiny_run, text))
    inputs = tiny_run._inputs(text)
    with torch.no_grad(), watch(tiny_run.model) as seen:
        tiny_run.model(**inputs)
    for group, pattern in ((cross, "cross"), (encoder, "encoder"), (decoder, "decoder.*self")):
        np.testing.assert_allclose(group.weights, seen.stack(pattern)[:, 0].numpy(), rtol=1e-6)
    assert decoder.queries[0] == "<s>" and cross.queries[-1] == "</s>" and decoder.queries[1:] == cross.queries[:-1]


def test_generation_trace_equals_the_translation(tiny_run):
    """Its probabilities multiply to that of the translation; its weights are the watched ones."""
    text = tiny_run.data.valid.source[0]
    found, (best,) = trace_generation(tiny_run, text, ViewSelection("steps", layer=1, head=2)), tiny_run._best([text])
    assert np.log([step.probability for step in found.steps]).sum() == pytest.approx(best.log_probability, abs=1e-3)
    cross, _, decoder = attention_maps(record_attention(tiny_run, text))
    assert [step.word for step in found.steps] == list(cross.queries) and found.own is None
    np.testing.assert_allclose(found.weights, cross.weights[0, 1], atol=1e-6)
    before = trace_generation(tiny_run, text, ViewSelection("steps", kind="decoder", layer=2))
    np.testing.assert_allclose(before.weights, decoder.weights[1].mean(0), atol=1e-6)
    assert before.own == 1 and before.keys[1:] == [step.word for step in found.steps[:-1]]
    for step in found.steps:
        assert len(step.others) == 5 and step.word not in [word for word, _ in step.others if word]
        assert sum(p for _, p in step.others) + step.probability <= 1 + 1e-5
    with pytest.raises(UserError, match="use cross or decoder"):
        trace_generation(tiny_run, text, ViewSelection("steps", kind="encoder"))


def test_generation_trace_of_a_language_model_attends_to_earlier_tokens(tmp_path):
    run = train(
        {
            "task": "language",
            "model": STACK,
            "train": SHORT,
            "tokens": {"size": 300},
            "data": {"world": {"number": 100, "held_out": 10}},
        },
        tmp_path / "run",
        device="cpu",
    )
    found, (text,) = (
        trace_generation(run, "The dog", ViewSelection("steps"), max_tokens=9),
        run.generate(["The dog"], max_tokens=9),
    )
    total = np.log([step.probability for step in found.steps]).sum()
    assert total == pytest.approx(text.score, abs=1e-3) or len(text.tokens) == 9
    prompt = len(run._encode_prompts(["The dog"])[0])
    assert found.own == prompt and len(found.steps) == len(found.keys) - prompt + 1
    for number, row in enumerate(found.weights):
        assert row[prompt + number :].max(initial=0) == 0 and row.sum() == pytest.approx(1, abs=1e-4)
    for ending in ("svg", "png", "pdf", "html"):
        show_generation(run, "The dog", ViewSelection("steps", token="3"), max_tokens=9).save(tmp_path / f"a.{ending}")
        assert (tmp_path / f"a.{ending}").stat().st_size > 2000


def test_record_is_drawn_as_the_run_it_was_made_from(tiny_run, tmp_path):
    text = tiny_run.data.valid.source[0]
    show_attention(tiny_run, text, ViewSelection("model"), keep=tmp_path / "a.attn").save(tmp_path / "a.svg")
    record = Record.read(tmp_path / "a.attn")
    show_attention(record, selection=ViewSelection("model")).save(tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    text = "The dog sleeps . " * 5
    small = attention_maps(record_attention(tiny_run, text, budget="24KB"))  # blocks are coarser, not wrong
    whole = attention_maps(record_attention(tiny_run, text))
    assert any("tiles of" in group.note and group.tile > 1 for group in small)
    for one, other in zip(small, whole):
        np.testing.assert_allclose(one.weights.sum(-1), 1, rtol=1e-3)
        assert one.tile == 1 or one.keys[1] == f"{one.tile + 1} {other.keys[one.tile]}…"
    with pytest.raises(UserError, match="no weights to draw"):
        attention_maps(record_attention(tiny_run, text, budget="4B"))


def test_beam_tree_ends_in_the_hypotheses_of_the_search(tiny_run):
    from regard.batches.ragged import Ragged
    from regard.batches.rows import encoder_inputs
    from regard.decoding.beam import beam_search

    text, steps = tiny_run.data.valid.source[0], []
    inputs = encoder_inputs(Ragged.from_rows(tiny_run._ids([text])), tiny_run._special_tokens)
    search = dict(beam=3, alpha=0.6, special_tokens=tiny_run._special_tokens, number=3)
    asked = (tiny_run.model, (inputs["source"], inputs["lengths"]), torch.tensor([20]))
    (found,) = beam_search(*asked, **search, on_step=steps.append)
    assert (found,) == tuple(beam_search(*asked, **search))  # reporting changes nothing
    nodes = tree_nodes(tiny_run, steps, found[0].tokens, 0.6)
    ended = sorted((node.score for node in nodes if node.score is not None), reverse=True)
    np.testing.assert_allclose(ended[: len(found)], [one.score for one in found], rtol=1e-5)
    assert sum(node.best for node in nodes) == len(found[0].tokens) + 1
    for step in range(1, min(len(steps), 19) + 1):
        assert sum(node.fate == "kept" and node.step == step for node in nodes) == 3
    for node in nodes:
        assert node.parent == -1 or (nodes[node.parent].fate == "kept" and nodes[node.parent].log_p >= node.log_p - 1e-6)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--view", "nose"], "--view nose: no such view; use one of matrix, heads"),
        (["--view", "token"], "which one? add --token"),
        (["--view", "token", "--token", "nobody"], "--token nobody: not among"),
        (["--kind", "nose"], "use one of cross, encoder, decoder"),
        (["--view", "neurons", "--token", "nobody"], "--token nobody: not among"),
        (["--view", "neurons", "--head", "9", "--layer", "1"], "--head 9: cross-attention has heads 1, 2"),
        (["--view", "steps", "--max-tokens", "9"], "--max-tokens 9: for language models"),
        (["--view", "neurons", "--save", "a.attn"], "--save does not apply to --view neurons"),
        (["--view", "heads", "--layer", "9"], "--layer 9: cross-attention has layers 1, 2"),
        (["--view", "heads", "--head", "1"], "of which layer"),
        (["--view", "model", "--out", "a.gif"], "use .svg, .png, .pdf or .html"),
    ],
)
def test_show_options_that_do_not_apply_are_user_errors(tiny_run, options, message):
    output = [] if "--out" in options else ["--terminal"]
    result = CliRunner().invoke(app, ["show", str(tiny_run.folder), "The dog sleeps .", *options, *output])
    assert isinstance(result.exception, UserError) and message in str(result.exception)


def test_show_command_draws_every_view(tiny_run, tmp_path):
    def run(*words):
        result = CliRunner().invoke(app, ["show", *map(str, words)], catch_exceptions=False)
        assert result.exit_code == 0
        return result.stdout

    text = tiny_run.data.valid.source[0]
    for view in ("matrix", "heads", "model", "entropy", "neurons", "steps", "beam"):
        for ending in ("svg", "png", "pdf", "html"):
            run(tiny_run.folder, text, "--view", view, "--out", tmp_path / f"{view}.{ending}")
            assert (tmp_path / f"{view}.{ending}").stat().st_size > 1000
    assert "self-attention of the encoder" in run(tiny_run.folder, text, "--kind", "encoder", "--save", tmp_path / "a.attn")
    with pytest.raises(UserError, match="needs the run and the text"):
        run(tmp_path / "a.attn", "--view", "neurons", "--terminal")
    assert "attention of" in run(tmp_path / "a.attn", "--view", "token", "--token", 1, "--terminal")
    assert "►" in run(tiny_run.folder, text, "--view", "beam", "--terminal")
    assert "128 components of 50 positions" in run("--positions", "--out", tmp_path / "p.svg")
    assert "32 components of 49 positions" in run(tiny_run.folder, "--positions", "--out", tmp_path / "p.html")


@pytest.mark.parametrize("name", ["classify", "contrastive", "caption", "lstm"])
def test_show_image_attention_has_a_tile_per_layer_or_word(image_runs, image_path, tmp_path, name):
    """Every other view of a run that reads images works too."""
    run = image_runs[name]
    for options in ([], ["--heads"], ["--layer", "1", "--head", "1"], ["--view", "matrix"], ["--view", "token", "--token", "1"]):
        out = tmp_path / "-".join(["a", *options])
        CliRunner().invoke(app, ["show", str(run.folder), image_path, *options, "--out", f"{out}.svg"], catch_exceptions=False)
        assert Path(f"{out}.svg").stat().st_size > 1000
        if not options:
            words = run.caption(image_path).text.split() if name in ("caption", "lstm") else ["layer 1"]
            drawn = Path(f"{out}.svg").read_text()
            assert drawn.count("<image") == 1 + len(words) + 1 and all(f">{word[:8]}" in drawn for word in words)
    assert "4,4" in " ".join(attention_maps(record_attention(run, image_path))[0].keys)
    with pytest.raises(UserError, match="this run has 1 to 1"):
        CliRunner().invoke(
            app, ["show", str(run.folder), image_path, "--layer", "2", "--out", str(tmp_path / "b.svg")], catch_exceptions=False
        )


def test_image_attention_is_that_of_the_class_token(image_runs, image_path):
    run = image_runs["classify"]
    with torch.no_grad(), watch(run.model) as seen:
        run._forward(run._inputs(image_path))
    np.testing.assert_allclose(
        image_attention(run, image_path).heads.reshape(1, 2, 16), seen.stack()[:, 0, :, 0, 1:].numpy(), rtol=1e-6
    )


def test_text_attention_of_clip(image_runs, tmp_path):
    (found,) = attention_maps(record_attention(image_runs["contrastive"], "a red circle"))
    assert list(found.keys)[1:4] == ["a", "red", "circle"]
    assert "self-attention" in show_attention(image_runs["contrastive"], "a red circle").description
    with pytest.raises(UserError, match=r"no \w+ at nowhere.png"):
        record_attention(image_runs["contrastive"], "nowhere.png")


@pytest.mark.parametrize("sharp", [0, 1, 2])
def test_sharpest_layer_has_the_lowest_entropy(sharp):
    weights = np.full((3, 2, 4, 4), 0.25)
    weights[sharp] = np.eye(4)
    words = list("abcd")
    assert tile_attention("", weights, words, words).sharpest_layer == sharp
