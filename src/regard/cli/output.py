"""The output of verbs: JSON, texts, tables."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.scoring import Confusion
    from regard.tasks.language import GeneratedText, TextStream
    from regard.tasks.task import EvaluationResult
    from regard.tasks.translate import Translation

CLASS_ROWS, ERROR_ROWS, MATRIX_WIDTH = 20, 10, 100
"""How many classes and errors are printed, and the characters of a confusion matrix that is printed whole."""


def print_json(**values: object) -> None:
    """Print one JSON object on a line."""
    print(json.dumps(values, ensure_ascii=False))


def print_item(as_json: bool, shown: str, **values: object) -> None:
    """Print a result: as one JSON object on a line, or as it is shown to a person."""
    print(json.dumps(values, ensure_ascii=False) if as_json else shown)


def print_texts(texts: "Sequence[GeneratedText | Translation]", as_json: bool) -> None:
    """Print generated texts, one per line."""
    for found in texts:
        print_item(as_json, found.text, text=found.text, score=round(found.score, 6))
    sys.stdout.flush()


def print_stream(stream: "TextStream", as_json: bool) -> None:
    """Print a text while it is generated, and always end with a newline."""
    if as_json:
        for piece in stream:
            print_json(piece=piece)
            sys.stdout.flush()
        print_texts([stream.result], as_json)
        return
    print(stream.prompt, end="", flush=True)
    try:
        for piece in stream:
            print(piece, end="", flush=True)
    finally:
        print(flush=True)


def print_results(results: "list[EvaluationResult]") -> None:
    """Print the scores of every test set as a table, with its notes."""
    for result in results:
        rows = []
        for metric, score in result.scores.items():
            digits = 3 if score.score < 10 and metric != "ter" else 1
            interval = f"{score.low:.{digits}f} – {score.high:.{digits}f}"
            signature = score.signature.partition("|beam:")[0]
            rows.append([metric.replace("_", " "), f"{score.score:.{digits}f}", interval, signature])
        print_table(f"{result.name} ({len(result.examples):,} examples)", ["metric", "score", "95% interval", "signature"], rows)
        for note in result.notes:
            print(note)
        if result.confusion is not None:
            print_confusion(result.name, result.confusion)


def print_confusion(name: str, confusion: "Confusion") -> None:
    """Print the scores of every class, or of those with the lowest F1; and the confusion matrix, or if it is too wide the most
    frequent errors."""
    classes = confusion.per_class()
    shown = classes if len(classes) <= CLASS_ROWS else sorted(classes, key=lambda one: one.f1)[:CLASS_ROWS]
    which = "classes" if shown is classes else f"the {CLASS_ROWS} classes of {len(classes):,} with the lowest F1"
    rows = [[one.label, *(f"{value:.1f}" for value in (one.precision, one.recall, one.f1)), f"{one.support:,}"] for one in shown]
    print_table(f"{name}: {which}", ["class", "precision", "recall", "F1", "examples"], rows)
    matrix = [[label, *(f"{count:,}" for count in counts)] for label, counts in zip(confusion.labels, confusion.counts.tolist())]
    header = ["", *confusion.labels]
    if sum(max(len(row[i]) for row in [header, *matrix]) + 2 for i in range(len(header))) <= MATRIX_WIDTH:
        print_table(f"{name}: classes (rows) as predicted (columns)", header, matrix)
    elif errors := [[gold, predicted, f"{count:,}"] for gold, predicted, count in confusion.most_confused(ERROR_ROWS)]:
        print_table(f"{name}: the most frequent errors", ["class", "predicted", "examples"], errors)


def print_table(title: str, header: list[str], rows: list[list[str]]) -> None:
    """Print a plain table, the same on a terminal and in a pipe."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    print(f"\n{title}")
    for row in [header, *rows]:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
