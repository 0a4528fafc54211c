"""Starter recipes for one's own pictures with captions: which belong together (CLIP), and saying what is seen."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from regard.corpus.examples import ImageExamples
from regard.corpus.image_files import read_images
from regard.errors import UserError
from regard.tasks.starters.starter_files import detect_columns, held_out_size, root_and_names, short_sides

# (shorter sides up to, size, patch)
SIZES = [(40, 32, 4), (96, 64, 8), (160, 128, 16), (float("inf"), 224, 32)]
# (pictures up to, epochs, layers, width, pairs a batch)
NUMBERS = [(2_000, 60, 4, 128, 64), (50_000, 30, 6, 256, 256), (float("inf"), 32, 12, 512, 1024)]


def contrastive_recipe(files: Sequence[Path]) -> str:
    """For .tsv, .jsonl, an index of pictures laid end to end, or tar shards."""
    pictures, path, captions = read_captioned(files)
    held_out, (root, names) = held_out_size(pictures), root_and_names(files)
    size, patch = next(row[1:] for row in SIZES if np.median(short_sides(pictures)) <= row[0])
    epochs, layers, width, batch = next(row[1:] for row in NUMBERS if len(pictures) <= row[0])
    batch = max(2, min(batch, len(pictures) // 4))
    steps = max(200, epochs * -(-len(pictures) // batch))
    longest = max(len(text.split()) for text in pictures.texts()[0])
    return f"""\
# Which picture and which text belong together (CLIP), from {len(pictures):,} pictures of your own with \
{len(pictures.texts()[0]):,} captions.
# Train it with:  regard train THIS_FILE --out runs/mine
# Every setting is explained in docs/settings.md; what is not written here has a default.
task = "contrastive"
seed = 1

[data]
root = "{root}"                       # relative paths start here
train = [{names}]
path = {json.dumps(path)}                        # the column of the picture's path: its number, counted from 0, or its name
captions = {json.dumps(captions)}                  # the columns of its captions
held_out = {held_out}                   # so many pictures are set aside to validate, and as many to test;
                                # or name your own:  valid = ["dev.tsv"]  and  test.mine = ["test.tsv"]
size = {size}                       # every picture is brought to this height and width: the middle of it
origin = ""                     # where the pictures come from, and their licence; printed on the model's card

[tokens]
kind = "bpe"
size = {min(16_000, max(500, len(pictures) // 2))}

[model]
projection_width = {width}

[model.image]
layers = {layers}
width = {width}
heads = {width // 64}
feed_forward = {4 * width}
patch_size = {patch}                      # {size // patch} × {size // patch} patches are read like words

[model.text]
layers = {max(2, layers // 2)}
width = {width}
heads = {width // 64}
feed_forward = {4 * width}
max_length = {max(16, min(256, 3 * longest))}                 # the longest caption has {longest} words; what is longer is cut

[train]
steps = {steps}                   # {epochs} times through the pictures
images_per_batch = {batch}         # pairs that are told apart: the more the better, as far as memory goes
evaluate_every = {max(20, steps // 20)}
save_every = {max(20, steps // 20)}

[train.optimizer]
learning_rate = 5e-4
weight_decay = 0.1

[train.schedule]
warmup_steps = {max(20, steps // 20)}

[train.augment]                 # flip = true only where no caption says left or right
crop_padding = {max(1, size // 8)}
"""


def caption_recipe(files: Sequence[Path]) -> str:
    """For .tsv, .jsonl, an index of pictures laid end to end, or tar shards."""
    pictures, path, columns = read_captioned(files)
    held_out, (root, names) = held_out_size(pictures), root_and_names(files)
    texts = pictures.texts()[0]
    steps, batch = max(500, 40 * len(pictures) // 64), min(64, max(8, len(pictures) // 8))
    longest = max(len(text.split()) for text in texts)
    return f"""\
# Captions of pictures, from {len(pictures):,} of your own with {len(texts):,} captions. Train it with:
#   regard train THIS_FILE --out runs/mine
# Every setting is explained in docs/settings.md; what is not written here has a default.
task = "caption"
seed = 1

[data]
root = "{root}"
train = [{names}]
path = {json.dumps(path)}                        # the column of the path: its number, counted from 0, or its name
captions = {json.dumps(columns)}
held_out = {held_out}                 # so many pictures are set aside to validate, and as many to test
too_long = "truncate"
size = 128                      # every picture is brought to this height and width: the middle of it
origin = ""                     # where the pictures come from, and their licence; printed on the model's card

[tokens]
kind = "words"
size = {min(8000, max(500, len(texts) // 4))}
lowercase = true

[model]
max_length = {max(24, 2 * longest)}                 # the longest caption has {longest} words

[model.encoder]                 # or EfficientNet-Lite0 with ImageNet's weights, which few pictures need: docs/caption.md
kind = "cnn"
widths = [32, 64, 128, 256]
strides = [2, 2, 2, 2]          # a map of 8 × 8 places

[model.decoder]
kind = "lstm"                   # or "transformer"
width = 256

[train]
steps = {steps}
images_per_batch = {batch}
evaluate_every = {max(20, steps // 20)}
evaluate_sentences = {min(200, held_out)}        # decoded for BLEU at each evaluation
save_every = {max(20, steps // 20)}

[train.optimizer]
learning_rate = 1e-3

[train.schedule]
warmup_steps = {max(20, steps // 20)}

[train.regularize]
dropout = 0.3
label_smoothing = 0.0

[train.augment]
crop_padding = 8

[decode]
beam = 3
length_penalty = 0.6
"""


def read_captioned(files: Sequence[Path]) -> tuple[ImageExamples, int | str, list[int | str]]:
    """Pictures with captions, and the columns of their paths and of their captions."""
    if not files:
        raise UserError("name your data: --data F, a .tsv or .jsonl with paths of pictures and captions, or .tar shards")
    path, captions = detect_columns(files[0])
    return read_images(files, captions=captions, path=path), path, captions
