"""Questions with contexts and answer spans: SQuAD's JSON, 1.1 and 2.0 (Rajpurkar et al. 2016, 2018), or one object per line.
Offsets are counted in characters (code points) from 0."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from regard.corpus.examples import QuestionExamples
from regard.corpus.lines import MAX_JSON_BYTES, iterate_lines
from regard.corpus.table import file_kind, require_unicode
from regard.errors import UserError

MAX_SHOWN = 40


def read_questions(files: Sequence[Path], *, unanswerable: bool = True) -> QuestionExamples:
    """Read questions from .json files in SQuAD's format and .jsonl files; without an answer only if `unanswerable`."""
    found = QuestionExamples([], [], [], name=", ".join(map(str, files)))
    known: dict[str, str] = {}  # a context is stored once, however many questions it has
    for path in files:
        kind = file_kind(path)
        if kind not in (".json", ".jsonl"):
            raise UserError(f"{path}: questions come as SQuAD's .json or as .jsonl (.gz and .xz too)")
        for place, context, item in _squad_items(path) if kind == ".json" else _flat_items(path):
            question, spans = _text_at(item, "question", place).strip(), _answer_spans(item, context, place)
            if not spans and not unanswerable:
                raise UserError(f"{place} has no answer; set data.unanswerable = true, or leave out such questions")
            found.question.append(question)
            found.context.append(known.setdefault(context, context))
            found.answers.append(spans)
            found.places.append(place)
    if not found.question:
        raise UserError(f"{found.name} has no questions")
    return found


def _squad_items(path: Path) -> Iterator[tuple[str, str, Any]]:
    """Yield the location of each question, its context, and its object."""
    whole = _parse_json("\n".join(iterate_lines(path, max_bytes=MAX_JSON_BYTES)), str(path), "; one object per line is .jsonl")
    for a, article in enumerate(_require_key(whole, "data", list, str(path))):
        for p, paragraph in enumerate(_require_key(article, "paragraphs", list, f"{path} data[{a}]")):
            place = f"{path} data[{a}].paragraphs[{p}]"
            context = _text_at(paragraph, "context", place)
            for q, item in enumerate(_require_key(paragraph, "qas", list, place)):
                name = item.get("id") if isinstance(item, dict) else None
                yield f"{path} question {name}" if isinstance(name, str | int) else f"{place}.qas[{q}]", context, item


def _flat_items(path: Path) -> Iterator[tuple[str, str, Any]]:
    for number, line in enumerate(iterate_lines(path), start=1):
        if line.strip():
            item = _parse_json(line, f"{path}:{number}")
            yield f"{path}:{number}", _text_at(item, "context", f"{path}:{number}"), item


def _parse_json(text: str, place: str, cure: str = "") -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place} is not JSON: {error}{cure}") from None


def _require_key(item: Any, key: str, kind: type, place: str) -> Any:
    if not isinstance(item, dict) or not isinstance(item.get(key), kind):
        raise UserError(f"{place} lacks {key!r}, which should be a {'text' if kind is str else 'list'}")
    return item[key]


def _text_at(item: Any, key: str, place: str) -> str:
    text: str = _require_key(item, key, str, place)
    if not text.strip():
        raise UserError(f"{place} has an empty {key!r}; fill it in or leave it out")
    return require_unicode(text, place, key)


def _answer_spans(item: dict[str, Any], context: str, place: str) -> list[tuple[int, int]]:
    """Return the spans of the answers; none if the question is unanswerable."""
    impossible = item.get("is_impossible") is True
    given = item.get("answers", [] if impossible else None)
    if isinstance(given, dict) and all(isinstance(given.get(key), list) for key in ("text", "answer_start")):
        given = [dict(zip(("text", "answer_start"), pair)) for pair in zip(given["text"], given["answer_start"])]  # by columns
    if not isinstance(given, list):
        raise UserError(f"{place} lacks 'answers', which should be a list; an empty one means that there is no answer")
    if impossible and given:
        raise UserError(f"{place} is marked impossible but has answers; remove one of the two")
    return list(dict.fromkeys(_answer_span(answer, context, place) for answer in given))


def _answer_span(answer: Any, context: str, place: str) -> tuple[int, int]:
    text = _text_at(answer, "text", f"{place}, an answer,")
    key = "answer_start" if "answer_start" in answer else "start"
    start = answer.get(key)
    if isinstance(start, bool) or not isinstance(start, int):
        raise UserError(f"{place}: the answer {_quoted(text)} lacks 'answer_start' (or 'start'), an integer")
    if start < 0 or context[start : start + len(text)] != text:
        there = (
            f"which reads {_quoted(context[start : start + len(text)])}" if 0 <= start < len(context) else "outside the context"
        )
        where = [i for i in range(len(context)) if context.startswith(text, i)][:3]
        cure = f"it is at {', '.join(map(str, where))}" if where else "the context does not have it"
        raise UserError(f"{place}: the answer {_quoted(text)} should be at {key} = {start}, {there}; {cure} (characters, from 0)")
    return start, start + len(text)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…")
