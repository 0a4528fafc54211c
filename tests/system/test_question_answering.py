"""Extractive question answering on the bilingual world, trained from scratch: find the translation of a word, if there is one."""

import pytest

from regard.run.evaluate import evaluate
from regard.run.train import train

pytestmark = pytest.mark.system

RECIPE = {
    "task": "answer",
    "data": {"world": {"number": 4000, "held_out": 200}},
    "tokens": {"kind": "words", "size": 2000},
    "model": {"kind": "transformer", "layers": 2, "width": 64, "heads": 4, "feed_forward": 128, "max_length": 48, "segments": 2},
    "train": {
        "steps": 700,
        "tokens_per_batch": 2048,
        "evaluate_every": 350,
        "save_every": 700,
        "optimizer": {"learning_rate": 3e-3},
        "schedule": {"warmup_steps": 30},
        "regularize": {"dropout": 0.0, "label_smoothing": 0.0},
    },
}


@pytest.mark.parametrize("unanswerable", [False, True])
def test_model_finds_the_translation_of_a_word(tmp_path, unanswerable):
    data = {**RECIPE["data"], "unanswerable": unanswerable}
    run = train({**RECIPE, "data": data}, tmp_path / "run", device="cpu")
    (result,) = evaluate(run)
    print(result.scores, result.notes)
    assert result.scores["exact_match"].low > 60, (
        "baselines: a random word about 10; always no answer a third, where some questions have none"
    )
    outputs = [text for text, gold in zip(result.outputs, result.examples.answer_texts()) if not gold]
    assert len(outputs) == (67 if unanswerable else 0) and (not outputs or outputs.count("") / len(outputs) > 0.6)
