"""Small runs of every text task: training, scoring, loading, embedding and the command line."""

import copy
import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import regard
from regard.batches.batches import sequential_batches
from regard.batches.ragged import Ragged
from regard.batches.rows import encoder_inputs
from regard.corpus.examples import TaggedSentences
from regard.errors import UserError
from regard.run.evaluate import compare_runs, evaluate
from regard.run.train import train
from regard.tokens.special_tokens import NO_TOKEN

BASE = {
    "data": {"world": {"number": 500, "held_out": 60}},
    "tokens": {"size": 400},
    "model": {"width": 48, "max_length": 48},
    "train": {
        "steps": 120,
        "tokens_per_batch": 1024,
        "evaluate_every": 60,
        "save_every": 60,
        "log_every": 20,
        "optimizer": {"learning_rate": 1e-2},
        "schedule": {"warmup_steps": 10},
        "regularize": {"dropout": 0.0, "label_smoothing": 0.0},
    },
}
STACK = {"kind": "transformer", "layers": 1, "heads": 4, "feed_forward": 96}
TASKS = {
    "classify": {"model": {"attention": "additive"}, "tokens": {"kind": "words"}},
    "tag": {"model": {"attention": "scaled"}},
    "language": {"model": {"attention": "dot"}, "data": {"language": "target"}},
    "elmo": {"task": "language", "model": {"kind": "elmo"}},
    "gpt": {"task": "language", "model": {**STACK, "window": 8}, "data": {"language": "target"}},
    "masked": {
        "model": {**STACK, "segments": 2, "pool": "first"},
        "data": {"language": "both"},
        "masking": {"whole_words": True, "next_sentence": True},
    },
    "encoder": {"task": "tag", "model": STACK},
    "span-corruption": {
        "model": {"preset": "t5-tiny", "encoder_layers": 1, "decoder_layers": 1, "heads": 4, "feed_forward": 96},
        "tokens": {"size": 500},
    },
}


def settings(name, **changes):
    merged = copy.deepcopy(BASE)
    for change in ({"task": name}, TASKS.get(name, {}), changes):
        for key, value in change.items():
            merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    return merged


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    short = {**BASE["train"], "steps": 60, "evaluate_every": 30, "save_every": 30}
    config = {name: train(settings(name, train=short), folder / name, device="cpu") for name in TASKS}
    for run in config.values():
        evaluate(run)
    return config


def test_every_text_task_learns(runs):
    scores = {name: evaluate(runs[name], save=False)[0].scores for name in TASKS if name != "classify"}
    assert scores["tag"]["accuracy"].low > 40 and scores["encoder"]["accuracy"].low > 40
    for name, fraction in {"language": 4, "elmo": 3, "gpt": 2.5, "masked": 2, "span-corruption": 8}.items():
        assert scores[name]["perplexity"].high < runs[name].tokenizers[0].size / fraction


@pytest.mark.parametrize("pairs", ["cross-encoder", "bi-encoder", "cosine"])
def test_classifier_reads_text_pairs(tmp_path, pairs):
    """The label is which of the two texts has the "yes", so that the bag of words of the pair tells nothing."""
    for name, numbers in (("train", range(300)), ("valid", range(300, 400))):
        lines = [f"{i % 2}\t{i % 7} {'yes' if i % 2 else 'no'}\t{'no' if i % 2 else 'yes'} {i % 5}\n" for i in numbers]
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    data = {
        "root": str(tmp_path),
        "train": ["train.tsv"],
        "valid": ["valid.tsv"],
        "world": None,
        "label": 0,
        "text": 1,
        "text_pair": 2,
    }
    config = settings("classify", data=data)
    config["model"] = {**STACK, "width": 48, "segments": 2, "max_length": 24, "pairs": pairs}
    run = train(config, tmp_path / "run", device="cpu")
    assert evaluate(run)[0].scores["accuracy"].low > 90
    assert [found[0].label for found in run.classify(["3 yes\tno 1", "3 no\tyes 1"])] == ["1", "0"]
    assert run.classify(["a " * 50 + "\tb"]), "truncated to max_length"
    with pytest.raises(UserError, match="line 2 has 1 texts; this run reads pairs, separated by a tab"):
        run.classify(["a\tb", "alone"])
    if pairs != "cross-encoder":
        texts = [encoder_inputs(Ragged.from_rows([ids]), run._special_tokens) for ids in run._ids(["3 yes", "no 1"])]
        u, v = (run.model.pool(run.model.encoder(**text), text["lengths"]) for text in texts)
        p = run.model.output(run.model.compare(u, v)).softmax(-1)[0]
        found = {one.label: one.probability for one in run.classify("3 yes\tno 1")}
        assert [found[label] for label in run.labels] == pytest.approx(p.tolist(), abs=1e-4)
    explained = run.explain("3 yes\tno 1", method="occlusion")
    assert {"yes", "no"} <= {token.strip("▁ ") for token in explained.features}
    with pytest.raises(UserError, match=r"pairs are read by model\.kind = 'transformer'"):
        train(settings("classify", data=data), tmp_path / "other", device="cpu")


