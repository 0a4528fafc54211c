"""The output of verbs: JSON, texts, tables."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.tasks.base import EvaluationResult
    from regard.tasks.language import GeneratedText, TextStream
    from regard.tasks.translate import Translation


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


def print_table(title: str, header: list[str], rows: list[list[str]]) -> None:
    """Print a plain table, the same on a terminal and in a pipe."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    print(f"\n{title}")
    for row in [header, *rows]:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
