"""A starter recipe for one's own pictures with captions."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from regard.corpus.examples import Pictures
from regard.corpus.gallery import read_pictures
from regard.corpus.images import decode
from regard.corpus.table import kind_of
from regard.corpus.text import iterate_lines
from regard.errors import Mistake

PATHS = ("file", "file_name", "image", "path", "filename", "filepath", "picture")
CAPTIONS = ("captions", "caption", "text", "title", "sentences")
LOOKED_AT = 64
# (shorter sides up to, size, patch)
SIZES = [(40, 32, 4), (96, 64, 8), (160, 128, 16), (float("inf"), 224, 32)]
# (pictures up to, epochs, layers, width, pairs a batch)
NUMBERS = [(2_000, 60, 4, 128, 64), (50_000, 30, 6, 256, 256), (float("inf"), 32, 12, 512, 1024)]


def contrast_recipe(files: Sequence[Path]) -> str:
    """For .tsv, .jsonl, an index of pictures laid end to end, or tar shards."""
    if not files:
        raise Mistake("name your data: --data F, a .tsv or .jsonl with paths of pictures and captions, or .tar shards")
    path, captions = columns_of(files[0])
    pictures = read_pictures(files, captions=captions, path=path)
    held_out = min(1000, max(1, len(set(pictures.keys())) // 20))
    size, patch = next(row[1:] for row in SIZES if np.median(sides_of(pictures)) <= row[0])
    epochs, layers, width, batch = next(row[1:] for row in NUMBERS if len(pictures) <= row[0])
    batch = max(2, min(batch, len(pictures) // 4))
    steps = max(200, epochs * -(-len(pictures) // batch))
    longest = max(len(text.split()) for text in pictures.texts()[0])
    together = len({file.parent for file in files}) == 1
    names = ", ".join(f'"{file.name if together else file.resolve()}"' for file in files)
    return f"""\
# Which picture and which text belong together (CLIP), from {len(pictures):,} pictures of your own with \
{len(pictures.texts()[0]):,} captions.
# Train it with:  regard train THIS_FILE --out runs/mine
# Every setting is explained in docs/settings.md; what is not written here has a default.
task = "contrast"
seed = 1

[data]
root = "{files[0].parent.resolve() if together else Path()}"
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
space = {width}

[model.image]
layers = {layers}
width = {width}
heads = {width // 64}
feed_forward = {4 * width}
patch = {patch}                      # {size // patch} × {size // patch} patches are read like words

[model.text]
layers = {max(2, layers // 2)}
width = {width}
heads = {width // 64}
feed_forward = {4 * width}
max_length = {max(16, min(256, 3 * longest))}                 # the longest caption has {longest} words; what is longer is cut

[train]
steps = {steps}                   # {epochs} times through the pictures
pictures_per_batch = {batch}         # pairs that are told apart: the more the better, as far as memory goes
evaluate_every = {max(20, steps // 20)}
save_every = {max(20, steps // 20)}

[train.optimizer]
learning_rate = 5e-4
weight_decay = 0.1

[train.schedule]
warmup_steps = {max(20, steps // 20)}

[train.augment]                 # flip = true only where no caption says left or right
crop = {max(1, size // 8)}
"""


def columns_of(file: Path) -> tuple[int | str, list[int | str]]:
    """Where path and captions are: by the names of a .jsonl's fields or of a .tsv's first line, else first and after it."""
    if file.suffix == ".tar":
        return 0, [1]                                                             # they lie beside the pictures
    if kind_of(file) not in (".tsv", ".jsonl"):
        raise Mistake(f"{file}: give a .tsv or .jsonl with paths of pictures and captions, an .index.tsv, or .tar shards")
    first = next((line for line in iterate_lines(file) if line.strip()), "")
    try:
        row = json.loads(first) if kind_of(file) == ".jsonl" else dict.fromkeys(cell.strip() for cell in first.split("\t"))
    except json.JSONDecodeError:
        row = None
    if not isinstance(row, dict):
        raise Mistake(f"{file}:1 is not a JSON object")
    names = list(row)
    path, said = (next((name for name in known if name in names), None) for known in (PATHS, CAPTIONS))
    if kind_of(file) == ".jsonl" and (path is None or said is None):
        raise Mistake(f"{file}:1 has the fields {', '.join(names)}; name the path {' or '.join(PATHS[:3])}, and the captions "
                      f"{' or '.join(CAPTIONS[:2])}")
    if path is not None and said is not None:
        return path, [said]
    before, columns = 3 if ".index.tsv" in file.name else 1, first.count("\t") + 1        # a name; where it begins, its bytes
    if columns <= before:
        raise Mistake(f"{file}:1 has {columns} columns; captions are expected from column {before} on, counted from 0")
    return 0, list(range(before, columns))


def sides_of(pictures: Pictures) -> list[int]:
    """The shorter sides of some of them."""
    return [min(decode(one.read(), str(one)).size) for one in pictures.pictures[::-(-len(pictures) // LOOKED_AT)]
            if not isinstance(one, np.ndarray)]