@pytest.mark.parametrize("model", [{}, {**STACK, "segments": 2}], ids=["recurrent", "transformer"])
def test_regression_predicts_on_the_scale_of_the_data(tmp_path, model, run_cli):
    for name, rows in (("train", range(300)), ("valid", range(300, 360))):
        lines = [f"{'very ' * (i % 5)}good film {i}\t{100 + 10 * (i % 5)}\n" for i in rows]
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    data = {"root": str(tmp_path), "train": ["train.tsv"], "valid": ["valid.tsv"], "world": None}
    run = train(settings("regress", data=data, model=model), tmp_path / "run", device="cpu")
    assert evaluate(run)[0].scores["spearman"].low > 90
    low, high = (float(run_cli("classify", run.folder, text)[0]) for text in ("good film 3", "very very very very good film 3"))
    assert abs(low - 100) < 12 and abs(high - 140) < 12
    assert set(json.loads(run_cli("classify", run.folder, "good", "--json")[0])) == {"score"}
    (tmp_path / "valid.tsv").write_text("a film\tgood\n")
    with pytest.raises(UserError, match=r"valid.tsv:1 has 'good' where a number should be"):
        train(settings("regress", data=data), tmp_path / "other", device="cpu")


@pytest.mark.parametrize("attention", ["none", "additive"])
def test_recurrent_classifier_learns_word_order(tmp_path, attention):
    """The label is the first of two words that both always occur: a bag of words has an accuracy of 50%."""
    for name, numbers in (("train", range(300)), ("valid", range(300, 400))):
        lines = [f"{i % 7} {'yes' if i % 2 else 'no'} {i % 5} {'no' if i % 2 else 'yes'} {i}\t{i % 2}\n" for i in numbers]
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    data = {"root": str(tmp_path), "train": ["train.tsv"], "valid": ["valid.tsv"], "world": None}
    run = train(settings("classify", data=data, model={"attention": attention}), tmp_path / "run", device="cpu")
    assert evaluate(run)[0].scores["accuracy"].low > 90


def test_loaded_runs_predict_like_the_trained_runs(runs):
    again = {name: regard.load(run.folder, device="cpu") for name, run in runs.items()}
    texts = runs["classify"].data.valid.text[:9]
    assert again["classify"].classify(texts) == runs["classify"].classify(texts)
    assert again["tag"].tag(texts) == runs["tag"].tag(texts)
    assert again["language"].generate(["Der", ""]) == runs["language"].generate(["Der", ""])
    for one, other in zip(again["elmo"].embed(texts), runs["elmo"].embed(texts)):
        assert np.array_equal(one.vectors, other.vectors)


def test_batched_predictions_equal_one_by_one(runs):
    texts = runs["classify"].data.valid.text[:6]
    assert [found[0].label for found in runs["classify"].classify(texts)] == [
        runs["classify"].classify(text).label for text in texts
    ]
    assert runs["tag"].tag(texts) == [runs["tag"].tag([text])[0] for text in texts]
    assert (
        runs["language"].generate(["Der Hund", "Die", ""], temperature=1.0, max_tokens=8)[1].text
        == runs["language"].generate(["", "Die"], temperature=1.0, max_tokens=8)[1].text
    )
    for text, found in zip(texts, runs["elmo"].embed(texts, pool="words")):
        assert np.allclose(found.vectors, runs["elmo"].embed([text], pool="words")[0].vectors, atol=1e-5)


