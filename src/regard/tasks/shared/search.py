"""How a run searches for an output: its recipe's settings and what the caller asks for."""

from typing import TypedDict

from pydantic import ValidationError

from regard.decoding.batching import SearchParams
from regard.decoding.sampling import SamplingParams
from regard.errors import UserError
from regard.recipe import DecodeSettings
from regard.tasks.shared.long_texts import TooLong


class SearchOptions(TypedDict, total=False):
    """How to search. What is not given, or None, is as in the recipe."""

    beam: int | None
    length_penalty: float | None
    max_tokens: int | None
    temperature: float | None
    """Sample instead of searching; `top_k`, `top_p` and `seed` are for sampling."""
    top_k: int
    top_p: float
    seed: int


class TranslateOptions(SearchOptions, total=False):
    """How to search for translations."""

    too_long: TooLong | None
    """What happens to texts that are longer than the model takes."""
    place: int
    """The index of the first text among all that are translated, for sampling and for messages."""


def search_params(
    settings: DecodeSettings,
    number: int | None = None,
    *,
    beam: int | None = None,
    length_penalty: float | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
) -> SearchParams:
    """Return how to search for `number` outputs per input: the recipe's settings, overridden by what the caller gave.

    A temperature samples instead.
    """
    number = 1 if number is None else number
    given = {"beam": beam, "length_penalty": length_penalty, "max_tokens": max_tokens}
    changed = {name: value for name, value in given.items() if value is not None}
    try:
        settings = settings.model_validate({**settings.model_dump(), **changed}) if changed else settings
    except ValidationError as error:
        problem = error.errors()[0]
        raise UserError(f"{problem['loc'][0]} = {problem['input']}: {problem['msg'].lower()}") from None
    if number < 1:
        raise UserError(f"number = {number}: must be at least 1")
    if number > settings.beam and temperature is None:
        raise UserError(f"{number} outputs asked for, but beam is {settings.beam}; set --beam {number}")
    sampling = None if temperature is None else SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    return SearchParams(**settings.model_dump(), num_hypotheses=number, sampling=sampling)
