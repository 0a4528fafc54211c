"""One input or several: a string is one text, a list is several; one in, one out."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
from PIL import Image

from regard.corpus.examples import ImageFile
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.tasks.shared.images import ImageInput

Result = TypeVar("Result")


def is_one(given: object) -> bool:
    """Whether this is one text or image, and not several of them."""
    return isinstance(given, str | Path | ImageFile | Image.Image) or (isinstance(given, np.ndarray) and given.ndim == 3)


@overload
def as_several(given: str | Iterable[str]) -> list[str]: ...
@overload
def as_several(given: "ImageInput | Iterable[ImageInput]") -> "list[ImageInput]": ...
def as_several(given: Any) -> Any:
    """Return one input or several as a list."""
    if is_one(given):
        return [given]
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise UserError(f"{given!r} is neither a text nor an image nor a list of them")
    found = list(given)
    for number, one in enumerate(found, start=1):
        if not is_one(one):
            raise UserError(f"item {number} of the list, {one!r}, is neither a text nor an image")
    return found


@overload
def one_or_many(given: str | Iterable[str], process: Callable[[list[str]], list[Result]]) -> Result | list[Result]: ...
@overload
def one_or_many(
    given: "ImageInput | Iterable[ImageInput]", process: "Callable[[list[ImageInput]], list[Result]]"
) -> Result | list[Result]: ...
def one_or_many(given: Any, process: Callable[[list[Any]], list[Result]]) -> Result | list[Result]:
    """Return the result of one input, or the list of results of several."""
    results = process(as_several(given))
    return results[0] if is_one(given) else results


@overload
def best_or_ranked(
    given: str | Iterable[str], number: int | None, search: Callable[[list[str]], list[list[Result]]]
) -> Result | list[Result] | list[list[Result]]: ...
@overload
def best_or_ranked(
    given: "ImageInput | Iterable[ImageInput]", number: int | None, search: "Callable[[list[ImageInput]], list[list[Result]]]"
) -> Result | list[Result] | list[list[Result]]: ...
def best_or_ranked(
    given: Any, number: int | None, search: Callable[[list[Any]], list[list[Result]]]
) -> Result | list[Result] | list[list[Result]]:
    """Return the best result of one input or of each of several; with a `number`, the list of results of each instead."""
    found = search(as_several(given))
    results: list[Any] = [best[0] for best in found] if number is None else found
    return results[0] if is_one(given) else results