def test_label_probabilities_sum_to_one_and_every_word_has_a_tag(runs):
    text = runs["classify"].data.valid.text[0]
    predictions = runs["classify"].classify(text)
    assert sum(found.probability for found in predictions) == pytest.approx(1, abs=1e-5)
    assert {found.label for found in predictions} == {"m", "f", "n"} and list(predictions) == sorted(
        predictions, key=lambda j: -j.probability
    )
    tagged = runs["tag"].tag([text, ""])
    assert tagged[0].words == text.split() and len(tagged[0].labels) == len(tagged[0].words) and not tagged[1].words


@pytest.mark.parametrize("name", list(TASKS))
def test_embed_words_at_every_layer(runs, name):
    run = runs[name]
    text = "the dog sees the cat"
    layers = [run.embed([text], layer=layer, pool="words")[0] for layer in (0, 1)]
    assert layers[0].tokens == text.split() and len(layers[0].vectors) == 5
    if run.recipe.model.kind != "transformer":  # layer 0 of a transformer includes positions
        assert np.allclose(layers[0].vectors[0], layers[0].vectors[3]), "layer 0 is static: the same vector at every position"
    assert not np.allclose(layers[1].vectors[0], layers[1].vectors[3]), "layer 1 is contextual"
    with pytest.raises(UserError, match="--layer 9: there are layers 0"):
        run.embed([text], layer=9)


def test_text_task_commands_json_output(runs, run_cli):
    text = runs["classify"].data.valid.text[0]
    found = json.loads(run_cli("classify", runs["classify"].folder, text, "--json")[0])
    assert set(found) == {"label", "probability"}
    found = json.loads(run_cli("tag", runs["tag"].folder, "--json", stdin=text + "\n")[0])
    assert found["tokens"] == text.split() and len(found["labels"]) == len(found["tokens"])
    found = json.loads(run_cli("generate", runs["language"].folder, "Der", "--json", "--max-tokens", 5)[0])
    assert set(found) == {"text", "score"} and found["text"].startswith("Der") and found["score"] < 0
    for name in ("masked", "span-corruption"):
        found = json.loads(run_cli("fill", runs[name].folder, "The [MASK] sees the <mask>.", "--json", "-n", 3)[0])
        assert "[MASK]" not in found["text"] and "<mask>" not in found["text"]
        assert [len(place) for place in found["candidates"]] == [3, 3]
        assert found["candidates"][0][0]["probability"] >= found["candidates"][0][1]["probability"]
    mean, words = (
        json.loads(run_cli("embed", runs["elmo"].folder, text, "--json", *more)[0]) for more in ([], ["--pool", "words"])
    )
    assert mean["text"] == text and len(mean["vector"]) == 48
    assert words["tokens"] == text.split() and len(words["vectors"]) == len(words["tokens"])


def test_classify_prints_the_best_labels_or_all_of_them(runs, run_cli):
    run, texts = runs["classify"], runs["classify"].data.valid.text[:3]
    expected = run.classify(texts)
    for options, number in ((["--all"], len(run.labels)), (["-n", 2], 2), (["--number", 99], len(run.labels))):
        lines = run_cli("classify", run.folder, *options, stdin="\n".join(texts))
        found = [json.loads(line) for line in run_cli("classify", run.folder, *options, "--json", stdin="\n".join(texts))]
        assert len(lines) == len(found) == len(texts)
        for line, values, ranking in zip(lines, found, expected):
            assert line.split("\t")[::2] == [one["label"] for one in values["labels"]] == [one.label for one in ranking[:number]]
            probabilities = [one["probability"] for one in values["labels"]]
            assert probabilities == pytest.approx([one.probability for one in ranking[:number]], abs=1e-6)
            assert (values["label"], values["probability"]) == tuple(values["labels"][0].values())
    with pytest.raises(UserError, match="--all and -n 2 exclude each other"):
        run_cli("classify", run.folder, "a", "--all", "-n", 2)


