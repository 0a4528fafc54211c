"""Runs explained: every task that can be, from Python and from the command line."""

import copy
import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import UserError
from regard.explain.antecedents import (
    control_heads,
    excess_loss,
    find_antecedent_head,
    pronoun_examples,
    translate_without,
    word_indices,
)
from regard.explain.head_report import explain_heads
from regard.explain.methods import METHODS
from regard.explain.report import explain_set
from regard.explain.selection import OutputSelection
from regard.explain.text_outputs import load_examples, select_output, select_outputs
from regard.run.train import train
from regard.show.explanation import write_explanation

STACK = {"kind": "transformer", "layers": 1, "heads": 2, "feed_forward": 32, "width": 16, "max_length": 48}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Untaught: what they say is poor, how it is explained is not."""
    folder = tmp_path_factory.mktemp("explained")
    base = {
        "data": {"world": {"number": 300, "held_out": 20}},
        "tokens": {"size": 300},
        "train": {"steps": 4, "tokens_per_batch": 512, "evaluate_every": 4, "save_every": 4, "log_every": 4},
    }
    models = {"classify": STACK, "language": STACK, "tag": STACK}
    return {
        task: train({**copy.deepcopy(base), "task": task, "model": model}, folder / task, device="cpu")
        for task, model in models.items()
    }


def said(*words):
    result = CliRunner().invoke(app, ["explain", *map(str, words)], catch_exceptions=False)
    return result.stdout


def test_a_label_a_word_and_what_comes_next(runs, tiny_run):
    classifier, text = runs["classify"], runs["classify"].data.valid.text[0]
    found = classifier.explain(text, label=classifier.labels[1])
    assert repr(classifier.labels[1]) in found.answer and set(found.values) == set(METHODS)
    assert all(len(values) == len(found.pieces) for values in found.values.values())
    assert set(found.measured) == {*METHODS, "by lot"} and 0 <= found.permuted <= 1
    assert "".join(found.pieces) == text.replace(" ", "")
    words = tiny_run._best(["The dog sleeps."])[0].text.split()
    last = tiny_run.explain("The dog sleeps.", "occlusion", word=str(len(words)))
    assert f"{len(words)} of {len(words)}" in last.answer and "".join(last.pieces) == "Thedogsleeps."
    assert "comes next" in runs["language"].explain("the dog", "attention,rollout").answer


def test_what_is_explained_is_what_the_run_says(runs, tiny_run):
    text = runs["classify"].data.valid.text[0]
    (best, *_), target = runs["classify"].classify([text])[0], select_output(runs["classify"], text).target
    assert float(target.whole().exp()) == pytest.approx(best.probability, abs=1e-5)
    translation = tiny_run._best([sentence := "The dog sleeps."])[0]
    steps = [
        select_output(tiny_run, sentence, OutputSelection(word=str(number + 1))).target
        for number in range(len(translation.text.split()))
    ]
    assert all(target.answer == translation.tokens[target.step] for target in steps)
    one = runs["language"].generate(["the dog"], max_tokens=1)[0]
    target = select_output(runs["language"], "the dog").target
    assert one.tokens[:1] in ([target.answer], [])


def test_a_set_has_intervals_gold_and_words(tiny_run, tmp_path):
    found = json.loads(said(tiny_run.folder, "--data", "valid", "--number", 8, "--method", "attention,occlusion", "--json"))
    assert found["number"] == 8 and set(found["scores"]) == {"attention", "occlusion", "by lot"}
    measures = found["scores"]["attention"]
    assert {"comprehensiveness", "sufficiency", "spearman", "kendall", "fresh", "without 50%"} <= set(measures)
    assert {"alignment", "antecedent"} & set(measures)
    assert all(score["low"] <= score["score"] <= score["high"] and score["signature"] for score in measures.values())
    assert len(found["words"]) == 3
    page = tmp_path / "page.html"
    text = said(tiny_run.folder, "--data", "valid", "--number", 3, "--method", "attention", "--out", page)
    assert "by lot" in text and "tokens drawn by lot" in page.read_text() and "<svg" in page.read_text()
    for ending in ("svg", "png", "pdf"):
        said(tiny_run.folder, "--data", "valid", "--number", 3, "--method", "attention", "--out", tmp_path / f"a.{ending}")
        assert (tmp_path / f"a.{ending}").stat().st_size > 2000


def test_curves_are_the_figures_that_are_measured(tiny_run, tmp_path):
    one = tiny_run.explain("The dog sleeps.", "attention,occlusion")
    many = explain_set(tiny_run, "valid", "attention", number=4)
    for found, measured in ((one, one.measured), (many, many.scores)):
        lost, kept = found.curves().values()
        assert set(lost) == set(kept) == set(measured) and [point["share"] for point in lost["attention"]] == [1, 5, 10, 20, 50]
    assert lost["by lot"][3] == {
        "share": 20,
        **{part: getattr(many.scores["by lot"]["without 20%"], part) for part in ("score", "low", "high")},
    }
    lost, _ = one.curves().values()
    mean = np.mean([point["score"] for point in lost["occlusion"]])
    assert mean == pytest.approx(one.measured["occlusion"]["comprehensiveness"])
    for name in ("a.svg", "b.svg", "a.html"):
        write_explanation(tiny_run, one, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "sufficiency: with the first tokens alone" in (tmp_path / "a.svg").read_text()
    assert "occlusion" in (tmp_path / "a.html").read_text()


def test_gold_tokens_are_those_of_the_world(tiny_run):
    gold = tiny_run.data.valid.gold
    for pair, asked in zip(gold, select_outputs(tiny_run, tiny_run.data.valid, len(gold))):
        words = tiny_run.tokenizers[0].word_ids(tiny_run._ids([pair.source])[0])
        (said,) = tiny_run.tokenizers[1].encode([pair.target])
        assert asked.target.answer == said[asked.target.step]
        assert asked.target.inputs["target"][0, 1:].tolist() == said[: asked.target.step]
        if pair.pronouns:
            (truth,) = asked.gold.values()
            assert {words[token] for token in truth.right} == {pair.pronouns[0].antecedent_source}
            assert {words[token] for token in truth.among} == set(pair.pronouns[0].candidates)
        else:
            assert set(asked.gold) == {"alignment"}
            chosen = tiny_run.tokenizers[1].word_ids(said)[asked.target.step]
            assert {words[token] for token in asked.gold["alignment"].right} == {s for s, t in pair.alignment if t == chosen}


def test_files_of_texts_and_of_labelled_texts(runs, tmp_path):
    (tmp_path / "a.txt").write_text("the dog sleeps\na cat\n")
    (tmp_path / "a.tsv").write_text(f"the dog sleeps\t{runs['classify'].labels[0]}\n")
    for name, number in (("a.txt", 2), ("a.tsv", 1)):
        found = json.loads(said(runs["classify"].folder, "--data", tmp_path / name, "--method", "occlusion", "--json"))
        assert found["number"] == number
    assert load_examples(runs["classify"], str(tmp_path / "a.tsv")).text == ["the dog sleeps"]
    found = json.loads(said(runs["language"].folder, "--data", tmp_path / "a.txt", "--method", "attention", "--json"))
    assert found["number"] == 2


def test_the_heads_of_a_run(tiny_run, runs):
    found = explain_heads(tiny_run, number=10)
    assert len(found.heads) == len(found.lost) == len(found.pronouns) > 0
    cross = [head for head in found.heads if "cross" in head.place]
    assert all({"aligned word", "separator"} <= set(head.shares) for head in cross)
    assert found.pruned[0.0] < found.pruned[1.0]
    assert "loss without" in said(runs["language"].folder, "--heads", "--number", 5)
    assert json.loads(said(runs["classify"].folder, "--heads", "--number", 5, "--json"))["heads"]


def test_the_noun_is_asked_for_from_its_pronoun(tiny_run):
    """In each kind of attention, the query is that of the "it" or of what says its pronoun, and the keys are the nouns'."""
    asked = list(pronoun_examples(tiny_run, tiny_run.data.valid, 6))
    assert len(asked) == 6
    for inputs, questions, pair in asked:
        (it,), (read, heard, said_next) = pair.pronouns, word_indices(tiny_run, inputs, pair)
        assert set(questions) == {"source", "cross", "target"}
        for side, queries, keys, query, nouns in (
            ("source", read, read, it.source, it.candidates),
            ("cross", said_next, read, it.target, it.candidates),
        ):
            question = questions[side]
            assert queries[question.query] == query and it.candidates[question.right] == it.antecedent_source
            assert [{keys[key] for key in group} for group in question.among] == [{noun} for noun in nouns]
        question = questions["target"]
        assert said_next[question.query] == it.target
        assert {heard[key] for key in question.among[question.right]} == {it.antecedent_target}
        ids = inputs["target"][0].tolist()
        pieces = [tiny_run.tokenizers[1].piece(ids[key]).strip() for key in question.among[question.right]]
        assert "".join(pieces).strip(".,") == pair.target.split()[it.antecedent_target].strip(".,")


