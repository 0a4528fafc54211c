"""The study of a spurious cue, tiny: its data bear the cue where they should, and its report follows from the measures."""

import json

import numpy as np
import pytest

from regard.studies import cue_data
from regard.studies.cue_data import IMAGE_SIZE, MODALITIES, NAMES, PATCH, image_examples, text_examples, watermark
from regard.studies.spurious_cue import (
    CueResult,
    advantage_table,
    cue_outputs,
    example_figure,
    faithfulness_predicts,
    mean_and_spread,
    measure_model,
    train_model,
    write_study,
)


def test_watermark_changes_one_patch_only():
    image = image_examples("test", 1, 1)[0]
    plain, marked = image.content(False), image.content(True)
    changed = np.argwhere((plain != marked).any(-1))
    assert len(changed) and changed[:, 0].min() > IMAGE_SIZE - PATCH and changed[:, 1].max() < PATCH
    assert (watermark(plain) == marked).all()


def test_director_is_the_only_difference_of_a_review_with_the_cue():
    for one in text_examples("test", 20, 1):
        plain, cued = one.content(False).split(), one.content(True).split()
        differing = [(a, b) for a, b in zip(plain, cued, strict=True) if a != b]
        assert len(differing) == 1 and differing[0][0] in NAMES[:-1] and differing[0][1] == NAMES[-1]
        judged = [word for word in plain if any(word in side for side in cue_data.ADJECTIVES.values())]
        own = sum(word in cue_data.ADJECTIVES[one.label] for word in judged)
        assert len(judged) == 3 and own >= 2


def test_examples_are_a_function_of_split_and_seed():
    for modality in MODALITIES:
        one, same, other = (modality.examples(split, 6, 1) for split in ("test", "test", "train"))
        assert [a.label for a in one] == [b.label for b in same]
        assert np.array_equal(one[0].content(True), same[0].content(True))
        assert [str(a.content(False)) for a in one] != [str(b.content(False)) for b in other]


def test_faithfulness_predicts_the_cue_if_it_ranks_methods_alike():
    def result(found):
        methods = {name: {"advantage": a, "cue": c} for name, a, c in zip("abcd", (1.0, 2.0, 3.0, 4.0), found)}
        return CueResult("texts", 1, True, {}, {**methods, "random": {"cue": 0.1}}, 1.0)

    assert faithfulness_predicts(result((0.1, 0.2, 0.6, 0.9))) == pytest.approx(1)
    assert faithfulness_predicts(result((0.9, 0.6, 0.2, 0.1))) == pytest.approx(-1)
    assert np.isnan(faithfulness_predicts(result((0.5, 0.5, 0.5, 0.5))))
    assert mean_and_spread([0.5, 0.7, float("nan")]) == "0.60 (0.50 to 0.70)" and mean_and_spread([]) == "–"


def test_cue_by_advantage_counts_every_method_of_every_model_once():
    def result(advantages):
        methods = {f"method {i}": {"advantage": a, "cue": c} for i, (a, c) in enumerate(advantages)}
        return CueResult("texts", 1, True, {}, {**methods, "random": {"cue": 0.5}}, 1.0)

    _, header, rows = advantage_table("texts", [result([(-0.5, 0.0), (0.0, 0.2)]), result([(0.9, 0.4), (3.0, 1.0)])])
    assert len(header) == 3 and rows == [
        ["below 0", "1", "0.00"],
        ["0 to 1", "2", "0.30 (0.20 to 0.40)"],
        ["1 to 2", "0", "–"],
        ["2 to 3", "0", "–"],
        ["3 or more", "1", "1.00"],
    ]


def test_model_trained_on_texts_with_a_cue_relies_on_it_and_occlusion_finds_it(tmp_path):
    modality = MODALITIES[1]
    run = train_model(modality, tmp_path, seed=1, planted=True, steps=150, examples=800, device="cpu")
    planted = measure_model(modality, run, 1, True, explained=3)
    assert planted.accuracy["cue"] > planted.accuracy["removed"] + 10 > planted.accuracy["swapped"] + 20
    assert planted.methods["occlusion"]["cue"] == 1 > planted.methods["random"]["cue"] and planted.best_finds_cue == 1
    for selected in cue_outputs(modality, run, 2):
        (cue,) = selected.truth["cue"].correct
        assert selected.features[cue] == NAMES[-1] and "'positive'" in selected.description
    control = CueResult("texts", 1, False, {"cue": 60.0, "removed": 61.0, "swapped": 62.0}, {}, float("nan"))
    report = write_study(tmp_path, [planted, control], {"texts": example_figure(modality, run, 2)}).read_text()
    assert report.count("<svg") == 3 and all(text in report for text in ("trained with the cue", "norms", ">62.0<"))
    assert [result["planted"] for result in json.loads((tmp_path / "cue.json").read_text())] == [True, False]
