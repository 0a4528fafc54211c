"""Three tasks of the bilingual world in one model, trained from scratch: translation in both directions, and classification."""

import pytest

from regard.run.evaluate import evaluate
from regard.run.train import train

pytestmark = pytest.mark.system

WORLD = {"number": 8_000, "held_out": 100}
RECIPE = {
    "task": "text-to-text",
    "data": {
        "mixing": "equal",
        "tasks": {
            "to_german": {"prefix": "translate English to German: ", "world": WORLD},
            "to_english": {"prefix": "translate German to English: ", "world": WORLD, "reverse": True},
            "it": {
                "prefix": "gender of it: ",
                "kind": "classify",
                "world": WORLD,
                "labels": {"m": "masculine", "f": "feminine", "n": "neuter"},
            },
        },
    },
    "tokens": {"kind": "words", "size": 2000},
    "model": {"preset": "tiny", "width": 64, "feed_forward": 256, "norm_first": True, "max_length": 64},
    "train": {
        "steps": 900,
        "tokens_per_batch": 1500,
        "evaluate_every": 300,
        "save_every": 300,
        "optimizer": {"learning_rate": 4e-3},
        "schedule": {"warmup_steps": 50},
        "regularize": {"dropout": 0.0, "label_smoothing": 0.0},
    },
    "decode": {"beam": 1},
}


def test_one_model_learns_three_tasks(tmp_path):
    run = train(RECIPE, tmp_path / "run", device="cpu")
    results = {result.name: result for result in evaluate(run)}
    print({name: result.scores for name, result in results.items()})
    assert results["to_german/test"].scores["bleu"].low > 25 and results["to_english/test"].scores["bleu"].low > 40
    assert set(results["it/test"].outputs) <= {"masculine", "feminine", "neuter"}
