"""Starter recipes for one's own pictures: their codes, and drawing them from their captions."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from regard.corpus.examples import Pictures
from regard.corpus.gallery import read_pictures
from regard.corpus.images import decode
from regard.errors import Mistake

LOOKED_AT = 64
# (shorter sides up to, size, pixels across a code)
SIZES = [(40, 32, 4), (96, 64, 8), (float("inf"), 128, 8)]
# (pictures up to, codes in the book, width of the convolutions, steps)
CODES = [(5_000, 256, 64, 5_000), (100_000, 1024, 128, 20_000), (float("inf"), 8192, 256, 100_000)]
# (pictures up to, layers, width, steps, dropout)
DRAWERS = [(5_000, 4, 256, 5_000, 0.2), (100_000, 8, 512, 30_000, 0.1), (float("inf"), 12, 768, 100_000, 0.0)]


def codes_recipe(files: Sequence[Path]) -> str:
    """For pictures in folders, tables or shards."""
    pictures = looked_at(files, captions=False)
    size, down = size_of(pictures)
    codes, width, steps = next(row[1:] for row in CODES if len(pictures) <= row[0])
    return f"""\
# Pictures in codes, from {len(pictures):,} of your own. Train it with:  regard train THIS_FILE --out runs/codes
# Every setting is explained in docs/settings.md; what is not written here has a default.
task = "codes"
seed = 1

{data_of(files, pictures, size)}
[model]
quantise = "vq"                 # the nearest vector of a book; "gumbel" is DALL·E's relaxation
codes = {codes}                     # vectors in the book
down = {down}                        # pixels across a code: {size // down} × {size // down} codes a picture
width = {width}

[train]
steps = {steps}
pictures_per_batch = {batch_of(pictures)}
evaluate_every = {steps // 20}
save_every = {steps // 20}

[train.augment]
flip = true                     # leave it out where left and right matter

[train.optimizer]
learning_rate = 1e-3

[train.schedule]
warmup_steps = {steps // 20}
"""


def draw_recipe(files: Sequence[Path]) -> str:
    """For pictures with captions in tables or shards."""
    pictures = looked_at(files, captions=True)
    layers, width, steps, dropout = next(row[1:] for row in DRAWERS if len(pictures) <= row[0])
    longest = max(len(text.split()) for text in pictures.texts()[0])
    return f"""\
# Pictures from captions, from {len(pictures):,} of your own. First make codes of them:
#   regard new codes --data … > codes.toml;  regard train codes.toml --out runs/codes;  regard train THIS_FILE --out runs/mine
# Every setting is explained in docs/settings.md; what is not written here has a default.
task = "draw"
seed = 1

{data_of(files, pictures, size_of(pictures)[0])}\
captions = [1]                  # the columns of the captions: numbers, counted from 0, or names
too_long = "truncate"           # captions of more than model.text_length tokens: "error", "drop" or "truncate"

[tokens]
kind = "bpe"
size = {min(8000, max(500, len(pictures) // 5))}

[model]
codes = {{ run = "runs/codes" }}  # the run that the codes were learned in; it is copied into this one
layers = {layers}
width = {width}
heads = {width // 64}
feed_forward = {4 * width}
text_length = {min(256, max(16, 2 * longest))}                # the longest caption has {longest} words

[train]
steps = {steps}
pictures_per_batch = {batch_of(pictures)}
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


def looked_at(files: Sequence[Path], *, captions: bool) -> Pictures:
    if not files:
        raise Mistake("name your data: --data F, a .tsv or .jsonl with paths of pictures and their captions, or .tar shards")
    return read_pictures(files, captions=[1] if captions else None)


def size_of(pictures: Pictures) -> tuple[int, int]:
    """What most pictures lose little by, and how much of it a code stands for."""
    sides = [min(decode(one.read(), str(one)).size) for one in pictures.pictures[::-(-len(pictures) // LOOKED_AT)]
             if not isinstance(one, np.ndarray)]
    return next(row[1:] for row in SIZES if np.median(sides) <= row[0])


def data_of(files: Sequence[Path], pictures: Pictures, size: int) -> str:
    held_out = min(2000, max(1, len(set(pictures.keys())) // 20))
    names = ", ".join(f'"{path.resolve()}"' for path in files)
    return f"""\
[data]
train = [{names}]
held_out = {held_out}                 # so many pictures are set aside to validate, and as many to test
size = {size}                       # every picture is brought to this height and width: the middle of it
origin = ""                     # where the pictures come from, and their licence; printed on the model's card
"""


def batch_of(pictures: Pictures) -> int:
    return min(64, max(4, len(pictures) // 8))
