"""Text files to examples: plain, labelled and tagged text, and parallel text (two aligned files, or one table); and the
text files of word vectors, word2vec (Mikolov et al. 2013) and GloVe (Pennington et al. 2014)."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from regard.corpus.examples import LabelledTexts, SentencePairs, TaggedSentences, TextLines
from regard.corpus.lines import iterate_lines, read_lines
from regard.corpus.table import TABLE_KINDS, Row, file_kind, is_natural_number, table_rows
from regard.errors import UserError


def read_text(files: Sequence[Path], *, column: int | str | None = None, keep_empty: bool = False) -> TextLines:
    """Read the lines of plain text files, or a column of tables, one file after another; empty lines only with `keep_empty`."""
    found = TextLines([], name=", ".join(map(str, files)))
    for path in files:
        for number, line in _text_lines(path, column):
            if keep_empty or line.strip():
                found.text.append(line if keep_empty else line.strip())
                found.lines.append(number)
    if not any(line.strip() for line in found.text):
        raise UserError(f"{found.name} has no text")
    return found


def _text_lines(path: Path, column: int | str | None) -> Iterable[tuple[int, str]]:
    if column is None:
        if file_kind(path) in TABLE_KINDS and file_kind(path) != ".tsv":
            raise UserError(f"{path} is a table; name the column of the text: data.column")
        return enumerate(iterate_lines(path), start=1)
    return ((number, cells[0]) for number, cells in table_rows(path, [column], "data.column"))


def read_labelled(
    files: Sequence[Path], *, text: int | str = 0, text_pair: int | str | None = None, label: int | str = 1
) -> LabelledTexts:
    """Read texts, or pairs of them, with their labels from tables."""
    found = LabelledTexts([], [], name=", ".join(map(str, files)))
    columns = {"data.text": text, "data.text_pair": text_pair, "data.label": label}
    chosen = {setting: column for setting, column in columns.items() if column is not None}
    for path in files:
        for line, cells in table_rows(path, list(chosen.values()), ", ".join(chosen)):
            *words, name = (cell.strip() for cell in cells)
            if not name or not all(words):
                raise UserError(f"{path}:{line} has an empty {'text' if name else 'label'}; remove the line or fill it in")
            found.text.append(words[0])
            found.text_pair += words[1:]
            found.label.append(name)
            found.lines.append(line)
    if not found.text:
        raise UserError(f"{found.name} has no labelled texts")
    return found


def read_tagged(files: Sequence[Path], *, word: int = 0, tag: int = -1) -> TaggedSentences:
    """Read sentences in CoNLL format: one word and its tag per line, in columns; an empty line between sentences; # starts a
    comment before a sentence."""
    found = TaggedSentences([], [], name=", ".join(map(str, files)))
    for path in files:
        _add_sentences(found, path, enumerate([*iterate_lines(path), ""], start=1), word, tag)
    if not found.words:
        raise UserError(f"{found.name} has no tagged sentences")
    return found


def _add_sentences(found: TaggedSentences, path: Path, lines: Iterable[tuple[int, str]], word: int, tag: int) -> None:
    words: list[str] = []
    tags: list[str] = []
    for number, line in lines:
        if not line.strip():
            if words:
                found.words.append(words)
                found.tags.append(tags)
                found.lines.append(number - len(words))
            words, tags = [], []
            continue
        if line.startswith("#") and not words and "\t" not in line:
            continue
        cells = line.split("\t") if "\t" in line else line.split()
        if len(cells) <= max(word, tag, 1 if tag < 0 else 0) or not cells[word].strip() or not cells[tag].strip():
            raise UserError(
                f"{path}:{number} has {len(cells)} columns; a word (data.word = {word}) and its tag (data.tag = {tag}) "
                "are needed, separated by a tab"
            )
        words.append("".join(cells[word].split()))
        tags.append(cells[tag].strip())


def read_pairs(
    files: Sequence[Path], *, columns: Sequence[int | str] = (0, 1), fields: Sequence[str] = ("source", "target")
) -> SentencePairs:
    """Read pairs from two aligned files (source, target) or a table, or from several of them, one after another; skip pairs
    that are empty on both sides.

    Of more than two columns, the last is the target, and the source is the others joined by tabs.
    """
    parts = [_collect_pairs(_pair_rows(group, columns, fields), group) for group in _pair_groups(files, len(columns))]
    if len(parts) == 1:
        return parts[0]
    joined = SentencePairs([], [], name=", ".join(map(str, files)))
    for part in parts:
        joined.source += part.source
        joined.target += part.target
        joined.lines += part.lines
    return joined


def _pair_groups(files: Sequence[Path], columns: int) -> Iterator[Sequence[Path]]:
    """Yield the files of each source of pairs: a table alone, two aligned files together. Two files alone are always aligned."""
    rest = list(files)
    while rest:
        is_table = columns > 2 or (len(files) != 2 and file_kind(rest[0]) in TABLE_KINDS)
        number = 1 if is_table else 2
        yield rest[:number]
        rest = rest[number:]


def _pair_rows(files: Sequence[Path], columns: Sequence[int | str], fields: Sequence[str]) -> Iterable[Row]:
    """Return the rows of one table, or of two aligned files."""
    if len(files) == 2:
        return _aligned_rows(*files)
    if len(columns) > 2:
        return table_rows(files[0], columns, "columns")
    if file_kind(files[0]) == ".jsonl":
        return table_rows(files[0], fields, "data.fields")
    if file_kind(files[0]) in TABLE_KINDS:
        return table_rows(files[0], columns, "data.columns")
    raise UserError(f"{files[0]}: give two aligned files (source, target), or one table: {', '.join(TABLE_KINDS)}")


def _collect_pairs(rows: Iterable[Row], files: Sequence[Path]) -> SentencePairs:
    pairs = SentencePairs([], [], name=str(files[0]))
    for line, cells in rows:
        *sources, target = (cell.strip() for cell in cells)
        if any((*sources, target)) and not all((*sources, target)):
            side = "source" if target else "target"
            raise UserError(f"{files[0]}:{line} has an empty {side} side; remove the pair, or check that the lines are aligned")
        if target:
            pairs.source.append("\t".join(text.replace("\t", " ") for text in sources) if len(sources) > 1 else sources[0])
            pairs.target.append(target)
            pairs.lines.append(line)
    if not pairs.source:
        raise UserError(f"{files[0]} has no sentence pairs")
    return pairs


def _aligned_rows(source: Path, target: Path) -> Iterator[Row]:
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise UserError(
            f"{source} has {len(sources):,} lines but {target} has {len(targets):,}; "
            "line n of one must translate line n of the other"
        )
    return ((number, [s, t]) for number, (s, t) in enumerate(zip(sources, targets), start=1))


def read_word_vectors(path: Path, words: set[str], *, width: int) -> dict[str, np.ndarray]:
    """Read the vectors of these words that the file has. A line is a word and its numbers; word2vec files start with the
    number of words and the width."""
    found: dict[str, np.ndarray] = {}
    for number, line in enumerate(iterate_lines(path), start=1):
        cells = line.rstrip().split(" ")
        if number == 1 and len(cells) == 2 and all(map(is_natural_number, cells)):
            _require_width(path, number, int(cells[1]), width)
            continue
        if not line.strip():
            continue
        _require_width(path, number, len(cells) - 1, width)
        if cells[0] in words:
            try:
                found[cells[0]] = np.array(cells[1:], dtype=np.float32)
            except ValueError:
                raise UserError(f"{path}:{number} is not a word and {width} numbers; remove the line") from None
    if not found:
        raise UserError(
            f"{path} has no vector of any token of the vocabulary; vectors need tokens.kind = 'words', "
            "and tokens.lowercase = true if they are of lower-cased words"
        )
    return found


def _require_width(path: Path, line: int, found: int, expected: int) -> None:
    if found != expected:
        raise UserError(
            f"{path}:{line} has {found} numbers, the model's embeddings have {expected}; set model.embedding_width = {found}"
        )
