"""Pretraining on the bilingual world's text from scratch: masked words, next sentences, next words, spans."""

import pytest

from regard.run.evaluate import evaluate
from regard.run.train import train

pytestmark = pytest.mark.system

BASE = {
    "data": {"world": {"number": 12_000, "held_out": 300}},
    "tokens": {"size": 1000},
    "train": {
        "evaluate_every": 250,
        "optimizer": {"learning_rate": 2e-3},
        "schedule": {"warmup_steps": 50},
        "regularize": {"dropout": 0.0, "label_smoothing": 0.0},
    },
}
STACK = {"layers": 2, "width": 128, "heads": 4, "feed_forward": 512, "max_length": 64}


def recipe(task, model, steps=500, tokens=2048, data=None, **more):
    train = {**BASE["train"], "steps": steps, "tokens_per_batch": tokens, "save_every": steps}
    return {**BASE, "task": task, "model": model, "train": train, "data": {**BASE["data"], **(data or {})}, **more}


def test_bert_learns_masked_words_and_next_sentences(tmp_path):
    model = {**STACK, "kind": "transformer", "preset": "bert-tiny"}
    settings = recipe("masked", model, steps=400, tokens=4096, data={"language": "both"}, masking={"next_sentence": True})
    run = train(settings, tmp_path / "run", device="cpu")
    (result,) = evaluate(run)
    print(result.scores, result.notes)
    assert result.scores["accuracy"].low > 20, "baseline, always the most frequent token: about 7"
    assert result.scores["next_sentence"].low > 60


def test_gpt_learns_the_next_word(tmp_path):
    run = train(recipe("language", {**STACK, "kind": "transformer"}), tmp_path / "run", device="cpu")
    (result,) = evaluate(run)
    print(result.scores)
    assert result.scores["perplexity"].high < 20, "the vocabulary has a thousand tokens"


def test_t5_learns_corrupted_spans(tmp_path):
    model = {"preset": "t5-tiny", "width": 128, "max_length": 64}
    run = train(recipe("span-corruption", model, steps=350), tmp_path / "run", device="cpu")
    (result,) = evaluate(run)
    print(result.scores)
    assert result.scores["perplexity"].high < 12