@pytest.mark.parametrize("name", ["classify", "tag"])
def test_evaluate_writes_and_prints_the_confusion_of_labels_and_tags(runs, name, run_cli):
    run = runs[name]
    printed = "\n".join(run_cli("evaluate", run.folder))
    saved = json.loads((run.folder / "classes.json").read_text())
    for set_name, examples in run.data.tests.items():
        gold, ours = (examples.label, run._predictions(examples)) if name == "classify" else ([], [])
        if name == "tag":
            gold = [tag for tags in examples.tags for tag in tags]
            ours = [tag for found in run.tag(examples.keys()) for tag in found.labels]
        counts, labels = saved[set_name]["confusion"], saved[set_name]["labels"]
        for i, row in enumerate(labels):
            assert counts[i] == [sum(pair == (row, column) for pair in zip(gold, ours)) for column in labels]
            assert saved[set_name]["classes"][row]["support"] == gold.count(row)
        figure = run.folder / "figures" / f"confusion-{set_name}.svg"
        assert figure.read_text().startswith("<?xml") and "precision" in printed
    result = evaluate(run, save=False)[0]
    correct = result.confusion.counts.diagonal().sum() / result.confusion.counts.sum()
    assert 100 * correct == pytest.approx(result.scores["accuracy"].score)


@pytest.mark.parametrize(
    "verb, name, message",
    [
        ("translate", "tag", "tags words .task = 'tag'.; it cannot translate; use: regard tag"),
        ("classify", "language", "generates text .task = 'language'.; it cannot classify; use: regard generate"),
        ("generate", "elmo", "embeds words in context .task = 'language'.; it cannot generate; use: regard embed"),
        ("tag", "classify", "it cannot tag"),
        ("fill", "masked", "has no mask; write .MASK. where a word is missing"),
    ],
)
def test_commands_refuse_runs_of_other_tasks(runs, verb, name, message, run_cli):
    with pytest.raises(UserError, match=message):
        run_cli(verb, runs[name].folder, "text")


def test_embed_command_plots_word_vectors(runs, tmp_path, run_cli):
    texts = ["the dog sees the cat", "the cat sleeps"]
    lines = run_cli("embed", runs["elmo"].folder, *texts, "--words", "cat,dog", "--out", tmp_path / "a.svg")
    assert len(lines) == 3 and (tmp_path / "a.svg").read_text().startswith("<?xml")
    with pytest.raises(UserError, match="found 0 times"):
        run_cli("embed", runs["elmo"].folder, "the dog", "--words", "unicorn", "--out", tmp_path / "a.svg")


def test_evaluate_on_a_file_equals_the_same_examples_of_the_recipe(runs, tmp_path, run_cli):
    texts = {"classify": lambda one: "".join(f"{text}\t{label}\n" for text, label in zip(one.text, one.label))}
    texts["language"] = texts["gpt"] = lambda one: "".join(f"{line}\n" for line in one.texts()[0])
    for name, write in texts.items():
        tests = runs[name].data.tests
        first = next(iter(tests))
        (tmp_path / f"{name}.tsv").write_text(write(tests[first]), encoding="utf-8")
        expected = evaluate(runs[name], save=False)[0].scores
        found = [json.loads(row) for row in run_cli("evaluate", runs[name].folder, "--data", tmp_path / f"{name}.tsv", "--json")]
        assert {row["set"] for row in found} == {name}
        assert {row["metric"]: row["score"] for row in found} == pytest.approx(
            {metric: score.to_json()["score"] for metric, score in expected.items()}, rel=1e-3
        )
    with pytest.raises(UserError, match=r"--task a: .* tags words, and has no other task"):
        evaluate(runs["tag"], data=Path("x.tsv"), task="a", save=False)
    with pytest.raises(UserError, match=r"--text, --text-pair, --label: .* tags words; its files have no such columns"):
        runs["tag"].evaluate("x.tsv", columns={"text": "word"})
    with pytest.raises(UserError, match=r"--text, --text-pair and --label name columns of --data FILE"):
        runs["classify"].evaluate(columns={"text": "word"})


def test_compare_runs_refuses_different_tasks(runs):
    (rows,) = compare_runs([runs["classify"], runs["classify"]]).values()
    assert rows[1]["p_value"] == 1.0
    with pytest.raises(UserError, match=r"classify classifies, .*tag tags words: compare runs of one task"):
        compare_runs([runs["classify"], runs["tag"]])


def test_cards_of_text_tasks(runs):
    from regard.run.card import card

    for name, verb in (("classify", "classify"), ("tag", "tag"), ("language", "generate")):
        metric = "perplexity" if name == "language" else "accuracy"
        assert f"regard {verb}" in card(runs[name]) and f"| {metric} |" in card(runs[name])
    assert "impersonation" in card(runs["language"])


