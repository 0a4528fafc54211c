"""Starter recipes for a user's own data, with settings that suit its size (`regard new`)."""

from collections.abc import Callable, Sequence
from pathlib import Path

from regard.errors import UserError
from regard.tasks.starters import image_starters, text_starters
from regard.tasks.starters.image_starters import image_classification_recipe

__all__ = ["STARTERS", "image_classification_recipe", "starter_recipe"]

STARTERS: dict[str, Callable[[Sequence[Path]], str]] = {
    "translate": text_starters.translate_recipe,
    "text-to-text": text_starters.text_to_text_recipe,
    "language": text_starters.language_recipe,
    "masked": text_starters.masked_recipe,
    "classify": text_starters.classify_recipe,
    "tag": text_starters.tag_recipe,
    "answer": text_starters.answer_recipe,
    "caption": image_starters.caption_recipe,
    "contrastive": image_starters.contrastive_recipe,
    "image-codes": image_starters.image_codes_recipe,
    "text-to-image": image_starters.text_to_image_recipe,
}


def starter_recipe(task: str, files: Sequence[Path]) -> str:
    """Return a commented TOML recipe of a task for these data files."""
    if task not in STARTERS:
        raise UserError(f"no task {task!r}; choose from: {', '.join(STARTERS)}")
    return STARTERS[task](files)
