"""Starter recipes for single texts: language models, classification, regression, tagging, questions."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from regard.corpus.examples import Examples, TextLines
from regard.corpus.questions import read_questions
from regard.corpus.table import TABLE_KINDS, file_kind
from regard.corpus.text_files import read_labelled, read_tagged, read_text
from regard.errors import UserError
from regard.tasks.starters.columns import (
    MANY_NUMBERS,
    MAX_LABEL_WORDS,
    TextColumns,
    find_labelled,
    find_text,
    is_number,
    read_table,
)
from regard.tasks.starters.data_files import file_settings, held_out_size, longest_text, setting_line, text_lengths, toml_value
from regard.tasks.starters.starter import Starter, StarterOptions, round_steps

# (examples up to, epochs, tokens per batch, width, dropout)
TEXT_SIZES = [(2_000, 20, 2048, 128, 0.4), (50_000, 10, 4096, 256, 0.3), (float("inf"), 5, 8192, 512, 0.1)]
WIDTHS = (512, 256, 128)
STREAM_LENGTH = 256
EMPTY_FRACTION, WRAPPED_FRACTION, PARAGRAPH_WORDS = 0.02, 0.2, 60
"""Running text has empty lines between paragraphs, lines that the next one continues, or whole paragraphs as lines."""
MAX_SHOWN_LABELS = 4


def plain_recipe(task: str, title: str, *, stream: bool = False, template: str = "text") -> Callable[..., Starter]:
    """Return the starter of a task that reads plain text, or the text column of tables."""

    def starter(files: Sequence[Path], options: StarterOptions) -> Starter:
        settings, understood = [], f"{_names(_required(files))} has one text per line"
        if file_kind(files[0]) in TABLE_KINDS and (len(table := read_table(files[0])) > 1 or file_kind(files[0]) != ".tsv"):
            column = find_text(table, options)
            examples = read_text(files, column=column.name)
            settings = [setting_line(f"column = {toml_value(column.name)}", "the column of the text")]
            understood = f"{_names(files)}: {column} is the text; choose another with --text"
        else:
            examples = read_text(files, keep_empty=True)
            if stream and (options.stream if options.stream is not None else is_running_text(examples)):
                return _stream_starter(task, title, files, examples)
            examples = read_text(files)
            understood += "; if it is running text: --stream" if stream else ""
        settings += [setting_line('too_long = "split"', 'lines of more than model.max_length tokens; or "drop", "truncate"')]
        return _text_starter(task, title, files, examples, settings, [understood], template=template)

    return starter


def is_running_text(lines: TextLines) -> bool:
    """Return whether lines are parts of one text: empty lines between paragraphs, lines that continue, or whole paragraphs."""
    filled = [line for line in lines.text if line.strip()]
    words = sum(len(line.split()) for line in filled) / len(filled)
    wrapped = sum(one.rstrip()[-1:] not in ".!?\"'" and other[:1].islower() for one, other in itertools.pairwise(filled))
    empty = len(lines.text) - len(filled)
    continues = wrapped >= WRAPPED_FRACTION * len(filled) and words > MAX_LABEL_WORDS
    return empty >= EMPTY_FRACTION * len(lines.text) or continues or words >= PARAGRAPH_WORDS


def _stream_starter(task: str, title: str, files: Sequence[Path], lines: TextLines) -> Starter:
    """Return the starter of running text, of which the last lines are held out."""
    held_out = max(1, len(lines) // 20)
    settings = [setting_line("stream = true", "running text, read in windows of model.max_length tokens")]
    understood = f"{_names(files)} is running text, read as one stream; if every line is a text of its own: --lines"
    found = _text_starter(task, title, files, lines, settings, [understood])
    windows = max(1, round(text_lengths(lines.text).total / STREAM_LENGTH))
    steps, tokens, _ = _text_size(windows, text_lengths(lines.text).total)
    values = {**found.values, "held_out": held_out, "tokens": tokens, "max_length": STREAM_LENGTH}
    return replace(found, values=values, steps=steps, lengths=(STREAM_LENGTH, STREAM_LENGTH))


language_recipe = plain_recipe("language", "Language modelling", stream=True)
masked_recipe = plain_recipe("masked", "Masked language modelling")
span_corruption_recipe = plain_recipe("span-corruption", "Span corruption", template="span-corruption")


def tag_recipe(files: Sequence[Path], options: StarterOptions) -> Starter:
    """Return a recipe for sentences in CoNLL format."""
    examples = read_tagged(_required(files))
    understood = f"{_names(files)}: the first column is the word, the last its tag; {len(examples.labels()):,} tags"
    return _text_starter("tag", "Tagging of words", files, examples, [], [understood])


def labelled_recipe(task: str, title: str) -> Callable[[Sequence[Path], StarterOptions], Starter]:
    """Return the starter of texts, or pairs of texts, with labels or numbers."""

    def starter(files: Sequence[Path], options: StarterOptions) -> Starter:
        found = find_labelled(read_table(_required(files)[0]), options, numbers=task == "regress")
        assert found.label is not None
        columns = {"text": found.text, "text_pair": found.text_pair, "label": found.label}
        names = {role: column.name for role, column in columns.items() if column is not None}
        examples = read_labelled(files, **names)
        settings = [
            setting_line(f"{role} = {toml_value(name)}", "a column's number from 0, or its name") for role, name in names.items()
        ]
        described = [*_describe_labelled(task, files, found, Counter(examples.label))]
        return _text_starter(task, title, files, examples, settings, described)

    return starter


def _describe_labelled(task: str, files: Sequence[Path], found: TextColumns, labels: Counter[str]) -> list[str]:
    """Return what was understood of a table of labelled texts, and how to correct it."""
    texts = f"{found.text} is the text" if found.text_pair is None else f"{found.text} and {found.text_pair} are the texts"
    if task == "regress":
        lowest, highest = (choose(map(float, labels)) for choose in (min, max))
        label = f"{found.label} is the number, from {lowest:g} to {highest:g}"
    else:
        shown = ", ".join(f"{name} {count / labels.total():.0%}" for name, count in labels.most_common(MAX_SHOWN_LABELS))
        label = f"{found.label} is the label: {len(labels):,} labels ({shown}{', …' if len(labels) > MAX_SHOWN_LABELS else ''})"
    lines = [f"{_names(files)}: {texts}, {label}", "wrong? name the columns, or count them from 0: --text, --text-pair, --label"]
    if task == "classify" and len(labels) > MANY_NUMBERS and all(map(is_number, labels)):
        lines.append("the labels are numbers; to predict numbers instead: regard new regress")
    return lines


classify_recipe = labelled_recipe("classify", "Text classification")
regress_recipe = labelled_recipe("regress", "Regression")


def answer_recipe(files: Sequence[Path], options: StarterOptions) -> Starter:
    """Return a recipe for questions in SQuAD's format; whether some have no answer is read from the data."""
    questions = read_questions(_required(files))
    unanswered = sum(not answers for answers in questions.answers)
    settings = [
        setting_line(f"unanswerable = {toml_value(unanswered > 0)}", "whether some questions have no answer in their context"),
        setting_line("stride = 128", "tokens between two windows of a long context"),
    ]
    understood = f"{_names(files)}: {len(questions):,} questions, {unanswered:,} without an answer"
    return _text_starter("answer", "Question answering", files, questions, settings, [understood])