@pytest.mark.parametrize("name, layer", [("elmo", "mix"), ("elmo", 0), ("elmo", "random"), ("tag", 1)])
def test_classifier_on_frozen_features_of_another_run(runs, tmp_path, name, layer):
    features = {"run": str(runs[name].folder), "layer": layer}
    short = {"steps": 6, "evaluate_every": 6}
    run = train(settings("classify", model={"features": features}, train=short), tmp_path / "run", device="cpu")
    theirs, mine = runs[name].model, run.model.reader.features.model
    if layer == "random":
        assert mine.token_embedding.weight.shape[1] == 2 * theirs.token_embedding.weight.shape[1], "as wide as layer 0"
        assert not mine.token_embedding.weight.requires_grad
    for (_, one), (_, other) in zip(theirs.named_parameters(), mine.named_parameters()) if layer != "random" else ():
        assert (one == other).all(), "frozen weights do not change in training"
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    texts = run.data.valid.text[:4]
    assert regard.load(tmp_path / "elsewhere", device="cpu").classify(texts) == run.classify(texts)
    assert run.tokenizers[0].to_json() == runs[name].tokenizers[0].to_json()


@pytest.mark.parametrize("pool", ["first", "mean"])
def test_classifier_initialized_from_a_masked_model(runs, tmp_path, pool):
    pretrained = runs["masked"]
    change = {
        "model": {**STACK, "segments": 2, "pool": pool, "attention": None},
        "train": {
            "steps": 1,
            "evaluate_every": 1,
            "optimizer": {"learning_rate": 1e-9},
            "schedule": {"warmup_steps": 0},
            "init_from": {"run": str(pretrained.folder), "modules": ["encoder."]},
        },
    }
    config = settings("classify", **change)
    del config["model"]["attention"]
    run = train(config, tmp_path / "run", device="cpu")
    assert run.tokenizers[0].to_json() == pretrained.tokenizers[0].to_json()
    text = run.data.valid.text[0]
    assert np.allclose(run.embed([text], pool="words")[0].vectors, pretrained.embed([text], pool="words")[0].vectors, atol=1e-5)


def test_frozen_weights_do_not_change(runs, tmp_path):
    init_from = {"run": str(runs["masked"].folder), "modules": ["encoder."]}
    config = settings(
        "classify", train={"steps": 4, "evaluate_every": 4, "init_from": init_from, "freeze": ["encoder.token_embedding"]}
    )
    config["model"] = {**STACK, "width": 48, "segments": 2, "max_length": 48}
    run = train(config, tmp_path / "run", device="cpu")
    theirs, mine = runs["masked"].model.encoder, run.model.encoder
    assert (mine.token_embedding.weight == theirs.token_embedding.weight).all()
    one, other = (encoder.stack.blocks[0].feed_forward.inner.weight for encoder in (theirs, mine))
    assert not (one == other).all()
    config["train"]["freeze"] = ["decoder"]
    with pytest.raises(UserError, match="no weights named 'decoder'; it has encoder, output"):
        train(config, tmp_path / "other", device="cpu")


def test_invalid_feature_runs_and_layers_are_refused(runs, tmp_path):
    with pytest.raises(UserError, match="is not a finished run folder"):
        train(settings("classify", model={"features": {"run": str(tmp_path)}}), tmp_path / "run", device="cpu")
    with pytest.raises(UserError, match="has layers 0 to 2, or 'mix'"):
        features = {"run": str(runs["elmo"].folder), "layer": 7}
        train(settings("classify", model={"features": features}), tmp_path / "run", device="cpu")


@pytest.mark.parametrize("frozen", [True, False])
def test_embedding_initialized_from_word_vectors(tmp_path, frozen):
    lines = [f"{word} {' '.join([str(i)] * 48)}" for i, word in enumerate(["the", "is", "it"], 5)]
    (tmp_path / "v.txt").write_text("\n".join(lines))
    vectors = {"file": str(tmp_path / "v.txt"), "frozen": frozen}
    change = {"model": {"vectors": vectors}, "train": {"steps": 3, "evaluate_every": 3}}
    run = train(settings("classify", **change), tmp_path / "run", device="cpu")
    table, words = run.model.token_embedding.weight, run.tokenizers[0]
    (the,) = words.encode(["the"])[0]
    assert bool((table[the] == 5).all()) == frozen and abs(table[the].mean().item() - 5) < 0.2


