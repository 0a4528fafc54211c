"""Gold alignment files given with --gold to evaluate and explain."""

import json

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import UserError
from regard.explain.head_report import explain_heads
from regard.explain.text_outputs import load_examples
from regard.run.evaluate import evaluate
from regard.scoring import alignment_error, argmax_links, format_moses


@pytest.fixture
def data_folder(tmp_path, tiny_run):
    """Write a test set of the bilingual world as text and alignment files, each with an empty line in the middle."""
    gold = tiny_run.data.tests["test"].gold[:12]
    columns = {
        "en": [pair.source for pair in gold],
        "de": [pair.target for pair in gold],
        "align": [format_moses(pair.alignment) for pair in gold],
    }
    for name, lines in columns.items():
        (tmp_path / f"a.{name}").write_text("\n".join([*lines[:5], "", *lines[5:]]) + "\n", encoding="utf-8")
    return tmp_path


def run_cli(*words):
    return CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False).stdout


def test_gold_alignment_file_equals_the_alignment_of_the_world(tiny_run, data_folder):
    found = load_examples(tiny_run, str(data_folder / "a.en"), data_folder / "a.de", data_folder / "a.align")
    known = tiny_run.data.tests["test"].gold[:12]
    assert [(pair.source, set(pair.alignment), pair.pronouns) for pair in found.gold] == [
        (pair.source, set(pair.alignment), ()) for pair in known
    ]
    of_file = explain_heads(tiny_run, str(data_folder / "a.en"), reference=data_folder / "a.de", gold=data_folder / "a.align")
    assert of_file.antecedent_head is None and not of_file.pronoun_importance  # a file has no antecedents
    cross = [head.weights["aligned word"] for head in of_file.heads if "cross" in head.module]
    assert len(cross) == 4 and all(0 < share < 1 for share, _ in cross)


def test_alignment_error_uses_a_head_chosen_on_other_sentences(tiny_run, data_folder, monkeypatch):
    given = {"source": data_folder / "a.en", "reference": data_folder / "a.de", "gold": data_folder / "a.align"}
    (result,) = evaluate(tiny_run, save=False, **given)  # the world's validation set has gold too
    assert "pronouns" not in result.scores and "chosen on validation sentences" in result.notes[-1]
    monkeypatch.setattr(tiny_run.data.valid, "gold", None)
    (result,) = evaluate(tiny_run, save=False, **given)
    assert "chosen on one half" in result.notes[-1]
    known = tiny_run.data.tests["test"].gold[:12]
    found = tiny_run.align([pair.source for pair in known], [pair.target for pair in known])
    truth = [set(pair.alignment) for pair in known]

    def error(head, part):
        return alignment_error([argmax_links(one.weights[head]) for one in found[part]], truth[part], samples=5).score

    heads = [(layer, head) for layer in range(2) for head in range(2)]
    even, odd = slice(0, None, 2), slice(1, None, 2)
    chosen = [min(heads, key=lambda head: error(head, half)) for half in (odd, even)]
    read = [argmax_links(one.weights[chosen[i % 2]]) for i, one in enumerate(found)]
    assert result.scores["alignment_error"].score == pytest.approx(alignment_error(read, truth).score)


def test_gold_option_of_evaluate_and_explain(tiny_run, data_folder):
    rows = [
        json.loads(line)
        for line in run_cli(
            "evaluate",
            tiny_run.folder,
            "--source",
            data_folder / "a.en",
            "--reference",
            data_folder / "a.de",
            "--gold",
            data_folder / "a.align",
            "--json",
        ).splitlines()
    ]
    assert "alignment_error" in {row["metric"] for row in rows}
    explained = json.loads(
        run_cli(
            "explain",
            tiny_run.folder,
            "--data",
            data_folder / "a.en",
            "--reference",
            data_folder / "a.de",
            "--gold",
            data_folder / "a.align",
            "--method",
            "attention",
            "--number",
            4,
            "--json",
        )
    )
    assert "alignment" in explained["scores"]["attention"]
    lines = zip(*((data_folder / f"a.{name}").read_text().split("\n") for name in ("en", "de")))
    (data_folder / "a.tsv").write_text("\n".join("\t".join(line) if line[0] else "" for line in lines))
    table = load_examples(tiny_run, str(data_folder / "a.tsv"), None, data_folder / "a.align")
    assert len(table) == 12
    assert table.gold == load_examples(tiny_run, str(data_folder / "a.en"), data_folder / "a.de", data_folder / "a.align").gold


def test_align_counts_words_with_unknown_characters(tiny_run, tmp_path):
    """A word of characters outside the vocabulary still counts as a word."""
    found = tiny_run.align("The \u2603 dog sleeps .", "Der \u2603 Hund schläft .")
    assert found.source == ["The", "\u2603", "dog", "sleeps", "."] and found.target == ["Der", "\u2603", "Hund", "schläft", "."]
    assert found.weights.shape[2:] == (5, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[:-1], r"a\.align has 12 lines but .*a\.en has 13"),
        (lambda lines: [*lines, "0-0"], "14 lines"),
        (lambda lines: ["0-0 1:2", *lines[1:]], r"a\.align:1: '1:2' is not a link such as 0-3"),
        (
            lambda lines: [*lines[:7], "0-0 99-0", *lines[8:]],
            r"a\.align:8: the link 99-0 is outside the sentence, which has \d+",
        ),
        (lambda lines: [*lines[:7], "0p99", *lines[8:]], r"a\.align:8: the link 0-99 is outside the sentence"),
    ],
)
def test_malformed_alignment_file_names_the_line(tiny_run, data_folder, change, message):
    lines = (data_folder / "a.align").read_text().splitlines()
    (data_folder / "a.align").write_text("\n".join(change(lines)) + "\n")
    with pytest.raises(UserError, match=message) as error:
        load_examples(tiny_run, str(data_folder / "a.en"), data_folder / "a.de", data_folder / "a.align")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "RUN", "--gold", "a.align"],
        ["explain", "RUN", "text", "--gold", "a.align"],
        ["explain", "RUN", "--data", "valid", "--gold", "a.align"],
        ["explain", "RUN", "--data", "a.en", "--gold", "a.align"],
        ["explain", "RUN", "--data", "a.en", "--reference", "a.de", "--gold", "missing.align"],
    ],
)
def test_gold_option_requires_source_and_reference_files(tiny_run, data_folder, monkeypatch, words):
    monkeypatch.chdir(data_folder)
    with pytest.raises(UserError):
        run_cli(*(tiny_run.folder if word == "RUN" else word for word in words))