def _required(files: Sequence[Path]) -> Sequence[Path]:
    if not files:
        raise UserError("name your data: --data F")
    return files


def _names(files: Sequence[Path]) -> str:
    return ", ".join(map(str, files))


def _text_size(examples: int, total_tokens: float) -> tuple[int, int, int]:
    """Return the steps, the tokens per batch and the row of TEXT_SIZES that suit a number of examples."""
    row = next(i for i, (most, *_) in enumerate(TEXT_SIZES) if examples <= most)
    _, epochs, tokens, *_ = TEXT_SIZES[row]
    return round_steps(epochs * total_tokens / tokens), tokens, row


def _text_starter(
    task: str,
    title: str,
    files: Sequence[Path],
    examples: Examples,
    data_settings: Sequence[str],
    understood: Sequence[str],
    *,
    template: str = "text",
) -> Starter:
    """Return the starter of a model of single texts; with smaller widths it costs less."""
    texts = examples.texts()[0]
    lengths = text_lengths(examples.keys() if template == "text" and len(examples) == len(examples.keys()) else texts)
    steps, tokens, row = _text_size(len(examples), lengths.total)
    *_, width, dropout = TEXT_SIZES[row]
    widths = [one for one in WIDTHS if one <= width]
    presets = {512: "t5-small", 256: "t5-tiny", 128: "t5-tiny"}
    values = {
        **file_settings(files),
        "task": task,
        "title": title,
        "examples": f"{len(examples):,}",
        "held_out": held_out_size(examples),
        "data_settings": "\n".join(data_settings),
        "vocabulary": min(8000, max(500, sum(map(len, texts)) // 100)),
        "shape": "" if task == "language" else setting_line('preset = "bert-mini"', "BERT's shape, which transformers opens"),
        "longest": longest_text(texts),
        "max_length": lengths.max_length,
        "tokens": tokens,
        "dropout": dropout,
    }
    sizes = [{"width": one, "feed_forward": 4 * one, "preset": presets[one]} for one in widths]
    per_epoch = lengths.total / tokens
    typical = (lengths.typical, lengths.typical)
    return Starter(template, values, steps, per_epoch, typical, sizes, [f"{len(examples):,} examples", *understood])