def test_language_model_of_a_token_stream(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("one two three four five\n\nsix seven eight\n" * 60, encoding="utf-8")
    data = {"train": [str(text)], "valid": [str(text)], "stream": True, "world": None}
    stream = settings("language", data=data, tokens={"kind": "words"}, model={"max_length": 16})
    run = train(stream, tmp_path / "run", device="cpu")
    assert evaluate(run)[0].scores["perplexity"].score < 1.2
    assert run.generate(["six"], max_tokens=2)[0].text == "six seven eight"
    on = "six seven eight\none two three four five\n\nsix"
    assert run.generate(["six seven"], max_tokens=10)[0].text == on  # a newline does not end the text …
    assert run.generate(["six seven eight\none two"], max_tokens=6)[0].text == on
    assert "six seven" + "".join(run.stream("six seven", max_tokens=10)) == on
    assert run.generate(["one two"], stop="\n")[0].text == "one two three four five"  # … unless it is a stop string


@pytest.mark.parametrize(
    "task, lines",
    [
        ("language", ["a line of text"]),
        ("masked", ["a line of text"]),
        ("classify", ["a text\tgood"]),
        ("classify", ["sentence\tlabel", "a text\tgood"]),
        ("tag", ["a\tDET", "text\tNOUN", ""]),
    ],
)
def test_starter_recipe_of_every_text_task_trains(task, lines, tmp_path, run_cli):
    head, body = (lines[:1], lines[1:]) if lines[0].startswith("sentence") else ([], lines)
    written = [line.replace("text", f"text{i}").replace("good", "good" if i % 2 else "bad") for i in range(80) for line in body]
    (tmp_path / "data.tsv").write_text("\n".join([*head, *written]) + "\n")
    (tmp_path / "mine.toml").write_text("\n".join(run_cli("new", "--minutes", "0", task, "--data", tmp_path / "data.tsv")))
    short = ["train.steps=2", "train.evaluate_every=2", "model.width=16", "model.layers=1", "model.feed_forward=16"]
    run = train(tmp_path / "mine.toml", tmp_path / "run", overrides=short, device="cpu")
    assert run.recipe.task == task and evaluate(run)[0].scores


@pytest.mark.parametrize("positive, average", [(None, "positive:b"), ("a", "positive:a"), ("x", None)])
def test_classifier_scores_are_accuracy_f1_and_mcc(tmp_path, positive, average):
    for name in ("train", "valid"):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{'yes' if i % 3 else 'no'} {i}\t{'ab'[i % 3 > 0]}\n" for i in range(60)))
    data = {"root": str(tmp_path), "train": ["train.tsv"], "valid": ["valid.tsv"], "world": None, "positive_label": positive}
    short = settings("classify", data=data, train={"steps": 4, "evaluate_every": 4})
    if average is None:
        with pytest.raises(UserError, match=r"data.positive_label = 'x' is none of the labels: a, b"):
            train(short, tmp_path / "run", device="cpu")
        return
    run = train(short, tmp_path / "run", device="cpu")
    scores = evaluate(run)[0].scores
    assert list(scores) == ["accuracy", "f1", "mcc"] and f"|{average}|" in scores["f1"].signature
    predicted, gold = run._predictions(run.data.valid), run.data.valid.label
    label = positive or "b"
    right = sum(a == b == label for a, b in zip(predicted, gold))
    assert scores["f1"].score == pytest.approx(200 * right / (predicted.count(label) + gold.count(label)))
    assert all(score.low <= score.score <= score.high and "recipe:" in score.signature for score in scores.values())


def test_unknown_validation_label_is_refused(tmp_path):
    for name, labels in (("train", "ab"), ("valid", "ac")):
        (tmp_path / f"{name}.tsv").write_text("".join(f"text {i}\t{label}\n" for i, label in enumerate(labels * 5)))
    data = {"root": str(tmp_path), "train": ["train.tsv"], "valid": ["valid.tsv"], "world": None}
    with pytest.raises(UserError, match=r"valid.tsv:2 has the label 'c', which is not in the training data \(a, b\)"):
        train(settings("classify", data=data), tmp_path / "run", device="cpu")


def test_next_sentence_loss_is_weighted_by_the_masked_fraction(runs):
    run = runs["masked"]
    batch = next(sequential_batches(run._encode(run.data.valid), 512))
    run.model(**batch.inputs)
    nll = torch.nn.functional.cross_entropy(run.model.next_sentence_logits, batch.inputs["follows"], reduction="none")
    expected = (0.15 * batch.inputs["lengths"] * nll).sum()
    assert run.model.auxiliary_loss(batch).item() == pytest.approx(expected.item(), rel=1e-5) and expected > 0


def test_unknown_tags_are_excluded_from_the_loss(runs):
    rows = runs["tag"]._encode(TaggedSentences([["the", "dog"]], [["der", "zzz"]]))
    assert rows.batch(np.array([0]), 0, 0).label_count() == 1


def test_evaluate_sentences_are_spread_over_the_validation_set(tiny_run, monkeypatch):
    seen = []
    monkeypatch.setattr(tiny_run, "_best", lambda texts, beam: seen.append((texts, beam)) or [Namespace(text="x") for _ in texts])
    valid = tiny_run.data.valid
    tiny_run._validate(valid, tiny_run._encode(valid))
    assert seen == [(valid.source[::4], 1)]


def write_byte_level_tokenizer(path, special_tokens):
    library = Tokenizer(models.BPE())
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special_tokens, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    library.train_from_iterator(["the dog sees it", "a cat saw the dog"], trainer)
    library.save(str(path))


def test_language_model_with_a_given_tokenizer_file(tmp_path):
    write_byte_level_tokenizer(tmp_path / "gpt2.json", ["<|endoftext|>"])
    run = train(settings("gpt", tokens={"file": str(tmp_path / "gpt2.json")}, train={"steps": 2}), tmp_path / "run", device="cpu")
    end = run.tokenizers[0].library.token_to_id("<|endoftext|>")
    assert (run._special_tokens.bos, run._special_tokens.eos) == (NO_TOKEN, end) and run.tokenizers[0].size < 400
    again = regard.load(tmp_path / "run", device="cpu")
    assert run.generate(["the dog"], max_tokens=3) == again.generate(["the dog"], max_tokens=3)


def test_tokenizer_without_required_special_tokens_is_refused(tmp_path):
    write_byte_level_tokenizer(tmp_path / "none.json", ["<|odd|>"])
    with pytest.raises(UserError, match="no token that ends a text"):
        train(settings("gpt", tokens={"file": str(tmp_path / "none.json")}), tmp_path / "a", device="cpu")
    write_byte_level_tokenizer(tmp_path / "gpt2.json", ["<|endoftext|>"])
    with pytest.raises(UserError, match="mask token"):
        train(settings("masked", tokens={"file": str(tmp_path / "gpt2.json")}), tmp_path / "b", device="cpu")
    with pytest.raises(UserError, match="begins an output"):
        train(settings("translate", tokens={"file": str(tmp_path / "gpt2.json")}), tmp_path / "c", device="cpu")


@pytest.mark.parametrize("metric, sign", [("loss", -1), ("accuracy", 1), ("f1", 1), ("mcc", 1)])
def test_best_metric_chooses_the_checkpoint(tmp_path, metric, sign):
    loop = {**BASE["train"], "steps": 24, "evaluate_every": 4, "save_every": 24, "best_metric": metric}
    run = train(settings("classify", train=loop), tmp_path / "run", device="cpu")
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    evaluations = [record for record in log if "valid_loss" in record]
    last_best = [record for record in evaluations if record["best"]][-1]
    assert sign * last_best[f"valid_{metric}"] == max(sign * record[f"valid_{metric}"] for record in evaluations)
    score = run._score("valid", run.data.valid).scores
    for name in {"accuracy", "f1", "mcc"}:
        assert score[name].score == pytest.approx(last_best[f"valid_{name}"])


def test_a_best_metric_that_is_not_measured_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"best_metric = 'bleu' is not measured: .* loss, accuracy, f1, mcc"):
        train(settings("classify", train={"best_metric": "bleu", "evaluate_sentences": 9}), tmp_path / "a", device="cpu")
    with pytest.raises(UserError, match=r"set train\.evaluate_sentences"):
        train(settings("translate", train={"best_metric": "bleu"}), tmp_path / "b", device="cpu")
