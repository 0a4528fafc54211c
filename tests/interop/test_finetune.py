"""A classifier of ours that begins from somebody else's encoder."""

import numpy as np
import pytest
import transformers

import regard
from regard.errors import Mistake
from regard.run.evaluate import evaluate
from regard.run.fit import train

SIZES = dict(vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40,
             max_position_embeddings=32)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory, write_theirs, unlike):
    model = unlike(transformers.BertModel(transformers.BertConfig(**SIZES)))
    return write_theirs(model, tmp_path_factory.mktemp("bert") / "theirs")


def recipe(theirs, tmp_path, **model):
    for name, numbers in (("train", range(60)), ("valid", range(60, 80))):
        lines = [f"the {'dog' if i % 2 else 'cat'} sleeps {i}\t{i % 2}\n" for i in numbers]
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    shape = {"kind": "transformer", "preset": "bert-tiny", "width": 24, "layers": 2, "heads": 4, "feed_forward": 40,
             "max_length": 32}
    return {"task": "classify", "data": {"root": str(tmp_path), "train": ["train.tsv"], "valid": ["valid.tsv"]},
            "model": {**shape, **model},
            "train": {"steps": 1, "evaluate_every": 1, "optimizer": {"learning_rate": 1e-9}, "schedule": {"warmup_steps": 0},
                      "begin": {"run": str(theirs), "parts": ["encoder."]}}}


def test_weights_tokens_and_marks_are_theirs_and_the_folder_is_whole(theirs, tmp_path):
    run = train(recipe(theirs, tmp_path), tmp_path / "run", device="cpu")
    before = regard.load(theirs, device="cpu")
    texts = ["the dog sleeps", "a cat"]
    assert run.marks == before.marks and run.tokenizers[0].encode(texts) == before.tokenizers[0].encode(texts)
    for mine, other in zip(run.embed(texts, pool="words"), before.embed(texts, pool="words")):
        assert np.allclose(mine.vectors, other.vectors, atol=1e-5)
    again = regard.load(run.folder, device="cpu")
    assert again.classify(texts) == run.classify(texts) and again.marks == run.marks
    assert "accuracy" in evaluate(again)[0].scores


def test_a_shape_that_is_not_theirs_is_named(theirs, tmp_path):
    with pytest.raises(Mistake, match=r"feed_forward.inner.weight has shape \[40, 24\], the model wants \[48, 24\]"):
        train(recipe(theirs, tmp_path, feed_forward=48), tmp_path / "run", device="cpu")
