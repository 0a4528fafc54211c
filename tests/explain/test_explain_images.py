"""`regard explain` on runs that read images: classifiers, CLIP and captioners, from Python and from the command line."""

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
def runs(image_runs):
    return image_runs


def explain_command(*words):
    return CliRunner().invoke(app, ["explain", *map(str, words)], catch_exceptions=False).stdout


def test_explained_output_is_the_prediction_of_the_run(runs, image_path):
    for judged in runs["classify"].classify(image_path):
        target = select_output(runs["classify"], image_path, OutputSelection(label=judged.label)).target
        assert float(target.full_score().exp()) == pytest.approx(judged.probability, abs=1e-5)
    assert select_output(runs["classify"], image_path).description.startswith(
        f"the label {runs['classify'].classify(image_path).label!r}"
    )
    texts = ["a red circle", "there are two stars"]
    similarity = runs["contrastive"].similarity(image_path, texts)
    for text, expected in zip(texts, similarity):
        target = select_output(runs["contrastive"], image_path, OutputSelection(fits=text, against="a blue ring")).target
        assert float(target.full_score()) == pytest.approx(expected, abs=1e-5)
    for name in ("caption", "lstm"):
        told = runs[name].caption(image_path)
        number = len(told.text.split())
        targets = [select_output(runs[name], image_path, OutputSelection(word=str(word + 1))).target for word in range(number)]
        assert all(target.output == told.tokens[target.step] for target in targets)
        assert sum(float(target.full_score()) for target in targets) >= told.log_probability - 1e-4  # what is left is the end's


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("classify", {"label": "star", "against": "ring"}),
        ("contrastive", {"fits": "a red star", "against": "a large blue ring"}),
        ("caption", {"word": "1", "against": "star"}),
        ("lstm", {"word": "1"}),
    ],
)
def test_explain_every_image_task_patch_by_patch(runs, image_path, name, question):
    found = runs[name].explain(image_path, **question)
    assert found.features[0] == "1,1" and found.features[-1] == "4,4" and found.image.grid == (4, 4)
    assert set(found.attributions) == (PARTS if name == "lstm" else set(METHODS))
    assert set(found.attributions) | set(found.unavailable) == set(METHODS)
    assert all(len(values) == 16 for values in found.attributions.values())
    assert found.image.pixels.shape == (32, 32, 3) and set(found.faithfulness) == {*found.attributions, "random"}
    text = " ".join(found.summary())
    quantity = "similarity" if name == "contrastive" else "log-probability"
    assert "mean colour" in text and (quantity in text or found.verdict.best is None)
    if found.against is not None:
        assert set(found.against.attributions) == set(found.attributions) and "map distance" in found.faithfulness["occlusion"]
        assert found.faithfulness["attention"]["map distance"] == pytest.approx(0)


def test_label_against_itself_has_map_distance_zero(runs, image_path):
    found = runs["classify"].explain(image_path, label="star", against="star")
    assert all(
        row["map distance"] == pytest.approx(0) and row["selectivity"] == 0
        for name, row in found.faithfulness.items()
        if name != "random"
    )


def test_explain_a_text_against_another_label(tmp_path):
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
    assert (
        found.faithfulness["attention"]["map distance"] == pytest.approx(0)
        and found.faithfulness["occlusion"]["map distance"] > 0
    )
    assert len(found.tables()) == 3


