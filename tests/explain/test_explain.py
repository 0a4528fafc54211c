"""`regard explain` on runs that read texts, from Python and from the command line; heads and antecedents."""

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
    """Runs after a few steps: their outputs are poor, which the tests do not depend on."""
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


def explain_command(*words):
    result = CliRunner().invoke(app, ["explain", *map(str, words)], catch_exceptions=False)
    return result.stdout


def test_explain_a_label_a_word_and_the_next_token(runs, tiny_run):
    classifier, text = runs["classify"], runs["classify"].data.valid.text[0]
    found = classifier.explain(text, label=classifier.labels[1])
    assert repr(classifier.labels[1]) in found.output and set(found.attributions) == set(METHODS)
    assert all(len(values) == len(found.features) for values in found.attributions.values())
    assert set(found.faithfulness) == {*METHODS, "random"} and 0 <= found.permutation_effect <= 1
    assert "".join(found.features).replace("·", "") == text.replace(" ", "")
    words = tiny_run._best(["The dog sleeps."])[0].text.split()
    last = tiny_run.explain("The dog sleeps.", "occlusion", word=str(len(words)))
    assert f"{len(words)} of {len(words)}" in last.output and "".join(last.features).replace("·", "") == "Thedogsleeps."
    assert "the next token" in runs["language"].explain("the dog", "attention,rollout").output


def test_explained_output_is_the_prediction_of_the_run(runs, tiny_run):
    text = runs["classify"].data.valid.text[0]
    (best, *_), target = runs["classify"].classify(text), select_output(runs["classify"], text).target
    assert float(target.full_score().exp()) == pytest.approx(best.probability, abs=1e-5)
    translation = tiny_run._best([sentence := "The dog sleeps."])[0]
    steps = [
        select_output(tiny_run, sentence, OutputSelection(word=str(number + 1))).target
        for number in range(len(translation.text.split()))
    ]
    assert all(target.output == translation.tokens[target.step] for target in steps)
    one = runs["language"].generate(["the dog"], max_tokens=1)[0]
    target = select_output(runs["language"], "the dog").target
    assert one.tokens[:1] in ([target.output], [])


def test_explain_set_has_intervals_ground_truth_and_a_summary(tiny_run, tmp_path):
    found = json.loads(
        explain_command(tiny_run.folder, "--data", "valid", "--number", 5, "--method", "attention,occlusion", "--json")
    )
    assert found["number"] == 5 and set(found["scores"]) == {"attention", "occlusion", "random"}
    measures = found["scores"]["attention"]
    expected = {"comprehensiveness", "sufficiency", "spearman", "kendall", "randomized", "comprehensiveness 3", "advantage"}
    assert expected <= set(measures)
    assert {"alignment", "antecedent"} & set(measures)
    assert all(score["low"] <= score["score"] <= score["high"] and score["signature"] for score in measures.values())
    assert len(found["summary"]) == 4
    rows = found["scores"]
    assert ("behind best" in rows["attention"]) != ("behind best" in rows["occlusion"])  # one of them is the best
    page = tmp_path / "page.html"
    text = explain_command(tiny_run.folder, "--data", "valid", "--number", 2, "--method", "attention", "--out", page)
    assert "random" in text and "random tokens" in page.read_text() and "<svg" in page.read_text()
    for ending in ("svg", "png", "pdf"):
        explain_command(
            tiny_run.folder, "--data", "valid", "--number", 2, "--method", "attention", "--out", tmp_path / f"a.{ending}"
        )
        assert (tmp_path / f"a.{ending}").stat().st_size > 2000


