"""Inputs that suit a model, from its validation set: what the page opens with, and what it searches for heads."""

from collections.abc import Sequence

from regard.corpus.examples import Examples, ImageExamples, LabelledTexts, QuestionExamples, TaskMixture
from regard.errors import UserError
from regard.server.render import png_base64
from regard.server.request_types import MAX_TEXT_LENGTH
from regard.server.response_types import ExamplesResponse
from regard.tasks.base import Run

MAX_LENGTH = 300
"""Characters of an example."""
PRONOUN = "it"


def find_examples(name: str, run: Run, number: int) -> ExamplesResponse:
    """Return the first inputs of a model's validation set, a sentence of medium length first; none if the data is not here."""
    try:
        valid: Examples | TaskMixture = run.data.valid
    except (UserError, OSError):  # a Hugging Face folder, or a run whose data is on another machine
        return ExamplesResponse(model=name)
    if isinstance(valid, ImageExamples):
        labels = [captions[0] for captions in valid.captions[:number]] or sorted(set(valid.label))[:number]
        images = [png_base64(pixels) for pixels in run._images.decode(valid.images[:1])] if "image" in run.task.reads else []
        return ExamplesResponse(model=name, images=images, labels=list(dict.fromkeys(labels)))
    if isinstance(valid, QuestionExamples):
        return ExamplesResponse(model=name, text=valid.context[:number], questions=valid.question[:number])
    texts = valid.keys() if isinstance(valid, LabelledTexts) else _input_texts(valid)
    return ExamplesResponse(model=name, text=best_first([text for text in texts if text.strip()][: 20 * number])[:number])


def _input_texts(valid: Examples | TaskMixture) -> Sequence[str]:
    return valid.texts()[0]


def best_first(texts: Sequence[str]) -> list[str]:
    """Return short texts, those of 7 to 14 words first, and of these one whose pronoun has to be resolved."""
    usable = [text for text in texts if len(text) <= MAX_LENGTH] or [text[:MAX_TEXT_LENGTH] for text in texts]

    def rank(text: str) -> tuple[bool, bool]:
        words = text.lower().split()
        return not 7 <= len(words) <= 14, PRONOUN not in words

    return sorted(usable, key=rank)
