"""Tables: the same rows from .tsv, .csv, .jsonl, .parquet, .arrow and .feather."""

import csv
import gzip
import json

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.corpus.table import table_rows
from regard.corpus.text_files import read_labelled, read_pairs, read_text
from regard.errors import UserError

ROWS = [{"id": 1, "text": "a fine, long day", "label": "good"}, {"id": 2, "text": 'he said "no"', "label": "bad"}]


def write_table(path, rows):
    """Write rows in the format that the suffix names."""
    table = pa.Table.from_pylist(rows)
    match path.suffix:
        case ".tsv":
            path.write_text("\n".join("\t".join(map(str, cells)) for cells in [list(rows[0]), *(row.values() for row in rows)]))
        case ".csv":
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([list(rows[0]), *(row.values() for row in rows)])
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case ".gz":
            path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
        case ".parquet":
            pa.parquet.write_table(table, path)
        case ".feather":
            pa.feather.write_feather(table, str(path))
        case ".arrow":
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table)
    return path


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.jsonl.gz", "a.parquet", "a.feather", "a.arrow"])
def test_every_table_format_gives_the_same_examples(tmp_path, name):
    path = write_table(tmp_path / name, ROWS)
    found = read_labelled([path], text="text", label="label")
    assert found.text == [row["text"] for row in ROWS] and found.label == ["good", "bad"]
    assert read_text([path], column="text").text == found.text
    if name != "a.jsonl.gz" and ".jsonl" not in name:
        assert read_pairs([path], columns=("text", "label")).target == ["good", "bad"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.arrow"])
def test_field_of_a_field_is_found_as_in_opus(tmp_path, name):
    path = write_table(tmp_path / name, [{"id": "0", "translation": {"en": "one", "de": "eins"}}])
    names = ("translation.en", "translation.de")
    pairs = read_pairs([path], columns=names, fields=names)
    assert (pairs.source, pairs.target) == (["one"], ["eins"])


CELLS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8) | st.sampled_from(["a,b", 'a "b"', "a\nb", ";"])


@given(rows=st.lists(st.tuples(CELLS, CELLS, st.just("x")), min_size=1, max_size=6))
def test_csv_cells_are_those_that_were_written(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("one", "two", "three"), *rows])
    assert [tuple(cells) for _, cells in table_rows(path, ["one", "two", "three"], "here")] == rows


def test_csv_rows_have_the_line_they_begin_at(tmp_path):
    (tmp_path / "a.csv").write_text('text;label\n"two\nlines";a\nthree;b\n')
    assert list(table_rows(tmp_path / "a.csv", ["text", "label"], "here")) == [(2, ["two\nlines", "a"]), (4, ["three", "b"])]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_a_table_is_not_read_as_plain_text(tmp_path, name):
    with pytest.raises(UserError, match=r"is a table; name the column of the text: data\.column"):
        read_text([write_table(tmp_path / name, ROWS)])


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    path = write_table(tmp_path / "a.parquet", ROWS)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'regard\[data\]'"):
        read_text([path], column="text")
