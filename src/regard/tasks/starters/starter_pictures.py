"""Starter recipes for one's own pictures: their labels, their codes, and drawing them from their captions."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from regard.corpus.examples import ImageExamples
from regard.corpus.image_files import read_images
from regard.errors import UserError
from regard.tasks.starters.starter_files import detect_path_column, held_out_size, root_and_names, short_sides
from regard.tasks.starters.starter_pairs import read_captioned

# (shorter sides up to, size, pixels across a code)
SIZES = [(40, 32, 4), (96, 64, 8), (float("inf"), 128, 8)]
# (pictures up to, codes in the book, width of the convolutions, steps)
CODES = [(5_000, 256, 64, 5_000), (100_000, 1024, 128, 20_000), (float("inf"), 8192, 256, 100_000)]
# (pictures up to, layers, width, steps, dropout)
DRAWERS = [(5_000, 4, 256, 5_000, 0.2), (100_000, 8, 512, 30_000, 0.1), (float("inf"), 12, 768, 100_000, 0.0)]


# of labels: (shorter sides up to, size, patch)
LABEL_SIZES = [(40, 32, 4), (96, 64, 8), (160, 128, 16), (float("inf"), 224, 16)]
# (pictures up to, epochs, layers, width)
LABEL_NUMBERS = [(5_000, 200, 6, 192), (100_000, 200, 9, 384), (float("inf"), 90, 12, 384)]


def image_classification_recipe(task: str, folder: Path) -> str:
    """For a folder with a folder for each label, or with such folders in train and valid."""
    if task != "classify":
        raise UserError(f"--pictures: pictures are for the task classify, not {task!r}")
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; name one with a folder for each label")
    train = "train" if (folder / "train").is_dir() else "."
    pictures = read_images([folder / train], label=0)
    valid = next((name for name in ("valid", "validation", "val", "dev") if train == "train" and (folder / name).is_dir()), None)
    test = 'test.mine = ["test"]\n' if train == "train" and (folder / "test").is_dir() else ""
    held_out = held_out_size(pictures)
    checked = (
        f'valid = ["{valid}"]\n'
        if valid
        else f"""\
held_out = {held_out}                 # so many pictures are set aside to validate, and as many to test;
                                # or name your own folders:  valid = ["valid"]  and  test.mine = ["test"]
"""
    )
    size, patch = next(row[1:] for row in LABEL_SIZES if np.median(short_sides(pictures)) <= row[0])
    epochs, layers, width = next(row[1:] for row in LABEL_NUMBERS if len(pictures) <= row[0])
    batch = min(256, max(8, len(pictures) // 8))
    steps = max(200, epochs * -(-len(pictures) // batch))
    return f"""\
# Labels of pictures, from {len(pictures):,} of your own. Train it with:  regard train THIS_FILE --out runs/mine
# Every setting is explained in docs/settings.md; what is not written here has a default.
task = "classify"
seed = 1

[data]
root = "{folder.resolve()}"
train = ["{train}"]               # a folder for each label
{checked}{test}size = {size}                       # every picture is brought to this height and width: the middle of it
origin = ""                     # where the pictures come from, and their licence; printed on the model's card

