"""Text in one language: plain, labelled, tagged."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from regard.corpus.examples import LabelledTexts, TaggedSentences, TextLines
from regard.corpus.lines import iterate_lines
from regard.corpus.table import table_rows
from regard.errors import UserError


def read_text(files: Sequence[Path], *, column: int | str | None = None, keep_empty: bool = False) -> TextLines:
    """The lines of plain text files, or a column of .tsv or .jsonl files, one file after another; empty ones only where they
    belong to the text."""
    found = TextLines([], ", ".join(map(str, files)))
    for path in files:
        for number, line in text_lines(path, column):
            if keep_empty or line.strip():
                found.text.append(line if keep_empty else line.strip())
                found.lines.append(number)
    if not any(line.strip() for line in found.text):
        raise UserError(f"{found.name} has no text")
    return found


def text_lines(path: Path, column: int | str | None) -> Iterable[tuple[int, str]]:
    if column is None:
        return enumerate(iterate_lines(path), start=1)
    return ((number, cells[0]) for number, cells in table_rows(path, [column], "data.column"))


def read_labelled(
    files: Sequence[Path], *, text: int | str = 0, text_pair: int | str | None = None, label: int | str = 1
) -> LabelledTexts:
    """Texts, or pairs of them, with their labels from .tsv or .jsonl files."""
    found = LabelledTexts([], [], ", ".join(map(str, files)))
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
    """Sentences as CoNLL has them: a word and its tag a line, in columns; an empty line between sentences; # begins a comment
    before a sentence."""
    found = TaggedSentences([], [], ", ".join(map(str, files)))
    for path in files:
        add_sentences(found, path, enumerate([*iterate_lines(path), ""], start=1), word, tag)
    if not found.words:
        raise UserError(f"{found.name} has no tagged sentences")
    return found


def add_sentences(found: TaggedSentences, path: Path, lines: Iterable[tuple[int, str]], word: int, tag: int) -> None:
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