def test_the_head_that_resolves_it_is_chosen_on_one_set_and_reported_on_another(tiny_run):
    tests, valid = tiny_run.data.tests["test"], tiny_run.data.valid
    found = find_antecedent_head(tiny_run, valid, tests, ("valid", "test"), 12)
    best = max(score.score for score in found.chosen.values())
    assert found.chosen[found.head].score == best and found.second != found.head and len(found.chosen) == 12
    swapped = find_antecedent_head(tiny_run, tests, valid, ("test", "valid"), 12)
    assert swapped.chosen[found.head] == found.accuracy[found.head]  # what the one reports, the other chooses by
    assert len(found.beside) == 1 and 0 < found.number <= 12
    told = json.loads(said(tiny_run.folder, "--heads", "--number", 12, "--json"))
    assert told["resolver"] == json.loads(json.dumps(found.to_json()))
    assert {head["right_noun"]["score"] for head in told["heads"]} == {round(s.score, 4) for s in found.chosen.values()}
    text = said(tiny_run.folder, "--heads", "--number", 12, "--data", "test")
    assert "right about its noun on test" in text and "\nOn valid it is right in" in text and "taken away" in text


def test_without_all_heads_the_run_says_something_else_and_then_the_same_again(tiny_run):
    pairs = [pair for _, _, pair in pronoun_examples(tiny_run, tiny_run.data.valid, 6)]
    heads = list(find_antecedent_head(tiny_run, tiny_run.data.valid, tiny_run.data.tests["test"], ("", ""), 2).chosen)
    before = translate_without(tiny_run, pairs, [])
    assert before == [found.text for found in tiny_run._best([pair.source for pair in pairs])]
    assert translate_without(tiny_run, pairs, heads) != before == translate_without(tiny_run, pairs, [])


