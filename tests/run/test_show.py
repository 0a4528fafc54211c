"""What any run attends to, drawn: every task, every view; from a record too; and how a beam searched."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from regard.attention.file import Record
from regard.attention.watch import watch
from regard.cli import app
from regard.errors import Mistake
from regard.pictures.maps import maps
from regard.run.attended import attended, groups
from regard.run.beams import grown
from regard.run.fit import train
from regard.run.show import Choice, look_of, sharpest, show
from regard.run.translate import Alignment

SHORT = {"steps": 2, "tokens_per_batch": 512, "evaluate_every": 2, "save_every": 2, "log_every": 2}
STACK = {"kind": "transformer", "layers": 2, "heads": 4, "feed_forward": 32, "width": 16, "max_length": 48}
BOTH = {"encoder_layers": 2, "decoder_layers": 2, "heads": 4, "feed_forward": 32, "width": 16, "max_length": 48}
TASKS = {
    "gpt": {"task": "language", "model": STACK}, "recurrent": {"task": "language", "model": {"attention": "dot", "width": 16}},
    "masked": {"task": "masked", "model": STACK}, "classify": {"task": "classify", "model": STACK},
    "tag": {"task": "tag", "model": STACK}, "reader": {"task": "tag", "model": {"attention": "scaled", "width": 16}},
    "universal": {"task": "translate", "model": {"kind": "universal", **BOTH}},
    "Bahdanau": {"task": "translate", "model": {"kind": "recurrent", "width": 16, "max_length": 48}},
    "corrupted": {"task": "corrupted", "model": {"preset": "t5-tiny", **BOTH}, "tokens": {"size": 400}},
}


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_shown(name, tmp_path):
    base = {"data": {"world": {"number": 100, "held_out": 10}}, "tokens": {"size": 300}, "train": SHORT}
    run = train({**base, **TASKS[name]}, tmp_path / "run", device="cpu")
    text = "The dog [MASK] ." if name in ("masked", "corrupted") else "The dog sleeps ."
    found = groups(attended(run, text))
    for group in found:
        np.testing.assert_allclose(group.weights.sum(-1), 1, rtol=1e-4)
    assert "dog" in "".join("".join(group.keys) for group in found)
    for view in ("matrix", "heads", "model", "entropy", "token"):
        choice = Choice(view, token="2")
        assert show(run, text, choice, out=tmp_path / f"{view}.svg", terminal=True).count("\n") > 2
        show(run, text, choice, out=tmp_path / f"{view}.html")
        assert (tmp_path / f"{view}.svg").stat().st_size > 2000 and "http" not in (tmp_path / f"{view}.html").read_text()[:200]
    if name == "universal":
        assert [group.weights.shape[0] for group in found] == [2, 2, 2]           # steps are layers


def test_pictures_are_shown_patch_by_patch(tmp_path):
    for name in ("above", "below"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(np.full((12, 12, 3), 40 * i, np.uint8)).save(tmp_path / "set" / name / f"{i}.png")
    run = train({"task": "classify", "data": {"root": str(tmp_path), "train": ["set"], "valid": ["set"], "size": 12},
                 "model": {"kind": "vit", "layers": 1, "width": 16, "heads": 2, "feed_forward": 32, "patch": 4},
                 "train": {"steps": 1, "pictures_per_batch": 4, "evaluate_every": 1, "save_every": 1}}, tmp_path / "run",
                device="cpu")
    (found,) = groups(attended(run, str(tmp_path / "set" / "above" / "1.png")))
    assert list(found.keys) == ["[class]", *(f"{y},{x}" for y in (1, 2, 3) for x in (1, 2, 3))]


def test_what_is_drawn_is_what_was_watched(tiny_run):
    """Cross-attention comes first, its queries are what was said; every kind has its own words."""
    text = tiny_run.data.valid.source[0]
    cross, encoder, decoder = groups(attended(tiny_run, text))
    inputs = tiny_run.reading(text)
    with torch.no_grad(), watch(tiny_run.model) as seen:
        tiny_run.model(**inputs)
    for group, pattern in ((cross, "cross"), (encoder, "encoder"), (decoder, "decoder.*self")):
        np.testing.assert_allclose(group.weights, seen.stack(pattern)[:, 0].numpy(), rtol=1e-6)
    assert decoder.queries[0] == "<s>" and cross.queries[-1] == "</s>" and decoder.queries[1:] == cross.queries[:-1]


def test_a_record_is_drawn_as_what_it_was_made_of(tiny_run, tmp_path):
    text = tiny_run.data.valid.source[0]
    show(tiny_run, text, Choice("model"), out=tmp_path / "a.svg", keep=tmp_path / "a.attn")
    record = Record.read(tmp_path / "a.attn")
    show(record, None, Choice("model"), out=tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    text = "The dog sleeps . " * 5
    small = groups(attended(tiny_run, text, budget="24KB"))                       # blocks: what is drawn is coarser, not wrong
    whole = groups(attended(tiny_run, text))
    assert any("tiles of" in group.note and group.tile > 1 for group in small)
    for one, other in zip(small, whole):
        np.testing.assert_allclose(one.weights.sum(-1), 1, rtol=1e-3)
        assert one.tile == 1 or one.keys[1] == f"{one.tile + 1} {other.keys[one.tile]}…"
    with pytest.raises(Mistake, match="no weights to draw"):
        groups(attended(tiny_run, text, budget="4B"))


def test_a_tree_ends_in_what_the_search_says(tiny_run):
    from regard.batches.ragged import Ragged
    from regard.batches.rows import read
    from regard.decoding.beam import beam_search

    text, steps = tiny_run.data.valid.source[0], []
    inputs = read(Ragged.of(tiny_run.ids([text])), tiny_run.marks)
    search = dict(beam=3, alpha=0.6, marks=tiny_run.marks, number=3)
    asked = (tiny_run.model, (inputs["source"], inputs["lengths"]), torch.tensor([20]))
    (found,) = beam_search(*asked, **search, report=steps.append)
    assert (found,) == tuple(beam_search(*asked, **search))                       # telling changes nothing
    nodes = grown(tiny_run, steps, found[0].tokens, 0.6)
    ended = sorted((node.score for node in nodes if node.score is not None), reverse=True)
    np.testing.assert_allclose(ended[:len(found)], [one.score for one in found], rtol=1e-5)
    assert sum(node.best for node in nodes) == len(found[0].tokens) + 1
    for step in range(1, min(len(steps), 19) + 1):
        assert sum(node.fate == "kept" and node.step == step for node in nodes) == 3
    for node in nodes:
        assert node.parent == -1 or (nodes[node.parent].fate == "kept" and nodes[node.parent].log_p >= node.log_p - 1e-6)


@pytest.mark.parametrize("words, said", [
    (["--view", "nose"], "--view nose: should be one of matrix, heads"), (["--view", "token"], "of which one? add --token"),
    (["--view", "token", "--token", "nobody"], "--token nobody: is none of"),
    (["--kind", "nose"], "one of cross, encoder, decoder"),
    (["--view", "heads", "--layer", "9"], "--layer 9: cross-attention has 1, 2"),
    (["--view", "heads", "--head", "1"], "of which layer"),
    (["--view", "model", "--out", "a.gif"], "use .svg, .png, .pdf or .html"), (["--out", "a.html"], ".html is not a format"),
])
def test_what_cannot_be_shown_is_said(tiny_run, words, said, tmp_path):
    where = [] if "--out" in words else ["--terminal"]
    result = CliRunner().invoke(app, ["show", str(tiny_run.folder), "The dog sleeps .", *words, *where])
    assert isinstance(result.exception, Mistake) and said in str(result.exception)


def test_the_command_draws_every_view(tiny_run, tmp_path):
    def run(*words):
        result = CliRunner().invoke(app, ["show", *map(str, words)], catch_exceptions=False)
        assert result.exit_code == 0
        return result.stdout

    text = tiny_run.data.valid.source[0]
    for view in ("matrix", "heads", "model", "entropy", "beam"):
        for ending in ("svg", "png", "pdf", "html"):
            run(tiny_run.folder, text, "--view", view, "--out", tmp_path / f"{view}.{ending}")
            assert (tmp_path / f"{view}.{ending}").stat().st_size > 1000
    assert "self-attention of the encoder" in run(tiny_run.folder, text, "--kind", "encoder", "--save", tmp_path / "a.attn")
    assert "looks at" in run(tmp_path / "a.attn", "--view", "token", "--token", 1, "--terminal")
    assert "►" in run(tiny_run.folder, text, "--view", "beam", "--terminal")
    assert "128 components of 50 positions" in run("--positions", "--out", tmp_path / "p.svg")
    assert "32 components of 49 positions" in run(tiny_run.folder, "--positions", "--out", tmp_path / "p.html")


@pytest.mark.parametrize("name", ["classify", "contrast", "caption", "lstm"])
def test_where_in_a_picture_it_looked(sighted, picture, tmp_path, name):
    """As many tiles as layers or words; every other view of a run that reads pictures is there too."""
    run = sighted[name]
    for options in ([], ["--heads"], ["--layer", "1", "--head", "1"], ["--view", "matrix"], ["--view", "token", "--token", "1"]):
        out = tmp_path / "-".join(["a", *options])
        CliRunner().invoke(app, ["show", str(run.folder), picture, *options, "--out", f"{out}.svg"], catch_exceptions=False)
        assert Path(f"{out}.svg").stat().st_size > 1000
        if not options:
            words = run.caption([picture])[0][0].text.split() if name in ("caption", "lstm") else ["layer 1"]
            drawn = Path(f"{out}.svg").read_text()
            assert drawn.count("<image") == 1 + len(words) and all(f">{word[:8]}" in drawn for word in words)
    assert "4,4" in " ".join(groups(attended(run, picture))[0].keys)
    with pytest.raises(Mistake, match="there are 1 to 1"):
        CliRunner().invoke(app, ["show", str(run.folder), picture, "--layer", "2", "--out", str(tmp_path / "b.svg")],
                           catch_exceptions=False)


def test_what_is_lit_is_where_the_class_token_looked(sighted, picture):
    run = sighted["classify"]
    with torch.no_grad(), watch(run.model) as seen:
        run.read(run.reading(picture))
    np.testing.assert_allclose(look_of(run, picture).heads.reshape(1, 2, 16), seen.stack()[:, 0, :, 0, 1:].numpy(), rtol=1e-6)


def test_a_text_that_clip_reads_is_shown_as_one(sighted, tmp_path):
    (found,) = groups(attended(sighted["contrast"], "a red circle"))
    assert list(found.keys)[1:4] == ["a", "red", "circle"]
    assert "self-attention" in show(sighted["contrast"], "a red circle", out=tmp_path / "a.svg")
    with pytest.raises(Mistake, match="no picture at"):
        attended(sighted["contrast"], "nowhere.png")


@pytest.mark.parametrize("sharp", [0, 1, 2])
def test_the_sharpest_layer_is_the_one_that_looks_at_one_place(sharp):
    weights = np.full((3, 2, 4, 4), 0.25)
    weights[sharp] = np.eye(4)
    words = list("abcd")
    assert sharpest(maps("", weights, words, words)) == Alignment(words, words, weights).sharpest() == sharp
