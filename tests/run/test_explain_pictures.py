"""Runs that read pictures explained: classifiers, CLIP and captioners, from Python and from the command line."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import UserError
from regard.explain.image_outputs import boxes_with_label
from regard.explain.methods import METHODS
from regard.explain.selection import OutputSelection
from regard.explain.text_outputs import select_output, select_outputs
from regard.run.train import train

TOWER = {"layers": 1, "width": 16, "heads": 2, "feed_forward": 32}
PARTS = {"attention", "gradient-attention", "norms", "input-gradient", "integrated-gradients", "occlusion"}


@pytest.fixture
def runs(sighted):
    return sighted


def said(*words):
    return CliRunner().invoke(app, ["explain", *map(str, words)], catch_exceptions=False).stdout


def test_what_is_explained_is_what_the_run_says(runs, picture):
    for judged in runs["classify"].classify([picture])[0]:
        target = select_output(runs["classify"], picture, OutputSelection(label=judged.label)).target
        assert float(target.whole().exp()) == pytest.approx(judged.probability, abs=1e-5)
    assert select_output(runs["classify"], picture).answer.startswith(
        f"the label {runs['classify'].classify([picture])[0][0].label!r}"
    )
    texts = ["a red circle", "there are two stars"]
    likeness = runs["contrastive"].similarity([picture], texts)[0]
    for text, expected in zip(texts, likeness):
        target = select_output(runs["contrastive"], picture, OutputSelection(fits=text, against="a blue ring")).target
        assert float(target.whole()) == pytest.approx(expected, abs=1e-5)
    for name in ("caption", "lstm"):
        told = runs[name].caption([picture])[0][0]
        number = len(told.text.split())
        targets = [select_output(runs[name], picture, OutputSelection(word=str(word + 1))).target for word in range(number)]
        assert all(target.answer == told.tokens[target.step] for target in targets)
        assert sum(float(target.whole()) for target in targets) >= told.log_probability - 1e-4  # what is left is the end's


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("classify", {"label": "star", "against": "ring"}),
        ("contrastive", {"fits": "a red star", "against": "a large blue ring"}),
        ("caption", {"word": "1", "against": "star"}),
        ("lstm", {"word": "1"}),
    ],
)
def test_every_run_is_explained_patch_by_patch(runs, picture, name, question):
    found = runs[name].explain(picture, **question)
    assert found.pieces[0] == "1,1" and found.pieces[-1] == "4,4" and found.picture.grid == (4, 4)
    assert set(found.values) == (PARTS if name == "lstm" else set(METHODS))
    assert set(found.values) | set(found.refused) == set(METHODS)
    assert all(len(values) == 16 for values in found.values.values())
    assert found.picture.pixels.shape == (32, 32, 3) and set(found.measured) == {*found.values, "by lot"}
    text = " ".join(found.words())
    assert "mean colour" in text and ("likeness" if name == "contrastive" else "probability") in text
    if found.against is not None:
        assert set(found.against.values) == set(found.values) and "apart" in found.measured["occlusion"]
        assert found.measured["attention"]["apart"] == pytest.approx(0)


def test_a_label_against_itself_is_not_told_apart(runs, picture):
    found = runs["classify"].explain(picture, label="star", against="star")
    assert all(
        row["apart"] == pytest.approx(0) and row["selective"] == 0 for name, row in found.measured.items() if name != "by lot"
    )


def test_texts_have_two_labels_too(tmp_path):
    run = train(
        {
            "task": "classify",
            "data": {"world": {"number": 200, "held_out": 10}},
            "tokens": {"size": 200},
            "model": {"kind": "transformer", **TOWER, "max_length": 48},
            "train": {"steps": 2, "tokens_per_batch": 256, "evaluate_every": 2, "save_every": 2},
        },
        tmp_path / "run",
        device="cpu",
    )
    found = run.explain(run.data.valid.text[0], "attention,occlusion", label=run.labels[0], against=run.labels[1])
    assert found.measured["attention"]["apart"] == pytest.approx(0) and found.measured["occlusion"]["apart"] > 0
    assert len(found.tables()) == 3


def test_the_command_line(runs, picture, tmp_path):
    out = tmp_path / "maps.png"
    text = said(runs["classify"].folder, picture, "--class", "star", "--against", "ring", "--out", out)
    assert "why the label 'star'" in text and "why the label 'ring'" in text and "by lot" in text and "apart" in text
    with Image.open(out) as drawn:
        assert drawn.width > 1500
    found = json.loads(said(runs["contrastive"].folder, picture, "--text", "a star", "--json", "--method", "occlusion,attention"))
    assert found["grid"] == [4, 4] and len(found["values"]["occlusion"]) == len(found["patches"]) == 16
    said(runs["lstm"].folder, picture, "--word", "1", "--method", "occlusion", "--out", tmp_path / "word.svg")
    said(runs["classify"].folder, picture, "--method", "occlusion", "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 2 and "without the first patches" in page  # the maps and the curves
    assert "occlusion" in (tmp_path / "word.svg").read_text()


@pytest.mark.parametrize(
    ("name", "more"), [("classify", []), ("contrastive", []), ("caption", []), ("lstm", []), ("classify", ["--against", "ring"])]
)
def test_a_set_has_intervals_and_boxes(runs, tmp_path, name, more):
    words = ["--data", "valid", "--number", 4, "--method", "attention,occlusion", "--json", *more]
    found = json.loads(said(runs[name].folder, *words))
    measures = found["scores"]["occlusion"]
    assert {"comprehensiveness", "sufficiency", "fresh"} | ({"apart", "selective"} if more else set()) <= set(measures)
    if name != "classify":  # what is named there need not be
        assert 0 < found["scores"]["by lot"]["box"]["score"] < 1 and 0 <= measures["box"]["score"] <= 1
        assert "box of what is named" in " ".join(found["words"])
    assert all(score["low"] <= score["score"] <= score["high"] for score in measures.values())


def test_gold_patches_are_those_of_what_is_named(runs):
    valid = runs["caption"].data.valid
    for asked, gold in zip(select_outputs(runs["caption"], valid, len(valid)), valid.gold):
        right = asked.gold["box"].right
        tokenizer, caption = runs["caption"].tokenizers[0], gold.captions[0]
        word = tokenizer.word_ids(tokenizer.encode([caption.text])[0])[asked.target.step]
        phrase = next(phrase for phrase in caption.phrases if phrase.end - 1 == word)
        middles = {(y0 + y1) // 2 // 8 * 4 + (x0 + x1) // 2 // 8 for x0, y0, x1, y1 in phrase.boxes}
        assert right and right <= set(range(16)) and (right & middles or len(right) == 1)
        for box in right:
            y, x = 8 * (box // 4), 8 * (box % 4)
            assert any(x < x1 and x0 < x + 8 and y < y1 and y0 < y + 8 for x0, y0, x1, y1 in phrase.boxes)
    scene = valid.gold[0].scene
    main = scene.main
    for label in (main.kind, main.colour, f"{main.colour} {main.kind}"):
        assert main.box in boxes_with_label(scene, label)
    assert boxes_with_label(scene, "flute") == ()


def test_pictures_of_a_folder_are_a_set(runs, picture, tmp_path):
    for number in range(3):
        Image.fromarray(np.full((20, 20, 3), 60 * number, np.uint8)).save(tmp_path / f"{number}.png")
    found = json.loads(said(runs["classify"].folder, "--data", tmp_path, "--method", "occlusion", "--json"))
    assert found["number"] == 3 and "box" not in found["scores"]["occlusion"]


@pytest.mark.parametrize(
    ("name", "settings", "cure"),
    [
        ("classify", {"label": "flute"}, "--class flute: there is no such label; there are:"),
        ("classify", {"against": "flute"}, "--against flute: there is no such label"),
        ("classify", {"word": "1"}, "--class with one of"),
        ("classify", {"fits": "a star"}, "--class with one of"),
        ("contrastive", {}, "which text"),
        ("contrastive", {"label": "star"}, "--text"),
        ("contrastive", {"fits": " "}, "empty"),
        ("contrastive", {"fits": "a star", "against": ""}, "empty"),
        ("caption", {"word": "99"}, "the caption has words 1 to"),
        ("caption", {"label": "star"}, "--word"),
        ("caption", {"word": "1", "against": ""}, "no such token"),
        ("lstm", {"method": "rollout"}, "recurrent"),
    ],
)
def test_mistakes_are_one_line(runs, picture, name, settings, cure):
    with pytest.raises(UserError, match=cure) as mistake:
        runs[name].explain(picture, **settings)
    assert "\n" not in str(mistake.value)


@pytest.mark.parametrize("words", [["--out", "a.gif"], ["--heads"]])
def test_mistakes_of_the_command_line(runs, picture, words):
    with pytest.raises(UserError):
        said(runs["classify"].folder, picture, *words)
    with pytest.raises(UserError, match="no"):
        said(runs["classify"].folder, "nowhere.png")


def test_explaining_leaves_no_trace(runs, picture):
    before = {name: part.clone() for name, part in runs["contrastive"].model.state_dict().items()}
    runs["contrastive"].explain(picture, fits="a star")
    assert all(torch.equal(part, before[name]) for name, part in runs["contrastive"].model.state_dict().items())


def test_the_heads_of_a_classifier_of_pictures(runs):
    found = json.loads(said(runs["classify"].folder, "--heads", "--number", 6, "--json"))
    names = {"same patch", "patch beside it", "mark", "what is named"}
    assert len(found["heads"]) == 2 and set(found["heads"][0]["shares"]) == names
    assert all(0 <= share["share"] <= 1 for head in found["heads"] for share in head["shares"].values())
    with pytest.raises(UserError, match="those that classify"):
        said(runs["contrastive"].folder, "--heads")
