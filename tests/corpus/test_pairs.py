"""Parallel text in its three forms, and held-out sentences."""

import json

import pytest

from regard.corpus.dataset import hold_out, read_dataset
from regard.corpus.examples import SentencePairs
from regard.corpus.text_files import read_pairs
from regard.errors import UserError
from regard.recipe import PairData

ROWS = [("one dog", "ein Hund"), ("two dogs", "zwei Hunde"), ("three", "drei")]


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_every_file_format_gives_the_same_pairs(tmp_path):
    two = read_pairs([write(tmp_path / "a.en", *(s for s, _ in ROWS)), write(tmp_path / "a.de", *(t for _, t in ROWS))])
    tsv = read_pairs([write(tmp_path / "a.tsv", *(f"id\t{t}\t{s}" for s, t in ROWS))], columns=(2, 1))
    jsonl = read_pairs([write(tmp_path / "a.jsonl", *(json.dumps({"en": s, "de": t}) for s, t in ROWS))], fields=("en", "de"))
    for pairs in (two, tsv, jsonl):
        assert list(zip(pairs.source, pairs.target)) == ROWS and pairs.lines == [1, 2, 3]


def test_columns_by_name_and_sources_of_several_columns(tmp_path):
    named = read_pairs([write(tmp_path / "a.tsv", "de\ten", *(f"{t}\t{s}" for s, t in ROWS))], columns=("en", "de"))
    assert list(zip(named.source, named.target)) == ROWS and named.lines == [2, 3, 4]
    three = read_pairs(
        [write(tmp_path / "b.jsonl", '{"q": "what", "c": "a\\tb", "a": 3}', '{"q": "", "c": "", "a": ""}')],
        columns=("q", "c", "a"),
    )
    assert (three.source, three.target, three.lines) == (["what\ta b"], ["3"], [1])
    with pytest.raises(UserError, match=r"b.tsv:2 has an empty source side"):
        read_pairs([write(tmp_path / "b.tsv", "x\ty\tz", "x\t\tz")], columns=(0, 1, 2))
    with pytest.raises(UserError, match=r"a.tsv:1 names no column 'fr'"):
        read_pairs([tmp_path / "a.tsv"], columns=("en", "fr"))


def test_tables_and_aligned_files_in_one_list_are_read_one_after_another(tmp_path):
    table = write(tmp_path / "a.tsv", *(f"{s}\t{t}" for s, t in ROWS))
    aligned = [write(tmp_path / "a.en", "four"), write(tmp_path / "a.de", "vier")]
    for files, rows in (([table, *aligned], [*ROWS, ("four", "vier")]), ([*aligned, table], [("four", "vier"), *ROWS])):
        pairs = read_pairs(files)
        assert list(zip(pairs.source, pairs.target)) == rows and len(pairs.lines) == len(rows)
    with pytest.raises(UserError, match=r"a.de: give two aligned files"):
        read_pairs([table, *aligned, tmp_path / "a.de"])


def test_a_limit_draws_nested_examples_by_seed_and_only_of_the_training_set(tmp_path):
    file = write(tmp_path / "a.tsv", *(f"{i}\tn {i}" for i in range(200)))
    data = PairData(root=str(tmp_path), train=[file.name], held_out=10)
    whole = read_dataset(data)

    def drawn(limit, seed):
        found = read_dataset(data.model_copy(update={"limit": limit, "limit_seed": seed}))
        assert found.valid.source == whole.valid.source and found.tests["held_out"].source == whole.tests["held_out"].source
        assert len(found.train) == limit and set(found.train.source) <= set(whole.train.source)
        return set(found.train.source)

    assert drawn(20, 1) < drawn(100, 1) and drawn(20, 1) != drawn(20, 2)
    with pytest.raises(UserError, match=r"data.limit = 181: there are 180 training examples; set at most 180"):
        drawn(181, 1)


def test_empty_pairs_are_skipped_and_line_numbers_kept(tmp_path):
    pairs = read_pairs([write(tmp_path / "a.en", "one", "", "three"), write(tmp_path / "a.de", "eins", " ", "drei")])
    assert pairs.source == ["one", "three"] and pairs.where(1).endswith("a.en:3")


@pytest.mark.parametrize(
    "files, said",
    [
        ({"a.en": "x\ny\nz\n", "a.de": "x\n"}, r"a.en has 3 lines but .*a.de has 1"),
        ({"a.en": "x\n\n", "a.de": "x\ny\n"}, r"a.en:2 has an empty source side"),
        ({"a.tsv": "x\ty\nx\n"}, r"a.tsv:2 has 1 columns"),
        ({"a.jsonl": '{"source": "x"}\n'}, r"a.jsonl:1 lacks a text field"),
        ({"a.jsonl": "{\n"}, r"a.jsonl:1 is not JSON"),
        ({"a.jsonl": "[" * 100_000 + "\n"}, r"a.jsonl:1 is not JSON"),
        ({"a.txt": "x\n"}, "give two aligned files"),
        ({"a.en": "\n\n", "a.de": "\n\n"}, "has no sentence pairs"),
    ],
)
def test_files_that_are_not_parallel_are_refused(tmp_path, files, said):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=said):
        read_pairs([tmp_path / name for name in files])


def test_held_out_pairs_share_no_source_and_do_not_depend_on_order():
    source = [f"sentence {i % 40}" for i in range(200)]
    pairs = SentencePairs(source, [f"Satz {i}" for i in range(200)], lines=list(range(1, 201)))
    train, valid, test = hold_out(pairs, 5)
    assert len(set(valid.source)) == len(set(test.source)) == 5
    assert not set(train.source) & set(valid.source)
    assert not set(train.source) & set(test.source)
    assert not set(valid.source) & set(test.source)
    assert sorted(train.target + valid.target + test.target) == sorted(pairs.target)
    _, again, _ = hold_out(pairs.select(list(reversed(range(200)))), 5)
    assert set(again.source) == set(valid.source)
    with pytest.raises(UserError, match="set at most 10"):
        hold_out(pairs, 11)


def test_world_is_a_dataset_with_gold_annotations():
    data = read_dataset(PairData(world={"number": 50, "held_out": 20}))
    assert len(data.train) == 50 and len(data.valid) == len(data.tests["test"]) == 20
    assert data.valid.gold is not None and data.valid.gold[3].source == data.valid.source[3]
    assert not set(data.train.source) & set(data.tests["test"].source)
