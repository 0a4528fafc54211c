"""Starter recipes for images: classification, image–text matching (CLIP), captioning, discrete image codes, text to image."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.corpus.examples import ImageExamples
from regard.corpus.image_files import read_images
from regard.errors import UserError
from regard.tasks.starters.data_files import (
    detect_columns,
    detect_path_column,
    file_settings,
    held_out_size,
    longest_text,
    median_short_side,
    setting_line,
    toml_value,
)
from regard.tasks.starters.starter import Starter, StarterOptions, round_steps

# (short side up to, size, patch)
CLASSIFY_SIZES = [(40, 32, 4), (96, 64, 8), (160, 128, 16), (float("inf"), 224, 16)]
CONTRASTIVE_SIZES = [(40, 32, 4), (96, 64, 8), (160, 128, 16), (float("inf"), 224, 32)]
# (short side up to, size, pixels per code)
CODE_SIZES = [(40, 32, 4), (96, 64, 8), (float("inf"), 128, 8)]
# (images up to, epochs, layers, width)
CLASSIFY_MODELS = [(5_000, 200, 6, 192), (100_000, 200, 9, 384), (float("inf"), 90, 12, 384)]
# (images up to, epochs, layers, width, pairs per batch)
CONTRASTIVE_MODELS = [(2_000, 60, 4, 128, 64), (50_000, 30, 6, 256, 256), (float("inf"), 32, 12, 512, 1024)]
# (images up to, codebook size, width of the convolutions, steps)
CODE_MODELS = [(5_000, 256, 64, 5_000), (100_000, 1024, 128, 20_000), (float("inf"), 8192, 256, 100_000)]
# (images up to, layers, width, steps, dropout)
TEXT_TO_IMAGE_MODELS = [(5_000, 4, 256, 5_000, 0.2), (100_000, 8, 512, 30_000, 0.1), (float("inf"), 12, 768, 100_000, 0.0)]


def _look_up(rows: Sequence[tuple[Any, ...]], value: float) -> tuple[Any, ...]:
    """Return the values of the first row whose bound is at least `value`."""
    return next(row[1:] for row in rows if value <= row[0])


def _transformer(layers: int, width: int) -> dict[str, int]:
    return {"layers": layers, "width": width, "heads": width // 64, "feed_forward": 4 * width}


def _starter(
    template: str, number: int, steps: float, batch: int, values: dict[str, object], understood: str, *, can_be_timed: bool = True
) -> Starter:
    per_epoch, all_values = number / batch, {**values, "batch": batch}
    steps, lines = round_steps(steps, least=200), [f"{number:,} images", understood]
    return Starter(template, all_values, steps, per_epoch, understood=lines, can_be_timed=can_be_timed)


def image_classification_recipe(task: str, folder: Path) -> Starter:
    """Return a recipe for a folder with a subfolder for each label, or with such folders in train and valid."""
    if task != "classify":
        raise UserError(f"--images is for the task classify, not {task!r}")
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give one with a subfolder for each label")
    train = "train" if (folder / "train").is_dir() else "."
    images = read_images([folder / train], label=0)
    names = ("valid", "validation", "val", "dev") if train == "train" else ()
    valid = next((name for name in names if (folder / name).is_dir()), None)
    if valid:
        splits = [f"valid = [{toml_value(valid)}]"]
    else:
        splits = [
            setting_line(f"held_out = {held_out_size(images)}", "images held out for validation, and as many for testing;"),
            setting_line("", 'or give your own folders:  valid = ["valid"]  and  test.mine = ["test"]'),
        ]
    if train == "train" and (folder / "test").is_dir():
        splits.append('test.mine = ["test"]')
    size, patch = _look_up(CLASSIFY_SIZES, median_short_side(images))
    epochs, layers, width = _look_up(CLASSIFY_MODELS, len(images))
    batch = min(256, max(8, len(images) // 8))
    values = {
        **_transformer(layers, width),
        "examples": f"{len(images):,}",
        "root": toml_value(str(folder.resolve())),
        "train": train,
        "splits": "\n".join(splits),
        "size": size,
        "patch": patch,
        "grid": size // patch,
        "crop": max(1, size // 8),
    }
    understood = (
        f"{folder}: the folders {', '.join(images.labels()[:4])}{' …' if len(images.labels()) > 4 else ''} are the labels"
    )
    return _starter("classify-images", len(images), epochs * len(images) / batch, batch, values, understood)


def _read_captioned(files: Sequence[Path]) -> tuple[ImageExamples, dict[str, object], str]:
    """Return images with captions, the placeholders that describe them, and what was understood."""
    if not files:
        raise UserError("name your data: --data F, a .tsv or .jsonl of image paths and captions, or .tar shards")
    path, captions = detect_columns(files[0])
    images = read_images(files, captions=captions, path=path)
    texts = images.texts()[0]
    understood = (
        f"{files[0]}: column {path!r} is the path, {', '.join(map(repr, captions))} the captions; {len(texts):,} captions"
    )
    values: dict[str, object] = {
        **file_settings(files),
        "examples": f"{len(images):,}",
        "captions_count": f"{len(texts):,}",
        "path": toml_value(path),
        "captions": toml_value(captions),
        "held_out": held_out_size(images),
        "longest": longest_text(texts),
    }
    return images, values, understood


def contrastive_recipe(files: Sequence[Path], options: StarterOptions) -> Starter:
    """Return a CLIP recipe for a .tsv, a .jsonl, an index of concatenated images, or tar shards."""
    images, values, understood = _read_captioned(files)
    size, patch = _look_up(CONTRASTIVE_SIZES, median_short_side(images))
    epochs, layers, width, batch = _look_up(CONTRASTIVE_MODELS, len(images))
    batch = max(2, min(batch, len(images) // 4))
    values |= {
        **_transformer(layers, width),
        "size": size,
        "vocabulary": min(16_000, max(500, len(images) // 2)),
        "patch": patch,
        "grid": size // patch,
        "text_layers": max(2, layers // 2),
        "max_length": max(16, min(256, 3 * longest_text(images.texts()[0]))),
        "crop": max(1, size // 8),
    }
    return _starter("contrastive", len(images), epochs * len(images) / batch, batch, values, understood)


def caption_recipe(files: Sequence[Path], options: StarterOptions) -> Starter:
    """Return a captioning recipe for a .tsv, a .jsonl, an index of concatenated images, or tar shards."""
    images, values, understood = _read_captioned(files)
    texts = images.texts()[0]
    values |= {
        "vocabulary": min(8000, max(500, len(texts) // 4)),
        "max_length": max(24, 2 * longest_text(texts)),
        "evaluate_sentences": min(200, held_out_size(images)),
    }
    batch = min(64, max(8, len(images) // 8))
    return _starter("caption", len(images), max(500, 40 * len(images) // 64), batch, values, understood)


def image_codes_recipe(files: Sequence[Path], options: StarterOptions) -> Starter:
    """Return a recipe of discrete image codes for images in folders, tables or shards."""
    if not files:
        raise UserError("name your data: --data F, a folder of images, a .tsv or .jsonl with their paths, or .tar shards")
    path = detect_path_column(files[0])
    images = read_images(files, path=path)
    size, downsampling = _look_up(CODE_SIZES, median_short_side(images))
    codebook_size, width, steps = _look_up(CODE_MODELS, len(images))
    values: dict[str, object] = {
        **file_settings(files),
        "examples": f"{len(images):,}",
        "held_out": held_out_size(images),
        "size": size,
        "path_setting": setting_line(f"path = {toml_value(path)}", "the column of the image path") if path else "",
        "codebook_size": codebook_size,
        "downsampling": downsampling,
        "grid": size // downsampling,
        "width": width,
    }
    understood = f"{', '.join(map(str, files))}: images of {size} × {size} pixels after resizing"
    return _starter("image-codes", len(images), steps, min(64, max(4, len(images) // 8)), values, understood)


def text_to_image_recipe(files: Sequence[Path], options: StarterOptions) -> Starter:
    """Return a text-to-image recipe for captioned images in tables or shards."""
    images, values, understood = _read_captioned(files)
    layers, width, steps, dropout = _look_up(TEXT_TO_IMAGE_MODELS, len(images))
    values |= {
        **_transformer(layers, width),
        "size": _look_up(CODE_SIZES, median_short_side(images))[0],
        "vocabulary": min(8000, max(500, len(images) // 5)),
        "text_length": min(256, max(16, 2 * longest_text(images.texts()[0]))),
        "dropout": dropout,
    }
    batch = min(64, max(4, len(images) // 8))
    return _starter("text-to-image", len(images), steps, batch, values, understood, can_be_timed=False)  # it needs the codes' run
