"""Questions about the bilingual world, learned from nothing: what has an English word become, and is it there at all?"""

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
def test_words_are_found_in_the_translation(tmp_path, unanswerable):
    data = {**RECIPE["data"], "unanswerable": unanswerable}
    run = train({**RECIPE, "data": data}, tmp_path / "run", device="cpu")
    (result,) = evaluate(run)
    print(result.scores, result.notes)
    assert result.scores["exact_match"].low > 60, "a word at random: about 10; saying nothing: a third, where some have no answer"
    said = [text for text, gold in zip(result.outputs, result.examples.answer_texts()) if not gold]
    assert len(said) == (67 if unanswerable else 0) and (not said or said.count("") / len(said) > 0.6)
