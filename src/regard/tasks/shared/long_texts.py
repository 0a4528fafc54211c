"""Texts that are longer than a model takes: refused, truncated, or split into parts that fit."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.tasks.base import Run

TooLong = Literal["error", "truncate", "split"]
SENTENCE_ENDS = (".", "!", "?", "…", ":", ";", "。", "！", "？")
CLOSING = "\"'”’»“)]"
"""Quotation marks and brackets that may follow the end of a sentence."""


def fitting_parts(run: "Run", texts: Sequence[str], too_long: TooLong | None = None, *, place: int = 0) -> list[list[list[int]]]:
    """Tokenize texts; return the parts of each that the model is to read: one, or several of a text that is split.

    Without `too_long`, a text that does not fit is treated as the recipe's `data.too_long` says; there, "drop" truncates. `place`
    is the index of the first text, for the message.
    """
    if too_long not in (None, *get_args(TooLong)):
        raise UserError(f"too_long = {too_long!r}: choose from {', '.join(get_args(TooLong))}")
    if too_long == "split" and run.task.name == "text-to-text":
        raise UserError("too_long = 'split': only the first part would have the prefix of the task; choose truncate")
    treatment = too_long or ("error" if run.recipe.data.too_long == "error" else "truncate")
    limit = run.recipe.model.max_length - run._special_tokens.num_added
    found = []
    for number, (text, (ids, words)) in enumerate(zip(texts, run.tokenizers[0].encode_words(texts)), start=place + 1):
        if len(ids) > limit and treatment == "error":
            raise UserError(
                f"line {number} has {len(ids) + run._special_tokens.num_added} tokens, the model takes "
                f"{run.recipe.model.max_length}; split the sentence, or translate with --too-long truncate or split "
                "(in Python: too_long=…)"
            )
        found.append(split_tokens(text, ids, words, limit) if treatment == "split" else [ids[:limit]])
    return found


def split_tokens(text: str, ids: Sequence[int], words: Sequence[int], limit: int) -> list[list[int]]:
    """Split the tokens of a text into parts of at most `limit`: after the last sentence that fits, else the last word.

    `words` has the index of the word that each token belongs to. Joined, the parts are the tokens again.
    """
    spelled = text.split()
    new_word = [i for i in range(1, len(ids)) if words[i] != words[i - 1]]
    new_sentence = [i for i in new_word if spelled[words[i - 1]].rstrip(CLOSING).endswith(SENTENCE_ENDS)]
    parts, start = [], 0
    while len(ids) - start > limit:
        end = last_within(new_sentence, start, limit) or last_within(new_word, start, limit) or start + limit
        parts.append(list(ids[start:end]))
        start = end
    return [*parts, list(ids[start:])]


def last_within(places: Sequence[int], start: int, limit: int) -> int | None:
    """Return the last of some sorted places that is after `start` and at most `limit` further."""
    index = bisect_right(places, start + limit)
    return places[index - 1] if index and places[index - 1] > start else None