def test_explain_command_writes_figures_and_json(runs, image_path, tmp_path):
    out = tmp_path / "maps.png"
    text = explain_command(runs["classify"].folder, image_path, "--class", "star", "--against", "ring", "--out", out)
    assert "why the label 'star'" in text and "why the label 'ring'" in text and "random" in text and "map distance" in text
    with Image.open(out) as drawn:
        assert drawn.width > 1500
    found = json.loads(
        explain_command(runs["contrastive"].folder, image_path, "--text", "a star", "--json", "--method", "occlusion,attention")
    )
    assert found["grid"] == [4, 4] and len(found["attributions"]["occlusion"]) == len(found["patches"]) == 16
    explain_command(runs["lstm"].folder, image_path, "--word", "1", "--method", "occlusion", "--out", tmp_path / "word.svg")
    explain_command(runs["classify"].folder, image_path, "--method", "occlusion", "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 2 and "without the top patches" in page  # the maps and the curves
    assert "occlusion" in (tmp_path / "word.svg").read_text()


@pytest.mark.parametrize(
    ("name", "more"), [("classify", []), ("contrastive", []), ("caption", []), ("lstm", []), ("classify", ["--against", "ring"])]
)
def test_explain_set_of_images_has_intervals_and_boxes(runs, tmp_path, name, more):
    words = ["--data", "valid", "--number", 4, "--method", "attention,occlusion", "--json", *more]
    found = json.loads(explain_command(runs[name].folder, *words))
    measures = found["scores"]["occlusion"]
    assert {"comprehensiveness", "sufficiency", "randomized"} | ({"map distance", "selectivity"} if more else set()) <= set(
        measures
    )
    if name != "classify":  # what is named there need not be
        assert 0 < found["scores"]["random"]["box"]["score"] < 1 and 0 <= measures["box"]["score"] <= 1
        assert "box of what the output names" in " ".join(found["summary"])
    assert all(score["low"] <= score["score"] <= score["high"] for score in measures.values())


def test_ground_truth_patches_lie_in_the_boxes_of_the_named_object(runs):
    valid = runs["caption"].data.valid
    for selected, gold in zip(select_outputs(runs["caption"], valid, len(valid)), valid.gold):
        right = selected.truth["box"].correct
        tokenizer, caption = runs["caption"].tokenizers[0], gold.captions[0]
        word = tokenizer.word_ids(tokenizer.encode([caption.text])[0])[selected.target.step]
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


def test_explain_a_folder_of_images(runs, image_path, tmp_path):
    for number in range(3):
        Image.fromarray(np.full((20, 20, 3), 60 * number, np.uint8)).save(tmp_path / f"{number}.png")
    found = json.loads(explain_command(runs["classify"].folder, "--data", tmp_path, "--method", "occlusion", "--json"))
    assert found["number"] == 3 and "box" not in found["scores"]["occlusion"]


@pytest.mark.parametrize(
    ("name", "settings", "cure"),
    [
        ("classify", {"label": "flute"}, "--class flute: no such label; use one of:"),
        ("classify", {"against": "flute"}, "--against flute: no such label"),
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
def test_user_errors_are_one_line(runs, image_path, name, settings, cure):
    with pytest.raises(UserError, match=cure) as mistake:
        runs[name].explain(image_path, **settings)
    assert "\n" not in str(mistake.value)


@pytest.mark.parametrize("words", [["--out", "a.gif"], ["--heads"]])
def test_explain_command_refuses_contradictory_options(runs, image_path, words):
    with pytest.raises(UserError):
        explain_command(runs["classify"].folder, image_path, *words)
    with pytest.raises(UserError, match="no"):
        explain_command(runs["classify"].folder, "nowhere.png")


def test_explaining_leaves_the_weights_unchanged(runs, image_path):
    before = {name: part.clone() for name, part in runs["contrastive"].model.state_dict().items()}
    runs["contrastive"].explain(image_path, fits="a star")
    assert all(torch.equal(part, before[name]) for name, part in runs["contrastive"].model.state_dict().items())


def test_explain_heads_of_an_image_classifier(runs):
    found = json.loads(explain_command(runs["classify"].folder, "--heads", "--number", 6, "--json"))
    names = {"same patch", "neighbouring patch", "special token", "named object"}
    assert len(found["heads"]) == 2 and set(found["heads"][0]["relations"]) == names
    assert all(0 <= relation["weight"] <= 1 for head in found["heads"] for relation in head["relations"].values())
    with pytest.raises(UserError, match="those that classify"):
        explain_command(runs["contrastive"].folder, "--heads")
