"""A classifier, or one that answers questions, of ours that begins from somebody else's encoder."""

import json

import numpy as np
import pytest
import torch
import transformers

import regard
from regard.errors import Mistake
from regard.run.convert import convert
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


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_one_that_answers_keeps_their_vocabulary_and_goes_back_to_them(family, tmp_path, write_theirs, unlike):
    """Pairs are read with the marks of the vocabulary it began from, here and in the folder it becomes."""
    kind = {"bert": transformers.BertModel, "roberta": transformers.RobertaModel}[family]
    model = unlike(kind(kind.config_class(**{**SIZES, "max_position_embeddings": 34 if family == "roberta" else 32})))
    theirs = write_theirs(model, tmp_path / "theirs")
    row = {"question": "the dog", "context": "a small cat, the old dog and she", "answers": [{"text": "dog", "start": 21}]}
    (tmp_path / "a.jsonl").write_text((json.dumps(row) + "\n") * 20)
    wanted = recipe(theirs, tmp_path)
    wanted |= {"task": "answer", "data": {"root": str(tmp_path), "train": ["a.jsonl"], "valid": ["a.jsonl"]}}
    run, before = train(wanted, tmp_path / "run", device="cpu"), regard.load(theirs, device="cpu")
    assert run.marks == before.marks == regard.load(run.folder, device="cpu").marks
    for mine, other in zip(run.embed(["the dog"], pool="words"), before.embed(["the dog"], pool="words")):
        assert np.allclose(mine.vectors, other.vectors, atol=1e-5)
    assert convert(run.folder, tmp_path / "hf", verify=True, device="cpu").holds
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    opened = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "hf")
    assert len(tokenizer) == 61 and tokenizer.pad_token in ("[PAD]", "<pad>") and tokenizer.pad_token_id < 61
    batch = tokenizer([row["question"]] * 2, [row["context"], "a cat"], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = opened(**batch).start_logits[0]
    rows = run.encode(run.data.valid)
    expected = run.model(**rows.batch(np.array([0]), 0, 0).inputs)[0, 0]
    torch.testing.assert_close(logits[:len(expected)], expected, atol=1e-4, rtol=0)