def test_others_are_of_the_same_layers_and_least_right():
    known = {("a", 0): [1, 1], ("a", 1): [0, 0], ("a", 2): [0, 1], ("b", 0): [1, 0], ("b", 1): [0, 0]}
    assert control_heads(known, [("a", 0), ("b", 0)]) == [("a", 1), ("b", 1)]
    assert control_heads(known, [("a", 0), ("a", 2)]) == [("a", 1)]  # there is no fourth
    assert excess_loss([True, False], [[True, True], [False, True]]) == [-50.0, 100.0]


@pytest.mark.parametrize(
    ("task", "settings", "cure"),
    [
        ("classify", {"label": "no such"}, "there are:"),
        ("classify", {"word": "1"}, "--class"),
        ("language", {"label": "x"}, "--word"),
        ("translate", {"word": "99"}, "words 1 to"),
        ("translate", {"word": "Unsinn"}, "not in the translation"),
        ("translate", {"method": "magic"}, "should be all"),
        ("tag", {}, "what is explained are"),
        ("classify", {"text": ""}, "empty"),
        ("translate", {"text": " "}, "empty"),
    ],
)
def test_mistakes_are_one_line(runs, tiny_run, task, settings, cure):
    run = tiny_run if task == "translate" else runs[task]
    with pytest.raises(UserError, match=cure) as mistake:
        run.explain(**{"text": "The dog sleeps.", **settings})
    assert "\n" not in str(mistake.value)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["text", "--data", "valid"],
        ["--data", "nowhere"],
        ["text", "--out", "a.gif"],
        ["--data", "valid", "--word", "1"],
        ["text", "--heads"],
        ["--data", "valid", "--out", "page"],
    ],
)
def test_mistakes_of_the_command_line(tiny_run, words):
    with pytest.raises(UserError):
        said(tiny_run.folder, *words)


def test_the_fresh_model_does_not_change_the_run_or_the_dice(tiny_run):
    from regard.explain.report import randomized_model

    before = torch.random.get_rng_state()
    other = randomized_model(tiny_run)
    assert torch.equal(torch.random.get_rng_state(), before)
    pairs = zip(other.parameters(), tiny_run.model.parameters())
    assert any(not torch.equal(one, same) for one, same in pairs)