[model]
kind = "vit"
layers = {layers}
width = {width}
heads = {width // 64}
feed_forward = {4 * width}
patch_size = {patch}                       # {size // patch} × {size // patch} patches are read like words

[train]
steps = {steps}                   # {epochs} times through the pictures
images_per_batch = {batch}
evaluate_every = {max(20, steps // 20)}
save_every = {max(20, steps // 20)}

[train.optimizer]
learning_rate = 1e-3
weight_decay = 0.05

[train.schedule]
warmup_steps = {max(20, steps // 20)}

[train.regularize]
dropout = 0.0
drop_path = 0.1
label_smoothing = 0.1

[train.augment]                 # what is done to the pictures while training; leave out what changes their meaning
crop_padding = {max(1, size // 8)}
flip = true
rand_augment = {{ operations = 2, magnitude = 9 }}
mixup = 0.8
cutmix = 1.0
random_erasing = 0.25
"""


def image_codes_recipe(files: Sequence[Path]) -> str:
    """For pictures in folders, tables or shards."""
    if not files:
        raise UserError("name your data: --data F, a folder of pictures, a .tsv or .jsonl with their paths, or .tar shards")
    path = detect_path_column(files[0])
    pictures = read_images(files, path=path)
    named = f"path = {json.dumps(path)}                        # the column of the path\n" if path else ""
    size, down = size_of(pictures)
    codes, width, steps = next(row[1:] for row in CODES if len(pictures) <= row[0])
    return f"""\
# Pictures in codes, from {len(pictures):,} of your own. Train it with:  regard train THIS_FILE --out runs/codes
# Every setting is explained in docs/settings.md; what is not written here has a default.
task = "image-codes"
seed = 1

{data_of(files, pictures, size)}{named}
[model]
quantizer = "vq"                 # the nearest vector of a book; "gumbel" is DALL·E's relaxation
codebook_size = {codes}                     # vectors in the book
downsampling = {down}                        # pixels across a code: {size // down} × {size // down} codes a picture
width = {width}

[train]
steps = {steps}
images_per_batch = {batch_of(pictures)}
evaluate_every = {steps // 20}
save_every = {steps // 20}

[train.augment]
flip = true                     # leave it out where left and right matter

[train.optimizer]
learning_rate = 1e-3

[train.schedule]
warmup_steps = {steps // 20}
"""


def text_to_image_recipe(files: Sequence[Path]) -> str:
    """For pictures with captions in tables or shards."""
    pictures, path, captions = read_captioned(files)
    layers, width, steps, dropout = next(row[1:] for row in DRAWERS if len(pictures) <= row[0])
    longest = max(len(text.split()) for text in pictures.texts()[0])
    return f"""\
# Pictures from captions, from {len(pictures):,} of your own. First make codes of them:
#   regard new image-codes --data … > codes.toml;  regard train codes.toml --out runs/codes
#   regard train THIS_FILE --out runs/mine
# Every setting is explained in docs/settings.md; what is not written here has a default.
task = "text-to-image"
seed = 1

{data_of(files, pictures, size_of(pictures)[0])}\
path = {json.dumps(path)}                        # the column of the path: its number, counted from 0, or its name
captions = {json.dumps(captions)}                  # the columns of the captions
too_long = "truncate"           # captions of more than model.text_length tokens: "error", "drop" or "truncate"

[tokens]
kind = "bpe"
size = {min(8000, max(500, len(pictures) // 5))}

[model]
image_codes = {{ run = "runs/codes" }}  # the run that the codes were learned in; it is copied into this one
layers = {layers}
width = {width}
heads = {width // 64}
feed_forward = {4 * width}
text_length = {min(256, max(16, 2 * longest))}                # the longest caption has {longest} words

[train]
steps = {steps}
images_per_batch = {batch_of(pictures)}
evaluate_every = {steps // 20}
save_every = {steps // 20}

[train.optimizer]
learning_rate = 5e-4

[train.schedule]
warmup_steps = {steps // 20}

[train.regularize]
dropout = {dropout}
label_smoothing = 0.0
"""


def size_of(pictures: ImageExamples) -> tuple[int, int]:
    """What most pictures lose little by, and how much of it a code stands for."""
    return next(row[1:] for row in SIZES if np.median(short_sides(pictures)) <= row[0])


def data_of(files: Sequence[Path], pictures: ImageExamples, size: int) -> str:
    root, names = root_and_names(files)
    return f"""\
[data]
root = "{root}"                       # relative paths start here
train = [{names}]
held_out = {held_out_size(pictures)}                 # so many pictures are set aside to validate, and as many to test
size = {size}                       # every picture is brought to this height and width: the middle of it
origin = ""                     # where the pictures come from, and their licence; printed on the model's card
"""


def batch_of(pictures: ImageExamples) -> int:
    return min(64, max(4, len(pictures) // 8))
