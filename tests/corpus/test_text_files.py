"""Plain, labelled and tagged text; word vectors: what is read, and what is refused with file and line."""

import gzip
import json

import numpy as np
import pytest

from regard.corpus.dataset import hold_out, read_dataset
from regard.corpus.examples import LabelledTexts
from regard.corpus.text_files import read_labelled, read_tagged, read_text, read_word_vectors
from regard.errors import UserError
from regard.recipe import LabelledData, TaggedData, TextData


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_labelled_text_by_column_number_name_and_json_field(tmp_path):
    rows = [("a good one", "1"), ("a bad one", "0")]
    by_number = write(tmp_path / "a.tsv", *(f"{label}\t{text}" for text, label in rows))
    by_name = write(tmp_path / "b.tsv", "sentence\tlabel", *(f"{text} \t{label}" for text, label in rows))
    as_json = write(tmp_path / "c.jsonl", *(json.dumps({"words": text, "sense": int(label)}) for text, label in rows))
    compressed = tmp_path / "d.tsv.gz"
    compressed.write_bytes(gzip.compress(by_name.read_bytes()))
    for found in (
        read_labelled([by_number], text=1, label=0),
        read_labelled([by_name], text="sentence", label="label"),
        read_labelled([as_json], text="words", label="sense"),
        read_labelled([compressed], text="sentence", label="label"),
    ):
        assert list(zip(found.text, found.label)) == rows
    assert read_labelled([by_name], text="sentence", label="label").where(1) == f"{by_name}:3"


def test_text_from_lines_or_a_column(tmp_path):
    path = write(tmp_path / "a.tsv", "one\tein", "", "two words\tzwei")
    assert read_text([path], column=1).text == ["ein", "zwei"] and read_text([path]).text[0] == "one\tein"
    assert read_text([write(tmp_path / "a.txt", "a", "", "b")], keep_empty=True).text == ["a", "", "b"]
    assert read_text([path, path], column=0).where(3).endswith("a.tsv:3")


def test_tagged_text_in_conll_format(tmp_path):
    path = write(tmp_path / "a.conll", "# a comment", "The\tx\tDET", "dog\ty\tNOUN", "", "", "Sleep\tz\tVERB")
    found = read_tagged([path])
    assert found.words == [["The", "dog"], ["Sleep"]] and found.tags == [["DET", "NOUN"], ["VERB"]]
    assert found.where(0) == f"{path}:2" and found.where(1) == f"{path}:6"
    assert read_tagged([path], tag=1).tags == [["x", "y"], ["z"]]
    assert read_tagged([write(tmp_path / "b", "The DET", "#1 NOUN")]).words == [["The", "#1"]]


@pytest.mark.parametrize(
    "read, lines, message",
    [
        (read_text, ["", " "], "has no text"),
        (read_labelled, ["alone"], r"f:1 has 1 columns; data.text, data.label = \[0, 1\] needs 2"),
        (read_labelled, ["a\t1", "\t1"], "f:2 has an empty text"),
        (read_labelled, ["a\t"], "f:1 has an empty label"),
        (read_labelled, [""], "has no labelled texts"),
        (read_tagged, ["word"], "f:1 has 1 columns; a word"),
        (read_tagged, ["word\tA", "\tB"], "f:2 has 2 columns"),
        (read_tagged, [""], "has no tagged sentences"),
    ],
)
def test_malformed_files_are_refused_with_line(tmp_path, read, lines, message):
    with pytest.raises(UserError, match=message):
        read([write(tmp_path / "f", *lines)])


def test_missing_column_is_named(tmp_path):
    path = write(tmp_path / "a.tsv", "sentence\tlabel", "a\t1")
    with pytest.raises(UserError, match=r"a.tsv:1 names no column 'text' .* it has sentence, label"):
        read_labelled([path], text="text", label="label")


def test_world_gives_every_kind_of_text_examples(tmp_path):
    world = {"number": 60, "held_out": 20}
    tagged = read_dataset(TaggedData(world=world))
    assert all(len(words) == len(tags) for words, tags in zip(tagged.train.words, tagged.train.tags))
    the = {tag for words, tags in zip(tagged.train.words, tagged.train.tags) for word, tag in zip(words, tags) if word == "the"}
    assert {"der", "die", "das"} <= the, "one English word, several tags"
    labelled = read_dataset(LabelledData(world=world))
    assert set(labelled.train.label) == {"m", "f", "n"} and all(" it" in text for text in labelled.train.text)
    english, german = (read_dataset(TextData(world=world, language=side)).valid.text for side in ("source", "target"))
    assert len(english) == len(german) == 20 and english != german
    train, valid, test = hold_out(LabelledTexts([f"text {i}" for i in range(50)], ["x"] * 50), 5)
    assert (len(train), len(valid), len(test)) == (40, 5, 5)
    assert len({*train.text, *valid.text, *test.text}) == 50


def test_word_vectors_of_glove_and_word2vec(tmp_path):
    glove = write(tmp_path / "glove.txt", "the 1 2 3", "dog 4 5 6.5", "… 0 0 0")
    word2vec = write(tmp_path / "w2v.txt", "3 3", "the 1 2 3", "dog 4 5 6.5 ", "cat 0 0 0")
    for path in (glove, word2vec):
        found = read_word_vectors(path, {"the", "dog", "unicorn"}, width=3)
        assert set(found) == {"the", "dog"} and np.allclose(found["dog"], [4, 5, 6.5])


@pytest.mark.parametrize(
    "lines, message",
    [
        (["the 1 2"], r"v:1 has 2 numbers, the model's embeddings have 3; set model.embedding_width = 2"),
        (["5 2"], r"v:1 has 2 numbers"),
        (["the 1 2 x"], r"v:1 is not a word and 3 numbers"),
        (["cat 1 2 3"], r"no vector of any token"),
    ],
)
def test_malformed_word_vectors_are_refused_with_line(tmp_path, lines, message):
    with pytest.raises(UserError, match=message):
        read_word_vectors(write(tmp_path / "v", *lines), {"the"}, width=3)