def test_erasure_curves_equal_the_measures(tiny_run, tmp_path):
    one = tiny_run.explain("The dog sleeps.", "attention,occlusion")
    many = explain_set(tiny_run, "valid", "attention", number=4)
    for found, measured in ((one, one.faithfulness), (many, many.scores)):
        lost, kept = found.curves().values()
        assert set(lost) == set(kept) == set(measured) and [point["top"] for point in lost["attention"]][:2] == ["1", "2"]
    assert lost["random"][1] == {
        "top": "2",
        **{part: getattr(many.scores["random"]["comprehensiveness 2"], part) for part in ("score", "low", "high")},
    }
    lost, _ = one.curves().values()
    mean = np.mean([point["score"] for point in lost["occlusion"]])
    assert mean == pytest.approx(one.faithfulness["occlusion"]["comprehensiveness"])
    for name in ("a.svg", "b.svg", "a.html"):
        write_explanation(tiny_run, one, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    drawn, page = (tmp_path / "a.svg").read_text(), (tmp_path / "a.html").read_text()
    assert "sufficiency: with the top tokens alone" in page and page.index("comprehensiveness") < page.index("<table")
    for text in (*one.features, "attention", "occlusion", "comprehensiveness", "sufficiency", "lower is better, nats"):
        assert drawn.count(f">{text}<") >= (2 if text in one.features or text in one.attributions else 1), text
    assert one.verdict.headline.split(":")[0] in drawn


def test_ground_truth_tokens_are_those_of_the_world(tiny_run):
    gold = tiny_run.data.valid.gold
    for pair, selected in zip(gold, select_outputs(tiny_run, tiny_run.data.valid, len(gold))):
        words = tiny_run.tokenizers[0].word_ids(tiny_run._ids([pair.source])[0])
        (reference,) = tiny_run.tokenizers[1].encode([pair.target])
        assert selected.target.output == reference[selected.target.step]
        further = len(selected.target.further)  # a word is predicted token by token
        assert selected.target.inputs["target"][0, 1:].tolist() == reference[: selected.target.step + further]
        if pair.pronouns:
            (truth,) = selected.truth.values()
            assert {words[token] for token in truth.correct} == {pair.pronouns[0].antecedent_source}
            assert {words[token] for token in truth.candidates} == set(pair.pronouns[0].candidates)
        else:
            assert set(selected.truth) == {"alignment"}
            chosen = tiny_run.tokenizers[1].word_ids(reference)[selected.target.step]
            assert {words[token] for token in selected.truth["alignment"].correct} == {
                s for s, t in pair.alignment if t == chosen
            }


def test_explain_files_of_texts_and_labelled_texts(runs, tmp_path):
    (tmp_path / "a.txt").write_text("the dog sleeps\na cat\n")
    (tmp_path / "a.tsv").write_text(f"the dog sleeps\t{runs['classify'].labels[0]}\n")
    for name, number in (("a.txt", 2), ("a.tsv", 1)):
        found = json.loads(explain_command(runs["classify"].folder, "--data", tmp_path / name, "--method", "occlusion", "--json"))
        assert found["number"] == number
    assert load_examples(runs["classify"], str(tmp_path / "a.tsv")).text == ["the dog sleeps"]
    found = json.loads(explain_command(runs["language"].folder, "--data", tmp_path / "a.txt", "--method", "attention", "--json"))
    assert found["number"] == 2


def test_explain_heads(tiny_run, runs):
    found = explain_heads(tiny_run, number=10)
    assert len(found.heads) == len(found.importance) == len(found.pronoun_importance) > 0
    cross = [head for head in found.heads if "cross" in head.module]
    assert all({"aligned word", "separator"} <= set(head.weights) for head in cross)
    assert found.pruned[0.0] < found.pruned[1.0]
    assert "loss without" in explain_command(runs["language"].folder, "--heads", "--number", 5)
    assert json.loads(explain_command(runs["classify"].folder, "--heads", "--number", 5, "--json"))["heads"]


def test_pronoun_choices_are_among_the_candidate_nouns(tiny_run):
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
            assert queries[question.query] == query and it.candidates[question.correct] == it.antecedent_source
            assert [{keys[key] for key in group} for group in question.candidates] == [{noun} for noun in nouns]
        question = questions["target"]
        assert said_next[question.query] == it.target
        assert {heard[key] for key in question.candidates[question.correct]} == {it.antecedent_target}
        ids = inputs["target"][0].tolist()
        pieces = [tiny_run.tokenizers[1].piece(ids[key]).strip() for key in question.candidates[question.correct]]
        assert "".join(pieces).strip(".,") == pair.target.split()[it.antecedent_target].strip(".,")


def test_antecedent_head_is_selected_on_one_set_and_measured_on_another(tiny_run):
    tests, valid = tiny_run.data.tests["test"], tiny_run.data.valid
    found = find_antecedent_head(tiny_run, valid, tests, ("valid", "test"), 6)
    best = max(score.score for score in found.selection_accuracy.values())
    assert (
        found.selection_accuracy[found.head].score == best
        and found.runner_up != found.head
        and len(found.selection_accuracy) == 12
    )
    swapped = find_antecedent_head(tiny_run, tests, valid, ("test", "valid"), 6)
    assert swapped.selection_accuracy[found.head] == found.accuracy[found.head]  # what the one reports, the other chooses by
    assert len(found.same_layer) == 1 and 0 < found.number <= 6
    report = json.loads(explain_command(tiny_run.folder, "--heads", "--number", 6, "--json"))
    assert report["antecedent_head"] == json.loads(json.dumps(found.to_json()))
    assert {head["antecedent_accuracy"]["score"] for head in report["heads"]} == {
        round(s.score, 4) for s in found.selection_accuracy.values()
    }
    text = explain_command(tiny_run.folder, "--heads", "--number", 6, "--data", "test")
    assert "antecedent accuracy on test" in text and "\nOn valid its antecedent accuracy" in text and "ablated heads" in text


def test_head_ablation_changes_translations_and_is_undone(tiny_run):
    pairs = [pair for _, _, pair in pronoun_examples(tiny_run, tiny_run.data.valid, 6)]
    heads = list(find_antecedent_head(tiny_run, tiny_run.data.valid, tiny_run.data.tests["test"], ("", ""), 2).selection_accuracy)
    before = translate_without(tiny_run, pairs, [])
    assert before == [found.text for found in tiny_run._best([pair.source for pair in pairs])]
    assert translate_without(tiny_run, pairs, heads) != before == translate_without(tiny_run, pairs, [])


def test_control_heads_are_the_least_accurate_of_the_same_layers():
    known = {("a", 0): [1, 1], ("a", 1): [0, 0], ("a", 2): [0, 1], ("b", 0): [1, 0], ("b", 1): [0, 0]}
    assert control_heads(known, [("a", 0), ("b", 0)]) == [("a", 1), ("b", 1)]
    assert control_heads(known, [("a", 0), ("a", 2)]) == [("a", 1)]  # there is no fourth
    assert excess_loss([True, False], [[True, True], [False, True]]) == [-50.0, 100.0]


@pytest.mark.parametrize(
    ("task", "settings", "cure"),
    [
        ("classify", {"label": "no such"}, "use one of:"),
        ("classify", {"word": "1"}, "--class"),
        ("language", {"label": "x"}, "--word"),
        ("translate", {"word": "99"}, "words 1 to"),
        ("translate", {"word": "Unsinn"}, "not in the translation"),
        ("translate", {"method": "magic"}, "no such method"),
        ("tag", {}, "explanations are for"),
        ("classify", {"text": ""}, "empty"),
        ("translate", {"text": " "}, "empty"),
    ],
)
def test_user_errors_are_one_line(runs, tiny_run, task, settings, cure):
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
def test_explain_command_refuses_contradictory_options(tiny_run, words):
    with pytest.raises(UserError):
        explain_command(tiny_run.folder, *words)


def test_randomized_model_changes_neither_the_run_nor_the_random_state(tiny_run):
    from regard.explain.report import randomized_model

    before = torch.random.get_rng_state()
    other = randomized_model(tiny_run)
    assert torch.equal(torch.random.get_rng_state(), before)
    pairs = zip(other.parameters(), tiny_run.model.parameters())
    assert any(not torch.equal(one, same) for one, same in pairs)


def test_explain_command_draws_the_text_in_the_terminal(tiny_run):
    found = tiny_run.explain("The dog sleeps.", "attention,occlusion")
    drawn = explain_command(tiny_run.folder, "The dog sleeps.", "--method", "attention,occlusion", "--terminal")
    for name, values in found.attributions.items():
        share = max(values, key=abs) / sum(map(abs, values))
        top = found.features[values.index(max(values, key=abs))]
        (line,) = (line for line in drawn.splitlines() if line.startswith(f"{name} "))
        assert (f"[{top}]" in line or f"[−{top}]" in line) == (abs(share) >= 0.2)
    assert found.verdict.headline in drawn and "sufficiency" in drawn and "random" in drawn


def test_explain_tests_the_attention_of_the_selected_layer_and_head(tiny_run):
    whole = tiny_run.explain("The dog sleeps.", "attention")
    one = tiny_run.explain("The dog sleeps.", "attention", layer=1, head=2)
    assert "mean over heads" in whole.shown and one.shown.startswith("layer 1 of") and one.shown.endswith("head 2")
    assert one.attributions != whole.attributions and one.permutation_effect != whole.permutation_effect
    assert any(one.shown in line for line in one.summary())
    with pytest.raises(UserError, match="--head 9: the layer has 2 heads"):
        explain_command(tiny_run.folder, "The dog sleeps.", "--layer", 1, "--head", 9)
